"""Pixel values to what vision models expect: channels standardised with the ImageNet mean and deviation."""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""of the channels in [0, 1]; the usual ImageNet values"""


def normalise(images: UInt8[Tensor, "B 3 H W"] | Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B 3 H W"]:
    """uint8, or floats in [0, 1], to what the models expect."""
    x = images.float() / 255 if images.dtype == torch.uint8 else images
    mean = torch.tensor(MEAN, device=x.device).view(3, 1, 1)
    std = torch.tensor(STD, device=x.device).view(3, 1, 1)
    return (x - mean) / std
