"""Drawn scenes: one object on a textured background, with the object's exact mask.

They make "some paths follow boundaries" countable: every patch is known to be background, object or boundary. A
scene is a pure function of its number, so nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from PIL import Image, ImageFilter

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.bundled.shapes import SHAPES, Pen
from tokenpaths.engine.data.bundled.textures import GROUNDS, WALLS, landscape
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample

NUM_SCENES: Final = 240
SIDE: Final = 128
SEED: Final = 2_505
_OVERSAMPLING: Final = 3
_ANYWHERE: Final = ("disc", "polygon", "fish")
"""what may hang in front of a wall; the others stand on the ground"""


class SceneSource:
    """Scene ``row`` of ``num_scenes``; the kinds of object take turns and are the labels."""

    has_masks = True

    def __init__(self, num_scenes: int = NUM_SCENES, side: int = SIDE) -> None:
        self._side = side
        kinds = tuple(SHAPES)
        self.index = LabelIndex.of([kinds[row % len(kinds)] for row in range(num_scenes)])

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        for row in rows:
            yield draw_scene(row, self._side)


@lru_cache(maxsize=NUM_SCENES)
def draw_scene(number: int, side: int = SIDE) -> Sample:
    """Scene ``number`` at ``side`` × ``side`` pixels (64 … 256 look well).

    The mask is 1 where at least half of the pixel is object; the object's shadow is background. The last ones stay in
    memory (64 KB each): several models are traced over the same scenes, and drawing one takes as long as its pass.
    """
    kinds = tuple(SHAPES)
    kind = kinds[number % len(kinds)]
    rng = np.random.default_rng([SEED, number])
    large = side * _OVERSAMPLING
    setting, background, horizon = _background(rng, kind, side)
    pen = _object(rng, kind, large, horizon)
    SHAPES[kind](pen, rng)
    mask_large = np.asarray(pen.mask, dtype=np.float64) / 255
    lit = _shaded(np.asarray(pen.picture, dtype=np.float64) / 255, mask_large, rng)
    colours = _reduced(lit * mask_large[..., None], side)
    cover = _reduced(mask_large[..., None], side)
    shadowed = background * (1 - _shadow(rng, pen.mask, side, on_wall=horizon is None))[..., None]
    picture = colours + shadowed * (1 - cover)
    picture = np.clip(picture + rng.normal(0, 0.008, picture.shape), 0, 1)
    image = Image.fromarray(np.rint(picture * 255).astype(np.uint8))
    mask = (cover[..., 0] >= 0.5).astype(np.uint8)
    return Sample(image, None, kind, f"scene {number} ({kind}, {setting})", mask)


def _background(rng: np.random.Generator, kind: str, side: int) -> tuple[str, np.ndarray, float | None]:
    """(name, picture, horizon as a share of the height; None for a wall)."""
    if kind in _ANYWHERE and rng.random() < 0.7:
        wall = tuple(WALLS)[int(rng.integers(len(WALLS)))]
        return wall, np.clip(WALLS[wall](rng, side, side), 0, 1), None
    grounds = ("water",) if kind == "fish" else ("grass", "sand") if kind != "disc" else tuple(GROUNDS)
    ground = grounds[int(rng.integers(len(grounds)))]
    horizon = float(rng.uniform(0.25, 0.62))
    return ground, landscape(rng, ground, side, horizon), horizon


def _object(rng: np.random.Generator, kind: str, large: int, horizon: float | None) -> Pen:
    """A pen whose box lies wholly in the picture, its foot on the ground where there is one."""
    size = float(rng.uniform(0.42, 0.84)) * large
    left = float(rng.uniform(0, large - size))
    top = float(rng.uniform(0, large - size))
    if horizon is not None:
        foot = large * float(rng.uniform(max(horizon + 0.08, size / large), 0.99))
        top = foot - size
    return Pen(large, left, top, size, mirrored=bool(rng.random() < 0.5))


def _shaded(picture: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Light from the upper left or right, rounder towards the object's edges."""
    side = mask.shape[0]
    soft = Image.fromarray((mask * 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(side / 24))
    depth = np.asarray(soft, dtype=np.float64) / 255
    slope_y, slope_x = np.gradient(depth)
    from_left = 1.0 if rng.random() < 0.5 else -1.0
    light = 1 + 9.0 * side / 128 * (slope_y + from_left * slope_x)
    grain = rng.normal(0, 0.03, mask.shape)
    return np.clip(picture * (np.clip(light, 0.55, 1.45) + grain)[..., None], 0, 1)


def _shadow(rng: np.random.Generator, mask: Image.Image, side: int, *, on_wall: bool) -> np.ndarray:
    """How much light the object takes from the background, 0 … 0.5."""
    small = mask.resize((side, side), Image.Resampling.BOX)
    shadow = Image.new("L", (side, side))
    box = small.getbbox()
    if box is None:
        return np.zeros((side, side))
    left, top, right, bottom = box
    if on_wall:
        shift = max(2, side // 20)
        shadow.paste(small, (int(rng.choice([-shift, shift])), shift))
    else:  # flat on the ground, around the foot
        height = max(2, (bottom - top) // 7)
        flat = small.crop(box).resize((right - left, height), Image.Resampling.BOX)
        shadow.paste(flat, (left, min(side - height, bottom - height // 2)))
    blurred = shadow.filter(ImageFilter.GaussianBlur(side / 64))
    return np.asarray(blurred, dtype=np.float64) / 255 * 0.5


def _reduced(picture: np.ndarray, side: int) -> np.ndarray:
    """Mean of each block of oversampled pixels."""
    channels = picture.shape[-1]
    return picture.reshape(side, _OVERSAMPLING, side, _OVERSAMPLING, channels).mean(axis=(1, 3))
