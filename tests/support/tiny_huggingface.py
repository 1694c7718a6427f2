"""Tiny random checkpoints of every routed architecture that transformers carries, saved as a user would have them.

Weights are drawn wider than at initialisation, so that routers decide something; selection biases and learned
scales, which start at 0 and 1, are drawn too, so that a reader which forgets them is wrong.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from tokenpaths.engine.adapters.huggingface.gate_hooks import Recorded
from tokenpaths.engine.adapters.huggingface.tracing import HuggingFaceModel
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.edits.measure import measure_effect
from tokenpaths.engine.edits.prepared import prepare
from tokenpaths.engine.tracing.trace_batches import text_batches, window_losses
from tokenpaths.engine.tracing.traceable import ModelInput

VOCABULARY = 288
TEXTS = (
    "The river runs past the mill.",
    "Zwei Wege führen über den Berg, einer ist länger.",
    "for step in range(8): print(step)  # 漢字 and 🙂",
    "a",
)

GENERIC: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    moe_intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    num_experts=8,
    num_local_experts=8,
    n_routed_experts=8,
    moe_num_experts=8,
    num_experts_per_tok=2,
    moe_topk=2,
    top_k_experts=2,
    n_group=2,
    topk_group=1,
    n_shared_experts=1,
    num_shared_experts=1,
    moe_num_shared_experts=1,
    shared_expert_intermediate_size=24,
    first_k_dense_replace=1,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=8,
    v_head_dim=8,
    num_nextn_predict_layers=0,
    norm_topk_prob=True,
    depth=1,
    num_heads=2,
    embed_dim=32,
    out_hidden_size=32,
)
"""what every configuration that knows the name is given"""
_LATENT = dict(num_key_value_heads=4)
_LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8)
_OCR = dict(
    sam_config=dict(
        num_hidden_layers=1,
        hidden_size=16,
        output_channels=16,
        downsample_channels=[16, 16],
        global_attn_indexes=[0],
        num_attention_heads=2,
        image_size=64,
    ),
    encoder_config=dict(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
    ),
)
_DEEPSEEK = _LATENT | dict(routed_scaling_factor=2.5)

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "afmoe": dict(route_scale=1.7),
    "aria_text": {},
    "axk1": _DEEPSEEK,
    "axk2": _DEEPSEEK,
    "bailing_hybrid": _DEEPSEEK | dict(n_group=2, num_experts_per_tok=2, num_local_experts=8),
    "beam": dict(routed_scaling_factor=1.5, mlp_layer_types=["dense", "sparse", "sparse"]),
    "cohere2_moe": dict(expert_selection_fn="sigmoid"),
    "dbrx": dict(
        d_model=32,
        n_heads=4,
        n_layers=2,
        max_seq_len=128,
        attn_config=dict(kv_n_heads=2, clip_qkv=8.0, rope_theta=10000.0),
        ffn_config=dict(ffn_hidden_size=24, moe_num_experts=8, moe_top_k=2),
    ),
    "deepseek_v2": _LATENT | dict(topk_method="group_limited_greedy", routed_scaling_factor=1.5),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "deepseek_v4": dict(mlp_layer_types=["hash_moe", "moe", "moe"]),
    "dots3_note_text": dict(num_key_value_heads=4, head_dim=16, per_layer_config={0: {}, 1: {}, 2: {}}),
    "dots1": dict(routed_scaling_factor=2.0),
    "ernie4_5_moe": dict(num_experts_per_tok=2, num_experts=8),
    "exaone_moe": dict(routed_scaling_factor=2.0),
    "flex_olmo": {},
    "flint": {},
    "gemma4_text": dict(
        enable_moe_block=True, vocab_size_per_layer_input=VOCABULARY, hidden_size_per_layer_input=8, global_head_dim=8
    ),
    "glm4_moe": dict(routed_scaling_factor=2.0),
    "glm4_moe_lite": _DEEPSEEK,
    "glm_moe_dsa": _DEEPSEEK,
    "gpt_oss": {},
    "granitemoe": {},
    "granitemoe_swa": {},
    "granitemoehybrid": dict(mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_chunk_size=16),
    "granitemoeshared": dict(shared_intermediate_size=24),
    "hunyuan_v1_moe": {},
    "hy_v3": dict(router_scaling_factor=2.0),
    "hy_v4": {},
    "inkling_text": {},
    "inkling2_text": {},
    "jamba": dict(
        expert_layer_offset=1,
        expert_layer_period=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_hidden_layers=4,
        mamba_d_state=8,
    ),
    "jetmoe": dict(kv_channels=8),
    "kimi_linear": _DEEPSEEK | dict(num_experts_per_tok=2, linear_head_dim=8, linear_num_heads=4),
    "kolibri1": {},
    "laguna": dict(moe_routed_scaling_factor=2.5),
    "lfm2_moe": dict(num_dense_layers=1, layer_types=["conv", "full_attention", "conv"], routed_scaling_factor=1.5),
    "llama4_text": {},
    "longcat_flash": dict(
        num_layers=2,
        ffn_hidden_size=48,
        expert_ffn_hidden_size=24,
        zero_expert_num=4,
        num_key_value_heads=4,
        routed_scaling_factor=2.0,
    ),
    "mellum": {},
    "mimo_v2_flash": dict(routed_scaling_factor=1.5),
    "minimax": {},
    "minimax_m2": {},
    "minimax_m3_vl_text": {},
    "mistral4": dict(num_key_value_heads=4, head_dim=16, routed_scaling_factor=1.5),
    "mixtral": {},
    "nemotron_h": dict(
        layer_types=["linear_attention", "moe", "full_attention", "moe"],
        num_hidden_layers=4,
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=8,
        n_groups=2,
        chunk_size=16,
        moe_shared_expert_intermediate_size=24,
        routed_scaling_factor=1.5,
    ),
    "olmoe": dict(norm_topk_prob=False),
    "phimoe": {},
    "qwen2_moe": dict(norm_topk_prob=False),
    "qwen3_5_moe_text": _LINEAR,
    "qwen3_moe": {},
    "qwen3_next": _LINEAR,
    "qwen4_exp_text": _LINEAR,
    "solar_open": {},
    "zaya": dict(num_experts_per_tok=1),
    # With a vision or audio tower, saved as a whole; only text goes in.
    "aria": {},
    "deepseek_ocr2": dict(text_config=dict(mlp_layer_types=["dense", "sparse", "sparse"]), vision_config=_OCR),
    "ernie4_5_vl_moe": dict(
        text_config=dict(
            moe_intermediate_size=[24, 16],
            moe_k=2,
            num_experts_per_tok=2,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
        )
    ),
    "gemma4": dict(
        text_config=dict(
            enable_moe_block=True,
            vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=8,
            global_head_dim=8,
        )
    ),
    "glm4v_moe": dict(
        text_config=dict(
            routed_scaling_factor=1.5,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [1, 1, 0],
                "partial_rotary_factor": 0.5,
            },
        )
    ),
    "glm5_next": dict(
        text_config=dict(
            num_key_value_heads=4,
            qk_rope_head_dim=0,
            linear_num_heads=4,
            linear_head_dim=8,
            mlp_layer_types=["dense", "sparse", "sparse"],
        )
    ),
    "inkling2": dict(vision_config=dict(text_hidden_size=32)),
    "llama4": dict(
        vision_config=dict(
            num_hidden_layers=1,
            vision_output_dim=32,
            projector_input_dim=32,
            projector_output_dim=32,
            image_size=28,
            patch_size=14,
        )
    ),
    "minimax_m3_vl": {},
    "mistral_large4": dict(text_config=dict(num_key_value_heads=4, routed_scaling_factor=1.5)),
    "muse_spark": dict(
        projector_hidden_size=16,
        text_config=dict(moe_hidden_size=16, routed_scaling_factor=1.5),
        vision_config=dict(pos_emb_height=4, pos_emb_width=4, max_position_embeddings=16),
        audio_config=dict(out_hidden_size=32, patch_sizes=[16], hidden_sizes=[32], depths=[1], num_hidden_layers=1),
    ),
    "qwen3_5_moe": dict(text_config=_LINEAR),
    "qwen3_vl_moe": {},
    "qwen4_exp": dict(text_config=_LINEAR),
    "step3p7": dict(
        text_config=dict(
            sliding_window=16, mlp_layer_types=["dense", "sparse", "sparse"], moe_router_scaling_factor=1.5
        )
    ),
    "unlimited_ocr": dict(vision_config=_OCR),
}
"""model type: what its configuration needs beyond ``GENERIC``"""

UNCHECKED = {
    "dots3_note": "its towers cannot be made small; its text part is checked as dots3_note_text",
    "inkling_mm_model": "its towers cannot be made small; its text part is checked as inkling_text",
    "qwen3_omni_moe_thinker": "fails on text: its code asks its configuration for vision_start_token_id, which that "
    "has not; its gate is checked as qwen3_moe's, which is the same",
}
"""routed architectures that can be opened and are not tried here, and why"""


def tiny_config(model_type: str, **changes: Any) -> Any:
    """A configuration of a few thousand parameters."""
    kind = CONFIG_MAPPING[model_type]
    default = kind()
    own = ARCHITECTURES.get(model_type, {})
    values = _sized(default)
    for part in getattr(kind, "sub_configs", None) or {}:
        if (found := getattr(default, part, None)) is not None:
            values[part] = _sized(found) | own.get(part, {})
    return kind(**own | values | {name: own[name] for name in own if name not in kind.sub_configs} | changes)


def _sized(config: Any) -> dict[str, Any]:
    known = config.to_dict()
    return {name: value for name, value in GENERIC.items() if name in known}


@torch.no_grad()
def draw(model: nn.Module, seed: int = 0) -> None:
    """Draw every weight anew, routers widest."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor: torch.Tensor, deviation: float, mean: float = 0.0) -> None:
        tensor.copy_((torch.randn(tensor.shape, generator=generator) * deviation + mean).to(tensor.dtype))

    for name, parameter in model.named_parameters():
        last = name.rsplit(".", 1)[-1]
        if any(word in name for word in ("e_score_correction_bias", "expert_bias")):
            normal(parameter, 0.3)
        elif last in ("per_expert_scale", "global_scale"):
            normal(parameter, 0.1, 1.0)
        elif parameter.dim() >= 2 and any(f".{word}." in name for word in ("gate", "router")):
            normal(parameter, 0.15 if "router_mlp" in name else 0.5)
        elif parameter.dim() >= 2 and "embed" not in name:
            normal(parameter, 0.1)
        elif "embed" in name and parameter.dim() == 2:
            normal(parameter, 0.5)
    for name, buffer in model.named_buffers():
        if any(word in name for word in ("e_score_correction_bias", "expert_bias", "balancing_biases")):
            # Zaya starts its last choice, to skip the layer, at −1 whatever the file says: it is to happen here.
            normal(buffer, 0.3, -1.2 if "balancing_biases" in name else 0.0)
        elif name.endswith("tid2eid"):
            picks = torch.stack([torch.randperm(8, generator=generator)[: buffer.shape[1]] for _ in buffer])
            buffer.copy_(picks)


