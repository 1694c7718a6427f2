"""Where a Hugging Face mixture of experts decides, what its gate says, and what the weights mean.

A gate is found by its place (a module ``gate`` or ``router`` beside ``experts``) and by what it does when a few
tokens are sent through; it is read by forward hooks, so that a model class which drops ``output_router_logits``
is read like every other. Ids are taken as the gate gives them and never computed again: group limits, selection
biases and look-up tables are in them already.

Shapes: n tokens of a forward pass (B·T positions), S gates, K slots, M experts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from engine.adapters.experts import ExpertLayer, WeightSemantics, expert_modules
from engine.errors import UserError
from engine.trace import ModuleInfo

GATE_NAMES = ("gate", "router")
"""what the gates of all architectures are called inside their block"""
EXPERTS = "experts"
LOOKED_FOR = (
    "looked for a module called gate or router beside one called experts, whose output or whose experts' input "
    "holds the ids and the weights of the chosen experts"
)
_ROUNDING = 2**-7
"""a weight that bfloat16 rounded may exceed 1 by so much"""


@dataclass(frozen=True)
class Said:
    """What one gate said in one call, slots in the model's own order."""

    ids: Integer[Tensor, "n K"]
    weights: Float[Tensor, "n K"]
    """as the experts get them, scale included"""
    logits: Float[Tensor, "n M"] | None


@dataclass(frozen=True)
class Gate:
    """One gate of a model: a step, in the order in which a token meets it."""

    name: str
    """as in ``model.named_modules()``"""
    module: nn.Module
    block: nn.Module
    """the module that holds gate and experts"""
    at_experts: bool
    """the gate gives no ids: they are read where the experts are called"""
    top_k: int
    num_experts: int
    skips: tuple[str, ...] = ()
    """names of the choices behind the experts that cost nothing: zero experts, skipping the layer"""
    semantics: WeightSemantics = field(default_factory=lambda: _UNKNOWN)
    divide: float = 1.0
    """the part of the scale that is inside the gate's weights"""
    probabilities: bool = False
    """whether ``softmax(logits)`` is a distribution that this gate stands for"""

    @property
    def num_choices(self) -> int:
        return self.num_experts + len(self.skips)

    @property
    def hooked(self) -> nn.Module:
        return self.block.get_submodule(EXPERTS) if self.at_experts else self.module


@dataclass(frozen=True)
class Recorded:
    """The decisions of one forward pass on the host; slot 0 holds the largest weight."""

    ids: Integer[Tensor, "n S K"]
    weights: Float[Tensor, "n S K"]
    """in [0, 1]: what the experts got, without the scale"""
    gate_entropy: Float[Tensor, "n S"]
    """nats; NaN for a gate without a distribution over all experts"""


# What a gate says ---------------------------------------------------------------------------------------------


def _from_tuple(output: Any) -> Said | None:
    """(logits, weights, ids), in whichever order: ids are the integers, weights the floats of their shape."""
    if not isinstance(output, tuple):
        return None
    tensors = [t for t in output if isinstance(t, Tensor) and t.dim() >= 2]
    ids = [t for t in tensors if not t.is_floating_point() and t.dtype != torch.bool]
    if len(ids) != 1:
        return None
    floats = [t for t in tensors if t.is_floating_point()]
    # Where every expert is chosen, logits have the shape of weights too: they come first everywhere.
    weights = [t for t in floats if t.shape == ids[0].shape][-1:]
    if not weights:
        return None
    logits = next((t for t in floats if t is not weights[0]), None)
    return _flat(ids[0], weights[0], logits)


def _from_llama4(module: nn.Module, output: Any) -> Said:
    """Scores over all experts, 0 for those not chosen: the block multiplies with exactly these."""
    scores, logits = output
    weights, ids = scores.topk(module.top_k, dim=-1)
    return _flat(ids, weights, logits)


