"""Square crops of the two photographs shipped with scikit-learn (china.jpg, flower.jpg).

They have what drawn scenes lack: lens blur, JPEG blocks, natural light. The label is the photograph that a crop was
cut from, not what the crop shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample

NUM_PHOTOS: Final = 120
LABELS: Final = ("china", "flower")
SIDES: Final = (96, 256)
"""smallest and largest side of a crop in pixels; crops overlap"""
SEED: Final = 20_240


class PhotoSource:
    """Crop ``row`` of ``NUM_PHOTOS``, the two photographs by turns, the same on every machine."""

    has_masks = False

    def __init__(self) -> None:
        self.index = LabelIndex.of([LABELS[row % len(LABELS)] for row in range(NUM_PHOTOS)])

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        photos = load_photographs()
        for row in rows:
            label = LABELS[row % len(LABELS)]
            photo = photos[label]
            rng = np.random.default_rng([SEED, row])
            side = int(rng.integers(SIDES[0], SIDES[1] + 1))
            left = int(rng.integers(0, photo.width - side + 1))
            top = int(rng.integers(0, photo.height - side + 1))
            crop = photo.crop((left, top, left + side, top + side))
            yield Sample(crop, None, label, f"{label}.jpg at ({left}, {top}), {side} px")


def load_photographs() -> dict[str, Image.Image]:
    """Both photographs, 640 × 427 RGB, by label. Their files are read without importing scikit-learn (two seconds)."""
    found = find_spec("sklearn")
    package = next(iter(found.submodule_search_locations or ()), "") if found is not None else ""
    try:
        return {label: _photograph(Path(package) / "datasets" / "images" / f"{label}.jpg") for label in LABELS}
    except OSError as error:
        raise UserError(
            "bundled:photos needs the photographs that scikit-learn ships; pip install scikit-learn, "
            "or use bundled:scenes.",
            field="data",
        ) from error


def _photograph(file: Path) -> Image.Image:
    with Image.open(file, formats=("JPEG",)) as picture:
        return picture.convert("RGB")
