"""Hugging Face checkpoints, configurations, texts and options that are refused, and in which words."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as IMAGE_TEXT

from tests.support.tiny_huggingface import (
    ARCHITECTURES,
    SAMPLES,
    UNCHECKED,
    VOCABULARY,
    changed_config,
    copied,
    one_batch,
    save_tiny,
)
from tokenpaths.engine.adapters.huggingface.gates import find_gates
from tokenpaths.engine.adapters.huggingface.inspection import NOT_TRACED, find_model
from tokenpaths.engine.adapters.huggingface.library import HuggingFaceError
from tokenpaths.engine.adapters.huggingface.loading import load
from tokenpaths.engine.adapters.huggingface.tracing import HuggingFaceModel
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.tracing.trace_batches import text_batches
from tokenpaths.engine.tracing.trace_run import trace_samples


@pytest.mark.parametrize("name", ["owner/..", "../..x/y", "a/b/c", "owner/na me", "", "owner/--x", "o\0/x", "x" * 5000])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(HuggingFaceError, match="neither a folder nor a name on the hub|names no model") as caught:
        find_model(f"hf:{name}")
    assert caught.value.field == "model"


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(HuggingFaceError, match=r"holds no config\.json"):
        find_model(f"hf:{tmp_path}")


@pytest.mark.parametrize("with_base", [True, False])
def test_a_folder_with_an_adapter(mixtral: Path, tmp_path: Path, with_base: bool) -> None:
    """Whether transformers applies it depends on what is installed, and the sum of the weights would be the same."""
    folder = copied(mixtral, tmp_path / "named") if with_base else tmp_path
    source = find_model(f"hf:{folder}") if with_base else None
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(
        HuggingFaceError, match=r"holds an adapter .*merge_and_unload\(\) .*without adapter_config\.json"
    ):
        find_model(f"hf:{folder}")
    if source is not None:
        with pytest.raises(HuggingFaceError, match="holds an adapter"):
            load(source, device="cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "names no model_type"),
        ('{"model_type": "of-my-own"}', "does not know it"),
        ('{"model_type": "of-my-own", "auto_map": {"AutoConfig": "x.Y"}}', "code of its own, which is never run"),
        ('{"model_type": "mixtral", "attn_implementation": "someone/kernel"}', "asks for code"),
        ('{"model_type": "mixtral", "sub": {"_attn_implementation": "someone/kernel"}}', "asks for code"),
        ('{"model_type": "mixtral", "attn_implementation": {"": "someone/kernel"}}', "asks for code"),
        ('{"model_type": "mixtral", "attn_implementation": {"text_config": ["sdpa", "a/b"]}}', "asks for code"),
        ('{"model_type": "mixtral", "experts_implementation": {"": {"": "someone/kernel"}}}', "asks for code"),
        ('{"model_type": "t5"}', "predicts no next token"),
        ('{"model_type": "mixtral", "num_attention_heads": "many"}', r"cannot be used|describes no model"),
    ],
)
def test_configurations_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(HuggingFaceError, match=message):
        find_model(f"hf:{tmp_path}")


@pytest.mark.parametrize("named", ["flash_attention_2", "eager", {"": "flash_attention_3"}])
def test_the_attention_that_a_configuration_names_is_not_used(
    mixtral: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: Any
) -> None:
    loaders = [
        n
        for n in ("lazy_import_flash_attention", "load_and_register_attn_kernel")
        if hasattr(transformers.modeling_utils, n)
    ]
    assert loaders, "this release loads kernels elsewhere"
    for name in loaders:
        monkeypatch.setattr(transformers.modeling_utils, name, lambda *a, **k: pytest.fail("a kernel was asked for"))
    folder = changed_config(
        copied(mixtral, tmp_path / "named"), attn_implementation=named, experts_implementation="of_another_machine"
    )
    found = load(find_model(f"hf:{folder}"), device="cpu")
    assert found.model.config._attn_implementation == "sdpa"
    assert found.untrained().model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("model_type", NOT_TRACED)
def test_architectures_that_cannot_be_traced_say_why(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(HuggingFaceError, match=f"{model_type}.*, which cannot be traced: "):
        find_model(f"hf:{tmp_path}")


def test_every_routed_architecture_of_the_library_is_accounted_for() -> None:
    """By the names of the classes in its files, so that a new release cannot add one unseen."""
    routed = re.compile(r"^class \w*(Experts|Router|TopKGating|MoE|Moe|SparseMLP|CDMoE|NaiveMoe)\(", re.MULTILINE)
    folders = Path(transformers.models.__file__).parent.glob("*/modeling_*.py")
    found = {file.parent.name for file in folders if routed.search(file.read_text(encoding="utf-8"))}
    kept = {*ARCHITECTURES, *UNCHECKED, *NOT_TRACED}
    assert found - {model_type_to_module_name(kind) for kind in kept} == set()
    openable = {
        kind
        for kind in CONFIG_MAPPING_NAMES
        if model_type_to_module_name(kind) in found and (kind in CAUSAL or kind in IMAGE_TEXT)
    }
    assert openable - kept == set()


def test_a_model_without_a_router_before_its_weights_are_read(tmp_path: Path) -> None:
    LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="LlamaForCausalLM.*no router.*looked for a module called gate or router"):
        find_model(f"hf:{tmp_path}")


def test_a_pickle_is_never_opened(mixtral: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(mixtral, tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save(load_file(mixtral / "model.safetensors"), folder / "pytorch_model.bin")
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("a pickle was opened"))
    with pytest.raises(HuggingFaceError, match=r"only pytorch_model\.bin: a pickle may run code"):
        load(find_model(f"hf:{folder}"))


@pytest.mark.parametrize("named", ["../elsewhere.safetensors", "weights.bin", 7])
def test_an_index_that_names_something_else(mixtral: Path, tmp_path: Path, named: Any) -> None:
    folder = copied(mixtral, tmp_path / "odd")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": named}}))
    with pytest.raises(HuggingFaceError, match="is no safetensors file"):
        load(find_model(f"hf:{folder}"))


def test_a_folder_with_one_file_and_an_index_is_read_as_the_library_reads_it(
    mixtral: Path, tmp_path: Path, loaded: HuggingFaceModel
) -> None:
    """What an earlier ``save_pretrained`` left there is not loaded, so it is neither checked nor summed."""
    folder = copied(mixtral, tmp_path / "both")
    weights = load_file(mixtral / "model.safetensors")
    save_file({key: value * 0 for key, value in weights.items()}, folder / "model-00001.safetensors")
    index = {"weight_map": dict.fromkeys(weights, "model-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = load(find_model(f"hf:{folder}"), device="cpu")
    assert found.sha256 == loaded.sha256
    assert torch.equal(found.model.lm_head.weight, loaded.model.lm_head.weight)
    (folder / "model-00001.safetensors").unlink()
    assert load(find_model(f"hf:{folder}"), device="cpu").sha256 == loaded.sha256


def test_weights_that_a_configuration_names(mixtral: Path, tmp_path: Path, loaded: HuggingFaceModel) -> None:
    folder = changed_config(copied(mixtral, tmp_path / "named"), transformers_weights="other.safetensors")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    save_file({}, folder / "model.safetensors")
    assert load(find_model(f"hf:{folder}"), device="cpu").sha256 == loaded.sha256
    changed_config(folder, transformers_weights="../other.safetensors")
    with pytest.raises(HuggingFaceError, match="transformers_weights of its configuration is '../other.safetensors'"):
        load(find_model(f"hf:{folder}"), device="cpu")


def test_a_missing_part(mixtral: Path, tmp_path: Path) -> None:
    folder = copied(mixtral, tmp_path / "short")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00002.safetensors"}}')
    with pytest.raises(HuggingFaceError, match=r"model-00002\.safetensors is missing"):
        load(find_model(f"hf:{folder}"))


def test_a_truncated_file(mixtral: Path, tmp_path: Path) -> None:
    folder = copied(mixtral, tmp_path / "cut")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HuggingFaceError, match="cannot be opened"):
        load(find_model(f"hf:{folder}"))


def test_weights_that_are_not_there(mixtral: Path, tmp_path: Path) -> None:
    folder = copied(mixtral, tmp_path / "lacking")
    kept = {k: v for k, v in load_file(mixtral / "model.safetensors").items() if "layers.1" not in k or "gate" not in k}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(HuggingFaceError, match=r"lack \d+ of the model's weights.*random numbers"):
        load(find_model(f"hf:{folder}"))


def test_nan_weights(mixtral: Path, tmp_path: Path) -> None:
    folder = copied(mixtral, tmp_path / "nan")
    weights = load_file(mixtral / "model.safetensors")
    name = next(k for k in weights if "layers.2" in k and "expert" in k)
    weights[name].view(-1)[5] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(HuggingFaceError, match=r"model\.layers\.2\.mlp\.experts.*NaN"):
        load(find_model(f"hf:{folder}"))


def test_a_gate_that_gives_nan_while_running(mixtral: Path, tmp_path: Path) -> None:
    loaded = load(find_model(f"hf:{mixtral}"), device="cpu")
    loaded.gates[1].module.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match=r"model\.layers\.1\.mlp\.gate gave NaN"):
        trace_samples(loaded, SAMPLES, tmp_path, run_id="broken")
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_missing_tokenizer(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "mute", "mixtral", tokenizer=False)
    with pytest.raises(HuggingFaceError, match="holds no tokenizer"):
        load(find_model(f"hf:{folder}"))


def test_a_broken_tokenizer(mixtral: Path, tmp_path: Path) -> None:
    folder = copied(mixtral, tmp_path / "broken")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(HuggingFaceError, match="tokenizer cannot be opened"):
        load(find_model(f"hf:{folder}"))


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "small", "mixtral", vocab_size=VOCABULARY - 40)
    loaded = load(find_model(f"hf:{folder}"), device="cpu")
    with pytest.raises(HuggingFaceError, match=f"the model knows {VOCABULARY - 40} tokens"):
        list(text_batches(loaded, None, SAMPLES, 64))


def test_texts_that_are_none(loaded: HuggingFaceModel) -> None:
    for text, message in (("", "is empty"), ("\ud800", "lone surrogate"), (None, "takes texts")):
        with pytest.raises(UserError, match=message):
            list(text_batches(loaded, None, [Sample(None, text, None, "it")], 1))


def test_options_that_are_none(mixtral: Path) -> None:
    with pytest.raises(UserError, match="no number format"):
        load(find_model(f"hf:{mixtral}"), dtype="int3")
    with pytest.raises(UserError, match="no device"):
        load(find_model(f"hf:{mixtral}"), device="abacus")


def test_layers_that_pick_different_numbers(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "uneven", "hunyuan_v1_moe", moe_topk=[1, 2, 2])
    with pytest.raises(UserError, match=r"different numbers of experts.*layers\.0\.mlp\.gate: 1"):
        load(find_model(f"hf:{folder}"), device="cpu")


def test_without_transformers(mixtral: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(HuggingFaceError, match="run `pip install transformers`"):
        find_model(f"hf:{mixtral}")


def test_weights_of_an_unknown_scale_are_refused(tmp_path: Path) -> None:
    loaded = load(find_model(f"hf:{save_tiny(tmp_path / 'v3', 'deepseek_v3')}"), device="cpu")
    for gate in loaded.gates:
        gate.module.__class__ = type("LaterRouter", (type(gate.module),), {})
    ids = torch.arange(3, 9)[None]
    loaded.gates = find_gates(loaded.model, lambda: loaded.model(input_ids=ids), loaded.model.config)
    with pytest.raises(UserError, match=r"LaterRouter\) gave weights from .* it is not known which scale they hold"):
        one_batch(loaded)


def test_losses_without_memory_for_them_are_said_in_a_sentence(
    mixtral: Path, loaded: HuggingFaceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("tokenpaths.engine.tracing.trace_batches.token_losses", full)
    with pytest.raises(UserError, match="not enough memory for a batch; give a smaller --batch-size") as caught:
        one_batch(loaded)
    assert caught.value.field == "batch_size"


def test_a_model_that_gives_up_is_said_in_a_sentence(mixtral: Path) -> None:
    loaded = load(find_model(f"hf:{mixtral}"), device="cpu")
    loaded.model.lm_head.weight.data = loaded.model.lm_head.weight.data[:, :8]
    with pytest.raises(HuggingFaceError, match="MixtralForCausalLM gave up"):
        one_batch(loaded)
    assert not any(m._forward_hooks for m in loaded.model.modules()), "hooks are gone all the same"
