"""Matching of samples between two runs: by source, checked by content; else by content; else by position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.sealed_answers import sealed
from tokenpaths.engine.store.ask.tables import lookups
from tokenpaths.engine.store.ask.tables.excerpts import open_picture
from tokenpaths.engine.store.file.filters import Query

if TYPE_CHECKING:
    import pandas as pd


AT_ONCE = 256
"""pairs whose pictures are decoded at once if their bytes differ"""
SMALL_SIDE = 8
SAME_PICTURE = 0.12
"""largest mean difference, 0 … 1, of two small grey pictures that count as equal"""
MOST_CHECKED = 5_000_000
"""tokens of a run whose vocabulary ids are compared where nothing else tells whether two samples are the same"""
_NUMBERS = "sample, num_tokens, first_row, compute, reuse, loss, grid_rows, grid_cols"
"""read for all samples; other columns are read for the few that are shown: reading all labels took as long as this"""
_CONTENT = "CASE WHEN text IS NOT NULL THEN md5(text) WHEN image IS NOT NULL THEN md5(image) END"
_FINGERPRINT = f"""
SELECT count(source) = count(*), count(content) = count(*),
    bit_xor(md5_number_upper(line)), bit_xor(md5_number_lower(line))
FROM (SELECT source, content, concat(
        sample, ' ', coalesce(content, '-'), ' ', CASE WHEN source IS NULL THEN '-' ELSE '+' || source END) AS line
      FROM (SELECT sample, source, {_CONTENT} AS content FROM sample))
"""
"""one 128-bit number over the places, sources and contents of all samples, independent of reading order"""


@dataclass(frozen=True)
class Matched:
    """Pairs of samples, one row each, in the order of the first run."""

    pairs: pd.DataFrame
    """columns as in ``_NUMBERS``, if needed also has_image, source and content, with suffixes _a and _b"""
    by: str | None
    """source, content or place; None: no pairs"""
    only_a: int
    only_b: int
    different: int
    """number of samples with equal source but different content"""
    by_name: int = 0
    """number of pairs of equal source of which no content was compared"""

    @property
    def whole(self) -> bool:
        """Whether every sample of both runs has a partner."""
        return not self.only_a and not self.only_b

    def as_json(self) -> dict[str, Any]:
        """The counts, and a sentence on how the samples were paired."""
        return {
            "by": self.by,
            "num": len(self.pairs),
            "only_a": self.only_a,
            "only_b": self.only_b,
            "different": self.different,
            "by_name": self.by_name,
        }


def match_samples(a: RunFile, b: RunFile) -> Matched:
    """Pair the samples of two runs.

    Samples of equal source (the k-th with the k-th, if several) are paired if their texts or pictures are the same;
    pictures of two models may be cropped differently, so differing ones are compared as small grey pictures. Logs have
    neither, and often numbers for names: then vocabulary ids are compared, if all lengths agree. If sources are
    missing or have nothing in common, samples of equal text or picture are paired. Without sources and contents,
    samples are paired by place, if both runs are of one data set and all lengths agree.
    """
    if matched := _the_same(a, b):
        return matched
    columns = f"{_NUMBERS}, image IS NOT NULL AS has_image, source, {_CONTENT} AS content"
    left, right = (_samples(run, columns) for run in (a, b))
    others = 0
    for by in ("source", "content"):
        if left[by].isna().any() or right[by].isna().any():
            continue
        pairs = _joined(left, right, by)
        different = by_name = 0
        if by == "source":
            same, unchecked = _same_content(a, b, pairs)
            different, by_name, pairs = int((~same).sum()), int((same & unchecked).sum()), pairs[same]
            others = different
        if len(pairs):
            return replace(_matched(pairs, left, right, by, different), by_name=by_name)
    alike = a.row["dataset"] == b.row["dataset"] and a.row["split"] == b.row["split"]
    blank = left["source"].isna().all() and left["content"].isna().all()
    if alike and blank and len(left) == len(right) and (left["num_tokens"] == right["num_tokens"]).all():
        pairs = left.add_suffix("_a").join(right.add_suffix("_b"))
        return _matched(pairs, left, right, "place", 0)
    nothing = left.iloc[:0].add_suffix("_a").join(right.iloc[:0].add_suffix("_b"))
    return _matched(nothing, left, right, None, others)


@dataclass(frozen=True)
class Pairing:
    """Which samples of two runs are the same, as (p,) sample numbers of each, in the order of the first run."""

    rows_a: np.ndarray
    rows_b: np.ndarray
    only_a: int
    only_b: int

    @property
    def num(self) -> int:
        """Pairs."""
        return len(self.rows_a)

    @property
    def whole(self) -> bool:
        """Whether every sample of both runs has a partner."""
        return self.num > 0 and not self.only_a and not self.only_b

    @classmethod
    def nothing(cls, a: RunFile, b: RunFile) -> Pairing:
        """No pair at all."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, int(a.row["num_samples"] or 0), int(b.row["num_samples"] or 0))


def pair_samples(a: RunFile, b: RunFile) -> Pairing:
    """The pairs of ``match_samples`` as numbers; of runs over the same samples in the same order nothing is read."""
    if _same_list(a, b):
        every = np.arange(int(a.row["num_samples"]))
        return Pairing(every, every, 0, 0)
    matched = match_samples(a, b)
    rows = [matched.pairs[f"sample_{side}"].to_numpy(dtype=np.int64) for side in "ab"]
    return Pairing(rows[0], rows[1], matched.only_a, matched.only_b)


