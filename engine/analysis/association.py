"""Normalised mutual information between paths and labels, with a permutation null.

Shapes: n tokens; P and L the numbers of distinct paths and labels; R shuffles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer

_LARGEST_TABLE = 1 << 18
"""cells of paths × labels that are counted in one table; larger ones are sorted"""
MOST_ALIKE = 0.05
"""share of alike exchanges from which on a property cannot be tested by them"""
_ENOUGH = 8
"""samples that may give each other their labels, images that go round without keeping their own map"""


@dataclass(frozen=True)
class Association:
    """Observed NMI and what shuffling the labels gives."""

    nmi: float
    null_mean: float
    null_std: float
    null_low: float
    """95 % of the shuffles lie between this and ``null_high``"""
    null_high: float
    p_value: float
    shuffles: int
    num_tokens: int


def _entropy(counts: Integer[np.ndarray, " P"], total: int) -> float:
    """H in nats of counts that are all positive."""
    return float(np.log(total) - (counts * np.log(counts)).sum() / total)


def _codes(values: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def exchanged_alike(labels: Integer[np.ndarray, " n"], groups: Integer[np.ndarray, " n"]) -> float:
    """Share of the exchanges of labels between groups that leave groups of one label together as they are.

    N groups with n_l of label l: Π n_l! · Π m_k! / N!, m_k the number of labels that n_l = k groups have, as it does
    not matter which of these is which. No p-value of such exchanges can be much smaller: it is 1 where each group has
    a label of its own, and 1/3 of four groups of two labels.
    """
    first = np.unique(groups, return_index=True)[1]
    sizes = np.unique(labels[first], return_counts=True)[1]
    alike = np.unique(sizes, return_counts=True)[1]
    logs = [math.lgamma(count + 1) for count in (*sizes.tolist(), *alike.tolist())]
    return math.exp(min(0.0, sum(logs) - math.lgamma(len(first) + 1)))


def nmi(paths: Integer[np.ndarray, " n"], labels: Integer[np.ndarray, " n"]) -> float:
    """NMI(π; label) = 2·I(π; label) / (H(π) + H(label)), in [0, 1]; 0 when both are constant."""
    paths, labels = _codes(paths), _codes(labels)
    return _nmi_of_codes(paths, labels, int(labels.max()) + 1)


def _nmi_of_codes(paths: Integer[np.ndarray, " n"], labels: Integer[np.ndarray, " n"], num_labels: int) -> float:
    return _Joint(paths, num_labels).nmi(labels)


class _Joint:
    """NMI of the same paths with one set of labels after another: what stays the same is worked out once.

    A path that one token takes shares its cell of the table with nobody, whatever the labels: cells of one token add
    nothing to Σ c ln c, so these tokens, often half of all, are left out of the count.
    """

    def __init__(self, paths: Integer[np.ndarray, " n"], num_labels: int) -> None:
        self.size, self.num_labels = len(paths), num_labels
        counts = np.bincount(paths)
        self.entropy = _entropy(counts, self.size)
        self.often = np.flatnonzero(counts[paths] > 1)
        self.rows = _codes(paths[self.often]) * num_labels if len(self.often) else paths[:0].astype(np.int64)
        self.cells = (int(self.rows.max()) + num_labels) if len(self.rows) else 0

    def nmi(self, labels: Integer[np.ndarray, " n"]) -> float:
        of_labels = np.bincount(labels, minlength=1)
        entropy_labels = _entropy(of_labels[of_labels > 0], self.size)
        cells = self.rows + labels[self.often]
        if self.cells <= _LARGEST_TABLE:
            counts = np.bincount(cells)
        else:
            cells.sort()
            counts = np.diff(np.flatnonzero(np.diff(cells, prepend=-1, append=-1)))
        counts = counts[counts > 1]
        entropy_joint = float(np.log(self.size) - (counts * np.log(counts)).sum() / self.size)
        return _normalised(self.entropy, entropy_labels, entropy_joint)


def _normalised(entropy_paths: float, entropy_labels: float, entropy_joint: float) -> float:
    total = entropy_paths + entropy_labels
    if total < 1e-12:
        return 0.0
    shared = 2.0 * (total - entropy_joint) / total
    return min(1.0, shared) if shared > 1e-12 else 0.0  # what is left of rounding tells nothing


class Sequences:
    """Shuffles that keep what is alike inside a sample together.

    Each sample gets the labels of another one of about its length, in their order, from a random place on and round
    again. So neighbours stay neighbours, on both sides, and labels that hang on the place alone are shifted against
    the paths. Of samples of one length this is a permutation of all labels. Where lengths differ the longer one's are
    cut, or the shorter one's repeated; where only some tokens of a sample are known, the nearest one before stands for
    a place that is not.
    """

    def __init__(self, sample_n: Integer[np.ndarray, " n"], place_n: Integer[np.ndarray, " n"]) -> None:
        """``place_n``: the place of each token in its sample, from 0 on."""
        sample_n = _codes(sample_n)
        self.order = np.lexsort((place_n, sample_n))
        self.owner, self.place = sample_n[self.order], place_n[self.order].astype(np.int64)
        sizes = np.bincount(sample_n)
        self.last = np.cumsum(sizes) - 1
        self.first = self.last - sizes + 1
        self.length = self.place[self.last] + 1
        self.width = int(self.length.max())
        self.key = self.owner * self.width + self.place
        self.alike = _alike(sizes)

    def draw(self, rng: np.random.Generator) -> Integer[np.ndarray, " n"]:
        """The token whose label each token gets."""
        giver = np.empty(len(self.first), dtype=np.int64)
        for group in self.alike:
            giver[group] = rng.permutation(group)
        turned = (self.place + rng.integers(0, self.length[giver])[self.owner]) % self.length[giver][self.owner]
        whose = giver[self.owner]
        taken = np.searchsorted(self.key, whose * self.width + turned, side="right") - 1
        # Before the first one that is known comes, round again, the last.
        taken = np.where(taken < self.first[whose], self.last[whose], taken)
        drawn = np.empty(len(taken), dtype=np.int64)
        drawn[self.order] = self.order[taken]
        return drawn


class Maps:
    """Shuffles that give each image the whole map of another one, patch by patch.

    So the place of a patch in its picture keeps telling in the null what it tells anyway (the middle of a picture is
    often the object), and only what goes beyond it is left above the null. Maps go round inside ``kind_G``, images of
    one grid, and none keeps its own: where they are ``_ENOUGH``. Fewer are permuted freely, for so few have too few
    exchanges without a fixed one to stand for chance. An image alone of its kind keeps its map, which adds to the null
    what it adds to the observed value.

    Shapes: G images; n tokens; f values of all maps, one map after another.
    """

    def __init__(
        self,
        image_n: Integer[np.ndarray, " n"],
        place_n: Integer[np.ndarray, " n"],
        value_f: Integer[np.ndarray, " f"],
        first_G: Integer[np.ndarray, " G"],
        kind_G: Integer[np.ndarray, " G"],
    ) -> None:
        """``image_n`` and ``place_n``: image of each token and its place in the map; ``first_G``: where maps begin."""
        self.image, self.place, self.values, self.first = image_n, place_n, value_f, first_G
        order = np.argsort(kind_G, kind="stable")
        self.kinds = np.split(order, np.flatnonzero(np.diff(kind_G[order])) + 1)

    def alike(self) -> float:
        """Chance that an exchange leaves all maps as they are, as ``exchanged_alike`` has it of labels."""
        sizes = [len(images) for images in self.kinds]
        return math.exp(-sum(math.lgamma(size + (size < _ENOUGH)) for size in sizes))

    def draw(self, rng: np.random.Generator) -> Integer[np.ndarray, " n"]:
        """The value that each token gets."""
        giver = np.empty(len(self.first), dtype=np.int64)
        for images in self.kinds:
            drawn = rng.permutation(images)
            giver[drawn if len(images) >= _ENOUGH else images] = np.roll(drawn, 1) if len(images) >= _ENOUGH else drawn
        values: np.ndarray = self.values[self.first[giver[self.image]] + self.place]
        return values


def _alike(sizes: Integer[np.ndarray, " G"]) -> list[Integer[np.ndarray, " g"]]:
    """Samples of about one size: of the same where there are enough, never one of twice the size of another."""
    order = np.argsort(sizes, kind="stable")
    groups, first = [], 0
    for end in (*(np.flatnonzero(np.diff(sizes[order])) + 1).tolist(), len(order)):
        if end == len(order) or end - first >= _ENOUGH or sizes[order[end]] >= 2 * sizes[order[first]]:
            groups.append(order[first:end])
            first = end
    return groups


def places_in(
    sample_n: Integer[np.ndarray, " n"], token_n: Integer[np.ndarray, " n"], *, by_place: bool
) -> tuple[Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]]:
    """Sample of each token and its place there, for ``Sequences``.

    ``by_place``: the token's own place, for what hangs together by it. Else the how-manieth of these tokens it is: a
    sample is then a row of values, whatever lies between them.
    """
    if by_place:
        return sample_n, token_n.astype(np.int64)
    order = np.lexsort((token_n, sample_n))
    rows = sample_n[order]
    place_n = np.empty(len(rows), dtype=np.int64)
    place_n[order] = np.arange(len(rows)) - np.searchsorted(rows, rows)
    return sample_n, place_n


def association(
    paths: Integer[np.ndarray, " n"],
    labels: Integer[np.ndarray, " n"],
    *,
    groups: Integer[np.ndarray, " n"] | None = None,
    sequences: tuple[Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]] | None = None,
    maps: Maps | None = None,
    shuffles: int = 200,
    seed: int = 0,
) -> Association:
    """``associations`` of one set of paths."""
    return associations((paths,), labels, groups=groups, sequences=sequences, maps=maps, shuffles=shuffles, seed=seed)[
        0
    ]


def associations(
    several: Sequence[Integer[np.ndarray, " n"]],
    labels: Integer[np.ndarray, " n"],
    *,
    groups: Integer[np.ndarray, " n"] | None = None,
    sequences: tuple[Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]] | None = None,
    maps: Maps | None = None,
    shuffles: int = 200,
    seed: int = 0,
) -> list[Association]:
    """NMI with a permutation null, of several sets of paths of the same tokens beside the same shuffles.

    Labels are shuffled over tokens ``shuffles`` times, or over ``groups``, ``sequences`` or ``maps``. Tokens of one
    sample share its label, and often their decisions: shuffled one by one they would make any paths look as if they
    knew it. So a label is shuffled over samples (``groups``), whole. Labels that differ inside a sample, but hang
    together there as well, are shuffled as ``sequences``, the sample of each token and its place in it (``Sequences``,
    ``places_in``). Labels of the patches of images change hands as ``maps``, so that the place of a patch is no
    knowledge (``Maps``).

    p = (1 + number of shuffles with NMI ≥ the observed one) / (1 + shuffles), so never 0.

    Raises:
        ValueError: tokens of one group have different labels, or several ways of shuffling are given.
    """
    if sum(way is not None for way in (groups, sequences, maps)) > 1:
        raise ValueError("labels are shuffled over groups, as sequences or as maps: give one of them, not several")
    rng = np.random.default_rng(seed)
    # Maps may hold values that none of these tokens has.
    values = np.unique(labels if maps is None else np.concatenate([labels, maps.values]))
    labels = np.searchsorted(values, labels)
    joints = [_Joint(_codes(paths), len(values)) for paths in several]
    if maps is not None:

        def draw() -> Integer[np.ndarray, " n"]:
            drawn: np.ndarray = np.searchsorted(values, maps.draw(rng))
            return drawn

    elif sequences is not None:
        turned = Sequences(*sequences)

        def draw() -> Integer[np.ndarray, " n"]:
            drawn: np.ndarray = labels[turned.draw(rng)]
            return drawn

    else:
        group_n = np.arange(len(labels)) if groups is None else _codes(groups)
        label_of_group = np.empty(int(group_n.max()) + 1, dtype=np.int64)
        label_of_group[group_n] = labels
        if not np.array_equal(label_of_group[group_n], labels):
            raise ValueError("tokens of one group have different labels, so the group has none to shuffle")

        def draw() -> Integer[np.ndarray, " n"]:
            drawn: np.ndarray = rng.permutation(label_of_group)[group_n]
            return drawn

    nulls = np.empty((len(joints), shuffles))
    for i in range(shuffles):
        drawn = draw()
        nulls[:, i] = [joint.nmi(drawn) for joint in joints]
    return [_beside(joint.nmi(labels), null, len(labels)) for joint, null in zip(joints, nulls, strict=True)]


def _beside(observed: float, null: Float[np.ndarray, " R"], num_tokens: int) -> Association:
    shuffles = len(null)
    # Sums in another order differ in the last digits: a tie must count as one.
    at_least = int((null >= observed - 1e-12).sum())
    return Association(
        nmi=observed,
        null_mean=float(null.mean()) if shuffles else 0.0,
        null_std=float(null.std()) if shuffles else 0.0,
        null_low=float(np.quantile(null, 0.025)) if shuffles else 0.0,
        null_high=float(np.quantile(null, 0.975)) if shuffles else 0.0,
        p_value=(1 + at_least) / (1 + shuffles),
        shuffles=shuffles,
        num_tokens=num_tokens,
    )
