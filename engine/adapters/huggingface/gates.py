"""Find the gates of a Hugging Face mixture of experts and interpret their outputs.

A gate is found by its name (a module ``gate`` or ``router`` beside ``experts``) and by a probe pass over a few
tokens. Its output is read by forward hooks, so model classes without ``output_router_logits`` work as well. Ids are
taken from the gate and never recomputed, so they include group limits, selection biases and look-up tables. The
meaning of the weights is defined in ``semantics.py``.

Shapes: n tokens of a forward pass (B·T positions), S gates, K slots, M experts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from tokenpaths.engine.adapters.expert_runs import ExpertLayer, WeightSemantics, expert_modules
from tokenpaths.engine.adapters.huggingface.semantics import UNKNOWN, inside_scale, semantics_of
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo

GATE_NAMES = ("gate", "router")
"""names of gates inside their block, over all architectures"""
EXPERTS = "experts"
_SUM = 0.01
"""tolerance of the sum of probabilities"""
LOOKED_FOR = (
    "looked for a module called gate or router beside one called experts, whose output or whose experts' input "
    "holds the ids and the weights of the chosen experts"
)


@dataclass(frozen=True)
class Said:
    """Output of one gate call, slots in the model's order."""

    ids: Integer[Tensor, "n K"]
    weights: Float[Tensor, "n K"]
    """as applied to the experts, scale included"""
    logits: Float[Tensor, "n M"] | None


@dataclass(frozen=True)
class Gate:
    """One gate of a model, i.e. a step; in execution order."""

    name: str
    """name in ``model.named_modules()``"""
    module: nn.Module
    block: nn.Module
    """module that holds the gate and its experts"""
    at_experts: bool
    """True: the gate returns no ids; they are read from the call of the experts"""
    top_k: int
    num_experts: int
    skips: tuple[str, ...] = ()
    """names of the choices after the experts that cost nothing: zero experts, skipping the layer"""
    semantics: WeightSemantics = field(default_factory=lambda: UNKNOWN)
    divide: float = 1.0
    """part of the scale that is already included in the gate's weights"""
    probabilities: bool = False
    """whether ``softmax(logits)`` is the gate's distribution over experts"""
    gives_probabilities: bool = False
    """whether what stands in the place of logits is that distribution already, as the gates of some releases have it"""

    @property
    def num_choices(self) -> int:
        return self.num_experts + len(self.skips)

    @property
    def hooked(self) -> nn.Module:
        return self.block.get_submodule(EXPERTS) if self.at_experts else self.module


# What a gate says ---------------------------------------------------------------------------------------------


Parts = tuple[Tensor, Tensor, Tensor | None]


def _parts(values: Any) -> Parts | None:
    """Ids, weights and logits among the values of a tuple, in any order.

    Ids are the integers, weights the floats of their shape.
    """
    if not isinstance(values, tuple):
        return None
    tensors = [t for t in values if isinstance(t, Tensor) and t.dim() >= 2]
    ids = [t for t in tensors if not t.is_floating_point() and t.dtype != torch.bool]
    if len(ids) != 1:
        return None
    floats = [t for t in tensors if t.is_floating_point()]
    # Where every expert is chosen, logits have the shape of weights too: they come first everywhere.
    weights = [t for t in floats if t.shape == ids[0].shape][-1:]
    if not weights:
        return None
    return ids[0], weights[0], next((t for t in floats if t is not weights[0]), None)


def _from_tuple(output: Any) -> Said | None:
    parts = _parts(output)
    return None if parts is None else _flat(*parts)


def _from_llama4(module: Any, output: Any) -> Said:
    """Scores over all experts, 0 for those not chosen: the block multiplies by exactly these."""
    scores, logits = output
    weights, ids = scores.topk(module.top_k, dim=-1)
    return _flat(ids, weights, logits)


def _from_jetmoe(module: Any, output: Any) -> Said:
    """Choices sorted by expert, with the (token, slot) that each came from."""
    places, _, sorted_weights, loads, logits = output
    experts = torch.arange(module.num_experts, device=places.device)
    counts = torch.as_tensor(loads, device=places.device)
    ids = torch.empty_like(places)
    ids[places] = torch.repeat_interleave(experts, counts)
    weights = torch.empty_like(sorted_weights)
    weights[places] = sorted_weights
    return _flat(ids.view(-1, module.top_k), weights.view(-1, module.top_k), logits)


def _from_zaya(module: Any, output: Any) -> Said:
    """The last class skips the layer; the gate returns it as expert 0 with weight 0."""
    logits, weights, ids, _ = output
    return _flat(torch.where((weights == 0) & (ids == 0), module.num_experts, ids), weights, logits)


