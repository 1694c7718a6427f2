"""Images parametrised by Fourier coefficients in decorrelated colours.

Θ = sigmoid(A · IFFT2(W · θ)), A the colour matrix below, W = 1 / max(|ω_x|, |ω_y|, 1 / side): with one learning rate
for all coefficients, low frequencies move fastest and colours move together as they do in photographs. The inverse
transform sums waves without dividing by the number of pixels, so that the rate means the same at every size.

Shapes: B pictures, N pixels a side, F = N // 2 + 1 frequencies of a real signal.
Source: Distributed Neural Architectures, equations 10 and 11, after Feature Visualization (Olah et al., 2017).
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

COLOURS = ((0.26, 0.09, 0.02), (0.27, 0.00, -0.05), (0.27, -0.09, 0.03))


@cache
def spectrum_scale(side: int) -> Float[Tensor, "N F"]:
    """W, on the CPU."""
    rows, cols = torch.fft.fftfreq(side).abs(), torch.fft.rfftfreq(side)
    return 1 / torch.maximum(rows[:, None], cols[None, :]).clamp(min=1 / side)


def start_spectrum(
    side: int, generator: torch.Generator, spread: float = 0.01, channels: int = 3
) -> Float[Tensor, "channels N F 2"]:
    """Small random coefficients: a nearly grey picture."""
    device = generator.device
    return spread * torch.randn(channels, side, side // 2 + 1, 2, generator=generator, device=device)


def to_pictures(spectrum: Float[Tensor, "B channels N F 2"]) -> Float[Tensor, "B channels N N"]:
    """Θ in (0, 1). Pictures that have not three channels keep theirs as they are."""
    side = spectrum.shape[2]
    waves = torch.view_as_complex(spectrum) * spectrum_scale(side).to(spectrum.device)
    planes = torch.fft.irfft2(waves, s=(side, side), norm="forward")
    if planes.shape[1] == 3:
        planes = torch.einsum("dc,bcyx->bdyx", torch.tensor(COLOURS, device=planes.device), planes)
    return planes.sigmoid()


def total_variation(pictures: Float[Tensor, "B channels N N"]) -> Float[Tensor, " B"]:
    """Sum of the squared differences of neighbours: to the right, below, and along both diagonals."""
    x = pictures
    differences = (
        x[..., :, 1:] - x[..., :, :-1],
        x[..., 1:, :] - x[..., :-1, :],
        x[..., 1:, 1:] - x[..., :-1, :-1],
        x[..., 1:, :-1] - x[..., :-1, 1:],
    )
    return torch.stack([d.square().flatten(1).sum(dim=1) for d in differences]).sum(dim=0)
