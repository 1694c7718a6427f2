"""Gates of Directional Routing: inputs of the router, removal of directions, and interventions on the gates.

Shapes: B sequences, T tokens, P decisions of a sequence (1, or T if every position decides), L layers,
H heads, K directions of a head, W width of a head, D = H·W width of the residual stream.
Source: "Directional Routing in Transformers", section 2 (rules), sections 3, 4 and 7 (interventions).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.controls import check_index, check_table
from tokenpaths.engine.families.directional_config import DirectionalConfig, DirectionalFields, Pooling
from tokenpaths.engine.families.edit_plan import RoutePlan

OFF, NEUTRAL, FULL = 0.0, 0.5, 1.0
"""gate values of the interventions: nothing is removed, half of it, all of it"""


def mean_gates(gates: Float[Tensor, "B P L H K"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "B L H K"]:
    """r of each sequence: the one decision, or the mean over its (real) positions."""
    if valid is None or gates.shape[1] == 1:
        return gates.mean(dim=1)
    share_BP = valid / valid.sum(dim=1, keepdim=True)
    return torch.einsum("bp,bplhk->blhk", share_BP.to(gates), gates)


def pool(
    h: Float[Tensor, "B T D"], pooling: Pooling, valid: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, "B P D"]:
    """What a router reads: the mean of the residual stream over the sequence, or up to each position.

    Padding (``valid`` False, behind the text) is left out of the one; the other never looks at it.
    """
    if pooling == "prefix":
        counts_T = torch.arange(1, h.shape[1] + 1, device=h.device, dtype=h.dtype)
        return h.cumsum(dim=1) / counts_T[:, None]
    if valid is None:
        return h.mean(dim=1, keepdim=True)
    real = valid[:, :, None].to(h)
    return (h * real).sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True)


def suppress(
    mixed: Float[Tensor, "B T D"], directions: Float[Tensor, "H K W"], gates: Float[Tensor, "B P H K"]
) -> Float[Tensor, "B T D"]:
    """o − Σ_k r_k (o·d_k) d_k for every head at once (equation 2); ``directions`` of unit length.

    The directions of all heads form one block-diagonal matrix: two plain products are faster than
    H·K small ones, though most of what they multiply is zero.
    """
    rows = torch.block_diag(*directions)
    along = mixed @ rows.T
    return mixed - (along * gates.flatten(-2).to(along.dtype)) @ rows


def naive_suppress(
    mixed: Float[Tensor, "B T D"], directions: Float[Tensor, "H K W"], gates: Float[Tensor, "B P H K"]
) -> Float[Tensor, "B T D"]:
    """The same, head by head and direction by direction: what the fast one is tested against."""
    heads, count, width = directions.shape
    results = []
    for head in range(heads):
        o = mixed[..., head * width : (head + 1) * width]
        left = o
        for k in range(count):
            d = directions[head, k]
            left = left - gates[:, :, head, k, None] * (o * d).sum(dim=-1, keepdim=True) * d
        results.append(left)
    return torch.cat(results, dim=-1)


EXECUTIONS = {"fused": suppress, "naive": naive_suppress}


@dataclass(frozen=True)
class GateEdit:
    """Give gates a fixed value; None means every layer, every head, every direction."""

    value: float
    layer: int | None = None
    head: int | None = None
    direction: int | None = None


@dataclass(frozen=True)
class Interventions:
    """What a forward pass does differently; the default changes nothing.

    Foreign gates come first, then the edits in their order, then the knocked-out heads.
    """

    edits: tuple[GateEdit, ...] = ()
    knocked_out: tuple[tuple[int, int], ...] = ()
    """(layer, head) whose output is nothing at all"""
    gates: Float[Tensor, "B P L H K"] | None = None
    """gates of another forward pass (``DirectionalOutput.gates``), used in place of the model's own; one
    sequence or one decision stands for all"""
    gate_layers: tuple[int, ...] | None = None
    """layers that take the foreign gates; None: all"""
    pooling: Pooling | None = None
    """what the routers read, if not what they were trained on: a leaking model run causally, say"""

    @classmethod
    def everywhere(cls, value: float, layers: tuple[int, ...] | None = None) -> Interventions:
        """All gates (of some layers) at ``OFF``, ``NEUTRAL``, ``FULL`` or any other value."""
        return cls(tuple(GateEdit(value, layer) for layer in (layers if layers is not None else (None,))))

    @classmethod
    def swapped(cls, gates: Float[Tensor, "B P L H K"], layers: tuple[int, ...] | None = None) -> Interventions:
        """The gates of another input (``DirectionalOutput.gates``), in all layers or some."""
        return cls(gates=gates, gate_layers=layers)

    def check(self, config: DirectionalConfig) -> None:
        """Refuse what names no gate or head of this model.

        Raises:
            UserError: an index outside the model, a value outside [0, 1], gates of another shape or not finite.
        """
        sizes = {"layer": config.layers, "head": config.heads, "direction": config.directions}
        for edit in self.edits:
            if not 0 <= edit.value <= 1:
                raise UserError(f"a gate value lies between 0 and 1, not at {edit.value}", field="value")
            if not config.directions:
                raise UserError("the unrouted twin has no gates to edit", field="edits")
            for name, size in sizes.items():
                check_index(name, getattr(edit, name), size)
        for layer, head in self.knocked_out:
            check_index("layer", layer, config.layers)
            check_index("head", head, config.heads)
        for layer in self.gate_layers or ():
            check_index("gate_layers", layer, config.layers)
        if self.gates is not None:
            shape = (config.layers, config.heads, config.directions)
            if tuple(self.gates.shape[2:]) != shape:
                raise UserError(
                    f"the gates to put in have (layers, heads, directions) {tuple(self.gates.shape[2:])}, "
                    f"this model has {shape}",
                    field="gates",
                )
            if not torch.isfinite(self.gates).all():
                raise UserError("the gates to put in hold NaN or infinite values", field="gates")

    def apply(self, gates: Float[Tensor, "B P H K"], layer: int) -> Float[Tensor, "B _ H K"]:
        """The gates of one layer as this intervention wants them.

        Raises:
            UserError: the foreign gates are of other sequences or positions than broadcast to these.
        """
        if self.gates is not None and (self.gate_layers is None or layer in self.gate_layers):
            foreign = self.gates[:, :, layer].to(gates)
            fits = foreign.shape[0] in (1, gates.shape[0]) and foreign.shape[1] in (1, gates.shape[1])
            if not fits:
                raise UserError(
                    f"the gates to put in are for {tuple(foreign.shape[:2])} sequences and decisions, "
                    f"this pass has {tuple(gates.shape[:2])}; average them over positions first",
                    field="gates",
                )
            gates = foreign.expand(gates.shape[0], -1, -1, -1)
        for edit in self.edits:
            if edit.layer in (None, layer):
                gates = gates.clone()
                heads = slice(None) if edit.head is None else edit.head
                directions = slice(None) if edit.direction is None else edit.direction
                gates[:, :, heads, directions] = edit.value
        return gates


class DirectionalControls(DirectionalFields):
    """What the page and the API may change of one trace.

    In an edit a step is a layer, a module below H·K a direction that is removed, the others the same direction left
    alone: banned, it is never removed (or never left alone); forced, always.
    """

    def interventions(self, config: DirectionalConfig | None = None) -> Interventions:
        """The same as an intervention; ``config`` is needed to read edits (``freeze`` is the model's own business).

        Raises:
            UserError: a layer, head or direction is named, but no value for its gates; foreign gates that are
                ragged or outside [0, 1].
        """
        self.check_gate()
        places = self.gate_layer, self.gate_head, self.gate_direction
        edits: tuple[GateEdit, ...] = () if self.gate is None else (GateEdit(self.gate, *places),)
        if self.edits and config is not None:
            edits += gate_edits(self.plan(config), config)
        return Interventions(edits, self.knocked_out or (), _foreign(self.gates), pooling=self.pooling)


def gate_edits(plan: RoutePlan | None, config: DirectionalConfig) -> tuple[GateEdit, ...]:
    """Gates at 0 and 1 for banned and forced modules."""
    edits = []
    for layer, step in enumerate(plan.steps if plan else ()):
        if step is None:
            continue
        states = [(module, module >= config.top_k) for module in sorted(step.banned)]
        states += [(force.module, force.module < config.top_k) for force in step.forced]
        for module, on in states:
            head, direction = divmod(module % config.top_k, config.directions)
            edits.append(GateEdit(FULL if on else OFF, layer, head, direction))
    return tuple(edits)


def _foreign(values: tuple[tuple[tuple[float, ...], ...], ...] | None) -> Float[Tensor, "1 1 L H K"] | None:
    """Gates given as plain values: one decision for all sequences and positions."""
    if values is None:
        return None
    check_table("gates", values, ("layer", "head", "direction"))
    return torch.tensor(values)[None, None]
