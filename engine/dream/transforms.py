"""Random transforms of an image at each iteration, so that only robust features grow.

Jitter, rotation and scaling are one affine map, so one resampling does all three; then every channel is stretched and
shifted, and noise is added whose variance falls from 1 to 0. Draws derive from (seed, dream, iteration) alone: a
dream does not depend on its batch, and resumes exactly.

Shapes: B dreams, N pixels a side.
Source: Distributed Neural Architectures, appendix C.1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from tokenpaths.engine.dream.settings import ImageSettings


@dataclass(frozen=True)
class Draw:
    """One iteration's disturbance of one dream."""

    affine: Float[Tensor, "2 3"]
    """from coordinates of the disturbed picture to those of the picture, both −1 … 1"""
    stretch: Float[Tensor, " channels"]
    shift: Float[Tensor, " channels"]
    noise: Float[Tensor, "channels N N"]


def generator_of(seed: int, dream: int, iteration: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one iteration of one dream; −1 is what came before the first."""
    words = hashlib.blake2b(f"{seed} {dream} {iteration}".encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(words) >> 1)


def draw(
    settings: ImageSettings, side: int, jitter: float, generator: torch.Generator, done: float, channels: int = 3
) -> Draw:
    """``jitter`` in pixels; ``done`` = share of the iterations that lie behind, which lets the noise fall."""
    device = generator.device
    across, down, turn, size = (torch.rand(4, generator=generator, device=device) * 2 - 1).tolist()
    normal = torch.randn(2, channels, generator=generator, device=device) * settings.colour_shift
    spread = settings.noise * math.sqrt(max(0.0, 1 - done))
    noise = torch.randn(channels, side, side, generator=generator, device=device) * spread
    affine = affine_of(
        across * jitter, down * jitter, math.radians(turn * settings.rotation), 1 + size * settings.scaling, side
    )
    return Draw(affine.to(device), normal[0].exp(), normal[1], noise)


def affine_of(across: float, down: float, angle: float, scale: float, side: int) -> Float[Tensor, "2 3"]:
    """Shift by (across, down) pixels, turn by ``angle``, scale by ``scale``, in this order, around the centre.

    The matrix undoes them: it says where in the picture a pixel of the result comes from.
    """
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    return torch.tensor([[cos, sin, -2 * across / side], [-sin, cos, -2 * down / side]])


def move(pictures: Float[Tensor, "B channels N N"], affine: Float[Tensor, "B 2 3"]) -> Float[Tensor, "B channels N N"]:
    """Every picture through its map, bilinear; what lies outside is the picture's mirror image."""
    grid = F.affine_grid(affine, list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def disturb(pictures: Float[Tensor, "B channels N N"], draws: Sequence[Draw]) -> Float[Tensor, "B channels N N"]:
    """Moved, recoloured and noisy: what the model gets to see. ``pictures`` are normalised as the model wants them."""
    moved = move(pictures, torch.stack([d.affine for d in draws]))
    stretch, shift = (torch.stack([getattr(d, name) for d in draws])[:, :, None, None] for name in ("stretch", "shift"))
    return moved * stretch + shift + torch.stack([d.noise for d in draws])