@sealed("samples_fingerprint")
def samples_fingerprint(run: RunFile) -> dict[str, Any]:
    """Fingerprint that is equal for runs over the same samples in the same order, without reading them; and whether
    every sample has a source, and a content."""
    ((sources, contents, upper, lower),) = run.rows(Query(_FINGERPRINT))
    return {"run": run.run_id, "fingerprint": f"{upper:016x}{lower:016x}", "sources": sources, "contents": contents}


def _the_same(a: RunFile, b: RunFile) -> Matched | None:
    """Pair samples by place, for two large runs whose sealed fingerprints are equal; None: samples must be read.
    For equal lists all rules below give this pairing."""
    if not _same_list(a, b):
        return None
    left, right = (_samples(run, _NUMBERS) for run in (a, b))
    pairs = left.add_suffix("_a").join(right.add_suffix("_b"))
    known = samples_fingerprint(a)
    matched = _matched(pairs, left, right, "source" if known["sources"] else "content", 0)
    return matched if known["contents"] else replace(matched, by_name=len(pairs))


def _same_list(a: RunFile, b: RunFile) -> bool:
    """Whether both runs are over the same samples in the same order, each with a content, or with a source where there
    are too many tokens to be compared."""
    own, other = samples_fingerprint(a), samples_fingerprint(b)
    if own["fingerprint"] != other["fingerprint"]:
        return False
    many = max(run.row["num_tokens"] for run in (a, b)) > MOST_CHECKED
    return bool(own["contents"] or (own["sources"] and many))


def _samples(run: RunFile, columns: str) -> pd.DataFrame:
    with run.cursor() as cursor:
        return cursor.execute(f"SELECT {columns} FROM sample ORDER BY sample").df()


def _matched(pairs: pd.DataFrame, left: pd.DataFrame, right: pd.DataFrame, by: str | None, different: int) -> Matched:
    pairs = pairs.sort_values("sample_a", kind="stable").reset_index(drop=True)
    return Matched(pairs, by, len(left) - len(pairs), len(right) - len(pairs), different)


def _joined(left: pd.DataFrame, right: pd.DataFrame, by: str) -> pd.DataFrame:
    """Pair the k-th sample of each key with the k-th one of the other run."""
    sides = [
        frame.assign(key=frame[by], place=frame.groupby(by).cumcount()).set_index(["key", "place"])
        for frame in (left, right)
    ]
    return sides[0].add_suffix("_a").join(sides[1].add_suffix("_b"), how="inner").reset_index(drop=True)


def _same_content(a: RunFile, b: RunFile, pairs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Whether each pair of one source has the same content, and whether that is not known: then it counts as the
    same."""
    unknown = pairs["content_a"].isna() | pairs["content_b"].isna()
    same: np.ndarray = ((pairs["content_a"] == pairs["content_b"]) | unknown).to_numpy(dtype=bool, copy=True)
    doubtful = np.flatnonzero(~same & pairs["has_image_a"].to_numpy(bool) & pairs["has_image_b"].to_numpy(bool))
    numbers = [pairs[f"sample_{side}"].to_numpy() for side in "ab"]
    for first in range(0, len(doubtful), AT_ONCE):
        part = doubtful[first : first + AT_ONCE]
        small = [_small_pictures(run, side[part].tolist()) for run, side in zip((a, b), numbers, strict=True)]
        same[part] = np.abs(small[0] - small[1]).mean(axis=(1, 2)) <= SAME_PICTURE
    unchecked = unknown.to_numpy(dtype=bool, copy=True)
    bare = np.flatnonzero(unchecked)
    if len(bare) and (equal := _same_tokens(a, b, pairs.iloc[bare])) is not None:
        same[bare], unchecked[bare] = equal, False
    return same, unchecked


def _same_tokens(a: RunFile, b: RunFile, pairs: pd.DataFrame) -> np.ndarray | None:
    """Whether each pair has the same vocabulary ids; None if that is not known, or no sign of other texts: another
    tokenizer cuts a text otherwise."""
    if (pairs["num_tokens_a"] != pairs["num_tokens_b"]).any():
        return None
    sums = []
    for run, side in ((a, "a"), (b, "b")):
        if "token_id" not in run.token_columns or run.row["num_tokens"] > MOST_CHECKED:
            return None
        ask = "SELECT sample, bit_xor(hash(token, token_id)) AS ids, count(token_id) = count(*) AS known FROM token"
        columns = run.arrays(Query(f"{ask} GROUP BY sample ORDER BY sample"))  # every sample has a token
        rows = np.searchsorted(columns["sample"], pairs[f"sample_{side}"].to_numpy())
        if not columns["known"][rows].all():
            return None
        sums.append(columns["ids"][rows])
    equal: np.ndarray = sums[0] == sums[1]
    return equal


def _small_pictures(run: RunFile, numbers: list[int]) -> np.ndarray:
    """(n, 8, 8) grey values in [0, 1] of these samples, in their order."""
    from PIL import Image

    grey = {}
    for number, png in run.rows(lookups.some_samples(sorted(set(numbers)), "sample, image")):
        picture = open_picture(png).convert("L")
        grey[number] = np.asarray(picture.resize((SMALL_SIDE, SMALL_SIDE), Image.Resampling.BOX)) / 255
    return np.stack([grey[number] for number in numbers])
