"""Opening Hugging Face checkpoints, refusing bad ones, and tracing texts into a run."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.naive_routing import own_decisions, watch
from tests.support.tiny_huggingface import (
    ARCHITECTURES,
    SAMPLES,
    TEXTS,
    UNCHECKED,
    copied,
    one_batch,
    tiny_model,
    tiny_tokenizer,
)
from tokenpaths.engine.adapters.huggingface.gates import common_semantics, find_gates
from tokenpaths.engine.adapters.huggingface.inspection import NOT_TRACED, find_model
from tokenpaths.engine.adapters.huggingface.loading import load
from tokenpaths.engine.adapters.huggingface.tracing import HuggingFaceModel
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.tracing.trace_batches import text_batches
from tokenpaths.engine.tracing.trace_run import trace_samples

ROOT = Path(__file__).resolve().parents[4]


# A run ------------------------------------------------------------------------------------------------------


def test_a_run_holds_what_the_model_did(loaded: HuggingFaceModel, tmp_path: Path) -> None:
    said = []
    file = trace_samples(loaded, SAMPLES, tmp_path, run_id="tiny", dataset="four", on_progress=said.append, total=4)
    assert (said[-1].samples, said[-1].tokens) == (4, sum(len(loaded.tokenizer.encode(t).ids) for t in TEXTS))
    with Run.open(file) as run:
        info = run.info()
        assert (info["family"], info["modality"], info["num_steps"], info["num_modules"], info["top_k"]) == (
            "moe",
            "text",
            3,
            8,
            2,
        )
        assert info["model"] == "tiny-mixtral"
        means = info["weight_semantics"]
        assert (means["score_function"], means["order"], means["renormalised"]) == (
            "softmax",
            "softmax, then top-k",
            True,
        )
        assert means["source"] == "forward hooks: the output of the gate (MixtralTopKRouter)"
        assert info["config"]["huggingface"]["layers"] == [f"model.layers.{i}.mlp.gate" for i in range(3)]
        assert info["num_samples"] == 4


def test_the_trace_is_the_same_whatever_shares_a_batch(loaded: HuggingFaceModel) -> None:
    together = one_batch(loaded)
    apart = [batch for sample in SAMPLES for batch, _ in text_batches(loaded, None, [sample], 1)]
    for name in ("module_ids", "token_id", "char_start", "char_end", "flops"):
        np.testing.assert_array_equal(getattr(together, name), np.concatenate([getattr(b, name) for b in apart]))
    for name in ("weights", "gate_entropy", "loss"):
        np.testing.assert_allclose(
            getattr(together, name), np.concatenate([getattr(b, name) for b in apart]), rtol=1e-3, atol=1e-4
        )


def test_the_predicted_token_is_the_likeliest_one(loaded: HuggingFaceModel, tmp_path: Path) -> None:
    file = trace_samples(loaded, SAMPLES, tmp_path, run_id="telling", dataset="four")
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
    ((batch, _),) = list(text_batches(loaded, None, [Sample(None, text, None, "long")], 1))
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
    assert loaded.has_small_twin
    batch, twin_ids = next(iter(text_batches(loaded, loaded.untrained(), SAMPLES, 64)))
    assert twin_ids.shape == batch.module_ids.shape
    assert (np.sort(twin_ids) != np.sort(batch.module_ids)).any()
    again = load(find_model(f"hf:{Path(loaded.model.name_or_path)}"), device="cpu")
    for a, b in zip(loaded.untrained().model.parameters(), again.untrained().model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_bfloat16_is_recorded_as_it_is(mixtral: Path) -> None:
    loaded = load(find_model(f"hf:{mixtral}"), device="cpu", dtype="bfloat16")
    assert loaded.model.dtype == torch.bfloat16
    assert loaded.run_fields()["config"]["huggingface"]["dtype"] == "bfloat16"
    ids = loaded.tokenizer.encode(TEXTS[0]).ids
    batch, _ = next(iter(text_batches(loaded, None, SAMPLES[:1], 64)))
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
    in_parts = load(find_model(f"hf:{tmp_path / 'parts'}"), device="cpu")
    assert in_parts.sha256 == hashlib.sha256("".join(lines).encode()).hexdigest()
    np.testing.assert_array_equal(one_batch(in_parts).module_ids, one_batch(loaded).module_ids)


def test_a_gate_of_a_later_release_is_read_without_guessing(mixtral: Path) -> None:
    loaded = load(find_model(f"hf:{mixtral}"), device="cpu")
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


def test_a_user_loads_the_same_checkpoint(mixtral: Path, loaded: HuggingFaceModel) -> None:
    """Decisions of a model opened by transformers alone, without anything of ours."""
    model = AutoModelForCausalLM.from_pretrained(mixtral)
    ids = AutoTokenizer.from_pretrained(mixtral)(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        logits = model(input_ids=ids, output_router_logits=True).router_logits
    batch, _ = next(iter(text_batches(loaded, None, SAMPLES[:1], 64)))
    for step, scores in enumerate(logits):
        np.testing.assert_array_equal(batch.module_ids[:, step], scores.topk(2).indices[1:].numpy())
