"""What a run keeps of its untrained twin's paths, counted from ribbons, and as a small file of its own.

Shapes: n tokens, P distinct paths, S steps, K slots, M modules.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tokenpaths.engine.analysis.compiled.loops import ready
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.store.file.hash_sample import KNOWN_TOKENS, HashSample
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.write.path_dictionary import TAKE_ROWS, PathDictionary

FORMAT = 1
MOST_FILE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class TwinPaths:
    """Frequencies and usage of a twin's paths, and its paths of the hash sample of tokens."""

    count_values: np.ndarray
    """int64, the distinct numbers of tokens of a path, descending"""
    count_repeats: np.ndarray
    """int64, how many paths have each"""
    used_SM: np.ndarray
    """int64, tokens of each module at each step"""
    known: np.ndarray | None
    """int32, a path of each token of ``known_token``, numbered by ribbon; None unless all tokens were counted"""

    @property
    def num_tokens(self) -> int:
        return int(self.count_values @ self.count_repeats)

    def counts(self) -> np.ndarray:
        """(P,) tokens of each path, descending."""
        return np.repeat(self.count_values, self.count_repeats)

    def of_run(self, num_tokens: int) -> TwinPaths:
        """The same for a run of so many tokens: with fewer, places of the two would not agree."""
        return self if self.num_tokens == num_tokens else replace(self, known=None)

    def fits(self, layout: Layout, num_tokens: int) -> bool:
        """Whether these are the paths of all tokens of a run."""
        return self.num_tokens == num_tokens and self.used_SM.shape == (layout.num_steps, layout.num_modules)


class TwinCounter:
    """Counts the ribbons of a twin in the order of tokens.

    Args:
        layout: of the run.
        folder: where ribbons go that memory does not hold.
        known_tokens: size of the run's hash sample of tokens.
        first_row: row of its first token in the run.
    """

    def __init__(
        self, layout: Layout, folder: Path | None = None, known_tokens: int = KNOWN_TOKENS, first_row: int = 0
    ) -> None:
        self.layout = layout
        self._first_row = first_row
        self._book = PathDictionary(layout.id_dtype, folder)
        self._sketch = HashSample(known_tokens)

    @property
    def num_tokens(self) -> int:
        return self._book.num_tokens

    def add(self, ids: np.ndarray) -> None:
        """Count ribbons (n, S, K) of the next tokens."""
        first_row = self._first_row + self._book.num_tokens
        self._sketch.add(first_row, {"path_id": self._book.add(ids)[0]})

    def arrays(self) -> dict[str, np.ndarray]:
        """What was counted, for ``add_arrays`` of the counter of the whole run; empty without tokens."""
        if not self.num_tokens:
            return {}
        sketch = {f"known_{name}": values for name, values in self._sketch.columns().items()}
        return {"ribbons": self._book.ribbons(), "counts": self._book.counts(), **sketch}

    def add_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """Count what ``arrays`` of another counter, of the tokens that come next, says."""
        if not arrays:
            return
        numbers = self._book.merge(arrays["ribbons"], arrays["counts"])
        self._sketch.merge({"hash": arrays["known_hash"], "path_id": numbers[arrays["known_path_id"]]})

    def paths(self) -> TwinPaths | None:
        """What was counted; None without tokens. Nothing may be added afterwards."""
        if not self.num_tokens:
            return None
        self._book.complete()
        values, repeats = np.unique(self._book.counts(), return_counts=True)
        used = np.zeros((self.layout.num_steps, self.layout.num_modules), dtype=np.int64)
        for start in range(0, self._book.num_paths, TAKE_ROWS):
            path_ids = np.arange(start, min(start + TAKE_ROWS, self._book.num_paths))
            ribbons = self._book.ribbons(path_ids).reshape(-1, self.layout.num_steps, self.layout.top_k)
            used += tokens_of_modules(self.layout, ribbons, self._book.counts()[path_ids])
        return TwinPaths(values[::-1].astype(np.int64), repeats[::-1].astype(np.int64), used, self._numbered())

    def _numbered(self) -> np.ndarray:
        """Paths of the hash sample, numbered by their ribbons, independent of the batches."""
        distinct, place_n = np.unique(self._sketch.columns()["path_id"], return_inverse=True)
        _, number = np.unique(self._book.ribbons(distinct), axis=0, return_inverse=True)
        return number.reshape(-1)[place_n.reshape(-1)].astype(np.int32)


def tokens_of_modules(layout: Layout, ribbons_PSK: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(S, M) tokens of each module where ``counts`` tokens take these paths; no shuffle within a step changes them."""
    counts_PK = None if bool((counts == 1).all()) else np.repeat(counts, layout.top_k)
    used = np.zeros((ribbons_PSK.shape[1], layout.num_modules), dtype=np.int64)
    if counts_PK is None and (compiled := ready(ribbons_PSK.dtype)) is not None:
        compiled.count_visits(np.ascontiguousarray(ribbons_PSK), np.zeros(len(ribbons_PSK), dtype=np.int64), used[None])
        return used
    for step in range(len(used)):
        # Sums of whole numbers in float64 are exact below 2**53.
        used[step] = np.bincount(ribbons_PSK[:, step].reshape(-1), counts_PK, layout.num_modules).astype(np.int64)
    return used


def write_twin_file(file: Path, twin: TwinPaths) -> None:
    """Write ``file``, whole or not at all; OSError if the disk refuses."""
    assert twin.known is not None, "only paths of all tokens are kept"
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        format=np.array(FORMAT),
        count_values=twin.count_values,
        count_repeats=twin.count_repeats,
        used=twin.used_SM,
        known=twin.known,
    )
    write_atomically(file, buffer.getvalue())


def read_twin_file(file: Path) -> TwinPaths | None:
    """The paths in ``file``; None if there is none, or it is damaged: then the twin is traced anew."""
    try:
        if file.stat().st_size > MOST_FILE_BYTES:
            return None
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as kept:
            if int(kept["format"]) != FORMAT:
                return None
            names = ("count_values", "count_repeats", "used", "known")
            values, repeats, used, known = (kept[name] for name in names)
            twin = TwinPaths(values, repeats, used, known)
        _check(twin)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, UserError):
        return None
    return twin


def _check(twin: TwinPaths) -> None:
    """UserError unless the arrays fit together: a file may have been cut, or be of another program."""
    assert twin.known is not None
    values, repeats, used = twin.count_values, twin.count_repeats, twin.used_SM
    types = all(array.dtype == np.int64 for array in (values, repeats, used)) and twin.known.dtype == np.int32
    shapes = values.ndim == repeats.ndim == twin.known.ndim == 1 and used.ndim == 2 and len(values) == len(repeats) > 0
    if not types or not shapes or (values < 1).any() or (repeats < 1).any() or (np.diff(values) >= 0).any():
        raise UserError("no paths of a twin")
    if len(twin.known) != min(twin.num_tokens, KNOWN_TOKENS) or (twin.known < 0).any() or (used < 0).any():
        raise UserError("no paths of a twin")
