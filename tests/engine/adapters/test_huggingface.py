"""Opening Hugging Face checkpoints, refusing bad ones, and tracing texts into a run."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as IMAGE_TEXT

from engine.adapters import hf_hub, huggingface
from engine.adapters.hf_gates import common_semantics, find_gates
from engine.adapters.huggingface import (
    NOT_TRACED,
    HuggingFaceError,
    HuggingFaceModel,
    find_model,
    load,
    run_info,
    text_batches,
    trace_texts,
)
from engine.datasets import Sample
from engine.errors import UserError
from engine.store import Run
from engine.store.filters import Query
from tests.engine.adapters.naive_routing import own_decisions, watch
from tests.engine.adapters.tiny_huggingface import (
    ARCHITECTURES,
    TEXTS,
    UNCHECKED,
    VOCABULARY,
    save_tiny,
    tiny_model,
    tiny_tokenizer,
)

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = [Sample(None, text, label, f"text {i}") for i, (text, label) in enumerate(zip(TEXTS, "abab", strict=True))]


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny-mixtral", "mixtral")


@pytest.fixture(scope="module")
def loaded(mixtral: Path) -> HuggingFaceModel:
    return load(find_model(f"hf:{mixtral}"), device="cpu")


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
    batches = list(text_batches(loaded, SAMPLES, budget))
    assert len(batches) == 1
    return batches[0][0]


# A run ------------------------------------------------------------------------------------------------------


def test_a_run_holds_what_the_model_did(loaded: HuggingFaceModel, tmp_path: Path) -> None:
    said = []
    file = trace_texts(loaded, SAMPLES, tmp_path, run_id="tiny", dataset="four", on_progress=said.append, total=4)
    assert (said[-1].samples, said[-1].tokens) == (4, sum(len(loaded.tokenizer.encode(t).ids) for t in TEXTS))
    with Run.open(file) as run:
        info = run.info()
        assert (info["family"], info["modality"], info["num_steps"], info["num_modules"], info["top_k"]) == (
            "moe", "text", 3, 8, 2)  # fmt: skip
        assert info["model"] == "tiny-mixtral"
        means = info["weight_semantics"]
        assert (means["score_function"], means["order"], means["renormalised"]) == (
            "softmax", "softmax, then top-k", True)  # fmt: skip
        assert means["source"] == "forward hooks: the output of the gate (MixtralTopKRouter)"
        assert info["config"]["huggingface"]["layers"] == [f"model.layers.{i}.mlp.gate" for i in range(3)]
        assert info["num_samples"] == 4


def test_the_trace_is_the_same_whatever_shares_a_batch(loaded: HuggingFaceModel) -> None:
    together = one_batch(loaded)
    apart = [batch for sample in SAMPLES for batch, _ in text_batches(loaded, [sample], 1)]
    for name in ("module_ids", "token_id", "char_start", "char_end", "flops"):
        np.testing.assert_array_equal(getattr(together, name), np.concatenate([getattr(b, name) for b in apart]))
    for name in ("weights", "gate_entropy", "loss"):
        np.testing.assert_allclose(
            getattr(together, name), np.concatenate([getattr(b, name) for b in apart]), rtol=1e-3, atol=1e-4
        )


def test_the_predicted_token_is_the_likeliest_one(loaded: HuggingFaceModel, tmp_path: Path) -> None:
    file = trace_texts(loaded, SAMPLES, tmp_path, run_id="telling", dataset="four")
    with Run.open(file) as run:
        found = run.rows(Query("SELECT predicted_id FROM token WHERE sample = 0 ORDER BY token"))
        assert run.specialisation("predicted", 0)["of"] == "predicted"
    ids = [1, *loaded.tokenizer.encode(TEXTS[0]).ids]
    with torch.inference_mode():
        logits = loaded.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, 1:]
    assert [row[0] for row in found] == logits.argmax(dim=-1).tolist()


def test_long_texts_are_cut_into_windows(loaded: HuggingFaceModel) -> None:
    text = TEXTS[1] * 20
    ids = loaded.tokenizer.encode(text).ids
    assert len(ids) > 2 * loaded.context, "the case needs three windows"
    assert loaded.context == 127, "128 positions, one for <s>"
    (batch, _), = list(text_batches(loaded, [Sample(None, text, None, "long")], 64))
    start, pieces = 0, []
    while start < len(ids):
        window = ids[start : start + loaded.context]
        seen = watch(loaded.gates, lambda w=window: loaded.model(input_ids=torch.tensor([[1, *w]]), use_cache=False))
        pieces.append(np.stack([own_decisions(g, s)[0][1:] for g, s in zip(loaded.gates, seen, strict=True)], axis=1))
        start += loaded.context
    np.testing.assert_array_equal(batch.module_ids, np.concatenate(pieces))
    assert np.isnan(batch.loss).sum() == 1, "only the last token has no next one"


def test_losses_are_the_models_own(loaded: HuggingFaceModel) -> None:
    batch, start = one_batch(loaded), 0
    for sample, record in zip(SAMPLES, batch.samples, strict=True):
        ids = torch.tensor([[1, *loaded.tokenizer.encode(sample.text).ids]])
        with torch.inference_mode():
            probs = loaded.model(input_ids=ids).logits.double().log_softmax(dim=-1)[0]
        expected = -probs[torch.arange(1, ids.shape[1] - 1), ids[0, 2:]].numpy()
        own = batch.loss[start : start + ids.shape[1] - 1]
        np.testing.assert_allclose(own[:-1], expected, rtol=1e-4, atol=1e-5)
        assert np.isnan(own[-1])
        if len(expected):
            assert record.loss == pytest.approx(expected.mean(), rel=1e-4)
        else:
            assert record.loss is None
        start += len(own)


def test_tokens_stand_for_characters(loaded: HuggingFaceModel) -> None:
    batch, start = one_batch(loaded), 0
    texts = loaded.tokenizer.token_texts()
    assert len(texts) == len(tiny_tokenizer())
    for sample, record in zip(SAMPLES, batch.samples, strict=True):
        own = slice(start, start := start + record.num_tokens)
        covered = np.zeros(len(sample.text), dtype=bool)
        for token, a, b in zip(batch.token_id[own], batch.char_start[own], batch.char_end[own], strict=True):
            covered[a:b] = True
            if "\ufffd" not in texts[int(token)]:
                assert texts[int(token)] == sample.text[a:b]
        assert covered.all(), "every character is of some token; <s> is no token of the text"


def test_flops_are_of_the_visited_experts(loaded: HuggingFaceModel) -> None:
    batch = one_batch(loaded)
    np.testing.assert_array_equal(batch.flops, 3 * 2 * (2 * 3 * 32 * 48))


def test_the_untrained_twin_is_the_architecture_at_initialisation(loaded: HuggingFaceModel) -> None:
    assert loaded.twin is not None
    batch, twin_ids = next(iter(text_batches(loaded, SAMPLES, 4096)))
    assert twin_ids.shape == batch.module_ids.shape
    assert (np.sort(twin_ids) != np.sort(batch.module_ids)).any()
    again = load(find_model(f"hf:{Path(loaded.model.name_or_path)}"), device="cpu")
    for a, b in zip(loaded.twin.parameters(), again.twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_bfloat16_is_recorded_as_it_is(mixtral: Path) -> None:
    loaded = load(find_model(f"hf:{mixtral}"), device="cpu", dtype="bfloat16", twin=False)
    assert loaded.model.dtype == torch.bfloat16
    assert run_info(loaded, "x", "y").config["huggingface"]["dtype"] == "bfloat16"
    ids = loaded.tokenizer.encode(TEXTS[0]).ids
    batch, _ = next(iter(text_batches(loaded, SAMPLES[:1], 4096)))
    seen = watch(loaded.gates, lambda: loaded.model(input_ids=torch.tensor([[1, *ids]]), use_cache=False))
    for step, (gate, what) in enumerate(zip(loaded.gates, seen, strict=True)):
        own_ids, own_weights = own_decisions(gate, what)
        np.testing.assert_array_equal(batch.module_ids[:, step], own_ids[1:])
        np.testing.assert_array_equal(batch.weights[:, step], own_weights[1:])


def test_hooks_are_gone_afterwards(loaded: HuggingFaceModel) -> None:
    one_batch(loaded)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in loaded.model.modules())


def test_sums_of_the_weight_files(mixtral: Path, tmp_path: Path, loaded: HuggingFaceModel) -> None:
    assert loaded.sha256 == hashlib.sha256((mixtral / "model.safetensors").read_bytes()).hexdigest()
    tiny_model("mixtral").save_pretrained(tmp_path / "parts", max_shard_size="200KB")
    tiny_tokenizer().save_pretrained(tmp_path / "parts")
    files = sorted((tmp_path / "parts").glob("*.safetensors"))
    assert len(files) > 1
    lines = [f"{f.name} {hashlib.sha256(f.read_bytes()).hexdigest()}\n" for f in files]
    in_parts = load(find_model(f"hf:{tmp_path / 'parts'}"), device="cpu", twin=False)
    assert in_parts.sha256 == hashlib.sha256("".join(lines).encode()).hexdigest()
    np.testing.assert_array_equal(one_batch(in_parts).module_ids, one_batch(loaded).module_ids)


@pytest.fixture
def hub_cache(mixtral: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache with ``someone/tiny`` in it, laid out as the hub's client does, and HF_HUB_OFFLINE set."""
    commit = "0" * 40
    repo = tmp_path / "models--someone--tiny"
    (repo / "snapshots").mkdir(parents=True)
    copied(mixtral, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_a_name_of_the_hub_is_read_from_the_users_cache(
    hub_cache: Path, loaded: HuggingFaceModel
) -> None:
    found = load(find_model("hf:someone/tiny"), device="cpu", twin=False)
    assert found.name == "someone/tiny"
    assert found.sha256 == loaded.sha256
    np.testing.assert_array_equal(one_batch(found).module_ids, one_batch(loaded).module_ids)


def test_a_name_that_is_not_in_the_cache_and_no_network(hub_cache: Path) -> None:
    said = "someone/else cannot be fetched: it is not in your cache, and the hub cannot be reached"
    with pytest.raises(HuggingFaceError, match=said):
        find_model("hf:someone/else")


def test_a_hub_that_nobody_answers_for_is_asked_once_and_in_silence(
    hub_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client by itself tries six times for each file, cached ones too, and prints two lines for each try."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    tried: list[str] = []
    head = type(huggingface_hub.get_session()).head
    monkeypatch.setattr(type(huggingface_hub.get_session()), "head",
                        lambda self, url, **kw: (tried.append(str(url)), head(self, url, **kw))[1])  # fmt: skip
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", nobody)
    with pytest.raises(HuggingFaceError, match="not in your cache, and the hub cannot be reached"):
        find_model("hf:someone/else")
    assert find_model("hf:someone/tiny").name == "someone/tiny"
    assert tried == [nobody]
    assert "Retry" not in "".join(capfd.readouterr()) + caplog.text


def test_a_name_server_that_stays_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(hf_hub, "PATIENCE_S", -0.4)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: answer.wait(60))
    assert not hf_hub.reachable("http://silent.invalid")
    answer.set()


def test_a_gate_of_a_later_release_is_read_without_guessing(mixtral: Path) -> None:
    loaded = load(find_model(f"hf:{mixtral}"), device="cpu", twin=False)
    expected = one_batch(loaded)
    for gate in loaded.gates:
        gate.module.__class__ = type("MixtralNextRouter", (type(gate.module),), {})
    ids = torch.arange(3, 9)[None]
    gates = find_gates(loaded.model, lambda: loaded.model(input_ids=ids), loaded.model.config)
    loaded.gates = gates
    means = common_semantics(gates)
    assert (means.score_function, means.order, means.renormalised, means.bias) == ("unknown", "unknown", None, None)
    found = one_batch(loaded)
    np.testing.assert_array_equal(found.module_ids, expected.module_ids)
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert np.isnan(found.gate_entropy).all()


def test_weights_of_an_unknown_scale_are_refused(tmp_path: Path) -> None:
    loaded = load(find_model(f"hf:{save_tiny(tmp_path / 'v3', 'deepseek_v3')}"), device="cpu", twin=False)
    for gate in loaded.gates:
        gate.module.__class__ = type("LaterRouter", (type(gate.module),), {})
    ids = torch.arange(3, 9)[None]
    loaded.gates = find_gates(loaded.model, lambda: loaded.model(input_ids=ids), loaded.model.config)
    with pytest.raises(UserError, match=r"LaterRouter\) gave weights from .* it is not known which scale they hold"):
        one_batch(loaded)


def test_a_model_that_gives_up_is_said_in_a_sentence(mixtral: Path) -> None:
    loaded = load(find_model(f"hf:{mixtral}"), device="cpu", twin=False)
    loaded.model.lm_head.weight.data = loaded.model.lm_head.weight.data[:, :8]
    with pytest.raises(HuggingFaceError, match="MixtralForCausalLM gave up"):
        one_batch(loaded)
    assert not any(m._forward_hooks for m in loaded.model.modules()), "hooks are gone all the same"


def test_the_page_is_what_was_measured() -> None:
    from benchmarks.huggingface import BEGIN, END, page

    document = json.loads((ROOT / "benchmarks" / "results" / "huggingface.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    assert text.split(BEGIN)[1].split(END)[0].strip() == page(document)
    assert set(document["results"]["architectures"]) == set(ARCHITECTURES)
    assert document["results"]["not_traced"] == NOT_TRACED
    assert document["results"]["unchecked"] == UNCHECKED
    for name, reason in (UNCHECKED | NOT_TRACED).items():
        assert f"| {name} | {reason} |" in text, "what was not checked is on the page, with the reason"
    for row in document["results"]["architectures"].values():
        assert (row["decisions_equal"], row["stored_decisions_equal"]) == (1, 1)
        assert row["weights_off"] == 0
        assert row["stored_weights_off"] < 1 / 510 + 1e-4, "8 bits, one or two slots"


def test_the_example_of_the_page_runs(mixtral: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    code = re.search(r"## Hugging Face.*?```python\n(.+?)```", text, flags=re.DOTALL).group(1)
    copied(mixtral, tmp_path / "my-checkpoint")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "adapters.md", "exec"), found := {})
    with Run.open(found["run_file"]) as run:
        assert run.info()["num_samples"] == 20


# What is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["owner/..", "../..x/y", "a/b/c", "owner/na me", "", "owner/--x", "o\0/x", "x" * 5000])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(HuggingFaceError, match="neither a folder nor a name on the hub|names no model") as caught:
        find_model(f"hf:{name}")
    assert caught.value.field == "model"


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(HuggingFaceError, match=r"holds no config\.json"):
        find_model(f"hf:{tmp_path}")


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
    loaders = [n for n in ("lazy_import_flash_attention", "load_and_register_attn_kernel")
               if hasattr(transformers.modeling_utils, n)]  # fmt: skip
    assert loaders, "this release loads kernels elsewhere"
    for name in loaders:
        monkeypatch.setattr(transformers.modeling_utils, name, lambda *a, **k: pytest.fail("a kernel was asked for"))
    folder = changed_config(copied(mixtral, tmp_path / "named"), attn_implementation=named)
    found = load(find_model(f"hf:{folder}"), device="cpu")
    assert found.model.config._attn_implementation == "sdpa"
    assert found.twin.config._attn_implementation == "sdpa"


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
    openable = {kind for kind in CONFIG_MAPPING_NAMES if model_type_to_module_name(kind) in found
                and (kind in CAUSAL or kind in IMAGE_TEXT)}  # fmt: skip
    assert openable - kept == set()


def test_a_model_without_a_router_before_its_weights_are_read(tmp_path: Path) -> None:
    LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)  # fmt: skip
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
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": named}}))
    with pytest.raises(HuggingFaceError, match="is no safetensors file"):
        load(find_model(f"hf:{folder}"))


def test_a_missing_part(mixtral: Path, tmp_path: Path) -> None:
    folder = copied(mixtral, tmp_path / "short")
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
    loaded = load(find_model(f"hf:{mixtral}"), device="cpu", twin=False)
    loaded.gates[1].module.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match=r"model\.layers\.1\.mlp\.gate gave NaN"):
        trace_texts(loaded, SAMPLES, tmp_path, run_id="broken")
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
    loaded = load(find_model(f"hf:{folder}"), device="cpu", twin=False)
    with pytest.raises(HuggingFaceError, match=f"the model knows {VOCABULARY - 40} tokens"):
        list(text_batches(loaded, SAMPLES, 4096))


def test_texts_that_are_none(loaded: HuggingFaceModel) -> None:
    for text, message in (("", "is empty"), ("\ud800", "lone surrogate"), (None, "takes texts")):
        with pytest.raises(UserError, match=message):
            list(text_batches(loaded, [Sample(None, text, None, "it")], 64))


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
    with pytest.raises(HuggingFaceError, match=r'pip install "tokenpaths\[huggingface\]"'):
        huggingface.find_model(f"hf:{mixtral}")


def test_a_user_loads_the_same_checkpoint(mixtral: Path, loaded: HuggingFaceModel) -> None:
    """Decisions of a model opened by transformers alone, without anything of ours."""
    model = AutoModelForCausalLM.from_pretrained(mixtral)
    ids = AutoTokenizer.from_pretrained(mixtral)(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        logits = model(input_ids=ids, output_router_logits=True).router_logits
    batch, _ = next(iter(text_batches(loaded, SAMPLES[:1], 4096)))
    for step, scores in enumerate(logits):
        np.testing.assert_array_equal(batch.module_ids[:, step], scores.topk(2).indices[1:].numpy())
