"""Pictures of coloured noise, seeded."""

from __future__ import annotations

import numpy as np
from PIL import Image


def picture(seed: int, width: int = 48, height: int = 32) -> Image.Image:
    """Coloured noise."""
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))
