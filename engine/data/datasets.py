"""Any collection of images or texts as one stream of samples.

    for sample in open_dataset("pictures/", "vision", limit=100): ...

Accepted: a folder of images (sub-folders are labels); Parquet and Arrow files and folders of them; what
``Dataset.save_to_disk`` of Hugging Face writes; WebDataset archives; CSV and TSV; JSONL; text files; a single image or
text; and the bundled sets (``bundled:scenes``, ``bundled:photos``, ``bundled:pictures``, ``bundled:digits``,
``bundled:texts``, ``bundled:languages``). Labels are read when the set is opened; contents are read
while iterating, a few at a time.
Files are read and decoded in a confined child (``tokenpaths.engine.data.sources.confined_source``).
Pickles and URLs are never opened.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import Modality
from tokenpaths.engine.data.blocks import shard_rows
from tokenpaths.engine.data.images import REGIONS
from tokenpaths.engine.data.labels import Remarks, alike_sentence, look_alikes, read_source
from tokenpaths.engine.data.sources.confined_source import ConfinedSource
from tokenpaths.engine.data.sources.identity import identity_of
from tokenpaths.engine.data.sources.opening import refuse_columns
from tokenpaths.engine.data.sources.passages import passage_spans
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample, Source
from tokenpaths.engine.data.sources.shard_names import name_of_shards, shard_files
from tokenpaths.engine.data.sources.splits import refuse_split, split_of_name
from tokenpaths.engine.data.walk import Walk

__all__ = ["BUNDLED", "Dataset", "Sample", "open_dataset", "spread_rows"]

BUNDLED: Final[dict[str, Modality]] = {
    "bundled:scenes": "vision",
    "bundled:photos": "vision",
    "bundled:pictures": "vision",
    "bundled:digits": "vision",
    "bundled:texts": "text",
    "bundled:languages": "text",
}
_REFUSED: Final = {
    **dict.fromkeys((".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".npy", ".npz", ".joblib"), "may run code when opened"),
    **dict.fromkeys((".zip", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z"), "is an archive: unpack it first"),
    **dict.fromkeys((".duckdb", ".db", ".sqlite"), "is a database, not a set of samples"),
}
_GOOD = "a folder, an image, a text file, .jsonl, .csv, .parquet, .arrow, .tar or " + ", ".join(BUNDLED)


class Dataset:
    """Samples that can be walked through again and again, each time in the same order.

    ``num_samples`` is known in advance (an upper bound with ``skip_bad``), but not of passages.
    ``walk`` says what the last walk changed or left out (nothing without ``skip_bad``: the first bad one is raised).
    """

    def __init__(
        self,
        source: Source,
        *,
        name: str,
        split: str,
        modality: Modality,
        limit: int | None,
        seed: int,
        skip_bad: bool,
        passage_chars: int | None,
    ) -> None:
        self.name, self.split, self.modality = name, split, modality
        self._source, self._skip_bad, self._passage_chars = source, skip_bad, passage_chars
        self._limit = limit
        self._rows = self._all_rows = spread_rows(source.index, limit, seed)
        self.first_place = 0
        """place of the first row; more than 0 in a shard"""
        self.num_samples: int | None = None if passage_chars else len(self._rows)
        codes = np.unique(source.index.codes[self._rows])
        self.labels: tuple[str, ...] = tuple(source.index.names[code] for code in codes if code >= 0)
        self.regions: tuple[str, ...] = REGIONS if source.has_masks else ()
        self.walk = Walk()

    @property
    def notes(self) -> list[str]:
        """What was changed, merged or left out of labels and files when the data set was opened; empty if nothing."""
        index = self._source.index
        notes = getattr(self._source, "remarks", Remarks()).sentences()
        if notes and len(self._all_rows) < len(index):
            notes.append(f"these notes count all {len(index):,} rows, of which {len(self._all_rows):,} were asked for")
        unlabelled = int((index.codes[self._all_rows] < 0).sum())
        if self.labels and unlabelled:
            notes.append(f"{unlabelled:,} of {len(self._all_rows):,} samples have no label")
        counts = np.bincount(index.codes[self._all_rows] + 1, minlength=len(index.names) + 1)[1:].tolist()
        sizes = {name: count for name, count in zip(index.names, counts, strict=True) if count}
        alike = alike_sentence([(name, sizes[name]) for name in group] for group in look_alikes(sizes))
        return [*notes, *([alike] if alike else [])]

    def __iter__(self) -> Iterator[Sample]:
        samples = self._good()
        if self._passage_chars:
            samples = islice(_passages(samples, self._passage_chars), self._limit)
        return samples

    @property
    def num_places(self) -> int:
        """Rows of the whole data set that were asked for, in a shard too."""
        return len(self._all_rows)

    @property
    def num_rows(self) -> int:
        """Rows of this part of the data set: all ``num_places``, or those of its shard."""
        return len(self._rows)

    def shard(self, shard: int, of: int, block: int) -> Dataset:
        """The rows of shard ``shard`` = 1 … ``of``, cut between blocks of ``block`` rows; it may be empty.

        Raises:
            UserError: ``limit`` counts passages, which only a walk through all rows can do.
        """
        if self._passage_chars and self._limit:
            raise UserError(
                "a limit on passages counts from the first text on, which a shard does not read; "
                "leave out --limit, or cut the data set before",
                field="limit",
            )
        first, stop = shard_rows(self.num_places, block, shard, of)
        part = copy.copy(self)
        part._rows, part.first_place = self._all_rows[first:stop], first
        part.num_samples = None if self._passage_chars else stop - first
        return part

    @property
    def stop_place(self) -> int:
        """Place behind the last row."""
        return self.first_place + len(self._rows)

    def identity(self) -> str:
        """SHA-256 (hex) that tells this data set from others, the same for all its shards (see ``identity_of``)."""
        index = self._source.index
        how = {"name": self.name, "modality": self.modality, "passages": self._passage_chars}
        how |= {name: getattr(self._source, name, None) for name in ("_text_column", "_content")}
        own_split = getattr(self._source, "split", None)
        how |= {"split": own_split} if own_split else {}
        content = getattr(self._source, "content_sha256", None)  # of a source without files of its own
        how |= {"content": content} if content else {}
        how |= {"limit": self._limit} if self._passage_chars and self._limit else {}  # counts passages too
        return identity_of(self._all_rows, index.names, index.codes, getattr(self._source, "paths", ()), how)

    def _good(self) -> Iterator[Sample]:
        self.walk = Walk()
        any_good = len(self._rows) < self.num_places  # a shard may be empty
        for place, sample in enumerate(self._source.read(self._rows.tolist()), self.first_place):
            if isinstance(sample, Sample):
                any_good = True
                source, kinds = read_source(sample.source)
                sample = replace(sample, place=place, source=source)
                self.walk.see(sample, kinds)
                yield sample
            elif not self._skip_bad:
                raise sample
            else:
                self.walk.leave_out(str(sample))
        if not any_good:
            raise UserError(
                f"None of the {self.walk.left_out} samples of '{self.name}' can be used; "
                f"the first: {self.walk.problems[0]}",
                field="data",
            )


def open_dataset(
    path_or_name: str | Path,
    modality: Modality,
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    image_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    skip_bad: bool = False,
    passage_chars: int | None = None,
    split: str | None = None,
) -> Dataset:
    """Open a set of samples of one modality; raises ``UserError`` for what cannot be one.

    ``limit`` takes so many rows, spread evenly over the labels, chosen by ``seed``, in their own order.
    ``skip_bad`` leaves out samples that cannot be used instead of stopping at the first one.
    ``passage_chars`` cuts longer texts into passages of at most so many characters (then
    ``num_samples`` is None, and ``limit`` bounds the passages too).
    ``split`` takes one split of a data set that has several, such as a saved ``DatasetDict``.
    """
    if limit is not None and limit < 1:
        raise UserError(f"A limit of {limit} samples leaves none; give at least 1.", field="limit")
    if passage_chars is not None and passage_chars < 1:
        raise UserError(f"Passages of {passage_chars} characters; give at least 1.", field="passage_chars")
    name = str(path_or_name)
    columns = {"text_column": text_column, "image_column": image_column, "label_column": label_column}
    if name.startswith("bundled:"):
        refuse_columns(name, columns)
        refuse_split(split, name)
        source, name, split = _bundled(name, modality), name.removeprefix("bundled:"), "all"
    else:
        path = _existing(name)
        source = ConfinedSource(path, modality=modality, columns=columns, skip_bad=skip_bad, split=split)
        name = path.resolve().name if path.is_dir() else name_of_shards(path)
        split = source.split or split_of_name(name)
    return Dataset(
        source,
        name=name,
        split=split,
        modality=modality,
        limit=limit,
        seed=seed,
        skip_bad=skip_bad,
        passage_chars=passage_chars if modality == "text" else None,
    )


def spread_rows(index: LabelIndex, limit: int | None, seed: int) -> np.ndarray:
    """At most ``limit`` row numbers, ascending, as even over the labels as they allow.

    Rows take turns by label: each label gives its first (in a seeded order), then its second, …; rows
    without label count as one more label. Where labels outnumber ``limit``, the seed picks among them.
    """
    num_rows = len(index)
    if limit is None or limit >= num_rows:
        return np.arange(num_rows)
    rng = np.random.default_rng(seed)
    order = rng.permutation(num_rows)
    codes = index.codes[order]
    by_label = np.argsort(codes, kind="stable")
    sorted_codes = codes[by_label]
    starts = np.searchsorted(sorted_codes, sorted_codes)
    turn = np.empty(num_rows, np.int64)
    turn[by_label] = np.arange(num_rows) - starts
    label_order = rng.permutation(len(index.names) + 1)[codes]  # −1 takes the last place
    chosen = np.lexsort((label_order, turn))[:limit]
    return np.sort(order[chosen])


def _bundled(name: str, modality: Modality) -> Source:
    if name not in BUNDLED:
        raise UserError(f"'{name}' is not bundled; there are {', '.join(BUNDLED)}.", field="data")
    if BUNDLED[name] != modality:
        fitting = ", ".join(other for other, kind in BUNDLED.items() if kind == modality)
        raise UserError(
            f"'{name}' is for {BUNDLED[name]} models and this one takes {modality}; try {fitting}.", field="data"
        )
    from tokenpaths.engine.data.bundled import open_bundled

    return open_bundled(name)


def _existing(name: str) -> Path:
    """The path that ``name`` means, if it exists and is nothing dangerous."""
    if re.match(r"^[A-Za-z][A-Za-z0-9+.-]+:/", name):
        raise UserError(f"'{name}' is a URL, and nothing is fetched; download it and give {_GOOD}.", field="data")
    if not name or "\0" in name:
        raise UserError(f"{name!r} is no path; give {_GOOD}.", field="data")
    path = Path(name)
    siblings: list[str] = []
    try:
        path = path.expanduser()
        if shard_files(path):
            return path
        exists = path.exists()
        if not exists and path.parent.is_dir():
            siblings = [p.name for p in path.parent.iterdir()]
    except (OSError, RuntimeError):  # a name too long, a folder closed to us, ~nobody
        exists = False
    if not exists:
        near = difflib.get_close_matches(path.name, siblings, 3)
        hint = f" (near it: {', '.join(near)})" if near else ""
        if path.name in siblings:
            raise UserError(f"'{name}' is a link that leads nowhere; give {_GOOD}.", field="data")
        raise UserError(f"There is no file or folder '{name}'{hint}; give {_GOOD}.", field="data")
    reason = _REFUSED.get(path.suffix.lower()) if path.is_file() else None
    if reason:
        raise UserError(f"'{name}' {reason}; give {_GOOD}.", field="data")
    if not path.is_file() and not path.is_dir():
        raise UserError(f"'{name}' is neither a file nor a folder; give {_GOOD}.", field="data")
    return path


def _passages(samples: Iterator[Sample], longest: int) -> Iterator[Sample]:
    for sample in samples:
        text = sample.text or ""
        if len(text) <= longest:
            yield sample
            continue
        for start, end in passage_spans(text, longest):
            yield replace(sample, text=text[start:end], source=f"{sample.source}, characters {start}–{end}")
