"""Seeded draw of tokens in reading order, whole samples at a time, so that neighbours stay together.

Shapes: n tokens in reading order, S steps, K slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.cache import cached
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.flow_counter import CHUNK_ROWS
from tokenpaths.engine.store.file.packed_ids import unpack

MOST_TOKENS = 100_000
SEED = 0
MOST_GROUPS = 200
"""groups that the samples of a small run are dealt into"""
STRETCHES = 32
"""stretches of consecutive samples that are drawn of a large one"""


@dataclass(frozen=True)
class Drawn:
    """Tokens of whole samples, in reading order."""

    ids_nSK: np.ndarray
    """S = 1 for a single step"""
    token_ids_n: np.ndarray
    """−1 where unknown"""
    predicted_ids_n: np.ndarray
    """token that the model predicted to follow; −1 where unknown"""
    samples_n: np.ndarray
    tokens_n: np.ndarray
    counted: dict[str, Any]
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    """further columns of ``token`` by name (n,)"""

    @property
    def num_bytes(self) -> int:
        arrays = (self.ids_nSK, self.token_ids_n, self.predicted_ids_n, self.samples_n, self.tokens_n)
        return sum(array.nbytes for array in arrays)

    @property
    def follows_n(self) -> np.ndarray:
        """Whether each token directly follows the previous one in the same sample."""
        follows = np.zeros(len(self.samples_n), dtype=bool)
        follows[1:] = (self.samples_n[1:] == self.samples_n[:-1]) & (self.tokens_n[1:] == self.tokens_n[:-1] + 1)
        return follows


def draw_tokens(
    run: RunFile,
    step: int | None = None,
    label_id: int | None = None,
    most: int | None = None,
    extra: Sequence[str] = (),
) -> Drawn:
    """About ``most`` tokens at most: all of them, or those of a seeded draw of samples; at one step, or at all."""
    most = MOST_TOKENS if most is None else most
    whole_rows = run.layout.packed or run.layout.by_path  # these are read for all steps in any case
    if step is not None and whole_rows and not extra:
        name = f"{most} tokens drawn of label {label_id}"
        whole = cached(run, name, lambda: draw_tokens(run, None, label_id, most), lambda drawn: drawn.num_bytes)
        return replace(whole, ids_nSK=whole.ids_nSK[:, step : step + 1].copy())
    condition, num_samples, of_samples, of_tokens = _condition(run, label_id, most)
    layout = run.layout
    if step is None or whole_rows:
        columns = _id_columns(run)
    else:
        columns = ", ".join(layout.module_column(step, slot) for slot in range(layout.top_k))
    fields = [
        f"coalesce({name}, -1) AS {name}" if name in run.token_columns else f"-1 AS {name}"
        for name in ("token_id", "predicted_id")
    ]
    parts = list(
        run.chunks(
            Query(
                f"SELECT sample, token, {', '.join(fields)}, {', '.join([columns, *extra])} FROM token "
                f"WHERE {condition.sql} "
                "ORDER BY sample, token",
                condition.parameters,
            ),
            CHUNK_ROWS,
        )
    )
    ids = [_ids(run, [part[name] for name in list(part)[4 : len(part) - len(extra)]], step) for part in parts]
    shape = (0, layout.num_steps if step is None else 1, layout.top_k)
    joined = {
        name: np.concatenate([part[name] for part in parts]).astype(np.int64) if parts else np.zeros(0, np.int64)
        for name in ("sample", "token", "token_id", "predicted_id")
    }
    return Drawn(
        ids_nSK=np.concatenate(ids) if ids else np.zeros(shape, dtype=layout.id_dtype),
        token_ids_n=joined["token_id"],
        predicted_ids_n=joined["predicted_id"],
        samples_n=joined["sample"],
        tokens_n=joined["token"],
        counted={
            "num_tokens": len(joined["token"]),
            "of_tokens": of_tokens,
            "num_samples": num_samples,
            "of_samples": of_samples,
            "exact": len(joined["token"]) == of_tokens,
        },
        extra={name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0) for name in extra},
    )


def draw_groups(
    run: RunFile, first_row_m: np.ndarray, num_tokens_m: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """(n,) group of samples and (n, S, K) choices of all tokens, and of how many samples these are, where a part of one
    counts as that part, but for one that a stretch ends in; of a run with more than ``most`` of a seeded draw of
    stretches of consecutive samples, which are found without reading the rest.

    A stretch is one group, so what its samples share by standing together counts as shared.
    """
    m, total, columns = len(num_tokens_m), int(num_tokens_m.sum()), _id_columns(run)
    rng = np.random.default_rng(SEED)
    if total <= most:
        group_m = np.arange(m) if m <= MOST_GROUPS else rng.permutation(m) % MOST_GROUPS
        groups, ranges, met = [np.repeat(group_m, num_tokens_m)], [(0, total)], float(m)
    else:
        groups, ranges, met = [], [], 0.0
        bounds = np.linspace(0, m, min(STRETCHES, m) + 1).astype(np.int64).tolist()
        each = most // (len(bounds) - 1)
        for group, (low, high) in enumerate(zip(bounds, bounds[1:], strict=False)):
            first = int(rng.integers(low, high))
            stop = int(first_row_m[high - 1] + num_tokens_m[high - 1])
            ranges.append((int(first_row_m[first]), min(stop, int(first_row_m[first]) + each)))
            groups.append(np.full(ranges[-1][1] - ranges[-1][0], group))
            begun = slice(first, int(np.searchsorted(first_row_m, ranges[-1][1])))
            read_m = np.minimum(ranges[-1][1] - first_row_m[begun], num_tokens_m[begun])
            met += max(1.0, float((read_m / np.maximum(1, num_tokens_m[begun])).sum()))
    query = f"SELECT {columns} FROM token WHERE rowid >= ? AND rowid < ? ORDER BY rowid"
    parts = [list(run.arrays(Query(query, bounds_of_rows)).values()) for bounds_of_rows in ranges]
    ids = _ids(run, [np.concatenate(column) for column in zip(*parts, strict=True)], None)
    return np.concatenate(groups), ids, met


def _id_columns(run: RunFile) -> str:
    """The columns of ``token`` that ``_ids`` reads for all steps."""
    if run.layout.packed:
        return "ids"
    return "path_id" if run.layout.by_path else ", ".join(run.layout.module_columns())


def _condition(run: RunFile, label_id: int | None, most: int) -> tuple[Query, int, int, int]:
    """SQL condition for the tokens; then the number of samples drawn, of all samples, and of their tokens."""
    where, parameters = ("true", ()) if label_id is None else ("label_id = ?", (label_id,))
    rows = run.rows(Query(f"SELECT sample, num_tokens FROM sample WHERE {where} ORDER BY sample", parameters))
    of_tokens = sum(tokens for _, tokens in rows)
    if of_tokens <= most:
        return Query(where, parameters), len(rows), len(rows), of_tokens
    order = np.random.default_rng(SEED).permutation(len(rows))
    sums = np.cumsum([min(rows[i][1], most) for i in order])
    drawn = sorted(rows[i][0] for i in order[: int(np.searchsorted(sums, most)) + 1])
    # A sample longer than all that may be read is read from its beginning.
    return Query("token < ? AND sample IN (SELECT unnest(?))", (most, drawn)), len(drawn), len(rows), of_tokens


def _ids(run: RunFile, columns: Sequence[Any], step: int | None) -> np.ndarray:
    """(n, S, K) of the fetched columns; of one step (n, 1, K)."""
    layout = run.layout
    if layout.packed:
        ids = unpack(columns[0], layout).reshape(-1, layout.num_steps, layout.top_k)
        return ids if step is None else ids[:, step : step + 1].copy()
    if layout.by_path:
        ids = run.look_up(columns[0].astype(np.int64))[1][:, :, None]
        return ids if step is None else ids[:, step : step + 1].copy()
    return np.stack(columns, axis=1).reshape(len(columns[0]), -1, layout.top_k)
