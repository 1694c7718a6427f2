"""Statistics of Directional Routing's gates: means by domain, specialist heads, components, nearest centroids.

Shapes: n samples, N domains; L layers, H heads, K directions of a head; F numbers of a routing vector
(F = L·H·K, flattened in this order); c components.
Source: "Directional Routing in Transformers", sections 4 and 6, appendix C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Integer

from tokenpaths.engine.base.errors import UserError


@dataclass(frozen=True)
class DomainGates:
    """Mean r of each gate in each domain."""

    domains: tuple[str, ...]
    counts: Integer[np.ndarray, " N"]
    mean: Float[np.ndarray, "N L H K"]

    @property
    def variance(self) -> Float[np.ndarray, "L H K"]:
        """Cross-domain variance: of the domains' means, each domain counted once."""
        variance: np.ndarray = self.mean.var(axis=0)
        return variance

    @property
    def head_variance(self) -> Float[np.ndarray, "L H"]:
        """Mean cross-domain variance of a head's directions."""
        by_head: np.ndarray = self.variance.mean(axis=-1)
        return by_head


def domain_gates(gates: Float[np.ndarray, "n L H K"], domains: Sequence[str]) -> DomainGates:
    """Mean gates by domain, domains in order of their names.

    Raises:
        UserError: gates that are not finite, or another number of domains than samples.
    """
    _check(gates, domains)
    names, codes = np.unique(np.asarray(domains), return_inverse=True)
    mean = np.stack([gates[codes == code].mean(axis=0) for code in range(len(names))])
    return DomainGates(tuple(str(name) for name in names), np.bincount(codes), mean)


def specialists(head_variance: Float[np.ndarray, "L H"]) -> Bool[np.ndarray, "L H"]:
    """Which heads lie in the top quartile of cross-domain variance, over all layers together.

    A quarter of the heads, rounded up; a head that does not vary at all is never one, and of equal
    heads the one of the earlier layer comes first.
    """
    flat = head_variance.ravel()
    count = -(-len(flat) // 4)
    chosen = np.argsort(-flat, kind="stable")[:count]
    mask = np.zeros(len(flat), dtype=bool)
    mask[chosen] = flat[chosen] > 0
    return mask.reshape(head_variance.shape)


@dataclass(frozen=True)
class Components:
    """Principal components of routing vectors, largest first."""

    scores: Float[np.ndarray, "n c"]
    axes: Float[np.ndarray, "c F"]
    """of unit length; the largest entry of each is positive, so that a picture never flips"""
    explained: Float[np.ndarray, " c"]
    """share of the total variance"""


def principal_components(vectors: Float[np.ndarray, "n F"], count: int = 2) -> Components:
    """PCA by a singular value decomposition of the centred vectors.

    Raises:
        UserError: fewer than two samples, or more components than samples or numbers allow.
    """
    n, width = vectors.shape
    if not 1 <= count <= min(n - 1, width):
        raise UserError(
            f"{n} routing vectors of {width} numbers have between 1 and {min(n - 1, width)} components, not {count}",
            field="count",
        )
    centred = vectors - vectors.mean(axis=0)
    u, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])
    total = float((sizes**2).sum())
    explained = sizes**2 / total if total else np.zeros_like(sizes)
    return Components((u * sizes * signs)[:, :count], (axes * signs[:, None])[:count], explained[:count])


@dataclass(frozen=True)
class CentroidAccuracy:
    """Leave-one-out nearest-centroid classification, and what shuffled labels give."""

    accuracy: float
    balanced: float
    """mean of the domains' own accuracies: a large domain counts no more than a small one"""
    by_domain: dict[str, float]
    null_mean: float
    """mean balanced accuracy under shuffled labels"""
    null_max: float
    p_value: float
    """(1 + shuffles at least as good) / (1 + shuffles), of the balanced accuracy"""
    shuffles: int
    num_samples: int


def nearest_centroids(vectors: Float[np.ndarray, "n F"], codes: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
    """The class whose centroid is nearest (Euclidean), each sample left out of its own class's centroid."""
    counts = np.bincount(codes)
    onehot = np.eye(len(counts))[codes]
    sums = onehot.T @ vectors
    centroids = sums / counts[:, None]
    distances = ((vectors[:, None] - centroids[None]) ** 2).sum(axis=-1)
    own = (sums[codes] - vectors) / (counts[codes] - 1)[:, None]
    distances[np.arange(len(codes)), codes] = ((vectors - own) ** 2).sum(axis=-1)
    nearest: np.ndarray = distances.argmin(axis=1)
    return nearest


def centroid_accuracy(
    vectors: Float[np.ndarray, "n F"], domains: Sequence[str], *, shuffles: int = 200, seed: int = 0
) -> CentroidAccuracy:
    """Do routing vectors know the domain? (METRICS: nearest-centroid accuracy, leave-one-out.)

    Raises:
        UserError: fewer than two domains, a domain with one sample only (nothing is left of its centroid
            without it), vectors that are not finite.
    """
    _check(vectors, domains)
    names, codes = np.unique(np.asarray(domains), return_inverse=True)
    counts = np.bincount(codes)
    if len(names) < 2:
        raise UserError(f"telling domains apart takes two of them, given: {', '.join(names)}", field="domains")
    if counts.min() < 2:
        raise UserError(
            f"domain {str(names[counts.argmin()])!r} has one sample; without it there is no centroid, give more",
            field="domains",
        )
    hits = nearest_centroids(vectors, codes) == codes
    recalls = np.bincount(codes, hits) / counts
    rng = np.random.default_rng(seed)
    null = np.empty(shuffles)
    for i in range(shuffles):
        shuffled = rng.permutation(codes)
        null[i] = (np.bincount(shuffled, nearest_centroids(vectors, shuffled) == shuffled) / counts).mean()
    return CentroidAccuracy(
        accuracy=float(hits.mean()),
        balanced=float(recalls.mean()),
        by_domain={str(name): float(recall) for name, recall in zip(names, recalls, strict=True)},
        null_mean=float(null.mean()) if shuffles else 0.0,
        null_max=float(null.max()) if shuffles else 0.0,
        p_value=float((1 + (null >= recalls.mean() - 1e-12).sum()) / (1 + shuffles)),
        shuffles=shuffles,
        num_samples=len(codes),
    )


def _check(values: np.ndarray, domains: Sequence[str]) -> None:
    if len(values) != len(domains):
        raise UserError(f"{len(values)} samples, but {len(domains)} domains: one each", field="domains")
    if not np.isfinite(values).all():
        sample = int(np.argwhere(~np.isfinite(values))[0][0])
        raise UserError(f"the gates of sample {sample} hold NaN or infinite values", field="gates")
