"""Which tokens of two runs are the same: samples are paired, and in each pair the stretch of tokens that both have.

A path depends on everything before it, so only tokens are compared that stand in one stretch of equal vocabulary ids:
what one run has before it (another prompt, padding), behind it (a text that was cut) or in its middle is counted and
left out.

Shapes: P pairs of samples; n tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs.sample_matching import pair_samples, samples_fingerprint
from tokenpaths.engine.store.file.filters import Query

WINDOW = 8
"""ids that are compared at once where a stretch is looked for; shorter samples are the same only if they are equal"""
MOST_PLACES = 8
"""a window that stands in more places, as those of a system prompt, does not tell samples apart"""
MOST_WINDOWS = 4_000_000
"""windows of a run that are looked up; of longer runs one in several"""
OFFSETS = 3
"""shifts that are tried where neither the beginnings nor the ends of two samples fit"""
LEAST_SHARE = 0.5
"""of the shorter sample that the common stretch must have: less may be a phrase that two texts share"""
UNKNOWN = -1
COLUMNS = ("sample_a_P", "start_a_P", "sample_b_P", "start_b_P", "length_P")


@dataclass(frozen=True)
class TokenPairs:
    """Stretches of tokens that two runs have in common, in the order of the first run's samples."""

    sample_a_P: np.ndarray
    start_a_P: np.ndarray
    """first common token within the sample"""
    sample_b_P: np.ndarray
    start_b_P: np.ndarray
    length_P: np.ndarray
    only_a: int
    """samples without a partner"""
    only_b: int
    by_ids: int = 0
    """pairs that were found by their vocabulary ids, not by source or content"""
    different: int = 0
    """pairs by source or content that share too few tokens, and of which neither has another partner"""
    alone_a: int = 0
    """tokens of paired samples that the other run does not have"""
    alone_b: int = 0
    shifted: int = 0
    """pairs whose stretch starts at another token in each run"""

    @property
    def num(self) -> int:
        """Pairs of samples."""
        return len(self.sample_a_P)

    @property
    def num_tokens(self) -> int:
        """Tokens in both runs."""
        return int(self.length_P.sum())

    def of(self, rows: np.ndarray) -> TokenPairs:
        """Some of the pairs."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})


def rows_of(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """``lengths`` consecutive numbers from each of ``starts`` on, one stretch behind the other."""
    rows: np.ndarray = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(int(lengths.sum()))
    return rows


@dataclass(frozen=True)
class _Side:
    """The samples of one run: first row, tokens, and where they are known the vocabulary ids of all tokens."""

    run: RunFile
    first_N: np.ndarray
    length_N: np.ndarray
    ids_n: np.ndarray | None

    def ids_of(self, sample: int) -> np.ndarray:
        assert self.ids_n is not None
        start = self.first_N[sample]
        found: np.ndarray = self.ids_n[start : start + self.length_N[sample]]
        return found


def pair_tokens(a: RunFile, b: RunFile) -> TokenPairs:
    """Pair the tokens of two runs; see the module. Samples that ``match_samples`` pairs are the same where all their
    ids are; what is left is paired by its ids, and by name last: logs number their requests, each in its own order.

    Where a run has no vocabulary ids, the tokens of a pair are the same if there are as many, in the same grid.
    """
    pairing = pair_samples(a, b)
    rows_a, rows_b = pairing.rows_a, pairing.rows_b
    if pairing.whole and _same_texts(a, b):  # who compares tokens looks at their ids; of long runs these take seconds
        sides = [_side(run, ids=False) for run in (a, b)]
        if np.array_equal(sides[0].length_N, sides[1].length_N):
            return _counted(_whole(rows_a, rows_b, sides[0].length_N), sides)
    sides = [_side(run) for run in (a, b)]
    as_long = sides[0].length_N[rows_a] == sides[1].length_N[rows_b]
    if sides[0].ids_n is None or sides[1].ids_n is None:
        fits = as_long & (_grids(a)[rows_a] == _grids(b)[rows_b]).all(axis=1)
        found = _whole(rows_a[fits], rows_b[fits], sides[0].length_N)
        return _counted(replace(found, different=int((~fits).sum())), sides)
    equal = as_long.copy()
    equal[as_long] = _equal_ids(sides, rows_a[as_long], rows_b[as_long])
    parts = [_whole(rows_a[equal], rows_b[equal], sides[0].length_N)]
    named = dict(zip(rows_a[~equal].tolist(), rows_b[~equal].tolist(), strict=True))
    left_a, left_b = (
        [(n, side.ids_of(n)) for n in np.setdiff1d(np.arange(len(side.length_N)), rows[equal]).tolist()]
        for side, rows in zip(sides, (rows_a, rows_b), strict=True)
    )
    alike = _stretches(sides, pairs_by_ids(left_a, left_b, named))
    parts.append(alike)
    taken = [set(alike.sample_a_P.tolist()), set(alike.sample_b_P.tolist())]
    others = [pair for pair in named.items() if pair[0] not in taken[0] and pair[1] not in taken[1]]
    parts.append(_stretches(sides, others))
    by_ids = sum(named.get(one) != other for one, other in zip(alike.sample_a_P, alike.sample_b_P, strict=True))
    return _counted(replace(_joined(parts), by_ids=by_ids, different=len(others) - parts[-1].num), sides)


def longest_stretch(one: np.ndarray, other: np.ndarray) -> tuple[int, int, int]:
    """Where the longest stretch of equal ids starts in each, and its length; of equally long ones the first.

    Tried are equal beginnings, equal ends, and the shifts at which most windows of ``WINDOW`` ids are equal. An unknown
    id is equal to any, but at the edges of a stretch only where its place tells the same: at equal distance from both
    beginnings, or behind it from both ends. Samples of other lengths have an id that is known and equal.
    """
    ends = len(other) - len(one)
    best = _stretch_at(one, other, 0)
    if best[2] == min(len(one), len(other)):
        return best
    for shift in dict.fromkeys([ends, *_frequent_shifts(one, other)]):
        found = _stretch_at(one, other, shift)
        if found[2] > best[2]:
            best = found
    return best


def _stretch_at(one: np.ndarray, other: np.ndarray, shift: int) -> tuple[int, int, int]:
    """The longest stretch of equal ids at one shift, as of ``longest_stretch``."""
    start = max(0, -shift)
    stop = min(len(one), len(other) - shift)
    if stop <= start:
        return (0, 0, 0)
    x, y = one[start:stop], other[start + shift : stop + shift]
    known = (x != UNKNOWN) & (y != UNKNOWN)
    edges = np.concatenate([[-1], np.flatnonzero((x != y) & known), [stop - start]])
    longest = int(np.diff(edges).argmax())
    begin, end = int(edges[longest]) + 1, int(edges[longest + 1])
    sure = np.flatnonzero(known[begin:end]) + begin
    if not len(sure) and (shift or len(one) != len(other)):
        return (0, 0, 0)
    if shift:
        begin = int(sure[0])
        if shift != len(other) - len(one) or end < stop - start:
            end = int(sure[-1]) + 1
    return (start + begin, start + begin + shift, end - begin)


def pairs_by_ids(
    ones: Sequence[tuple[int, np.ndarray]],
    others: Sequence[tuple[int, np.ndarray]],
    named: Mapping[int, int] | None = None,
) -> list[tuple[int, int]]:
    """Pair numbered samples by their ids: equal ones first, then those that share most windows, of as many those that
    are ``named`` alike; each once."""
    waiting: defaultdict[bytes, list[int]] = defaultdict(list)
    for number, ids in reversed(others):
        if len(ids) and (ids != UNKNOWN).all():
            waiting[ids.tobytes()].append(number)
    pairs = []
    for number, ids in ones:
        if same := waiting.get(ids.tobytes()):
            pairs.append((number, same.pop()))
    taken = [{pair[side] for pair in pairs} for side in (0, 1)]
    # Samples of equal ids, as short answers to one prompt, are one text here: windows of it tell it apart from others.
    texts: list[defaultdict[bytes, list[int]]] = [defaultdict(list), defaultdict(list)]
    for side, known, text in zip((ones, others), taken, texts, strict=True):
        for number, ids in side:
            if number not in known:
                text[ids.tobytes()].append(number)
    waiting_a, waiting_b = ({numbers[0]: numbers for numbers in text.values()} for text in texts)
    ids_a, ids_b = dict(ones), dict(others)
    for one, other in _by_votes([(n, ids_a[n]) for n in waiting_a], [(n, ids_b[n]) for n in waiting_b], named or {}):
        num = min(len(waiting_a[one]), len(waiting_b[other]))
        for _ in range(num):
            pairs.append((waiting_a[one].pop(0), waiting_b[other].pop(0)))
    return sorted(pairs)


def _by_votes(
    ones: Sequence[tuple[int, np.ndarray]], others: Sequence[tuple[int, np.ndarray]], named: Mapping[int, int]
) -> list[tuple[int, int]]:
    """Pairs that share a window that few samples have, by falling number of such windows."""
    if not ones or not others:
        return []
    stride = 1 + max(sum(len(ids) for _, ids in side) for side in (ones, others)) // MOST_WINDOWS
    windows_a, owner_a = _windows(ones, stride)
    windows_b, owner_b = _windows(others, stride)
    order = np.argsort(windows_b, kind="stable")
    windows_b, owner_b = windows_b[order], owner_b[order]
    low, high = (np.searchsorted(windows_b, windows_a, side=side) for side in ("left", "right"))
    places = np.where(high - low <= MOST_PLACES, high - low, 0)
    rows = rows_of(low, places)
    span = int(owner_b.max(initial=0)) + 1
    cells, votes = np.unique(np.repeat(owner_a, places) * span + owner_b[rows], return_counts=True)
    pairs = np.stack(np.divmod(cells, span))
    other_name = [named.get(one) != other for one, other in pairs.T.tolist()]
    ranked = np.lexsort([pairs[1], pairs[0], other_name, -votes])
    return [(int(one), int(other)) for one, other in pairs[:, ranked].T]


def _windows(samples: Sequence[tuple[int, np.ndarray]], stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Hash of each window of known ids within a sample, and the sample it is of; of many one in ``stride``, which its
    hash tells, so that the same ones are kept of each run."""
    parts: list[list[np.ndarray]] = [[np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.int64)]]
    for part in _groups([len(ids) for _, ids in samples]):
        some = samples[part]
        owners = np.repeat([number for number, _ in some], [len(ids) for _, ids in some])
        hashes = _hashes(np.concatenate([ids for _, ids in some]))
        owner = owners[: len(hashes)]
        kept = (hashes != 0) & (owner == owners[len(owners) - len(hashes) :])
        kept &= (hashes >> np.uint64(33)) % np.uint64(stride) == 0
        parts[0].append(hashes[kept])
        parts[1].append(owner[kept])
    return np.concatenate(parts[0]), np.concatenate(parts[1])


