"""The 1 797 handwritten digits shipped with scikit-learn: 8 × 8 pixels, labelled zero to nine.

Every fifth is held out (``is_held_out``): the shipped models were not trained on those, and each sample's source
names its split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample

LABELS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIDE: Final = 8


class DigitSource:
    """Digit ``row`` as scikit-learn orders them: white on black, grey levels 0 to 16 stretched to 0 to 255."""

    has_masks = False

    def __init__(self) -> None:
        self._images, digits = load_digits()
        self.index = LabelIndex.of([LABELS[digit] for digit in digits])

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        for row in rows:
            image = Image.fromarray(self._images[row]).convert("RGB")
            kind = "held out" if is_held_out(row) else "for training"
            yield Sample(image, None, self.index.label(row), f"digit {row}, {kind}")


def is_held_out(row: int) -> bool:
    """Whether row ``row`` is kept for testing: every fifth is."""
    return row % 5 == 4


@lru_cache(maxsize=1)
def load_digits() -> tuple[UInt8[np.ndarray, "N 8 8"], Int[np.ndarray, " N"]]:
    """All images and their digits. scikit-learn is imported only here: it takes a second."""
    try:
        from sklearn.datasets import load_digits as load

        bunch = load()
    except (ImportError, OSError) as error:
        raise UserError(
            "bundled:digits needs the digits that scikit-learn ships; pip install scikit-learn, or use bundled:scenes.",
            field="data",
        ) from error
    return np.rint(bunch.images * (255 / 16)).astype(np.uint8), bunch.target.astype(np.int64)
