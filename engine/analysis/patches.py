"""Appearance of a patch without a network: its contrast and its position in the image.

Shapes: n images of H × W pixels, R rows and C columns of patches.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, UInt8

TENTH = 0.1
"""part of all patches that counts as busiest, and as flattest"""


def patch_contrast(images: UInt8[np.ndarray, "n H W 3"], rows: int, cols: int) -> Float[np.ndarray, "n T"]:
    """Standard deviation of the grey values (0 … 1) inside each patch, in reading order, T = rows · cols.

    The grey value is the mean of the three colours. Images whose sides are no multiples of the grid are cut at
    rounded places, so that every pixel belongs to exactly one patch; a patch of no pixels has contrast 0.
    """
    n, height, width, _ = images.shape
    grey = images.mean(axis=3) / 255.0
    made = np.zeros((n, rows * cols))
    tops, lefts = (np.linspace(0, side, k + 1).round().astype(int) for side, k in ((height, rows), (width, cols)))
    for row in range(rows):
        for col in range(cols):
            inside = grey[:, tops[row] : tops[row + 1], lefts[col] : lefts[col + 1]]
            if inside.size:
                made[:, row * cols + col] = inside.std(axis=(1, 2))
    return made


def patch_colour(images: UInt8[np.ndarray, "n H W 3"], rows: int, cols: int) -> Float[np.ndarray, "n T 3"]:
    """Mean colour (0 … 1) of each patch, cut as by ``patch_contrast``; a patch of no pixels is black."""
    n, height, width, _ = images.shape
    made = np.zeros((n, rows * cols, 3))
    tops, lefts = (np.linspace(0, side, k + 1).round().astype(int) for side, k in ((height, rows), (width, cols)))
    for row in range(rows):
        for col in range(cols):
            inside = images[:, tops[row] : tops[row + 1], lefts[col] : lefts[col + 1]]
            if inside.shape[1] and inside.shape[2]:
                made[:, row * cols + col] = inside.mean(axis=(1, 2)) / 255.0
    return made


def busiest(contrast: Float[np.ndarray, " p"], share: float = TENTH) -> Bool[np.ndarray, " p"]:
    """The ``share`` of all patches with the highest contrast; ties all count, patches without any contrast never."""
    if not len(contrast):
        return np.zeros(0, dtype=bool)
    edges: np.ndarray = (contrast >= np.quantile(contrast, 1 - share)) & (contrast > 0)
    return edges


def flattest(contrast: Float[np.ndarray, " p"], share: float = TENTH) -> Bool[np.ndarray, " p"]:
    """The ``share`` of all patches with the lowest contrast; ties all count."""
    if not len(contrast):
        return np.zeros(0, dtype=bool)
    flat: np.ndarray = contrast <= np.quantile(contrast, share)
    return flat


def at_border(rows: int, cols: int) -> Bool[np.ndarray, " T"]:
    """Patches that touch the image's edge, in reading order."""
    made = np.ones((rows, cols), dtype=bool)
    made[1:-1, 1:-1] = False
    return made.ravel()


def at_centre(rows: int, cols: int) -> Bool[np.ndarray, " T"]:
    """Patches of the middle half of the rows and of the columns, in reading order."""
    made = np.zeros((rows, cols), dtype=bool)
    made[rows // 4 : rows - rows // 4, cols // 4 : cols - cols // 4] = True
    return made.ravel()
