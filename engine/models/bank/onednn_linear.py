"""Linear layers that cache their frozen weights in the memory layout of the processor's kernel.

A product of a few rows spends most of its time reordering the weights: 11 rows by 384 × 1152 take 3.4 times their
share of one product of 196 rows. Reordered beforehand they take half of that, and products of a few hundred rows are a
tenth faster too. So a weight that is not trained is reordered once (oneDNN's blocked layout), when a product of at
most ``MOST_ROWS`` rows first uses it, and again whenever it has changed. This costs the weight's memory a second
time, and a third time for dreams, whose gradients pass through the transposed weight. Small weights are transposed.

Only on a CPU, in float32 or bfloat16, outside autocast; everywhere else, and where this build of PyTorch has no such
kernel or an incorrect one, ``Linear`` is ``nn.Linear``, which is also its twin in
``tests/engine/models/bank/test_onednn_linear.py``. In-place changes that autograd does not count, such as those
through ``weight.data``, are not noticed while the weight stays frozen (copy into the weight instead). Optimiser steps
are noticed: a forward pass with a trained weight drops the cache.

Shapes: R rows, I inputs, O outputs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

MOST_ROWS = 256
"""beyond, ordering is a small part of a product; pieces of a routed step are this long"""
SMALL = 384 * 384
"""up to so many numbers a float32 weight is kept transposed instead: the ordinary product of a few rows by that is up
to three times quicker than the ordered one, whose call costs more than it saves"""
DTYPES = (torch.float32, torch.bfloat16)
After = Literal["none", "gelu"]


class Linear(nn.Linear):
    """``nn.Linear`` without bias, quick for few rows once its weight is frozen."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.ordered = Ordered()

    def forward(self, x: Float[Tensor, "*R I"]) -> Float[Tensor, "*R O"]:
        if not fits(x, self.weight):
            if self.weight.requires_grad and not torch.compiler.is_compiling():
                self.ordered.forget()  # fused optimisers change weights without counting it
            return F.linear(x, self.weight)
        if x.requires_grad and torch.is_grad_enabled():
            return _Product.apply(x, self.weight, self.ordered)
        return _product(x, self.ordered.forward(self.weight))

    def gelu(self, x: Float[Tensor, "*R I"]) -> Float[Tensor, "*R O"]:
        """GELU of the product, in one pass where no gradient is wanted."""
        if not fits(x, self.weight) or (x.requires_grad and torch.is_grad_enabled()):
            return F.gelu(self(x))
        return _product(x, self.ordered.forward(self.weight), "gelu")


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether this product goes by an ordered weight."""
    return 0 < x.numel() <= MOST_ROWS * x.shape[-1] and orders(x, weight)


def orders(x: Tensor, weight: Tensor) -> bool:
    """Whether products of few rows like those of ``x`` go by an ordered weight."""
    return (
        not weight.requires_grad
        and x.device.type == weight.device.type == "cpu"
        and x.dtype == weight.dtype
        and x.dtype in DTYPES
        and not weight.is_inference()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and works(x.dtype)
    )


def reorders(weight: Tensor) -> bool:
    """Whether a weight is put in the kernel's order; a small one is only transposed."""
    return weight.numel() > SMALL or weight.dtype != torch.float32


@lru_cache(maxsize=len(DTYPES))
def works(dtype: torch.dtype) -> bool:
    """Whether this build of PyTorch has the kernel, and whether it is right: it is none of its public functions."""
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.inference_mode(False), torch.no_grad():
            x, weight = (torch.randn(rows, 32, generator=generator).to(dtype) for rows in (5, 48))
            made = _product(x, torch.ops.mkldnn._reorder_linear_weight(weight, MOST_ROWS), "gelu")
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return False
    tolerance = 1e-4 if dtype == torch.float32 else 0.2
    expected = F.gelu(F.linear(x.float(), weight.float()))
    return bool(torch.allclose(made.float(), expected, rtol=tolerance, atol=tolerance))


class Ordered:
    """A weight in the order of the kernel, and its transpose; made when asked for, never saved, copied or pickled."""

    def __init__(self) -> None:
        self._made: dict[bool, tuple[tuple[Any, ...], Tensor, Tensor]] = {}

    def forward(self, weight: Float[Tensor, "O I"]) -> Tensor:
        """For x · weightᵀ."""
        return self._of(weight, False)

    def backward(self, weight: Float[Tensor, "O I"]) -> Tensor:
        """For gradient · weight."""
        return self._of(weight, True)

    def forget(self) -> None:
        """Let go of what was made."""
        if self._made:
            self._made = {}

    def _of(self, weight: Tensor, transposed: bool) -> Tensor:
        state = (weight.data_ptr(), weight._version, weight.shape, weight.dtype)
        entry = self._made.get(transposed)
        if entry is None or entry[0] != state:
            # Outside inference mode: what is made in a trace may be met again by a dream.
            with torch.inference_mode(False), torch.no_grad():
                plain = weight.detach()
                if not reorders(weight):
                    made = plain if transposed else plain.T.contiguous()
                else:
                    plain = plain.T.contiguous() if transposed else plain
                    made = torch.ops.mkldnn._reorder_linear_weight(plain, MOST_ROWS)
            # The plain weight is held as well: no other one can get its address, and pass for it, meanwhile.
            entry = state, made, weight.detach()
            self._made[transposed] = entry
        return entry[1]

    def __deepcopy__(self, memo: dict[int, Any]) -> Ordered:
        return Ordered()

    def __reduce__(self) -> tuple[type[Ordered], tuple[()]]:
        return Ordered, ()


def _product(x: Tensor, ordered: Tensor, after: After = "none") -> Tensor:
    if not ordered.is_mkldnn:
        made = torch.matmul(x, ordered)
        return made if after == "none" else F.gelu(made)
    arguments: tuple[Any, ...] = ("gelu", [], "none") if after == "gelu" else ("none", [], "")
    return torch.ops.mkldnn._linear_pointwise(x, ordered, None, *arguments)


class _Product(torch.autograd.Function):
    """The product with a gradient for its rows; the weight is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ordered: Ordered) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.ordered = ordered
        return _product(x, ordered.forward(weight))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return _product(grad.contiguous(), ctx.ordered.backward(weight)), None, None
