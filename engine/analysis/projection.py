"""Two-dimensional maps of samples by their path profiles: PCA in one step, t-SNE in resumable slices.

Shapes: n samples, D length of a profile (``similar.profiles``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Integer

from tokenpaths.engine.analysis.association import MOST_ALIKE, exchanged_alike

DENSE = 600
"""up to so many rows or columns all eigenvectors are worked out at once"""
EXAGGERATION, EXAGGERATED = 12.0, 250
MOMENTUM = (0.5, 0.8)
LEAST_GAIN = 0.01
_ROWS = 512
"""points whose distances are worked out at a time"""
_TIE = 1e-9
"""squared distances that differ by less are rounding apart"""
TINY = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Plane:
    """Points on the plane in which they differ most."""

    points: Float[np.ndarray, "n 2"]
    explained: tuple[float, float]
    """share of the variance along each axis"""


def pca(values: Float[np.ndarray, "n D"]) -> Plane:
    """The first two principal components; signs such that the largest weight of an axis is positive.

    All points alike, or fewer than two: all at 0, and nothing is explained.
    """
    centred = np.asarray(values, dtype=np.float64) - values.mean(axis=0, dtype=np.float64, keepdims=True)
    total = float((centred**2).sum())
    num, width = centred.shape
    if num < 2 or total <= 1e-12 * num:
        return Plane(np.zeros((num, 2)), (0.0, 0.0))
    wide = width > num
    gram = centred @ centred.T if wide else centred.T @ centred
    powers, vectors = _largest_two(gram)
    axes_D2 = centred.T @ vectors if wide else vectors
    lengths = np.linalg.norm(axes_D2, axis=0)
    axes_D2 = np.divide(axes_D2, lengths, out=np.zeros_like(axes_D2), where=lengths > 1e-9)
    sign_2 = np.sign(axes_D2[np.abs(axes_D2).argmax(axis=0), np.arange(2)])
    points = centred @ (axes_D2 * np.where(sign_2 == 0, 1.0, sign_2))
    first, second = (float(max(0.0, power) / total) for power in powers)
    return Plane(points, (first, second))


def _largest_two(gram: Float[np.ndarray, "m m"]) -> tuple[Float[np.ndarray, " 2"], Float[np.ndarray, "m 2"]]:
    """The two largest eigenvalues of a symmetric matrix and their vectors, largest first; zeros where m = 1."""
    if len(gram) <= DENSE:
        powers, vectors = np.linalg.eigh(gram)
    else:
        from scipy.sparse.linalg import eigsh

        # A fixed start, so that an answer is the same every time it is worked out.
        powers, vectors = eigsh(gram, k=2, which="LA", v0=np.random.default_rng(0).normal(size=len(gram)))
    order = np.argsort(powers)[::-1][:2]
    powers, vectors = powers[order], vectors[:, order]
    if len(order) < 2:
        return np.append(powers, 0.0), np.column_stack([vectors, np.zeros(len(gram))])
    return powers, vectors


def squared_distances(values: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n n"]:
    """Squared Euclidean distance of each pair, never negative, 0 on the diagonal."""
    values = np.asarray(values, dtype=np.float64)
    norms = (values**2).sum(axis=1)
    squared: np.ndarray = norms[:, None] + norms[None, :] - 2 * values @ values.T
    np.maximum(squared, 0, out=squared)
    np.fill_diagonal(squared, 0)
    return squared


def nearest_of(values: Float[np.ndarray, "n D"], seed: int = 0) -> Integer[np.ndarray, " n"]:
    """The nearest other point of each of two points or more, one of them by a seed where several are as near."""
    values, rng = np.asarray(values, dtype=np.float64), np.random.default_rng(seed)
    norms, nearest = (values**2).sum(axis=1), np.empty(len(values), dtype=np.int64)
    for first in range(0, len(values), _ROWS):
        part = values[first : first + _ROWS]
        squared = norms[first : first + _ROWS, None] + norms[None, :] - 2 * part @ values.T
        squared[np.arange(len(part)), first + np.arange(len(part))] = np.inf
        tied = squared <= squared.min(axis=1, keepdims=True) + _TIE
        # The tie of the largest random number, drawn only where there is one.
        several = np.flatnonzero(tied.sum(axis=1) > 1)
        nearest[first : first + len(part)] = tied.argmax(axis=1)
        nearest[first + several] = np.where(tied[several], rng.random((len(several), len(values))), -1.0).argmax(axis=1)
    return nearest


@dataclass(frozen=True)
class SameLabel:
    """How often a point and its nearest one have the same label, beside shuffled labels."""

    share: float
    by_chance: float
    """mean of the shuffles"""
    low: float
    high: float
    """95 % of the shuffles lie between both"""
    p_value: float
    """(1 + shuffles at least as high) / (1 + shuffles)"""
    num: int
    """points with a label"""


def same_label(
    values: Float[np.ndarray, "n D"], label_n: Integer[np.ndarray, " n"], shuffles: int = 200, seed: int = 0
) -> SameLabel | None:
    """Agreement of labels of nearest points, those without a label (−1) left out; labels are exchanged by a seed.

    None where exchanging says nothing: fewer than two labels, or so few points that it often leaves them as they are
    (``association.exchanged_alike``), as where each has a label of its own.
    """
    there = np.flatnonzero(label_n >= 0)
    codes, counts = np.unique(label_n[there], return_inverse=True, return_counts=True)[1:]
    if len(counts) < 2 or exchanged_alike(codes.reshape(-1), np.arange(len(there))) >= MOST_ALIKE:
        return None
    codes, nearest, rng = codes.reshape(-1), nearest_of(values[there], seed), np.random.default_rng(seed)
    share = float((codes == codes[nearest]).mean())
    null = np.empty(shuffles)
    for draw in range(shuffles):
        shuffled = rng.permutation(codes)
        null[draw] = (shuffled == shuffled[nearest]).mean()
    low, high = np.quantile(null, [0.025, 0.975]).tolist()
    p_value = (1 + int((null >= share - 1e-12).sum())) / (1 + shuffles)
    return SameLabel(share, float(null.mean()), low, high, p_value, len(there))


def joint_probabilities(squared: Float[np.ndarray, "n n"], perplexity: int | float) -> Float[np.ndarray, "n n"]:
    """P of t-SNE: how likely i and j are neighbours, symmetric, sum 1.

    Each row's width is found by bisection such that 2^entropy of its neighbours is ``perplexity``; a row whose
    points are all equally far has equal neighbours whatever the width.
    """
    num = len(squared)
    apart = squared / max(TINY, float(squared.max()))
    np.fill_diagonal(apart, np.inf)
    low, high = np.zeros(num), np.full(num, np.inf)
    width = np.ones(num)
    nearest = apart.min(axis=1, keepdims=True)
    for _ in range(100):
        weight = np.exp(-(apart - nearest) * width[:, None])
        total = weight.sum(axis=1)
        finite = np.where(np.isfinite(apart), apart - nearest, 0.0)
        entropy = np.log(total) + width * (weight * finite).sum(axis=1) / total
        error = entropy - np.log(perplexity)
        if np.abs(error).max() < 1e-5:
            break
        wide = error > 0  # too many neighbours: a narrower bell
        low, high = np.where(wide, width, low), np.where(wide, high, width)
        width = np.minimum(np.where(np.isfinite(high), (low + high) / 2, width * 2), 1e12)
    chances = weight / total[:, None]
    joint = (chances + chances.T) / (2 * num)
    probs: np.ndarray = np.maximum(joint, TINY)
    return probs


@dataclass
class TSNE:
    """t-distributed stochastic neighbour embedding, exact, one iteration at a time (van der Maaten, Hinton 2008).

    State is plain arrays, so that a stopped one goes on bit for bit. Quadratic in n: meant for up to some thousand
    points.
    """

    joint: Float[np.ndarray, "n n"] = field(repr=False)
    points: Float[np.ndarray, "n 2"] = field(repr=False)
    speed: Float[np.ndarray, "n 2"] = field(repr=False)
    gains: Float[np.ndarray, "n 2"] = field(repr=False)
    iteration: int = 0

    @classmethod
    def begin(cls, values: Float[np.ndarray, "n D"], perplexity: int | float, seed: int = 0) -> TSNE:
        """Start at the two principal components, scaled down, with a little noise to part equal points."""
        start = pca(values).points
        scale = float(start[:, 0].std())
        start = start / scale * 1e-4 if scale > 0 else start
        start = start + np.random.default_rng(seed).normal(scale=1e-6, size=start.shape)
        joint = joint_probabilities(squared_distances(values), perplexity)
        return cls(joint, start, np.zeros_like(start), np.ones_like(start))

    @property
    def rate(self) -> float:
        """Learning rate: n / exaggeration / 4, at least 50 (Belkina et al. 2019)."""
        return max(len(self.points) / EXAGGERATION / 4, 50.0)

    def advance(self) -> float:
        """One iteration of gradient descent; the divergence KL(P ‖ Q) before it, in nats, without exaggeration."""
        early = self.iteration < EXAGGERATED
        gradient, divergence = kl_gradient(self.joint, self.points, EXAGGERATION if early else 1.0)
        uphill = self.speed * gradient < 0
        self.gains = np.maximum(np.where(uphill, self.gains + 0.2, self.gains * 0.8), LEAST_GAIN)
        self.speed = MOMENTUM[0 if early else 1] * self.speed - self.rate * self.gains * gradient
        self.points = self.points + self.speed
        self.points -= self.points.mean(axis=0)
        self.iteration += 1
        return divergence


def kl_gradient(
    joint: Float[np.ndarray, "n n"], points: Float[np.ndarray, "n 2"], exaggeration: float = 1.0
) -> tuple[Float[np.ndarray, "n 2"], float]:
    """Gradient of KL(c·P ‖ Q) by the points, and KL(P ‖ Q): 4 Σ_j (c·p_ij − q_ij)(y_i − y_j)/(1 + |y_i − y_j|²)."""
    near = 1 / (1 + squared_distances(points))
    np.fill_diagonal(near, 0)
    chance = np.maximum(near / near.sum(), TINY)
    pull = (exaggeration * joint - chance) * near
    gradient = 4 * (pull.sum(axis=1)[:, None] * points - pull @ points)
    return gradient, float((joint * np.log(joint / chance)).sum())  # the diagonals are equal: they add nothing
