"""Halves of a block that recompute LayerNorm and GELU in the backward pass instead of keeping them.

A routed step holds its rows a second time, sorted, and pads attention; and a bank's weights have gradients that a
dense twin has not. Recomputing, a fiftieth of a training step, gives back 5·D + 4·D of the 17·D numbers that a block
with hidden width 4·D keeps a row. Twins: ``modules.SelfAttention.project_in`` and ``modules.MLP``
(``tests/engine/models/bank/test_recompute.py``).

Shapes: R rows, D width, O outputs, F hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from tokenpaths.engine.models.bank.modules import MLP, Block, SelfAttention


def fits_lean(h: Tensor) -> bool:
    """Whether a training step on these rows goes this way: float32 on a CPU, outside autocast and the compiler."""
    return (
        torch.is_grad_enabled()
        and h.device.type == "cpu"
        and h.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def trained(module: Block) -> bool:
    """Whether all weights of a module are trained."""
    return isinstance(module, Block) and all(p.requires_grad for p in module.parameters())


def project_in(attention: SelfAttention, x: Float[Tensor, "R D"]) -> Float[Tensor, "R 3*D"]:
    """``attention.project_in``."""
    attention.qkv.ordered.forget()
    return _NormedProduct.apply(x, attention.norm.weight, attention.qkv.weight, attention.norm.eps)


def perceptron(mlp: MLP, x: Float[Tensor, "R D"]) -> Float[Tensor, "R D"]:
    """``mlp(x)``."""
    mlp.up.ordered.forget()
    mlp.down.ordered.forget()
    return _Perceptron.apply(x, mlp.norm.weight, mlp.up.weight, mlp.down.weight, mlp.norm.eps)


def finish(module: Block, x: Float[Tensor, "R D"], mixed: Float[Tensor, "R D"] | None) -> Float[Tensor, "R D"]:
    """``module.finish``."""
    change = None
    if module.attention is not None:
        assert mixed is not None, "attention gave a result"
        change = module.attention.project_out(mixed)
    if module.mlp is not None:
        change = perceptron(module.mlp, x) if change is None else change + perceptron(module.mlp, x + change)
    return torch.zeros_like(x) if change is None else change


class _NormedProduct(torch.autograd.Function):
    """LayerNorm and a product; keeps x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        normed, mean, scale = torch.native_layer_norm(x, x.shape[-1:], gain, None, epsilon)
        ctx.save_for_backward(x, gain, weight, mean, scale)
        ctx.epsilon = epsilon
        return F.linear(normed, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, gain, weight, mean, scale = ctx.saved_tensors
        grad_x, grad_gain, grad_weight = _back(grad, x, gain, weight, mean, scale, ctx.epsilon)
        return grad_x, grad_gain, grad_weight, None


class _Perceptron(torch.autograd.Function):
    """LayerNorm, product, GELU, product; keeps x and what goes into GELU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, up: Tensor, down: Tensor, epsilon: float) -> Tensor:
        normed, mean, scale = torch.native_layer_norm(x, x.shape[-1:], gain, None, epsilon)
        raised = F.linear(normed, up)
        ctx.save_for_backward(x, gain, up, down, mean, scale, raised)
        ctx.epsilon = epsilon
        return F.linear(F.gelu(raised), down)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        x, gain, up, down, mean, scale, raised = ctx.saved_tensors
        grad_down = grad.T @ F.gelu(raised)
        grad_raised = grad @ down
        torch.ops.aten.gelu_backward.grad_input(grad_raised, raised, grad_input=grad_raised)
        grad_x, grad_gain, grad_up = _back(grad_raised, x, gain, up, mean, scale, ctx.epsilon)
        return grad_x, grad_gain, grad_up, grad_down, None


def _back(
    grad: Tensor, x: Tensor, gain: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the rows, the gain and the weight of a product of normed rows."""
    normed = F.layer_norm(x, x.shape[-1:], gain, None, epsilon)
    grad_weight = grad.T @ normed
    grad_x, grad_gain, _ = torch.ops.aten.native_layer_norm_backward(
        grad @ weight, x, x.shape[-1:], mean, scale, gain, None, [True, True, False]
    )
    return grad_x, grad_gain, grad_weight
