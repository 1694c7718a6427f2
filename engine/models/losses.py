"""Cross-entropy losses; the training one is computed in chunks, which on a CPU fit the cache.

Shapes: R rows (tokens), D width, C classes or vocabulary entries.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

CHUNK_ROWS = 64
"""rows whose float32 logits are held at once; 64 × 8 192 of them fit a core's cache"""
DEVICE_LOGITS = 2**26
"""float32 logits that are held at once elsewhere, 256 MiB: on a GPU it is the number of kernels that costs"""


def chunk_rows(device: torch.device, classes: int) -> int:
    """Rows whose float32 logits are held at once."""
    return CHUNK_ROWS if device.type == "cpu" else max(CHUNK_ROWS, DEVICE_LOGITS // classes)


class _LinearCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of ``x @ weightᵀ`` whose float32 logits never leave the cache of a CPU.

    The gradient is computed in the forward pass, chunk by chunk, over the logits in their own
    dtype; the backward pass only scales it. The usual way writes and reads the R×C logits about
    ten times in float32, which on a CPU costs more than the network below it.
    """

    @staticmethod
    def forward(ctx, x, weight, targets):
        rows = x.shape[0]
        grad_logits = x @ weight.T
        total = torch.zeros((), device=x.device)
        chunk = chunk_rows(x.device, weight.shape[0])
        for start in range(0, rows, chunk):
            part = slice(start, start + chunk)
            target = targets[part].unsqueeze(1)
            probs = grad_logits[part].softmax(dim=1, dtype=torch.float32)
            total -= probs.gather(1, target).clamp(min=1e-37).log().sum()
            probs.scatter_add_(1, target, torch.full_like(target, -1, dtype=probs.dtype))
            grad_logits[part] = probs.mul_(1 / rows)
        ctx.save_for_backward(grad_logits @ weight, grad_logits.T @ x)
        return total / rows

    @staticmethod
    def backward(ctx, grad):
        grad_x, grad_weight = ctx.saved_tensors
        return grad_x * grad.to(grad_x.dtype), grad_weight * grad.to(grad_weight.dtype), None


def linear_cross_entropy(
    x: Float[Tensor, "R D"], weight: Float[Tensor, "C D"], targets: Int[Tensor, " R"]
) -> Float[Tensor, ""]:
    """``F.cross_entropy(x @ weight.T, targets)`` in chunks; under autocast in its dtype."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x, weight = x.to(dtype), weight.to(dtype)
    with torch.autocast(device, enabled=False):
        return _LinearCrossEntropy.apply(x, weight, targets)


def balance_loss(
    logits: Float[Tensor, "N M"], module_ids: Int[Tensor, "N K"], working: Bool[Tensor, " M"]
) -> Float[Tensor, ""]:
    """The load-balancing loss of a step, ``M · Σ_m f_m · P_m``: 1 if work is spread evenly, M if one module has it all.

    ``f_m`` is the share of the slots that module m got, ``P_m`` its mean probability, both among the ``working``
    modules: how much is skipped is not this loss's affair. Source: Fedus et al., *Switch Transformers*, equations 4
    to 6.
    """
    num_modules = working.numel()
    counts_M = module_ids.reshape(-1).bincount(minlength=num_modules) * working
    shares_M = counts_M / counts_M.sum().clamp(min=1)
    probs_NM = logits.float().masked_fill(~working, float("-inf")).softmax(dim=-1)
    return working.sum() * (shares_M * probs_NM.mean(dim=0)).sum()


def token_losses(logits: Float[Tensor, "R C"], targets: Int[Tensor, " R"]) -> Float[Tensor, " R"]:
    """Cross-entropy of each row, in float32."""
    return F.cross_entropy(logits.float(), targets, reduction="none")
