"""Examples for *Try it*: pictures drawn by code, texts written for it. Nothing is copied or fetched."""

from __future__ import annotations

import io
from collections.abc import Callable

from PIL import Image, ImageDraw

SIDE = 256


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def ball_on_grass() -> bytes:
    """One object, a sky, a ground: do the patches of the ball travel together?"""
    image = Image.new("RGB", (SIDE, SIDE), (150, 196, 232))
    draw = ImageDraw.Draw(image)
    for y in range(150, SIDE):
        draw.line((0, y, SIDE, y), fill=(60 + y // 6, 130 + (y * 37) % 30, 50))
    for ring in range(60, 0, -1):
        draw.ellipse((128 - ring, 130 - ring, 128 + ring, 130 + ring), fill=(235 - ring, 70 + ring // 2, 50))
    return _png(image)


def checkerboard() -> bytes:
    """Only edges and flat squares."""
    image = Image.new("RGB", (SIDE, SIDE), (245, 245, 240))
    draw = ImageDraw.Draw(image)
    for row in range(8):
        for col in range(row % 2, 8, 2):
            draw.rectangle((col * 32, row * 32, col * 32 + 31, row * 32 + 31), fill=(40, 50, 70))
    return _png(image)


def night_and_moon() -> bytes:
    """Mostly nothing: much to skip."""
    image = Image.new("RGB", (SIDE, SIDE), (14, 18, 38))
    draw = ImageDraw.Draw(image)
    draw.ellipse((150, 40, 210, 100), fill=(240, 236, 214))
    for star in range(24):
        x, y = star * 97 % SIDE, star * 57 % SIDE
        draw.point((x, y), fill=(255, 255, 255))
    draw.polygon([(0, 256), (0, 200), (80, 160), (150, 210), (256, 170), (256, 256)], fill=(24, 32, 44))
    return _png(image)


IMAGES: dict[str, Callable[[], bytes]] = {
    "ball on grass": ball_on_grass,
    "checkerboard": checkerboard,
    "night and moon": night_and_moon,
}

TEXTS: dict[str, str] = {
    "a small story": (
        "The old clock in the hall had stopped at noon, and nobody in the house could say when. Anna wound it, "
        "listened, and heard nothing but the rain. “Perhaps,” she said, “it is waiting for us to be quiet.”"
    ),
    "some code": (
        "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n"
        "    return total / len(values)\n"
    ),
    "many scripts": "naïve café – 12.5 % of 1,000\nשלום עולם\nПривет, мир\nこんにちは 🙂",
}
