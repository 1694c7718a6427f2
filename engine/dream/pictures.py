"""Dreams as PNG: frames, strips, and the red outline of a group of patches.

Shapes: N pixels a side.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image, ImageDraw
from torch import Tensor

RED = (214, 39, 40)


def to_image(picture: Float[Tensor, "channels N N"]) -> Image.Image:
    """A picture in [0, 1] at its own size; one channel as grey."""
    levels = (picture.detach().float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    rows = levels.transpose(1, 2, 0)
    return Image.fromarray(np.repeat(rows, 3, axis=2) if rows.shape[2] == 1 else rows)


def to_png(image: Image.Image, side: int | None = None) -> bytes:
    """PNG bytes, enlarged to at least ``side`` by whole pixels: nothing is blurred."""
    times = max(1, -(-side // image.width)) if side else 1
    if times > 1:
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def patch_mask(patches: Iterable[int], grid: tuple[int, int], patch: int) -> Bool[Tensor, "N N"]:
    """The pixels of some patches, numbered row by row."""
    mask = torch.zeros(grid, dtype=torch.bool)
    for index in patches:
        mask[index // grid[1], index % grid[1]] = True
    return mask.repeat_interleave(patch, 0).repeat_interleave(patch, 1)


def outlined(image: Image.Image, patches: Iterable[int], grid: tuple[int, int], times: int = 4) -> Image.Image:
    """``image`` enlarged ``times``, with a red line around the group of patches."""
    big = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    pen, inside = ImageDraw.Draw(big), {divmod(index, grid[1]) for index in patches}
    height, width = big.height / grid[0], big.width / grid[1]
    for row, col in inside:
        left, top, right, bottom = col * width, row * height, (col + 1) * width - 1, (row + 1) * height - 1
        sides = {
            (row - 1, col): (left, top, right, top),
            (row + 1, col): (left, bottom, right, bottom),
            (row, col - 1): (left, top, left, bottom),
            (row, col + 1): (right, top, right, bottom),
        }
        for neighbour, line in sides.items():
            if neighbour not in inside:
                pen.line(line, fill=RED, width=max(2, times // 2))
    return big


def strip(images: Sequence[Image.Image], gap: int = 2) -> Image.Image:
    """Images of one height side by side on white."""
    wide = sum(image.width for image in images) + gap * (len(images) - 1)
    canvas = Image.new("RGB", (wide, max(image.height for image in images)), "white")
    left = 0
    for image in images:
        canvas.paste(image, (left, 0))
        left += image.width + gap
    return canvas


def stacked(rows: Sequence[Image.Image], gap: int = 2) -> Image.Image:
    """Strips below each other on white."""
    tall = sum(row.height for row in rows) + gap * (len(rows) - 1)
    canvas = Image.new("RGB", (max(row.width for row in rows), tall), "white")
    top = 0
    for row in rows:
        canvas.paste(row, (0, top))
        top += row.height + gap
    return canvas
