"""AutoAugment's ImageNet policy (Cubuk et al. 2019, arXiv:1805.09501, table 9) on whole batches.

Every operation takes uint8 images and one strength per image and returns uint8 images of the same shape; names and
results follow Pillow (``ImageOps``, ``ImageEnhance``), which the AutoAugment authors used.

Shapes: B images, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

Images = UInt8[Tensor, "B 3 H W"]
Strengths = Float[Tensor, " B"]

# Each line is one sub-policy: two operations with probability and magnitude (0 … 9), in that order.
POLICY: Final = (
    (("posterize", 0.4, 8), ("rotate", 0.6, 9)),
    (("solarize", 0.6, 5), ("autocontrast", 0.6, 5)),
    (("equalize", 0.8, 8), ("equalize", 0.6, 3)),
    (("posterize", 0.6, 7), ("posterize", 0.6, 6)),
    (("equalize", 0.4, 7), ("solarize", 0.2, 4)),
    (("equalize", 0.4, 4), ("rotate", 0.8, 8)),
    (("solarize", 0.6, 3), ("equalize", 0.6, 7)),
    (("posterize", 0.8, 5), ("equalize", 1.0, 2)),
    (("rotate", 0.2, 3), ("solarize", 0.6, 8)),
    (("equalize", 0.6, 8), ("posterize", 0.4, 6)),
    (("rotate", 0.8, 8), ("color", 0.4, 0)),
    (("rotate", 0.4, 9), ("equalize", 0.6, 2)),
    (("equalize", 0.0, 7), ("equalize", 0.8, 8)),
    (("invert", 0.6, 4), ("equalize", 1.0, 8)),
    (("color", 0.6, 4), ("contrast", 1.0, 8)),
    (("rotate", 0.8, 8), ("color", 1.0, 2)),
    (("color", 0.8, 8), ("solarize", 0.8, 7)),
    (("sharpness", 0.4, 7), ("invert", 0.6, 8)),
    (("shear_x", 0.6, 5), ("equalize", 1.0, 9)),
    (("color", 0.4, 0), ("equalize", 0.6, 3)),
    (("equalize", 0.4, 7), ("solarize", 0.2, 4)),
    (("solarize", 0.6, 5), ("autocontrast", 0.6, 5)),
    (("invert", 0.6, 4), ("equalize", 1.0, 8)),
    (("color", 0.6, 4), ("contrast", 1.0, 8)),
    (("equalize", 0.8, 8), ("equalize", 0.6, 3)),
)
FILL: Final = 128
"""grey that comes in from outside when an image is turned or sheared"""


def auto_augment(images: Images, share: float, generator: torch.Generator) -> Images:
    """A random sub-policy for each image of a random ``share`` of them; the generator is a CPU one.

    Magnitudes are those of the later literature: 0 changes nothing, and a turn, shear or enhancement
    goes either way with equal chance (the paper's code maps colour 0 to nearly grey instead).
    """
    batch = len(images)
    passes = torch.rand(batch, generator=generator) < share
    lines = torch.randint(0, len(POLICY), (batch,), generator=generator).tolist()
    chances = torch.rand(batch, 2, generator=generator).tolist()
    signs = (torch.randint(0, 2, (batch, 2), generator=generator) * 2 - 1).tolist()
    images = images.clone()
    for slot in range(2):
        rows_of: dict[str, list[int]] = {}
        levels_of: dict[str, list[float]] = {}
        for row in torch.nonzero(passes).flatten().tolist():
            name, chance, level = POLICY[lines[row]][slot]
            if chances[row][slot] < chance:
                rows_of.setdefault(name, []).append(row)
                levels_of.setdefault(name, []).append(signs[row][slot] * level / 9)
        for name, rows in rows_of.items():
            chosen = torch.tensor(rows, device=images.device)
            levels = torch.tensor(levels_of[name], device=images.device, dtype=torch.float32)
            images[chosen] = OPERATIONS[name](images[chosen], levels)
    return images


def rotate(images: Images, levels: Strengths) -> Images:
    """By up to 30° about the centre; counter-clockwise where positive."""
    angle = levels * math.radians(30)
    cos, sin = torch.cos(angle), torch.sin(angle)
    return _moved(images, torch.stack((cos, -sin, sin, cos), dim=1).view(-1, 2, 2))


def shear_x(images: Images, levels: Strengths) -> Images:
    """Rows pushed sideways, by up to 0.3 pixel for each pixel from the middle row."""
    one, zero = torch.ones_like(levels), torch.zeros_like(levels)
    return _moved(images, torch.stack((one, 0.3 * levels, zero, one), dim=1).view(-1, 2, 2))


def posterize(images: Images, levels: Strengths) -> Images:
    """The 8 … 4 high bits kept, the rest zero."""
    dropped = torch.round(levels.abs() * 4).to(torch.uint8)
    mask = torch.bitwise_left_shift(torch.full_like(dropped, 255), dropped)
    return images & mask.view(-1, 1, 1, 1)


def solarize(images: Images, levels: Strengths) -> Images:
    """Values from the threshold 256 … 0 upwards inverted."""
    threshold = (256 * (1 - levels.abs())).view(-1, 1, 1, 1)
    return torch.where(images >= threshold, 255 - images, images)


def invert(images: Images, levels: Strengths) -> Images:
    """255 − value, whatever the level."""
    return 255 - images


def autocontrast(images: Images, levels: Strengths) -> Images:
    """Each channel stretched to 0 … 255; one of a single value stays. The level does not matter."""
    x = images.float()
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    stretched = (x - low) * (255 / (high - low).clamp(min=1))
    return torch.where(high > low, _bytes(stretched, torch.floor), images)


def equalize(images: Images, levels: Strengths) -> Images:
    """Each channel's histogram made flat by Pillow's integer formula. The level does not matter."""
    batch, channels, height, width = images.shape
    values = images.reshape(batch * channels, -1).long()
    counts = torch.zeros(batch * channels, 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(1, values, torch.ones_like(values))
    last = counts.gather(1, values.amax(1, keepdim=True))  # how many pixels have the highest value
    step = (height * width - last) // 255
    before = counts.cumsum(1) - counts
    table = ((before + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.gather(1, values).to(torch.uint8).view_as(images)


def color(images: Images, levels: Strengths) -> Images:
    """Saturation × (1 + 0.9 · level)."""
    return _blend(_grey(images), images, levels)


def contrast(images: Images, levels: Strengths) -> Images:
    """Distance from the mean grey × (1 + 0.9 · level)."""
    return _blend(_grey(images).mean((2, 3), keepdim=True).add(0.5).floor(), images, levels)


def sharpness(images: Images, levels: Strengths) -> Images:
    """Distance from a 3 × 3 blur × (1 + 0.9 · level); the outermost pixels stay."""
    kernel = torch.ones(3, 1, 3, 3, device=images.device)
    kernel[:, :, 1, 1] = 5
    blurred = images.float()
    if images.shape[2] > 2 and images.shape[3] > 2:
        inner = F.conv2d(blurred, kernel / 13, groups=3).add(0.5).floor()
        blurred = blurred.clone()
        blurred[:, :, 1:-1, 1:-1] = inner
    return _blend(blurred, images, levels)


OPERATIONS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "autocontrast": autocontrast,
    "color": color,
    "contrast": contrast,
    "equalize": equalize,
    "invert": invert,
    "posterize": posterize,
    "rotate": rotate,
    "sharpness": sharpness,
    "shear_x": shear_x,
    "solarize": solarize,
}


def _moved(images: Images, matrices: Float[Tensor, "B 2 2"]) -> Images:
    """Sampled at matrix · (position − centre) + centre in pixels, bilinear, ``FILL`` from outside."""
    batch, _, height, width = images.shape
    # affine_grid's units are half widths and half heights: keep angles true in oblong images
    units = torch.tensor([width, height], device=images.device, dtype=torch.float32)
    theta = torch.zeros(batch, 2, 3, device=images.device)
    theta[:, :, :2] = matrices * units / units[:, None]
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    moved = F.grid_sample(images.float() - FILL, grid, padding_mode="zeros", align_corners=False)
    return _bytes(moved + FILL, torch.round)


def _blend(base: Tensor, images: Images, levels: Strengths) -> Images:
    factor = (1 + 0.9 * levels).view(-1, 1, 1, 1)
    return _bytes(base + factor * (images.float() - base), torch.round)


def _grey(images: Images) -> Float[Tensor, "B 1 H W"]:
    """Luma by ITU-R 601, rounded as Pillow's mode L."""
    weights = torch.tensor((0.299, 0.587, 0.114), device=images.device).view(3, 1, 1)
    return (images.float() * weights).sum(dim=1, keepdim=True).round()


def _bytes(x: Tensor, rounding: Callable[[Tensor], Tensor]) -> Images:
    return rounding(x.clamp(0, 255)).to(torch.uint8)