_SPECIAL: dict[str, Callable[[Any, Any], Said]] = {
    "Llama4Router": _from_llama4,
    "JetMoeTopKGating": _from_jetmoe,
    "ZayaRouter": _from_zaya,
}


def said_by(module: nn.Module, output: Any) -> Said | None:
    special = _SPECIAL.get(type(module).__name__)
    return special(module, output) if special else _from_tuple(output)


def called_with(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Said | None:
    """Arguments of the experts' call: (states, ids, weights)."""
    said = _from_tuple(tuple(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)))
    return None if said is None else replace(said, logits=None)


def with_output(module: Any, output: Any, said: Said) -> Any:
    """The gate output that encodes ``said``; inverse of ``said_by``."""
    kind = type(module).__name__
    if kind == "Llama4Router":
        scores, logits = output
        return torch.zeros_like(scores).scatter_(1, said.ids.view(len(scores), -1), said.weights.to(scores)), logits
    if kind == "JetMoeTopKGating":
        places, rows, sorted_weights, _, logits = output
        experts, order = said.ids.flatten().sort(stable=True)
        loads = torch.bincount(experts, minlength=module.num_experts).tolist()
        rows = order.div(said.ids.shape[1], rounding_mode="trunc").to(rows.dtype)
        return order.to(places.dtype), rows, said.weights.flatten()[order].to(sorted_weights), loads, logits
    return _replaced(output, said)


def with_call(args: tuple[Any, ...], kwargs: dict[str, Any], said: Said) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with which the experts execute ``said``; inverse of ``called_with``."""
    values = _replaced((*args, *kwargs.values()), said)
    return values[: len(args)], dict(zip(kwargs, values[len(args) :], strict=True))


def _replaced(values: tuple[Any, ...], said: Said) -> tuple[Any, ...]:
    parts = _parts(tuple(v for v in values if isinstance(v, Tensor)))
    assert parts is not None, "find_gates saw ids and weights"
    ids, weights, _ = parts
    new = {id(ids): said.ids.to(ids.dtype).view_as(ids), id(weights): said.weights.to(weights.dtype).view_as(weights)}
    return tuple(new.get(id(value), value) for value in values)


def _flat(ids: Tensor, weights: Tensor, logits: Tensor | None) -> Said:
    return Said(
        ids.reshape(-1, ids.shape[-1]),
        weights.reshape(-1, ids.shape[-1]),
        None if logits is None else logits.reshape(-1, logits.shape[-1]),
    )


# Finding gates ------------------------------------------------------------------------------------------------


def gate_candidates(model: nn.Module) -> list[tuple[str, nn.Module, nn.Module]]:
    """(name, gate, block) of each candidate for a gate, by name and position; works for models on the meta device."""
    found = []
    for name, block in model.named_modules():
        children = dict(block.named_children())
        routed = EXPERTS in children or any("ParallelExperts" in type(child).__name__ for child in children.values())
        for child in GATE_NAMES:
            if routed and child in children:
                found.append((f"{name}.{child}".lstrip("."), children[child], block))
    return found


def find_gates(model: nn.Module, run: Callable[[], Any], config: Any) -> list[Gate]:
    """The gates that ``run`` (a forward pass over a few text tokens) calls, in execution order.

    A gate that is not called (of a vision tower, of a prediction head for training) is no step of the run; one that
    is called twice is two steps.

    Raises:
        UserError: no gate was found, an output is not readable, or gates differ in top-k.
    """
    candidates = gate_candidates(model)
    calls: list[tuple[int, Said | None, Any]] = []
    inputs: dict[int, Said | None] = {}
    handles = []
    for index, (_, module, block) in enumerate(candidates):
        handles.append(
            module.register_forward_hook(lambda m, _args, out, i=index: calls.append((i, said_by(m, out), out)))
        )
        experts = getattr(block, EXPERTS, None)
        if isinstance(experts, nn.Module):
            handles.append(
                experts.register_forward_pre_hook(
                    lambda m, args, kwargs, i=index: inputs.__setitem__(i, called_with(args, kwargs)), with_kwargs=True
                )
            )
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    if not calls:
        raise no_router(model, config)
    gates = []
    for index, said, output in calls:
        name, module, block = candidates[index]
        at_experts = said is None
        said = inputs.get(index) if said is None else said
        if said is None:
            raise UserError(
                f"{name} ({type(module).__name__}) gives no ids and weights of experts, nor do its experts get any, "
                "so its decisions cannot be read",
                field="model",
            )
        if at_experts:
            scores = isinstance(output, Tensor) and output.dim() >= 2
            said = replace(said, logits=output.flatten(0, -2) if scores else None)
        gates.append(_gate(name, module, block, said, at_experts, model, config))
    if len({gate.top_k for gate in gates}) > 1:
        each = ", ".join(f"{gate.name}: {gate.top_k}" for gate in gates)
        raise UserError(f"the layers pick different numbers of experts ({each}); a run has one top-k", field="model")
    return gates


def no_router(model: nn.Module, config: Any) -> UserError:
    """The error for a model without a gate."""
    return UserError(
        f"{type(model).__name__} ({config.model_type}) has no router that could be traced: {LOOKED_FOR}", field="model"
    )


def _gate(
    name: str, module: nn.Module, block: nn.Module, said: Said, at_experts: bool, model: nn.Module, config: Any
) -> Gate:
    num_experts, skips = _choices(module, block, said)
    semantics = semantics_of(module, block, _parent(model, name, 2), config)
    # Of a gate that is not known, nothing is taken out of the weights.
    inside = inside_scale(module) if semantics != UNKNOWN else 1.0
    where = "the input of the experts" if at_experts else "the output of the gate"
    return Gate(
        name=name,
        module=module,
        block=block,
        at_experts=at_experts,
        top_k=said.ids.shape[1],
        num_experts=num_experts,
        skips=skips,
        probabilities=semantics.score_function.startswith("softmax"),
        gives_probabilities=said.logits is not None and _are_probabilities(said.logits),
        divide=inside,
        semantics=replace(semantics, source=f"forward hooks: {where} ({type(module).__name__})"),
    )


def _are_probabilities(scores: Float[Tensor, "n M"]) -> bool:
    """Whether scores of the probe's tokens are none below 0 and sum to 1, within the precision of bfloat16."""
    scores = scores.float()
    return bool((scores >= 0).all()) and bool(((scores.sum(dim=-1) - 1).abs() < _SUM).all())


