"""From checkpoint and samples to a sealed run, compared with the model's own arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from engine.checkpoint import CheckpointError, build_model, read_checkpoint
from engine.datasets import Sample
from engine.errors import UserError
from engine.images import model_view
from engine.store import Run
from engine.tracing import list_models, load_model, trace_samples
from engine.train.augment import normalise
from tests.checkpoints import CLASSES, save_tiny


def picture(seed: int, width=48, height=32) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_tiny(folder / "tiny-vision", "vision")
    save_tiny(folder / "tiny-text", "text")
    return folder


def make_images(count=5):
    mask = np.zeros((32, 48), dtype=np.uint8)
    mask[8:24, 16:30] = 1
    return [Sample(image=picture(i), text=None, label=CLASSES[i % 3] if i else "zebra", source=f"{i}.png", mask=mask)
            for i in range(count)]  # fmt: skip


def test_a_vision_run_holds_what_the_model_decided(models, tmp_path):
    loaded = load_model("tiny-vision", [models], "cpu")
    samples = make_images()
    path = trace_samples(loaded, samples, tmp_path / "runs", run_id="r", dataset="d", batch_size=2,
                         regions=("background", "object", "boundary"))  # fmt: skip
    model = build_model(read_checkpoint(models / "tiny-vision"))
    model.execution = "naive"
    with Run.open(path) as run:
        assert run.card()["num_samples"] == 5
        predictions = [run.sample(i)["prediction"] for i in range(5)]
        right = [predictions[i] == samples[i].label for i in range(1, 5)]  # sample 0 is labelled zebra
        assert run.card()["accuracy"] == pytest.approx(sum(right) / 4)
        for index, sample in enumerate(samples):
            inputs = normalise(torch.from_numpy(model_view(sample.image, 32)).permute(2, 0, 1)[None])
            with torch.inference_mode():
                output = model(inputs)
            answer = run.sample(index)
            for step, decision in enumerate(output.decisions):
                given = [set(token["ribbon"][step]) for token in answer["tokens"]]
                assert given == [set(ids) for ids in decision.module_ids.tolist()]
                weights = np.array([token["weights"][step] for token in answer["tokens"]])
                assert np.allclose(weights, decision.weights.numpy(), atol=1 / 255)
            best = int(output.logits.argmax())
            assert answer["prediction"] == CLASSES[best]
            if index:
                wanted = torch.nn.functional.cross_entropy(output.logits, torch.tensor([index % 3]))
                assert answer["loss"] == pytest.approx(float(wanted), abs=1e-4)
            else:
                assert answer["loss"] is None  # a label that the model never learnt
            regions = [token["region"] for token in answer["tokens"]]
            assert "object" in regions or "boundary" in regions
        fit = run.fit()
        assert fit["untrained"]["num_tokens"] == fit["observed"]["num_tokens"] == 5 * 16


def test_a_text_longer_than_the_context_is_traced_in_windows(models, tmp_path):
    loaded = load_model("tiny-text", [models], "cpu")
    text = "the path of a token goes through many modules and back again é 漢字 שלום " * 3
    path = trace_samples(loaded, [Sample(image=None, text=text, label="prose", source="t", mask=None)],
                         tmp_path / "runs", run_id="t")  # fmt: skip
    encoded = loaded.tokenizer.encode(text)
    assert len(encoded.ids) > 2 * 16
    with Run.open(path) as run:
        answer = run.sample(0)
        tokens = answer["tokens"]
        assert answer["text"] == text
        assert [t["token_id"] for t in tokens] == encoded.ids.tolist()
        assert tokens[0]["char_start"] == 0
        assert tokens[-1]["char_end"] == len(text)
        for start in range(0, len(encoded.ids), 16):
            ids = torch.from_numpy(encoded.ids[start : start + 17]).long()
            with torch.inference_mode():
                output = loaded.model(ids[None, :16])
            for step, decision in enumerate(output.decisions):
                given = [set(t["ribbon"][step]) for t in tokens[start : start + 16]]
                assert given == [set(row) for row in decision.module_ids.tolist()]
            losses = torch.nn.functional.cross_entropy(output.logits[0, : len(ids) - 1], ids[1:], reduction="none")
            given = [t["loss"] for t in tokens[start : start + len(ids) - 1]]
            assert np.allclose(given, losses.numpy(), atol=1e-3)
        assert tokens[-1]["loss"] is None


def test_padding_never_changes_a_shorter_text(models, tmp_path):
    loaded = load_model("tiny-text", [models], "cpu")
    short = Sample(image=None, text="the start of a path", label=None, source="s", mask=None)
    many = "many modules and back again to the next step " * 4
    long = Sample(image=None, text=many, label=None, source="l", mask=None)
    together = trace_samples(loaded, [short, long], tmp_path / "runs", run_id="both")
    alone = trace_samples(loaded, [short], tmp_path / "runs", run_id="one")
    with Run.open(together) as a, Run.open(alone) as b:
        one, two = a.sample(0)["tokens"], b.sample(0)["tokens"]
        assert [t["ribbon"] for t in one] == [t["ribbon"] for t in two]
        assert [t["flops"] for t in one] == [t["flops"] for t in two]


def test_a_failing_sample_leaves_nothing_behind(models, tmp_path):
    loaded = load_model("tiny-text", [models], "cpu")

    def samples():
        yield Sample(image=None, text="the path", label=None, source="a", mask=None)
        yield Sample(image=None, text="", label=None, source="b.txt", mask=None)

    with pytest.raises(UserError, match=r"b\.txt is empty"):
        trace_samples(loaded, samples(), tmp_path / "runs", run_id="x", batch_size=1)
    assert list((tmp_path / "runs").glob("*")) == []


def test_nan_weights_stop_the_trace_and_name_the_router(models, tmp_path):
    loaded = load_model("tiny-vision", [models], "cpu")
    loaded.model.routers[1].weight.data[0, 0] = float("nan")
    with pytest.raises(UserError, match="router 1 gave NaN"):
        trace_samples(loaded, make_images(), tmp_path / "runs", run_id="x")
    assert list((tmp_path / "runs").glob("*")) == []


def test_no_sample_at_all_is_said(models, tmp_path):
    with pytest.raises(UserError, match="no sample"):
        trace_samples(load_model("tiny-vision", [models], "cpu"), [], tmp_path / "runs", run_id="x")
    assert list((tmp_path / "runs").glob("*")) == []


def test_models_are_listed_with_their_problems(models, tmp_path):
    save_tiny(tmp_path / "good", "vision")
    save_tiny(tmp_path / "broken", "vision")
    (tmp_path / "broken" / "config.json").write_text("{")
    save_tiny(tmp_path / "weightless", "vision")
    (tmp_path / "weightless" / "model.safetensors").unlink()
    rows = {row["model"]: row for row in list_models([tmp_path])}
    assert rows["good"]["problem"] is None
    assert rows["good"]["num_steps"] == 3
    assert "config.json cannot be used" in rows["broken"]["problem"]
    assert "missing" in rows["weightless"]["problem"]


@pytest.mark.parametrize("name", ["nothing", "../tiny-vision", "tiny-vision/../tiny-text/x", "a b", ""])
def test_a_model_that_does_not_exist_says_which_do(models, name):
    with pytest.raises(CheckpointError):
        load_model(name, [models])
    with pytest.raises(CheckpointError, match="tiny-text, tiny-vision"):
        load_model("nothing", [models])


def test_a_dense_model_has_no_paths(tmp_path):
    save_tiny(tmp_path / "dense", "vision", steps=0, transformers=0, identities=0, top_k=1, skip_ratio=0, skip_speed=0)
    with pytest.raises(UserError, match="no routers"):
        load_model("dense", [tmp_path])
