"""Weight semantics of each gate class of transformers: score function, order, bias, groups, shared experts.

Taken from the released code of each architecture (transformers 5.16 to 5.23) and from the loaded model. Unknown gate
classes get "unknown".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from tokenpaths.engine.adapters.expert_runs import WeightSemantics

UNKNOWN = WeightSemantics("unknown", "unknown", None, bias=None)
_SUMS_TO_ONE = "the K weights sum to 1, because softmax is taken over the chosen experts only"
_BIASES = ("e_score_correction_bias", "expert_bias", "balancing_biases", "moe_statics")
_SCALES = ("routed_scaling_factor", "router_scaling_factor", "route_scale")
_SHARED = ("shared_experts", "shared_expert", "shared_mlp")
_NUM_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")

_SOFTMAX = {
    "FlexOlmoTopKRouter",
    "MellumTopKRouter",
    "OlmoeTopKRouter",
    "Qwen2MoeTopKRouter",
    "Qwen3MoeTopKRouter",
    "Qwen3NextTopKRouter",
    "Qwen3OmniMoeThinkerTextTopKRouter",
    "Qwen3OmniMoeTalkerTextTopKRouter",
    "Qwen4ExpTextTopKRouter",
    "Mistral4TopkRouter",
}
"""softmax, then top-k, divided by their sum if ``norm_topk_prob``"""
_SOFTMAX_RENORMALISED = {
    "Qwen3_5MoeTopKRouter",
    "Qwen3OmniMoeTextTopKRouter",
    "Qwen3VLMoeTextTopKRouter",
    "MixtralTopKRouter",
    "MiniMaxTopKRouter",
    "HunYuanMoEV1Gate",
    "Ernie4_5_MoeTopKRouter",
    "Ernie4_5_VLMoeMoeTopKRouter",
    "MistralLarge4TextTopkRouter",
    "Gemma4TextRouter",
    "DiffusionGemmaTextRouter",
}
_SOFTMAX_AS_IS = {
    "JambaTopKRouter",
    "DeepseekV2TopkRouter",
    "DeepseekOcr2TextTopkRouter",
    "UnlimitedOcrTextTopkRouter",
    "LongcatFlashTopkRouter",
    "ZayaRouter",
}
_SOFTMAX_OF_CHOSEN = {
    "GraniteMoeTopKRouter",
    "GraniteMoeSWATopKRouter",
    "GraniteMoeHybridTopKRouter",
    "GraniteMoeSharedTopKRouter",
    "AriaTextTopKRouter",
    "GptOssTopKRouter",
    "JetMoeTopKGating",
}
_SIGMOID = {
    "AXK1TopkRouter",
    "AXK2TopkRouter",
    "BailingHybridTopkRouter",
    "DeepseekV3TopkRouter",
    "Dots1TopkRouter",
    "Glm5NextTextTopkRouter",
    "KimiLinearTopkRouter",
    "MiMoV2FlashTopkRouter",
    "NemotronHTopkRouter",
    "DeepseekV32TopkRouter",
    "Dots3NoteTextTopkRouter",
    "Glm4MoeTopkRouter",
    "Glm4MoeLiteTopkRouter",
    "Glm4vMoeTextTopkRouter",
    "GlmMoeDsaTopkRouter",
    "HYV4TopkRouter",
    "SolarOpenTopkRouter",
    "BeamTopKRouter",
    "ExaoneMoeTopkRouter",
    "FlintTopKRouter",
    "Lfm2MoeTopKRouter",
}
"""sigmoid, then top-k, divided by their sum if ``norm_topk_prob``"""
_SIGMOID_RENORMALISED = {
    "HYV3TopKRouter",
    "MiniMaxM3VLTopKRouter",
    "Step3p7TopKRouter",
    "AfmoeTokenChoiceRouter",
    "LagunaTopKRouter",
    "MiniMaxM2TopKRouter",
    "MuseSparkTopkRouter",
}


def semantics_of(gate: nn.Module, block: nn.Module, layer: nn.Module, config: Any) -> WeightSemantics:
    """Weight semantics of ``gate``, from its released code and its configuration.

    Numeric attributes of the gate and its block (scale, groups, bias) are read from the model itself; an unknown gate
    class gets "unknown".
    """
    means = _rule(gate, block, config)
    if means.score_function == "unknown" and not means.note:
        return means
    shared = _shared_experts(block, layer, config)
    scale = _scale(gate, block)
    return replace(
        means, bias=_has_bias(gate, block), groups=_groups(gate), shared_experts=shared, scale=means.scale * scale
    )


def _rule(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    kind = type(gate).__name__
    if kind in _SOFTMAX:
        return WeightSemantics("softmax", "softmax, then top-k", _renormalised(gate, block, config))
    if kind in _SOFTMAX_RENORMALISED:
        scaled = (
            "the model multiplies each weight by a learned scale of its expert, which is left out here"
            if hasattr(gate, "per_expert_scale")
            else ""
        )
        return WeightSemantics("softmax", "softmax, then top-k", True, note=scaled)
    if kind in _SOFTMAX_AS_IS:
        return WeightSemantics("softmax", "softmax, then top-k", False, note=_FREE.get(kind, ""))
    if kind in _SOFTMAX_OF_CHOSEN:
        return WeightSemantics("softmax of top-k", "top-k, then softmax", False, note=_SUMS_TO_ONE)
    if kind in _SIGMOID:
        return WeightSemantics("sigmoid", "sigmoid, then top-k", _renormalised(gate, block, config))
    if kind in _SIGMOID_RENORMALISED:
        return WeightSemantics("sigmoid", "sigmoid, then top-k", True)
    special = _SPECIAL_RULES.get(kind)
    return special(gate, block, config) if special else UNKNOWN


def _renormalised(gate: nn.Module, block: nn.Module, config: Any) -> bool | None:
    """Whether weights are divided by their sum; some releases have it on the block, and tell the gate nothing of it."""
    values = (getattr(owner, "norm_topk_prob", None) for owner in (gate, block, config))
    return next((bool(value) for value in values if value is not None), None)


_FREE = {
    "ZayaRouter": "the choice to skip the layer has weight 0",
    "LongcatFlashTopkRouter": "zero experts hand a token on unchanged, times their weight",
}


def _llama4(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    return WeightSemantics(
        "sigmoid",
        "top-k, then sigmoid",
        False,
        note="the gate gives no ids: they are the places of its scores that are not masked, which the block "
        "multiplies with; a weight multiplies what goes into its expert, not what comes out",
    )


def _dbrx(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    power = block.moe_normalize_expert_weights
    norm = "" if power in (None, 1, 1.0) else f"; the K weights are divided by their {power:g}-norm, not their sum"
    return WeightSemantics(
        "softmax",
        "softmax, then top-k",
        power in (1, 1.0),
        note=f"the gate gives logits only: ids and weights are what its experts get{norm}",
    )


def _phimoe(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    return WeightSemantics(
        "softmax",
        "unknown",
        False,
        note="SparseMixer: the experts are picked one after the other; each weight is a softmax over the experts whose "
        "score is close to the best that is left, so the weights can sum to more than 1",
    )


def _cohere2(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    halved = getattr(block, "num_shared_experts", 0) and block.shared_expert_combination_strategy == "average"
    scale, note = (0.5, "routed and shared output are averaged") if halved else (1.0, "")
    if gate.expert_selection_fn == "softmax":
        return WeightSemantics(
            "softmax of top-k",
            "top-k, then softmax",
            False,
            scale=scale,
            note="; ".join(filter(None, (_SUMS_TO_ONE, note))),
        )
    renormalised = _renormalised(gate, block, config)
    return WeightSemantics("sigmoid", "top-k, then sigmoid", renormalised, scale=scale, note=note)


def _kolibri(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    return WeightSemantics(
        "sigmoid",
        "top-k, then sigmoid",
        _renormalised(gate, block, config),
        note="the bias is added to the logits, not to the scores",
    )


def _inkling(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    return WeightSemantics(
        "sigmoid",
        "sigmoid, then top-k",
        False,
        note="the weights are divided by the sum over the chosen and the shared experts, so the K sum to less than 1; "
        "a learned scale of each layer is left out here",
    )


def _by_config(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    """Score function named by the configuration."""
    if config.scoring_func == "sigmoid":
        return WeightSemantics("sigmoid", "sigmoid, then top-k", True)
    return WeightSemantics("unknown", "unknown", True, note=f"scores are {config.scoring_func}(logits), then top-k")


def _by_token(gate: nn.Module, block: nn.Module, config: Any) -> WeightSemantics:
    return replace(
        _by_config(gate, block, config),
        order="unknown",
        note="the experts are looked up by the id of the token, not scored; their weights are "
        f"{config.scoring_func}(logits)",
    )


_SPECIAL_RULES: dict[str, Callable[[nn.Module, nn.Module, Any], WeightSemantics]] = {
    "Llama4Router": _llama4,
    "DbrxRouter": _dbrx,
    "PhimoeTopKRouter": _phimoe,
    "Cohere2MoeTopKRouter": _cohere2,
    "Kolibri1TopKRouter": _kolibri,
    "InklingTopkRouter": _inkling,
    "DeepseekV4TopKRouter": _by_config,
    "Inkling2TopKRouter": _by_config,
    "DeepseekV4HashRouter": _by_token,
}


def _number(owner: nn.Module, names: Sequence[str]) -> float | None:
    for name in names:
        value = getattr(owner, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


def inside_scale(gate: nn.Module) -> float:
    """The scale that is already included in a gate's weights."""
    return _number(gate, _SCALES) or 1.0


def _scale(gate: nn.Module, block: nn.Module) -> float:
    """The scale, wherever it is applied: in the gate, or after the experts."""
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