def tiny_model(model_type: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A drawn model in evaluation mode."""
    config = tiny_config(model_type, **changes)
    whole = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and hasattr(config, "text_config")
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not whole
    family = AutoModelForCausalLM if causal else AutoModelForImageTextToText
    model = family.from_config(config).eval()
    draw(model, seed)
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE that puts ``<s>`` before a text, as most language models want it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def save_tiny(folder: Path, model_type: str, *, tokenizer: bool = True, seed: int = 0, **changes: Any) -> Path:
    """A checkpoint folder as ``save_pretrained`` leaves it."""
    tiny_model(model_type, seed, **changes).save_pretrained(folder)
    if tokenizer:
        tiny_tokenizer().save_pretrained(folder)
    return folder


_folder = functools.cache(tempfile.TemporaryDirectory)


@functools.cache
def saved_tiny(model_type: str) -> Path:
    """The folder of a checkpoint that stays until the tests end: its tokenizer is opened again when it is needed."""
    return save_tiny(Path(_folder().name) / model_type, model_type)


SAMPLES = [Sample(None, text, label, f"text {i}") for i, (text, label) in enumerate(zip(TEXTS, "abab", strict=True))]


def copied(folder: Path, target: Path) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def changed_config(folder: Path, **values: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return folder


def one_batch(loaded: HuggingFaceModel, budget: int = 4096) -> Any:
    batches = list(text_batches(loaded, loaded.untrained(), SAMPLES, budget // 64))
    assert len(batches) == 1
    return batches[0][0]


def run_windows(
    loaded: HuggingFaceModel, inputs: torch.Tensor, keep: torch.Tensor, targets: torch.Tensor
) -> tuple[Recorded, Any]:
    """Decisions (n, S, K) and losses (n,) of the tokens that ``keep`` marks, window after window."""
    batch = ModelInput(inputs, targets, keep)
    traced = loaded.run(batch)
    parts = (traced.module_ids, traced.weights, traced.gate_entropy, traced.margin, traced.runner_up)
    values = (batch.real_rows(part) for part in parts)
    return Recorded(*values), window_losses(traced.logits, batch)[0]


def effect_over(loaded: HuggingFaceModel, samples: list[Sample], edits: Any) -> dict[str, Any]:
    """The measured effect of edits over texts."""
    return measure_effect(loaded.with_controls({"edits": list(edits)}), prepare(loaded, samples))