def _from_jetmoe(module: nn.Module, output: Any) -> Said:
    """Choices sorted by expert, with the place in (token, slot) that each came from."""
    places, _, sorted_weights, loads, logits = output
    experts = torch.arange(module.num_experts, device=places.device)
    counts = torch.as_tensor(loads, device=places.device)
    ids = torch.empty_like(places)
    ids[places] = torch.repeat_interleave(experts, counts)
    weights = torch.empty_like(sorted_weights)
    weights[places] = sorted_weights
    return _flat(ids.view(-1, module.top_k), weights.view(-1, module.top_k), logits)


def _from_zaya(module: nn.Module, output: Any) -> Said:
    """The last class means to skip the layer; the gate hands it on as expert 0 with weight 0."""
    logits, weights, ids, _ = output
    return _flat(torch.where((weights == 0) & (ids == 0), module.num_experts, ids), weights, logits)


_SPECIAL: dict[str, Callable[[nn.Module, Any], Said]] = {
    "Llama4Router": _from_llama4, "JetMoeTopKGating": _from_jetmoe, "ZayaRouter": _from_zaya,
}  # fmt: skip


def _said(module: nn.Module, output: Any) -> Said | None:
    special = _SPECIAL.get(type(module).__name__)
    return special(module, output) if special else _from_tuple(output)


def _called_with(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Said | None:
    """What the experts are called with: (states, ids, weights)."""
    said = _from_tuple(tuple(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)))
    return None if said is None else replace(said, logits=None)


def _flat(ids: Tensor, weights: Tensor, logits: Tensor | None) -> Said:
    return Said(ids.reshape(-1, ids.shape[-1]), weights.reshape(-1, ids.shape[-1]),
                None if logits is None else logits.reshape(-1, logits.shape[-1]))  # fmt: skip


# Finding gates ------------------------------------------------------------------------------------------------


def gate_candidates(model: nn.Module) -> list[tuple[str, nn.Module, nn.Module]]:
    """(name, gate, block) of whatever stands where a gate would; needs no weights, so the model may be on meta."""
    found = []
    for name, block in model.named_modules():
        children = dict(block.named_children())
        routed = EXPERTS in children or any("ParallelExperts" in type(child).__name__ for child in children.values())
        for child in GATE_NAMES:
            if routed and child in children:
                found.append((f"{name}.{child}".lstrip("."), children[child], block))
    return found


def find_gates(model: nn.Module, run: Callable[[], Any], config: Any) -> list[Gate]:
    """The gates that ``run`` (a forward pass over a few tokens of text) goes through, in its order.

    A gate that it does not reach (of a vision tower, of a prediction head for training) is none of the run's
    steps; one that is reached twice is two.

    Raises:
        UserError: none was found, or one says nothing that can be read, or they pick different numbers.
    """
    candidates = gate_candidates(model)
    calls: list[tuple[int, Said | None]] = []
    inputs: dict[int, Said | None] = {}
    handles = []
    for index, (_, module, block) in enumerate(candidates):
        handles.append(module.register_forward_hook(
            lambda m, _args, out, i=index: calls.append((i, _said(m, out)))))  # fmt: skip
        experts = getattr(block, EXPERTS, None)
        if isinstance(experts, nn.Module):
            handles.append(experts.register_forward_pre_hook(
                lambda m, args, kwargs, i=index: inputs.__setitem__(i, _called_with(args, kwargs)), with_kwargs=True
            ))  # fmt: skip
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    if not calls:
        raise no_router(model, config)
    gates = []
    for index, said in calls:
        name, module, block = candidates[index]
        at_experts = said is None
        said = inputs.get(index) if said is None else said
        if said is None:
            raise UserError(
                f"{name} ({type(module).__name__}) gives no ids and weights of experts, nor do its experts get any, "
                "so its decisions cannot be read", field="model",
            )  # fmt: skip
        gates.append(_gate(name, module, block, said, at_experts, model, config))
    if len({gate.top_k for gate in gates}) > 1:
        each = ", ".join(f"{gate.name}: {gate.top_k}" for gate in gates)
        raise UserError(f"the layers pick different numbers of experts ({each}); a run has one top-k", field="model")
    return gates