def _parent(model: nn.Module, name: str, levels: int) -> nn.Module:
    return model.get_submodule(".".join(name.split(".")[:-levels]))


def _choices(module: Any, block: nn.Module, said: Said) -> tuple[int, tuple[str, ...]]:
    """Number of experts, and the other choices."""
    kind = type(module).__name__
    if kind == "ZayaRouter":
        return module.num_experts, ("skip",)
    if kind == "LongcatFlashTopkRouter":
        free = module.n_routed_experts - module.num_experts
        return module.num_experts, tuple(f"zero expert {i}" for i in range(free))
    for owner in (module, getattr(block, EXPERTS, None)):
        number = getattr(owner, "num_experts", None)
        if isinstance(number, int):
            return number, ()
    if said.logits is not None:
        return said.logits.shape[1], ()
    raise UserError(f"{kind} does not say how many experts it chooses from", field="model")


def common_semantics(gates: Sequence[Gate]) -> WeightSemantics:
    """Weight semantics of a run: those of most gates, with a note on the gates that differ."""
    first, _ = Counter(gate.semantics for gate in gates).most_common(1)[0]
    others: dict[WeightSemantics, list[str]] = {}
    for gate in gates:
        if gate.semantics != first:
            others.setdefault(gate.semantics, []).append(gate.name)
    notes = [first.note] if first.note else []
    for means, names in others.items():
        notes.append(
            f"different in {', '.join(names)}: {means.score_function}, {means.order}, scale {means.scale:g}"
            + (f", {means.note}" if means.note else "")
        )
    return replace(first, note="; ".join(notes))


# Modules ------------------------------------------------------------------------------------------------------


def module_table(gates: Sequence[Gate]) -> list[ModuleInfo]:
    """All choices of all gates: the experts, and choices without cost as kind ``identity``."""
    layers = [ExpertLayer(gate.name, gate.num_experts, *_costs(gate)) for gate in gates]
    free = [
        ModuleInfo(step, gate.num_experts + i, name, "identity", 0, 0)
        for step, gate in enumerate(gates)
        for i, name in enumerate(gate.skips)
    ]
    return expert_modules(layers) + free


def _costs(gate: Gate) -> tuple[int, int]:
    """Parameters of one expert and its FLOPs per token; (0, 0) if weights are packed bits."""
    experts = getattr(gate.block, EXPERTS, None)
    if isinstance(experts, nn.Module):
        named = list(experts.named_parameters())
    else:  # JetMoE keeps the experts of each projection apart
        named = [
            pair
            for child in gate.block.children()
            if "ParallelExperts" in type(child).__name__
            for pair in child.named_parameters()
        ]
    # What is one-dimensional belongs to all experts (a norm behind them).
    own = [(name, p) for name, p in named if p.dim() > 1]
    if not own or not all(p.is_floating_point() for _, p in own):
        return 0, 0
    each = {name: p.numel() // (p.shape[0] if p.shape[0] == gate.num_choices else gate.num_experts) for name, p in own}
    return sum(each.values()), 2 * sum(number for name, number in each.items() if "bias" not in name)
