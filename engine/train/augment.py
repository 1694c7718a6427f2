"""Vision augmentation of whole batches, on any device, reproducible from one generator.

Shapes: B images, C = 3 channels, H height, W width, L classes.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.train.autoaugment import auto_augment
from tokenpaths.engine.train.recipes import AugmentConfig


def augment(
    images: UInt8[Tensor, "B 3 H W"], config: AugmentConfig, generator: torch.Generator
) -> Float[Tensor, "B 3 H W"]:
    """Crop, flip, AutoAugment, jitter, erase, each where ``config`` asks for it; the result is normalised."""
    x = images
    if config.crop_padding:
        x = random_crop(x, config.crop_padding, generator)
    if config.flip:
        flips = _uniform(len(x), generator, x.device) < 0.5
        x = torch.where(flips[:, None, None, None], x.flip(3), x)
    if config.auto_augment:
        x = auto_augment(x, config.auto_augment, generator)
    x = x.float() / 255
    if config.jitter:
        x = color_jitter(x, config.jitter, generator)
    x = normalise(x)
    if config.erase:
        x = random_erase(x, config.erase, generator)
    return x


def random_crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """A crop of the original size out of the image with a reflected border."""
    batch, _, height, width = images.shape
    padded = F.pad(images.float(), (padding,) * 4, mode="reflect").to(images.dtype)
    top, left = torch.randint(0, 2 * padding + 1, (2, batch), generator=generator).to(images.device)
    rows = top[:, None] + torch.arange(height, device=images.device)
    cols = left[:, None] + torch.arange(width, device=images.device)
    index = torch.arange(batch, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows[:, :, None], cols[:, None, :]].permute(0, 3, 1, 2)


def color_jitter(x: Float[Tensor, "B 3 H W"], strength: float, generator: torch.Generator) -> Float[Tensor, "B 3 H W"]:
    """Brightness, contrast and saturation, each scaled by 1 ± strength, an image at a time."""
    low, span = 1 - strength, 2 * strength
    factors = low + span * torch.rand(3, len(x), 1, 1, 1, generator=generator).to(x.device)
    brightness, contrast, saturation = factors
    x = (x * brightness).clamp(0, 1)
    mean = _grey(x).mean(dim=(2, 3), keepdim=True)
    x = (mean + (x - mean) * contrast).clamp(0, 1)
    grey = _grey(x)
    return (grey + (x - grey) * saturation).clamp(0, 1)


def random_erase(x: Float[Tensor, "B 3 H W"], share: float, generator: torch.Generator) -> Float[Tensor, "B 3 H W"]:
    """Zero (after normalisation: mean colour) one rectangle of 2 to 33 % of some images."""
    batch, _, height, width = x.shape
    area = (0.02 + 0.31 * _uniform(batch, generator, x.device)) * height * width
    aspect = torch.exp((_uniform(batch, generator, x.device) * 2 - 1) * 1.2)  # 0.3 … 3.3
    tall = (area * aspect).sqrt().clamp(max=height - 1).long()
    wide = (area / aspect).sqrt().clamp(max=width - 1).long()
    top = (_uniform(batch, generator, x.device) * (height - tall)).long()
    left = (_uniform(batch, generator, x.device) * (width - wide)).long()
    rows = torch.arange(height, device=x.device)
    cols = torch.arange(width, device=x.device)
    inside = ((rows >= top[:, None]) & (rows < (top + tall)[:, None]))[:, :, None]
    inside = inside & ((cols >= left[:, None]) & (cols < (left + wide)[:, None]))[:, None, :]
    chosen = _uniform(batch, generator, x.device) < share
    return x.masked_fill((inside & chosen[:, None, None]).unsqueeze(1), 0)


def mix(
    x: Float[Tensor, "B 3 H W"],
    labels: Int[Tensor, " B"],
    num_classes: int,
    config: AugmentConfig,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "B 3 H W"], Float[Tensor, "B L"]]:
    """MixUp or CutMix, a coin decides for the batch; labels become shares that sum to 1."""
    cut = bool(torch.rand((), generator=generator) < 0.5)
    alpha = config.cutmix_alpha if cut else config.mixup_alpha
    keep = _beta(alpha, generator)
    partner = torch.randperm(len(x), generator=generator).to(x.device)
    if cut:
        height, width = x.shape[2:]
        tall, wide = int(height * (1 - keep) ** 0.5), int(width * (1 - keep) ** 0.5)
        top = int(torch.randint(0, height - tall + 1, (), generator=generator))
        left = int(torch.randint(0, width - wide + 1, (), generator=generator))
        x = x.clone()
        x[:, :, top : top + tall, left : left + wide] = x[partner, :, top : top + tall, left : left + wide]
        keep = 1 - tall * wide / (height * width)
    else:
        x = keep * x + (1 - keep) * x[partner]
    one_hot = F.one_hot(labels, num_classes).float()
    partner = partner.to(labels.device)
    return x, keep * one_hot + (1 - keep) * one_hot[partner]


def _beta(alpha: float, generator: torch.Generator) -> float:
    """One Beta(α, α) draw: the share of two gamma draws."""
    a, b = torch._standard_gamma(torch.full((2,), alpha), generator=generator).tolist()
    return a / (a + b)


def _grey(x: Tensor) -> Tensor:
    weights = torch.tensor((0.299, 0.587, 0.114), device=x.device).view(3, 1, 1)
    return (x * weights).sum(dim=1, keepdim=True)


def _uniform(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.rand(count, generator=generator).to(device)
