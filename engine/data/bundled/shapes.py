"""Objects of the drawn scenes; one function draws both the colours and the exact mask of each.

A ``Pen`` draws in units of the object's box (0 … 1 both ways, y down), so that a shape is written once and drawn at
any size and position, mirrored or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from PIL import Image, ImageDraw

Point = tuple[float, float]
Colour = tuple[int, int, int]


class Pen:
    """Draws on a picture and on its mask at once; ``hole`` gives pixels back to the background."""

    def __init__(self, side: int, left: float, top: float, size: float, mirrored: bool) -> None:
        self.picture = Image.new("RGB", (side, side))
        self.mask = Image.new("L", (side, side))
        self._draws = ((ImageDraw.Draw(self.picture), None), (ImageDraw.Draw(self.mask), 255))
        self._left, self._top, self._size, self._mirrored = left, top, size, mirrored

    def _place(self, point: Point) -> Point:
        x = 1 - point[0] if self._mirrored else point[0]
        return self._left + x * self._size, self._top + point[1] * self._size

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        placed = [self._place(point) for point in points]
        for draw, fixed in self._draws:
            draw.polygon(placed, fill=colour if fixed is None else fixed)

    def ellipse(self, x0: float, y0: float, x1: float, y1: float, colour: Colour) -> None:
        (a, b), (c, d) = self._place((x0, y0)), self._place((x1, y1))
        box = (min(a, c), min(b, d), max(a, c), max(b, d))
        for draw, fixed in self._draws:
            draw.ellipse(box, fill=colour if fixed is None else fixed)

    def box(self, x0: float, y0: float, x1: float, y1: float, colour: Colour) -> None:
        self.polygon([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], colour)


def _tone(rng: np.random.Generator, *choices: Colour) -> Colour:
    """One of the colours, a little off."""
    chosen = np.array(choices[int(rng.integers(len(choices)))])
    r, g, b = np.clip(chosen + rng.integers(-22, 23, 3), 8, 247).tolist()
    return r, g, b


def _shade(colour: Colour, factor: float) -> Colour:
    r, g, b = (max(0, min(255, round(channel * factor))) for channel in colour)
    return r, g, b


def disc(pen: Pen, rng: np.random.Generator) -> None:
    """A ball, plain or with a stripe."""
    colour = _tone(rng, (210, 60, 50), (240, 190, 40), (60, 90, 200), (240, 240, 235), (150, 60, 160))
    pen.ellipse(0.05, 0.05, 0.95, 0.95, colour)
    if rng.random() < 0.5:
        band = _tone(rng, (250, 250, 250), (30, 30, 60))
        half = 0.44 * math.sqrt(1 - 0.3**2)
        pen.polygon([(0.5 - half, 0.38), (0.5 + half, 0.38), (0.5 + half, 0.58), (0.5 - half, 0.58)], band)


def polygon(pen: Pen, rng: np.random.Generator) -> None:
    """A crystal: a convex polygon of 3 to 8 corners in two tones."""
    corners = int(rng.integers(3, 9))
    turn = rng.uniform(0, 2 * math.pi)
    angles = [turn + 2 * math.pi * i / corners for i in range(corners)]
    points = [(0.5 + 0.46 * math.cos(a), 0.5 + 0.46 * math.sin(a)) for a in angles]
    colour = _tone(rng, (70, 170, 190), (220, 120, 60), (120, 190, 90), (190, 80, 130), (240, 220, 120))
    pen.polygon(points, colour)
    for i in range(0, corners, 2):
        pen.polygon([(0.5, 0.5), points[i], points[(i + 1) % corners]], _shade(colour, 0.78))


def animal(pen: Pen, rng: np.random.Generator) -> None:
    """A four-legged animal of ellipses: body, head, ear, tail, legs, eye."""
    colour = _tone(rng, (150, 100, 60), (90, 80, 75), (215, 195, 165), (60, 55, 55), (200, 140, 80))
    dark = _shade(colour, 0.72)
    for x in (0.22, 0.36, 0.60, 0.73):
        pen.box(x, 0.60, x + 0.075, 0.97, dark if x in (0.36, 0.60) else colour)
    lift = rng.uniform(0.0, 0.25)
    pen.polygon([(0.16, 0.46), (0.02, 0.34 - lift), (0.05, 0.30 - lift), (0.22, 0.40)], dark)
    pen.ellipse(0.14, 0.36, 0.82, 0.74, colour)
    pen.polygon([(0.66, 0.42), (0.82, 0.20), (0.92, 0.34), (0.80, 0.58)], colour)
    pen.ellipse(0.70, 0.12, 0.97, 0.40, colour)
    pen.polygon([(0.74, 0.18), (0.72, 0.00), (0.84, 0.13)], dark)
    if rng.random() < 0.5:
        for _ in range(4):
            x, y = rng.uniform(0.28, 0.62), rng.uniform(0.44, 0.58)
            pen.ellipse(x, y, x + 0.09, y + 0.07, dark)
    pen.ellipse(0.85, 0.20, 0.89, 0.24, (15, 15, 15))


def car(pen: Pen, rng: np.random.Generator) -> None:
    """A car from the side: boxes, windows, two wheels."""
    colour = _tone(rng, (190, 40, 40), (40, 80, 160), (225, 225, 225), (240, 200, 60), (50, 110, 80))
    glass = (150, 190, 210)
    pen.polygon([(0.20, 0.46), (0.32, 0.24), (0.68, 0.24), (0.82, 0.46)], colour)
    pen.polygon([(0.27, 0.45), (0.35, 0.29), (0.49, 0.29), (0.49, 0.45)], glass)
    pen.polygon([(0.53, 0.45), (0.53, 0.29), (0.65, 0.29), (0.74, 0.45)], glass)
    pen.polygon([(0.02, 0.72), (0.03, 0.50), (0.10, 0.44), (0.90, 0.44), (0.98, 0.52), (0.98, 0.72)], colour)
    pen.box(0.02, 0.66, 0.98, 0.72, _shade(colour, 0.7))
    pen.box(0.93, 0.50, 0.98, 0.57, (250, 240, 180))
    for x in (0.25, 0.75):
        pen.ellipse(x - 0.12, 0.60, x + 0.12, 0.84, (25, 25, 28))
        pen.ellipse(x - 0.055, 0.665, x + 0.055, 0.775, (170, 170, 175))


def tree(pen: Pen, rng: np.random.Generator) -> None:
    """A broad-leaved tree of blobs or a fir of triangles."""
    bark = _tone(rng, (95, 65, 40), (120, 90, 65))
    leaf = _tone(rng, (50, 110, 45), (80, 140, 50), (190, 120, 40), (35, 85, 60))
    pen.polygon([(0.44, 0.97), (0.46, 0.45), (0.54, 0.45), (0.57, 0.97)], bark)
    if rng.random() < 0.4:
        for top, low, half in ((0.02, 0.38, 0.22), (0.18, 0.58, 0.32), (0.38, 0.78, 0.40)):
            pen.polygon([(0.5, top), (0.5 - half, low), (0.5 + half, low)], _shade(leaf, 0.75 + 0.5 * (0.4 - top)))
        return
    for _ in range(13):
        angle, reach = rng.uniform(0, 2 * math.pi), rng.uniform(0, 0.26)
        x, y, radius = (0.5 + reach * math.cos(angle), 0.34 + 0.8 * reach * math.sin(angle), rng.uniform(0.10, 0.17))
        pen.ellipse(x - radius, y - radius, x + radius, y + radius, _shade(leaf, rng.uniform(0.75, 1.2)))


def house(pen: Pen, rng: np.random.Generator) -> None:
    """A gabled house with a door and windows."""
    wall = _tone(rng, (225, 205, 175), (200, 120, 95), (235, 235, 230), (150, 175, 190))
    roof = _tone(rng, (140, 50, 40), (70, 65, 75), (95, 70, 50))
    pen.box(0.68, 0.08, 0.78, 0.36, _shade(wall, 0.6))
    pen.box(0.12, 0.42, 0.88, 0.97, wall)
    pen.polygon([(0.04, 0.46), (0.5, 0.06), (0.96, 0.46)], roof)
    pen.box(0.44, 0.68, 0.58, 0.97, _shade(roof, 0.6))
    for x in (0.20, 0.66):
        pen.box(x, 0.56, x + 0.15, 0.70, (245, 225, 140) if rng.random() < 0.4 else (110, 150, 175))


def fish(pen: Pen, rng: np.random.Generator) -> None:
    """A fish with fins, tail and stripes."""
    colour = _tone(rng, (240, 140, 40), (70, 140, 200), (200, 205, 215), (230, 90, 90))
    dark = _shade(colour, 0.7)
    pen.polygon([(0.24, 0.50), (0.02, 0.26), (0.08, 0.50), (0.02, 0.74)], dark)
    pen.polygon([(0.38, 0.34), (0.52, 0.14), (0.68, 0.32)], dark)
    pen.polygon([(0.46, 0.66), (0.50, 0.84), (0.64, 0.66)], dark)
    pen.ellipse(0.16, 0.28, 0.98, 0.72, colour)
    for x in (0.42, 0.58):
        pen.ellipse(x, 0.30, x + 0.06, 0.70, _shade(colour, 1.25))
    pen.ellipse(0.82, 0.40, 0.88, 0.46, (250, 250, 250))
    pen.ellipse(0.84, 0.42, 0.88, 0.46, (10, 10, 10))


def mushroom(pen: Pen, rng: np.random.Generator) -> None:
    """A mushroom with spots on its cap."""
    cap = _tone(rng, (195, 45, 40), (150, 105, 65), (225, 190, 120))
    stem = _tone(rng, (235, 225, 205))
    pen.polygon([(0.40, 0.97), (0.43, 0.45), (0.57, 0.45), (0.61, 0.97)], stem)
    angles = [math.pi * i / 24 for i in range(25)]
    dome = [(0.5 - 0.45 * math.cos(a), 0.52 - 0.44 * math.sin(a)) for a in angles]
    pen.polygon(dome, cap)
    pen.ellipse(0.05, 0.46, 0.95, 0.58, _shade(cap, 0.7))
    for x, y, radius in ((0.32, 0.30, 0.06), (0.55, 0.20, 0.07), (0.70, 0.36, 0.05), (0.47, 0.40, 0.045)):
        pen.ellipse(x - radius, y - radius, x + radius, y + radius, (245, 240, 230))


SHAPES: Final[dict[str, Callable[[Pen, np.random.Generator], None]]] = {
    "animal": animal,
    "car": car,
    "disc": disc,
    "fish": fish,
    "house": house,
    "mushroom": mushroom,
    "polygon": polygon,
    "tree": tree,
}
