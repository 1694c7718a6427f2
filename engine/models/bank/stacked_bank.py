"""The weights of a bank side by side, as one grouped product reads them: made once a pass, used by every step.

Stacking at every step is what a routed pass on a GPU would mostly do: six tensors a module and step, each a kernel of
its own, and their gradients again. The gradient of a stacked weight is summed over the steps in its own dtype, as
PyTorch's autocast sums those of a weight that it converted once a pass.

Shapes: M modules, W of them working, A with attention, U with a perceptron; D width, Q = 3·D, F hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tokenpaths.engine.models.bank.modules import Block
from tokenpaths.engine.models.typed_containers import ModuleListOf

ORDER = {"attention": 0, "transformer": 1, "mlp": 2, "identity": 3}
"""modules are sorted so that those with attention come first, and those with a perceptron lie side by side"""


@dataclass(frozen=True)
class Projections:
    """Both products of all modules of one kind; LayerNorm's gain is folded into the first."""

    enter: Float[Tensor, "W D X"]
    leave: Float[Tensor, "W Y D"]


@dataclass(frozen=True)
class StackedBank:
    """What ``device_step`` reads of a bank; modules lie in ``ORDER``."""

    places: tuple[int, ...]
    """of every module in the order of the groups; ``working`` for identities"""
    working: int
    attending: int
    thinking: int
    heads: int
    dtype: torch.dtype
    """of products"""
    attention: Projections | None
    """queries, keys and values (X = Q), and what is added to the stream (Y = D)"""
    perceptron: Projections | None
    """X = Y = F"""

    @property
    def skipped(self) -> int:
        """Working modules before the first one with a perceptron."""
        return self.working - self.thinking

    @property
    def complete(self) -> bool:
        """Whether every entry is a working module's: no rows lie behind the last group."""
        return max(self.places) < self.working


def product_dtype(h: Tensor) -> torch.dtype:
    """What products of ``h`` are computed in."""
    return torch.get_autocast_dtype(h.device.type) if torch.is_autocast_enabled(h.device.type) else h.dtype


def stack_bank(modules: ModuleListOf[Block], h: Tensor) -> StackedBank:
    """The weights of ``modules`` in the dtype that products of ``h`` are computed in; gradients pass through."""
    dtype = product_dtype(h)
    order = sorted(range(len(modules)), key=lambda m: (ORDER[modules[m].kind], m))
    bank = [modules[m] for m in order if modules[m].kind != "identity"]
    attending = [m.attention for m in bank if m.attention is not None]
    thinking = [m.mlp for m in bank if m.mlp is not None]
    return StackedBank(
        tuple(min(order.index(m), len(bank)) for m in range(len(modules))),
        len(bank),
        len(attending),
        len(thinking),
        attending[0].heads if attending else 0,
        dtype,
        _side_by_side([(a.norm.weight, a.qkv.weight, a.proj.weight) for a in attending], dtype),
        _side_by_side([(m.norm.weight, m.up.weight, m.down.weight) for m in thinking], dtype),
    )


def _side_by_side(parts: list[tuple[Tensor, Tensor, Tensor]], dtype: torch.dtype) -> Projections | None:
    """Of (gain, first, second) of each module. The gain is folded in: no row has to look its module's up."""
    if not parts:
        return None
    gain, enter, leave = (torch.stack(list(part)) for part in zip(*parts, strict=True))
    enter = (gain.unsqueeze(1) * enter).to(dtype)
    return Projections(enter.transpose(-2, -1), leave.to(dtype).transpose(-2, -1))
