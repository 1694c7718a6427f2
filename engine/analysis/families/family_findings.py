"""Statistics specific to one family, computed from the soft decisions of all samples when a run is sealed.

Shapes: b samples; the axes of ``edges``, ``gates`` and ``blocks`` as in ``tokenpaths.engine.store.file.soft_tables``.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from tokenpaths.engine.base.errors import UserError

SEED = 0
MOST_SAMPLES = 2_000
"""analyses that compare pairs of samples see a seeded draw of this many"""


@dataclass(frozen=True)
class SoftSamples:
    """The soft decisions of a run's samples beside what is known of them."""

    values: Float[np.ndarray, "b ..."]
    labels: Sequence[str | None]
    loss: Float[np.ndarray, " b"]
    """nats; NaN where unknown"""
    compute: Float[np.ndarray, " b"]
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    places: Sequence[int] = ()
    """number of each sample in the run"""

    def __post_init__(self) -> None:
        if not len(self.places):
            object.__setattr__(self, "places", list(range(len(self.labels))))

    def _only(self, rows: Sequence[int]) -> SoftSamples:
        return SoftSamples(
            self.values[rows],
            [self.labels[i] for i in rows],
            self.loss[rows],
            self.compute[rows],
            self.axes,
            [self.places[i] for i in rows],
        )

    def drawn(self, most: int = MOST_SAMPLES) -> SoftSamples:
        """At most ``most`` of them, the same every time."""
        if len(self.labels) <= most:
            return self
        return self._only(np.sort(np.random.default_rng(SEED).choice(len(self.labels), most, replace=False)).tolist())

    def labelled(self) -> SoftSamples:
        """Those that have a label."""
        return self._only([i for i, label in enumerate(self.labels) if label is not None])

    @property
    def known_labels(self) -> list[str]:
        """The labels, but for those unknown."""
        return [label for label in self.labels if label is not None]


def connections(samples: SoftSamples) -> dict[str, Any]:
    """H-Model: self-connection share, stability, and whether labels have connections of their own."""
    from tokenpaths.engine.analysis.families import connections as measure

    sources, targets = samples.axes["source"], samples.axes["target"]
    num_hidden = sum(1 for name in sources if name in targets)
    edges = samples.drawn().values
    findings: dict[str, Any] = {
        "num_hidden": num_hidden,
        "self_share": measure.self_share(edges, num_hidden),
        "stability": measure.stability(edges, num_hidden),
        "num_samples": len(edges),
    }
    labelled = samples.labelled().drawn()
    with contextlib.suppress(UserError):  # too few labels to compare: the part is left out
        labels = np.array(labelled.labels)
        findings["separation"] = asdict(measure.label_distance(labelled.values, labels, num_hidden, seed=SEED))
        findings["nearest_label_accuracy"] = measure.nearest_label_accuracy(labelled.values, labels, num_hidden)
    return findings


def gates(samples: SoftSamples) -> dict[str, Any]:
    """Directional Routing: heads that tell domains apart, routing vectors in the plane, and what they know."""
    from tokenpaths.engine.analysis.families import directions as measure

    labelled = samples.labelled().drawn()
    labels = labelled.known_labels
    if not labels:
        return {"num_samples": 0}
    vectors = labelled.values.reshape(len(labels), -1).astype(np.float64)
    findings: dict[str, Any] = {"num_samples": len(labels)}
    with contextlib.suppress(UserError):
        by_domain = measure.domain_gates(labelled.values, labels)
        variance = by_domain.variance.mean(axis=-1)
        specialists = measure.specialists(variance)
        findings |= {
            "variance": variance,
            "specialists": [
                {"layer": int(layer), "head": int(head), "variance": float(variance[layer, head])}
                for layer, head in np.argwhere(specialists)
            ],
            "specialist_share_by_layer": specialists.mean(axis=1),
        }
    with contextlib.suppress(UserError):
        plane = measure.principal_components(vectors, 2)
        findings["pca"] = {
            "explained": plane.explained,
            "points": [
                {"sample": i, "label": label, "x": float(x), "y": float(y)}
                for i, label, (x, y) in zip(labelled.places, labels, plane.scores, strict=True)
            ],
        }
    # A domain with one text has no centre without it: the others can still be told apart.
    alone = {label for label, count in Counter(labels).items() if count < 2}
    paired = [i for i, label in enumerate(labels) if label not in alone]
    with contextlib.suppress(UserError):
        accuracy = measure.centroid_accuracy(vectors[paired], [labels[i] for i in paired], seed=SEED)
        findings["centroid_accuracy"] = asdict(accuracy) | {"left_out": sorted(alone)}
    return findings


def lights(samples: SoftSamples) -> dict[str, Any]:
    """RayTracing: how much lights up for which class, until when, and whether hard samples light up more."""
    from tokenpaths.engine.analysis.families import lights as measure

    rates = samples.values
    share = measure.lit_share(rates)[:, -1]
    steps = measure.steps_until_output(rates)
    findings: dict[str, Any] = {
        "num_samples": len(rates),
        "active_share": float(share.mean()),
        "active_share_by_label": [asdict(row) for row in measure.share_by_class(share, samples.labels)],
        "lit_share_by_step": measure.lit_share(rates).mean(axis=0),
        "steps_until_fired": {"mean": float(steps.mean()), "counts": np.bincount(steps, minlength=rates.shape[1] + 1)},
    }
    finite = np.isfinite(samples.loss)
    if finite.sum() > 2:
        findings["correlation"] = asdict(measure.correlation(share[finite], samples.loss[finite]))
    return findings


Finder = Callable[[SoftSamples], dict[str, Any]]
FINDERS: dict[str, tuple[str, Finder]] = {
    "edges": ("connections", connections),
    "gates": ("gates", gates),
    "blocks": ("lights", lights),
}
"""kind of soft decision -> name of the finding, and what works it out"""
