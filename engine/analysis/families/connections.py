"""Statistics of an H-Model's connections: means, self-connection, stability, and whether they predict the label.

Shapes: n inputs, L labels, I iterations (the input step is number 0), A sources = hidden layers then inputs,
Z targets = hidden layers then outputs, H hidden layers, P connections that can exist.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped

from tokenpaths.engine.base.errors import UserError

Edges = Float[np.ndarray, "n I A Z"]


def open_connections(edges: Edges, num_hidden: int) -> Bool[np.ndarray, "I A Z"]:
    """Which connections can exist: inputs send at iteration 0 only, hidden layers from 1 on, and after the
    last iteration only outputs receive. The others are 0 by construction, and no number counts them."""
    iterations, sources, targets = edges.shape[1:]
    if not 0 < num_hidden < min(sources, targets):
        raise UserError(
            f"num_hidden is {num_hidden}; edges of {sources} sources and {targets} targets have 1 to "
            f"{min(sources, targets) - 1} hidden layers",
            field="num_hidden",
        )
    exist = np.zeros((iterations, sources, targets), dtype=bool)
    exist[0, num_hidden:] = True
    exist[1:, :num_hidden] = True
    exist[-1, :, :num_hidden] = False
    return exist


def mean_by_label(edges: Edges, labels: Shaped[np.ndarray, " n"]) -> dict[str, Float[np.ndarray, "I A Z"]]:
    """Mean c per (iteration, source, target), for each label in order."""
    return {str(label): edges[labels == label].mean(axis=0) for label in np.unique(labels)}


def self_share(edges: Edges, num_hidden: int) -> float:
    """Σ c_ii / Σ c over everything that hidden layers send while hidden layers can still receive; in [0, 1].

    All connections equal give 1 / Z. NaN where there is no such iteration (T = 1).
    """
    sent = edges[:, 1:-1, :num_hidden]
    total = float(sent.sum())
    return float(sent.diagonal(axis1=2, axis2=3).sum()) / total if total > 0 else float("nan")


def stability(edges: Edges, num_hidden: int) -> float:
    """1 − mean variance of c over the inputs, mean over the connections that can exist; 1 = always the same.

    The variance of values in [0, 1] is at most 1/4, so this is at least 3/4.
    """
    return 1.0 - float(_flat(edges, num_hidden).var(axis=0).mean())


def _flat(edges: Edges, num_hidden: int) -> Float[np.ndarray, "n P"]:
    if not np.isfinite(edges).all():
        raise UserError("edges hold NaN or infinite values", field="edges")
    return edges[:, open_connections(edges, num_hidden)].astype(np.float64)


@dataclass(frozen=True)
class LabelDistance:
    """Do inputs of one label have more similar connections than inputs of two?"""

    within: float
    """mean distance of two inputs of one label"""
    between: float
    """mean distance of two inputs of different labels"""
    ratio: float
    """between / within; 1 = the label does not matter"""
    null_mean: float
    null_std: float
    null_max: float
    """ratios after shuffling the labels over the inputs"""
    p_value: float
    shuffles: int
    num_inputs: int
    labels: tuple[str, ...]
    matrix: Float[np.ndarray, "L L"]
    """mean distance of inputs of two labels; NaN on the diagonal of a label with one input"""


def label_distance(
    edges: Edges,
    labels: Shaped[np.ndarray, " n"],
    num_hidden: int,
    *,
    shuffles: int = 200,
    seed: int = 0,
    most: int = 3000,
) -> LabelDistance:
    """Between- over within-label distance of c, beside labels shuffled ``shuffles`` times.

    Distance of two inputs = root of the mean squared difference over the connections that can exist, so in
    [0, 1]. Of more than ``most`` inputs a seeded sample is compared. p = (1 + number of shuffles with a ratio
    at least the observed one) / (1 + shuffles), never 0.

    Raises:
        UserError: fewer than two labels, no label with two inputs, or all inputs with the same connections.
    """
    rng = np.random.default_rng(seed)
    if len(edges) > most:
        chosen = rng.choice(len(edges), most, replace=False)
        edges, labels = edges[chosen], labels[chosen]
    names, codes = np.unique(labels, return_inverse=True)
    counts = np.bincount(codes)
    if len(names) < 2 or counts.max() < 2:
        raise UserError(
            f"labels are {', '.join(map(str, names[:5]))} with {counts.max(initial=0)} inputs at most; the "
            "comparison needs two labels, one of them with two inputs",
            field="labels",
        )
    distances = pairwise_distances(_flat(edges, num_hidden))
    if distances.max() == 0:
        raise UserError("all inputs have the same connections, so there are no distances to compare", field="edges")
    within, between = _means(distances, codes, len(names))
    null = np.empty(shuffles)
    for i in range(shuffles):
        inside, across = _means(distances, rng.permutation(codes), len(names))
        null[i] = _ratio(across, inside)
    ratio = _ratio(between, within)
    return LabelDistance(
        within,
        between,
        ratio,
        null_mean=float(null.mean()) if shuffles else 1.0,
        null_std=float(null.std()) if shuffles and np.isfinite(null).all() else float("nan"),
        null_max=float(null.max(initial=0.0)),
        p_value=(1 + int((null >= ratio - 1e-12).sum())) / (1 + shuffles),
        shuffles=shuffles,
        num_inputs=len(codes),
        labels=tuple(str(name) for name in names),
        matrix=_label_matrix(distances, codes, counts),
    )


def pairwise_distances(points: Float[np.ndarray, "n P"]) -> Float[np.ndarray, "n n"]:
    """Root of the mean squared difference of any two rows; the diagonal is exactly 0."""
    squares = (points**2).sum(axis=1)
    squared = squares[:, None] + squares[None] - 2 * points @ points.T
    np.fill_diagonal(squared, 0)
    distance: np.ndarray = np.sqrt(np.maximum(squared, 0) / points.shape[1])
    return distance


def _means(
    distances: Float[np.ndarray, "n n"], codes: Integer[np.ndarray, " n"], num_labels: int
) -> tuple[float, float]:
    """Mean distance of pairs within a label and between labels, every pair once."""
    member = np.eye(num_labels)[codes]
    counts = member.sum(axis=0)
    inside = float(((member.T @ distances) * member.T).sum())
    pairs_inside, pairs = float((counts * (counts - 1)).sum()), len(codes) * (len(codes) - 1)
    return inside / pairs_inside, (float(distances.sum()) - inside) / (pairs - pairs_inside)


def _ratio(between: float, within: float) -> float:
    return between / within if within > 0 else float("inf")


def _label_matrix(distances: np.ndarray, codes: np.ndarray, counts: np.ndarray) -> Float[np.ndarray, "L L"]:
    member = np.eye(len(counts))[codes]
    pairs = np.outer(counts, counts) - np.diag(counts)
    sums = member.T @ distances @ member
    means: np.ndarray = np.divide(sums, pairs, out=np.full(sums.shape, np.nan), where=pairs > 0)
    return means


def nearest_label_accuracy(edges: Edges, labels: Shaped[np.ndarray, " n"], num_hidden: int) -> float:
    """Share of inputs whose connections are nearest to the mean of their own label, themselves left out.

    A label with one input has no mean without it: that input counts as wrong.
    """
    points = _flat(edges, num_hidden)
    codes = np.unique(labels, return_inverse=True)[1]
    member = np.eye(codes.max() + 1)[codes]
    sums, counts = member.T @ points, member.sum(axis=0)
    right = 0
    for i, point in enumerate(points):
        others = counts - member[i]
        means = np.divide(
            sums - np.outer(member[i], point),
            others[:, None],
            out=np.full(sums.shape, np.inf),
            where=others[:, None] > 0,
        )
        right += int(((means - point) ** 2).sum(axis=1).argmin() == codes[i])
    return right / len(points)