def _groups(lengths: Sequence[int] | np.ndarray) -> list[slice]:
    """Consecutive samples of about a million tokens."""
    if not len(lengths):
        return []
    edges = np.flatnonzero(np.diff(np.cumsum(lengths) // 1_000_000)) + 1
    return [slice(int(i), int(j)) for i, j in zip([0, *edges], [*edges, len(lengths)], strict=True)]


def _hashes(ids: np.ndarray) -> np.ndarray:
    """(n − WINDOW + 1,) 64-bit hash of each window; 0 where an id is unknown."""
    count = len(ids) - WINDOW + 1
    if count <= 0:
        return np.zeros(0, dtype=np.uint64)
    hashes = np.full(count, 1469598103934665603, dtype=np.uint64)
    known = np.ones(count, dtype=bool)
    words = ids.astype(np.uint64) + np.uint64(1)
    for place in range(WINDOW):
        part = words[place : place + count]
        hashes = (hashes ^ part) * np.uint64(1099511628211)
        hashes ^= hashes >> np.uint64(29)
        known &= ids[place : place + count] != UNKNOWN
    return np.where(known, hashes | np.uint64(1), np.uint64(0))


def _frequent_shifts(one: np.ndarray, other: np.ndarray) -> list[int]:
    """Place in ``other`` less place in ``one`` of equal windows: the most frequent differences."""
    here, there = _hashes(one), _hashes(other)
    order = np.argsort(there, kind="stable")
    low, high = (np.searchsorted(there[order], here, side=side) for side in ("left", "right"))
    places = np.where((here != 0) & (high - low <= MOST_PLACES), high - low, 0)
    if not places.any():
        return []
    rows = order[rows_of(low, places)]
    shifts, counts = np.unique(rows - np.repeat(np.arange(len(here)), places), return_counts=True)
    return [int(shift) for shift in shifts[np.argsort(-counts, kind="stable")][:OFFSETS]]


def _same_texts(a: RunFile, b: RunFile) -> bool:
    """Whether both runs keep the same texts or pictures in the same order."""
    own, other = samples_fingerprint(a), samples_fingerprint(b)
    return bool(own["contents"]) and own["fingerprint"] == other["fingerprint"]


def _side(run: RunFile, *, ids: bool = True) -> _Side:
    first_N = run.first_rows
    length_N = np.diff(first_N, append=int(run.row["num_tokens"]))
    ids_n = None
    if ids and run.records("token_id"):
        ids_n = run.arrays(Query("SELECT coalesce(token_id, -1) AS ids FROM token"))["ids"]  # in the order of rowid
    return _Side(run, first_N, length_N, ids_n)


def _grids(run: RunFile) -> np.ndarray:
    """(N, 2) rows and columns of patches; 0 where there are none."""
    rows = run.arrays(
        Query("SELECT coalesce(grid_rows, 0) AS r, coalesce(grid_cols, 0) AS c FROM sample ORDER BY sample")
    )
    return np.stack([rows["r"], rows["c"]], axis=1)


def _whole(rows_a: np.ndarray, rows_b: np.ndarray, length_N: np.ndarray) -> TokenPairs:
    """Pairs of which all tokens are the same."""
    nothing = np.zeros(len(rows_a), dtype=np.int64)
    return TokenPairs(rows_a, nothing, rows_b, nothing, length_N[rows_a], 0, 0)


def _equal_ids(sides: Sequence[_Side], rows_a: np.ndarray, rows_b: np.ndarray) -> np.ndarray:
    """Whether no id of a pair of equal length differs."""
    equal = np.ones(len(rows_a), dtype=bool)
    for part in _groups(sides[0].length_N[rows_a]):
        length = sides[0].length_N[rows_a[part]]
        ids = [
            side.ids_n[rows_of(side.first_N[rows[part]], length)]  # type: ignore[index]
            for side, rows in zip(sides, (rows_a, rows_b), strict=True)
        ]
        apart = (ids[0] != ids[1]) & (ids[0] != UNKNOWN) & (ids[1] != UNKNOWN)
        equal[part] = np.bincount(np.repeat(np.arange(len(length)), length), apart, len(length)) == 0
    return equal


def _stretches(sides: Sequence[_Side], pairs: Sequence[tuple[int, int]]) -> TokenPairs:
    """The common stretch of each pair that has one that is long enough."""
    rows = []
    for one, other in pairs:
        ids_a, ids_b = sides[0].ids_of(one), sides[1].ids_of(other)
        start_a, start_b, length = longest_stretch(ids_a, ids_b)
        if length and length >= LEAST_SHARE * min(len(ids_a), len(ids_b)):
            rows.append((one, start_a, other, start_b, length))
    return _of_columns(list(np.array(rows, dtype=np.int64).reshape(-1, 5).T))


def _of_columns(columns: Sequence[np.ndarray]) -> TokenPairs:
    sample_a, start_a, sample_b, start_b, length = columns
    return TokenPairs(sample_a, start_a, sample_b, start_b, length, 0, 0)


def _joined(parts: Sequence[TokenPairs]) -> TokenPairs:
    every = _of_columns([np.concatenate([getattr(part, name) for part in parts]).astype(np.int64) for name in COLUMNS])
    return every.of(np.argsort(every.sample_a_P, kind="stable"))


def _counted(found: TokenPairs, sides: Sequence[_Side]) -> TokenPairs:
    """With the counts of what has no partner."""
    lengths = [side.length_N[getattr(found, f"sample_{ab}_P")].sum() for side, ab in zip(sides, "ab", strict=True)]
    return replace(
        found,
        only_a=len(sides[0].length_N) - found.num,
        only_b=len(sides[1].length_N) - found.num,
        alone_a=int(lengths[0]) - found.num_tokens,
        alone_b=int(lengths[1]) - found.num_tokens,
        shifted=int((found.start_a_P != found.start_b_P).sum()),
    )
