"""Procedural backgrounds (sky, grass, water, sand, brick, wood, noise) as float arrays (H, W, 3) in 0 … 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from jaxtyping import Float
from PIL import Image

Picture = Float[np.ndarray, "H W 3"]
Plane = Float[np.ndarray, "H W"]


def value_noise(rng: np.random.Generator, height: int, width: int, cells: int, octaves: int = 3) -> Plane:
    """Smooth noise in 0 … 1: random grids of ``cells``, 2·cells, … points, each half as strong."""
    total = np.zeros((height, width))
    strength = 1.0
    for octave in range(octaves):
        points = cells * 2**octave
        grid = Image.fromarray(rng.random((points, points)).astype(np.float32))
        total += strength * np.asarray(grid.resize((width, height), Image.Resampling.BICUBIC))
        strength /= 2
    low, high = total.min(), total.max()
    return (total - low) / max(high - low, 1e-9)


def sky(rng: np.random.Generator, height: int, width: int) -> Picture:
    """From a deep blue above to a pale horizon, with soft clouds."""
    top = np.array([0.22, 0.45, 0.78]) + rng.uniform(-0.08, 0.08, 3)
    horizon = np.array([0.80, 0.88, 0.94]) + rng.uniform(-0.06, 0.06, 3)
    down = np.linspace(0, 1, height)[:, None, None]
    clouds = np.clip(value_noise(rng, height, width, 3, 4) * 2.4 - 1.25, 0, 1)[..., None]
    clear = np.broadcast_to(top * (1 - down) + horizon * down, (height, width, 3))
    return clear * (1 - 0.75 * clouds) + 0.98 * 0.75 * clouds


def grass(rng: np.random.Generator, height: int, width: int) -> Picture:
    """Green patches under upright blades."""
    base = np.array([0.24, 0.46, 0.14]) + rng.uniform(-0.05, 0.05, 3)
    patches = value_noise(rng, height, width, 4)[..., None] - 0.5
    blades = np.repeat(rng.random((-(-height // 4), width)), 4, axis=0)[:height, :, None] - 0.5
    return base + 0.22 * patches * np.array([1.0, 1.0, 0.5]) + 0.20 * blades * np.array([0.7, 1.0, 0.4])


def water(rng: np.random.Generator, height: int, width: int) -> Picture:
    """Bent ripples, closer together towards the top."""
    base = np.array([0.10, 0.35, 0.52]) + rng.uniform(-0.05, 0.05, 3)
    rows = np.linspace(0.15, 1, height)[:, None]
    bend = value_noise(rng, height, width, 4)
    ripples = np.sin(rng.uniform(20, 34) * np.log(rows) + 9 * bend)[..., None]
    return base + 0.12 * ripples * np.array([0.7, 0.9, 1.0]) + 0.10 * (bend[..., None] - 0.5)


def sand(rng: np.random.Generator, height: int, width: int) -> Picture:
    """Fine grains on low dunes."""
    base = np.array([0.80, 0.68, 0.46]) + rng.uniform(-0.05, 0.05, 3)
    return (
        base + 0.18 * (value_noise(rng, height, width, 3)[..., None] - 0.5) + rng.normal(0, 0.035, (height, width, 1))
    )


def brick(rng: np.random.Generator, height: int, width: int) -> Picture:
    """Courses of bricks, every second one shifted by half a brick, each brick of its own red."""
    brick_height = int(rng.integers(max(4, height // 14), max(5, height // 8) + 1))
    brick_width = int(brick_height * rng.uniform(1.9, 2.6))
    rows, columns = np.mgrid[0:height, 0:width]
    course = rows // brick_height
    shifted = columns + (course % 2) * (brick_width // 2)
    tints = rng.uniform(-0.13, 0.13, (course.max() + 1, shifted.max() // brick_width + 1))
    base = np.array([0.58, 0.27, 0.20]) + rng.uniform(-0.06, 0.06, 3)
    wall = base + tints[course, shifted // brick_width][..., None]
    joint = max(1, brick_height // 7)
    mortar = (rows % brick_height < joint) | (shifted % brick_width < joint)
    wall = np.where(mortar[..., None], 0.72 + rng.uniform(-0.05, 0.05), wall)
    return wall + 0.12 * (value_noise(rng, height, width, 16, 2)[..., None] - 0.5)


def wood(rng: np.random.Generator, height: int, width: int) -> Picture:
    """Planks with a wavy grain along them."""
    num_planks = int(rng.integers(3, 6))
    rows, columns = np.mgrid[0:height, 0:width]
    plank = rows * num_planks // height
    tints = rng.uniform(-0.08, 0.08, num_planks)[plank]
    waves = value_noise(rng, height, width, 3, 2)
    grain = np.sin((rows + plank * 37) * rng.uniform(0.5, 0.9) + 10 * waves + columns * 0.015)
    base = np.array([0.55, 0.36, 0.19]) + rng.uniform(-0.05, 0.05, 3)
    boards = base + (tints + 0.07 * grain)[..., None] * np.array([1.0, 0.85, 0.6])
    seam = (rows * num_planks) % height < num_planks
    return np.where(seam[..., None], 0.35 * boards, boards)


def noise(rng: np.random.Generator, height: int, width: int) -> Picture:
    """Coloured clouds with grain: no meaning at all, for comparison."""
    first, second = rng.uniform(0.15, 0.85, 3), rng.uniform(0.15, 0.85, 3)
    mix = value_noise(rng, height, width, int(rng.integers(2, 9)), 4)[..., None]
    return first * mix + second * (1 - mix) + rng.normal(0, 0.05, (height, width, 3))


WALLS: Final[dict[str, Callable[[np.random.Generator, int, int], Picture]]] = {
    "brick": brick,
    "wood": wood,
    "noise": noise,
}
GROUNDS: Final[dict[str, Callable[[np.random.Generator, int, int], Picture]]] = {
    "grass": grass,
    "water": water,
    "sand": sand,
}


def landscape(rng: np.random.Generator, ground: str, side: int, horizon: float) -> Picture:
    """Sky down to ``horizon`` (share of the height), the ground below, hazy where they meet."""
    line = int(side * horizon)
    picture = np.empty((side, side, 3))
    picture[:line] = sky(rng, line, side)
    picture[line:] = GROUNDS[ground](rng, side - line, side)
    haze = np.exp(-np.arange(side - line) / (0.12 * side))[:, None, None] * 0.35
    picture[line:] = picture[line:] * (1 - haze) + np.array([0.80, 0.86, 0.90]) * haze
    return np.clip(picture, 0, 1)