def no_router(model: nn.Module, config: Any) -> UserError:
    """What to say of a model without a gate."""
    return UserError(
        f"{type(model).__name__} ({config.model_type}) has no router that could be traced: {LOOKED_FOR}", field="model"
    )


def _gate(name: str, module: nn.Module, block: nn.Module, said: Said, at_experts: bool, model: nn.Module, config: Any
          ) -> Gate:  # fmt: skip
    num_experts, skips = _choices(module, block, said)
    semantics = semantics_of(module, block, _parent(model, name, 2), config)
    # Of a gate that is not known, nothing is taken out of the weights.
    inside = _inside(module) if semantics != _UNKNOWN else 1.0
    where = "the input of the experts" if at_experts else "the output of the gate"
    return Gate(
        name=name, module=module, block=block, at_experts=at_experts, top_k=said.ids.shape[1], num_experts=num_experts,
        skips=skips, probabilities=semantics.score_function.startswith("softmax"), divide=inside,
        semantics=replace(semantics, source=f"forward hooks: {where} ({type(module).__name__})"),
    )  # fmt: skip


def _parent(model: nn.Module, name: str, levels: int) -> nn.Module:
    return model.get_submodule(".".join(name.split(".")[:-levels]))


def _choices(module: nn.Module, block: nn.Module, said: Said) -> tuple[int, tuple[str, ...]]:
    """How many experts there are, and what else can be chosen."""
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


# What the weights mean ----------------------------------------------------------------------------------------

_UNKNOWN = WeightSemantics("unknown", "unknown", None, bias=None)
_SUMS_TO_ONE = "the K weights sum to 1, because softmax is taken over the chosen experts only"
_BIASES = ("e_score_correction_bias", "expert_bias", "balancing_biases", "moe_statics")
_SCALES = ("routed_scaling_factor", "router_scaling_factor", "route_scale")
_SHARED = ("shared_experts", "shared_expert", "shared_mlp")
_NUM_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")

_SOFTMAX = {
    "FlexOlmoTopKRouter", "MellumTopKRouter", "OlmoeTopKRouter", "Qwen2MoeTopKRouter", "Qwen3MoeTopKRouter",
    "Qwen3NextTopKRouter", "Qwen3OmniMoeThinkerTextTopKRouter", "Qwen3OmniMoeTalkerTextTopKRouter",
    "Qwen4ExpTextTopKRouter", "Mistral4TopkRouter",
}  # fmt: skip
"""softmax, then top-k, divided by their sum if ``norm_topk_prob``"""
_SOFTMAX_RENORMALISED = {
    "Qwen3_5MoeTopKRouter", "Qwen3OmniMoeTextTopKRouter", "Qwen3VLMoeTextTopKRouter", "MixtralTopKRouter",
    "MiniMaxTopKRouter", "HunYuanMoEV1Gate", "Ernie4_5_MoeTopKRouter", "Ernie4_5_VLMoeMoeTopKRouter",
    "MistralLarge4TextTopkRouter", "Gemma4TextRouter", "DiffusionGemmaTextRouter",
}  # fmt: skip
_SOFTMAX_AS_IS = {
    "JambaTopKRouter", "DeepseekV2TopkRouter", "DeepseekOcr2TextTopkRouter", "UnlimitedOcrTextTopkRouter",
    "LongcatFlashTopkRouter", "ZayaRouter",
}  # fmt: skip
_SOFTMAX_OF_CHOSEN = {
    "GraniteMoeTopKRouter", "GraniteMoeSWATopKRouter", "GraniteMoeHybridTopKRouter", "GraniteMoeSharedTopKRouter",
    "AriaTextTopKRouter", "GptOssTopKRouter", "JetMoeTopKGating",
}  # fmt: skip
_SIGMOID = {
    "AXK1TopkRouter", "AXK2TopkRouter", "BailingHybridTopkRouter", "DeepseekV3TopkRouter", "Dots1TopkRouter",
    "Glm5NextTextTopkRouter", "KimiLinearTopkRouter", "MiMoV2FlashTopkRouter", "NemotronHTopkRouter",
    "DeepseekV32TopkRouter", "Dots3NoteTextTopkRouter", "Glm4MoeTopkRouter", "Glm4MoeLiteTopkRouter",
    "Glm4vMoeTextTopkRouter", "GlmMoeDsaTopkRouter", "HYV4TopkRouter", "SolarOpenTopkRouter", "BeamTopKRouter",
    "ExaoneMoeTopkRouter", "FlintTopKRouter", "Lfm2MoeTopKRouter",
}  # fmt: skip
"""sigmoid, then top-k, divided by their sum if ``norm_topk_prob``"""
_SIGMOID_RENORMALISED = {
    "HYV3TopKRouter", "MiniMaxM3VLTopKRouter", "Step3p7TopKRouter", "AfmoeTokenChoiceRouter", "LagunaTopKRouter",
    "MiniMaxM2TopKRouter", "MuseSparkTopkRouter",
}  # fmt: skip


