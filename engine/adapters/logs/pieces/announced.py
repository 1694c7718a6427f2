"""Sizes of a routing log: what the user announces, and what all tokens of it have in common.

Shapes: S routed layers, K slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.wording import first_of, number_of
from tokenpaths.engine.base.errors import UserError

MOST_EXPERTS = 65_536
"""of a layer"""
MOST_MODULES = 2**20
"""experts of all layers together"""
MOST_TOP_K = 32
"""largest top-k that is proposed"""


@dataclass(frozen=True)
class Announced:
    """Sizes that the user gives for a log that may not state them; None: taken from the log."""

    layers: int | None = None
    top_k: int | None = None
    experts: int | None = None
    sequences: int | None = None
    """sequences that lie interleaved in a forward pass (Megatron's micro-batch size)"""
    skip_bad: bool = False
    """leave out what cannot be read, and count it"""
    model: str | None = None
    """name of the one model that all of the log is of, whatever names its responses have (adapters of it, perhaps)"""
    may_be_cut: bool = False
    """the first tokens of a response may have no rows, as its client did not ask for them; their sizes are known from
    an earlier response that has all"""

    def check(self, where: str, *, layers: int | None = None, top_k: int | None = None) -> None:
        """Compare the sizes of the log with the given ones.

        Raises:
            UserError: they differ.
        """
        for name, held in (("layers", layers), ("top_k", top_k)):
            announced = getattr(self, name)
            if held is not None and announced not in (None, held):
                has = number_of(held, "layer") if name == "layers" else f"{held} top-k"
                raise UserError(f"{where}: has {has}, not {announced} as announced", field=name)

    def num_experts(self, held: object, where: str) -> int | None:
        """Experts per layer from the log (``held``) and the user; None: unknown.

        Raises:
            UserError: ``held`` is no valid number of experts, or differs from the given one.
        """
        if held is None:
            return self.experts
        if type(held) is not int or not 1 <= held <= MOST_EXPERTS:
            raise UserError(
                f"{where}: num_experts is {repr(held)[:40]}, it should be a whole number from 1 to {MOST_EXPERTS}",
                field="file",
            )
        if self.experts not in (None, held):
            has = number_of(held, "expert")
            raise UserError(f"{where}: has {has} a layer, not {self.experts} as announced", field="experts")
        return held

    def ids_shape(self, shape: tuple[int, ...], dtype: np.dtype, where: str) -> tuple[int, int]:
        """(S, K) of ids of this shape: (tokens, S, K), or (tokens, S·K) if layers or top-k are given.

        Raises:
            UserError: the ids are not integers, or have another shape.
        """
        if dtype.kind not in "iu":
            raise UserError(f"{where}: the ids are {dtype}, they should be whole numbers", field="file")
        if len(shape) == 3 and shape[1] and shape[2]:
            steps, top_k = shape[1], shape[2]
            if self.layers == shape[0] != steps:
                raise UserError(
                    f"{where}: the ids have shape {shape}, whose first axis has the {self.layers} layers announced; "
                    "they should be (tokens, layers, top-k): save ids.transpose(1, 0, 2)",
                    field="layers",
                )
        elif len(shape) == 2 and shape[1] and (self.layers or self.top_k):
            return self._folded(shape[1], where)
        else:
            raise UserError(
                f"{where}: the ids have shape {shape}, they should be (tokens, layers, top-k); "
                "of flat ids say --layers or --top-k",
                field="file",
            )
        self.check(where, layers=steps, top_k=top_k)
        return steps, top_k

    def _folded(self, wide: int, where: str) -> tuple[int, int]:
        """(S, K) of ``wide`` flat ids a token."""
        steps, top_k = self.layers or wide // (self.top_k or 1), self.top_k or wide // (self.layers or 1)
        if steps * top_k == wide:
            return steps, top_k
        given = f"{self.layers or 'whole'} layers of {self.top_k or 'as many'} experts"
        fits = [f"{wide // k} × {k}" for k in range(1, MOST_TOP_K + 1) if wide % k == 0]
        raise UserError(
            f"{where}: {number_of(wide, 'id')} a token are not {given}; layers × top-k could be {first_of(fits, 8)}",
            field="layers" if self.layers else "top_k",
        )


@dataclass(frozen=True)
class LogShape:
    """Properties common to all tokens of a log."""

    layers: tuple[str, ...]
    """name of each routed layer, S in all"""
    top_k: int
    weights: bool
    """whether the log holds weights"""
    partial: bool = False
    """whether tokens may lack layers (``UNRECORDED``)"""
    scores: bool = False
    """whether pieces are ``scored``"""
    by_axes: bool = False
    """whether the layers are an axis of an array, of which the log does not say what it is"""


def layer_names(count: int) -> tuple[str, ...]:
    """Names of layers that a log only numbers."""
    return tuple(f"layer {layer}" for layer in range(count))
