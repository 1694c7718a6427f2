"""What only one family has, worked out from the soft decisions of all samples when a run is sealed.

Shapes: b samples; the axes of ``edges``, ``gates`` and ``blocks`` as in ``engine.store.soft``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

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

    def drawn(self, most: int = MOST_SAMPLES) -> SoftSamples:
        """At most ``most`` of them, the same every time."""
        if len(self.labels) <= most:
            return self
        kept = np.sort(np.random.default_rng(SEED).choice(len(self.labels), most, replace=False))
        return SoftSamples(
            self.values[kept], [self.labels[i] for i in kept], self.loss[kept], self.compute[kept], self.axes
        )


Finder = Callable[[SoftSamples], dict[str, Any]]
FINDERS: dict[str, tuple[str, Finder]] = {}
"""kind of soft decision -> name of the finding, and what works it out"""