def semantics_of(gate: nn.Module, block: nn.Module, layer: nn.Module, config: Any) -> WeightSemantics:
    """What the weights of ``gate`` mean, from its code as released and its configuration.

    Attributes of the gate and its block that hold numbers (scale, groups, bias) are read off the model itself;
    a gate class that is not known gets "unknown" instead of a guess.
    """
    means = _rule(gate, block, config)
    if means.score_function == "unknown" and not means.note:
        return means
    shared = _shared_experts(block, layer, config)
    scale = _scale(gate, block)
    return replace(means, bias=_has_bias(gate, block), groups=_groups(gate), shared_experts=shared,
                   scale=means.scale * scale)  # fmt: skip


def _rule(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    kind = type(gate).__name__
    if kind in _SOFTMAX:
        return WeightSemantics("softmax", "softmax, then top-k", bool(gate.norm_topk_prob))
    if kind in _SOFTMAX_RENORMALISED:
        scaled = ("the model multiplies each weight by a learned scale of its expert, which is left out here"
                  if hasattr(gate, "per_expert_scale") else "")  # fmt: skip
        return WeightSemantics("softmax", "softmax, then top-k", True, note=scaled)
    if kind in _SOFTMAX_AS_IS:
        return WeightSemantics("softmax", "softmax, then top-k", False, note=_FREE.get(kind, ""))
    if kind in _SOFTMAX_OF_CHOSEN:
        return WeightSemantics("softmax of top-k", "top-k, then softmax", False, note=_SUMS_TO_ONE)
    if kind in _SIGMOID:
        return WeightSemantics("sigmoid", "sigmoid, then top-k", bool(gate.norm_topk_prob))
    if kind in _SIGMOID_RENORMALISED:
        return WeightSemantics("sigmoid", "sigmoid, then top-k", True)
    special = _SPECIAL_RULES.get(kind)
    return special(gate, block, config) if special else _UNKNOWN


_FREE = {
    "ZayaRouter": "the choice to skip the layer has weight 0",
    "LongcatFlashTopkRouter": "zero experts hand a token on unchanged, times their weight",
}


def _llama4(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    return WeightSemantics(
        "sigmoid", "top-k, then sigmoid", False,
        note="the gate gives no ids: they are the places of its scores that are not masked, which the block "
        "multiplies with; a weight multiplies what goes into its expert, not what comes out",
    )  # fmt: skip


def _dbrx(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    power = block.moe_normalize_expert_weights
    norm = "" if power in (None, 1, 1.0) else f"; the K weights are divided by their {power:g}-norm, not their sum"
    return WeightSemantics("softmax", "softmax, then top-k", power in (1, 1.0),
                           note=f"the gate gives logits only: ids and weights are what its experts get{norm}")


def _phimoe(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    return WeightSemantics(
        "softmax", "unknown", False,
        note="SparseMixer: the experts are picked one after the other; each weight is a softmax over the experts whose "
        "score is close to the best that is left, so the weights can sum to more than 1",
    )  # fmt: skip


def _cohere2(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    halved = getattr(block, "num_shared_experts", 0) and block.shared_expert_combination_strategy == "average"
    scale, note = (0.5, "routed and shared output are averaged") if halved else (1.0, "")
    if gate.expert_selection_fn == "softmax":
        return WeightSemantics("softmax of top-k", "top-k, then softmax", False, scale=scale,
                               note="; ".join(filter(None, (_SUMS_TO_ONE, note))))  # fmt: skip
    return WeightSemantics("sigmoid", "top-k, then sigmoid", bool(gate.norm_topk_prob), scale=scale, note=note)


def _kolibri(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    return WeightSemantics("sigmoid", "top-k, then sigmoid", bool(gate.norm_topk_prob),
                           note="the bias is added to the logits, not to the scores")  # fmt: skip


def _inkling(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    return WeightSemantics(
        "sigmoid", "sigmoid, then top-k", False,
        note="the weights are divided by the sum over the chosen and the shared experts, so the K sum to less than 1; "
        "a learned scale of each layer is left out here",
    )  # fmt: skip


def _by_config(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    """Scores by the function that the configuration names."""
    if config.scoring_func == "sigmoid":
        return WeightSemantics("sigmoid", "sigmoid, then top-k", True)
    return WeightSemantics("unknown", "unknown", True, note=f"scores are {config.scoring_func}(logits), then top-k")


def _by_token(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    return replace(_by_config(gate, block, config), order="unknown",
                   note="the experts are looked up by the id of the token, not scored; their weights are "
                   f"{config.scoring_func}(logits)")  # fmt: skip


_SPECIAL_RULES: dict[str, Callable[[nn.Module, nn.Module, Any], WeightSemantics]] = {
    "Llama4Router": _llama4, "DbrxRouter": _dbrx, "PhimoeTopKRouter": _phimoe, "Cohere2MoeTopKRouter": _cohere2,
    "Kolibri1TopKRouter": _kolibri, "InklingTopkRouter": _inkling, "DeepseekV4TopKRouter": _by_config,
    "Inkling2TopKRouter": _by_config, "DeepseekV4HashRouter": _by_token,
}  # fmt: skip


def _number(owner: nn.Module, names: Sequence[str]) -> float | None:
    for name in names:
        value = getattr(owner, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


def _inside(gate: nn.Module) -> float:
    """The scale that a gate has multiplied its weights by already."""
    return _number(gate, _SCALES) or 1.0


def _scale(gate: nn.Module, block: nn.Module) -> float:
    """The scale wherever it is applied: in the gate, or behind the experts."""
    inside = _number(gate, _SCALES)
    return inside if inside is not None else _number(block, _SCALES) or 1.0


def _has_bias(gate: nn.Module, block: nn.Module) -> bool:
    return any(getattr(owner, name, None) is not None for owner in (gate, block) for name in _BIASES)


def _groups(gate: nn.Module) -> tuple[int, int] | None:
    groups, usable = getattr(gate, "num_group", None), getattr(gate, "topk_group", None)
    limited = getattr(gate, "topk_method", "group_limited_greedy") == "group_limited_greedy"
    return (groups, usable) if groups and usable and usable < groups and limited else None


def _shared_experts(block: nn.Module, layer: nn.Module, config: Any) -> int:
    there = any(isinstance(getattr(owner, name, None), nn.Module) for owner in (block, layer) for name in _SHARED)
    if not there:
        return 0
    number = next((n for name in _NUM_SHARED if isinstance(n := getattr(config, name, None), int)), 1)
    return max(number, 1)


def common_semantics(gates: Sequence[Gate]) -> WeightSemantics:
    """What the weights of a run mean: of most gates, with a note of those that differ."""
    first, _ = Counter(gate.semantics for gate in gates).most_common(1)[0]
    others: dict[WeightSemantics, list[str]] = {}
    for gate in gates:
        if gate.semantics != first:
            others.setdefault(gate.semantics, []).append(gate.name)
    notes = [first.note] if first.note else []
    for means, names in others.items():
        notes.append(f"different in {', '.join(names)}: {means.score_function}, {means.order}, scale {means.scale:g}"
                     + (f", {means.note}" if means.note else ""))  # fmt: skip
    return replace(first, note="; ".join(notes))


# Modules ------------------------------------------------------------------------------------------------------


def module_table(gates: Sequence[Gate]) -> list[ModuleInfo]:
    """Everything that can be picked: each gate's experts, and choices that cost nothing as kind ``identity``."""
    layers = [ExpertLayer(gate.name, gate.num_experts, *_costs(gate)) for gate in gates]
    free = [ModuleInfo(step, gate.num_experts + i, name, "identity", 0, 0)
            for step, gate in enumerate(gates) for i, name in enumerate(gate.skips)]  # fmt: skip
    return expert_modules(layers) + free


def _costs(gate: Gate) -> tuple[int, int]:
    """Parameters of one expert and its operations per token; (0, 0) where weights are packed bits."""
    experts = getattr(gate.block, EXPERTS, None)
    if isinstance(experts, nn.Module):
        named = list(experts.named_parameters())
    else:  # JetMoE keeps the experts of each projection apart
        named = [pair for child in gate.block.children() if "ParallelExperts" in type(child).__name__
                 for pair in child.named_parameters()]  # fmt: skip
    # What is one-dimensional belongs to all experts (a norm behind them).
    own = [(name, p) for name, p in named if p.dim() > 1]
    if not own or not all(p.is_floating_point() for _, p in own):
        return 0, 0
    each = {name: p.numel() // (p.shape[0] if p.shape[0] == gate.num_choices else gate.num_experts) for name, p in own}
    return sum(each.values()), 2 * sum(number for name, number in each.items() if "bias" not in name)


# Recording ----------------------------------------------------------------------------------------------------


class GateRecorder:
    """Hooks on every gate while the context lasts; ``take`` hands out what the last forward pass decided.

    A hook only keeps what the gate gave; sorting, entropy and the copy to the host happen once for all layers.
    """

    def __init__(self, gates: Sequence[Gate]) -> None:
        self.gates = list(gates)
        self._calls: list[tuple[Gate, Said]] = []
        self._logits: dict[int, Tensor] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> GateRecorder:
        seen: set[int] = set()
        for gate in self.gates:
            if id(gate.module) in seen:  # reached twice in a pass: one hook, two calls
                continue
            seen.add(id(gate.module))
            self._handles.append(gate.module.register_forward_hook(lambda m, _a, out, g=gate: self._hear(g, m, out)))
            if gate.at_experts:
                self._handles.append(gate.hooked.register_forward_pre_hook(
                    lambda m, args, kwargs, g=gate: self._hear_experts(g, args, kwargs), with_kwargs=True))  # fmt: skip
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:  # fmt: skip
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._calls.clear()

    def _hear(self, gate: Gate, module: nn.Module, output: Any) -> None:
        if gate.at_experts:
            self._logits[id(gate.module)] = output
            return
        said = _said(module, output)
        assert said is not None, "find_gates saw ids and weights"
        self._calls.append((gate, said if gate.probabilities else replace(said, logits=None)))

    def _hear_experts(self, gate: Gate, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        said = _called_with(args, kwargs)
        assert said is not None, "find_gates saw ids and weights"
        logits = self._logits.pop(id(gate.module), None)
        self._calls.append((gate, replace(said, logits=logits if isinstance(logits, Tensor) else None)))

    def take(self, keep: Bool[Tensor, " n"]) -> Recorded:
        """The decisions since the last call, at the positions of the pass that ``keep`` marks.

        Raises:
            UserError: a gate gave NaN, weights that are none, or spoke for another number of tokens.
        """
        calls, self._calls = self._calls, []
        self._logits.clear()
        if [gate.name for gate, _ in calls] != [gate.name for gate in self.gates]:
            raise UserError(
                f"{len(calls)} gates decided in this pass, {len(self.gates)} in the first one: routing that changes "
                "its layers from text to text cannot be traced", field="model",
            )  # fmt: skip
        for gate, said in calls:
            if said.ids.shape[0] != len(keep):
                raise UserError(f"{gate.name} decided for {said.ids.shape[0]} tokens of {len(keep)}", field="model")
        recorded = _stacked(calls, keep)
        _check_weights(recorded, self.gates)
        return recorded


def _stacked(calls: list[tuple[Gate, Said]], keep: Tensor) -> Recorded:
    """All gates of a pass at once: slots by weight, scale taken out, entropy of the probabilities, on the host."""
    device = calls[0][1].ids.device
    ids = torch.stack([said.ids.to(device, torch.int32) for _, said in calls], dim=1)
    weights = torch.stack([_without_scale(gate, said).to(device) for gate, said in calls], dim=1)
    if ids.shape[2] > 1:
        weights, order = weights.sort(dim=2, descending=True, stable=True)
        ids = ids.gather(2, order)
    kept = keep.to(device)
    return Recorded(ids[kept].cpu(), weights[kept].cpu(), _entropies(calls, device)[kept].cpu())


def _without_scale(gate: Gate, said: Said) -> Tensor:
    weights = said.weights.float()
    if (learned := getattr(gate.module, "per_expert_scale", None)) is not None:
        weights = weights / learned[said.ids].float()
    if (learned := getattr(gate.module, "global_scale", None)) is not None:
        weights = weights / learned.float()
    return weights / gate.divide if gate.divide != 1 else weights


def _entropies(calls: list[tuple[Gate, Said]], device: torch.device) -> Tensor:
    known = [(gate, said.logits) for gate, said in calls if gate.probabilities and said.logits is not None]
    alike = len(known) == len(calls) and len({logits.shape for _, logits in known}) == 1
    if alike and not any(_gives_probabilities(gate) for gate, _ in known):
        logits = torch.stack([logits.to(device).float() for _, logits in known], dim=1)
        return torch.special.entr(logits.softmax(dim=2)).sum(dim=2)
    columns = []
    for gate, said in calls:
        if not gate.probabilities or said.logits is None:
            columns.append(torch.full(said.ids.shape[:1], float("nan"), device=device))
            continue
        probs = said.logits.float() if _gives_probabilities(gate) else said.logits.float().softmax(dim=1)
        columns.append(torch.special.entr(probs).sum(dim=1).to(device))
    return torch.stack(columns, dim=1)


def _gives_probabilities(gate: Gate) -> bool:
    """Whether the gate hands out probabilities in the place of logits."""
    return type(gate.module).__name__ in ("Gemma4TextRouter", "DiffusionGemmaTextRouter")


def _check_weights(recorded: Recorded, gates: Sequence[Gate]) -> None:
    weights = recorded.weights
    bad = ~torch.isfinite(weights).all(dim=2).all(dim=0)
    if bad.any():
        raise UserError(
            f"{gates[int(bad.nonzero()[0])].name} gave NaN or infinite weights; the checkpoint or the input is "
            "damaged, nothing of this run was written", field="model",
        )  # fmt: skip
    low, high = weights.amin(dim=(0, 2)), weights.amax(dim=(0, 2))
    outside = (low < -_ROUNDING) | (high > 1 + _ROUNDING)
    if outside.any():
        step = int(outside.nonzero()[0])
        raise UserError(
            f"{gates[step].name} ({type(gates[step].module).__name__}) gave weights from {low[step]:g} to "
            f"{high[step]:g}, and it is not known which scale they hold; weights of a run lie in [0, 1]", field="model",
        )  # fmt: skip
    weights.clamp_(0, 1)
