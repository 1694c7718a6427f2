"""From checkpoint and samples to a sealed run, compared with the model's own arithmetic."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import CLASSES, save_tiny
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import SHIPPED_MODELS, is_name
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.images import model_view
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.families.checkpoint_config import CheckpointError, list_models, read_checkpoint
from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.models.family import family_class
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import new_run_id, trace_samples


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
    return [
        Sample(image=picture(i), text=None, label=CLASSES[i % 3] if i else "zebra", source=f"{i}.png", mask=mask)
        for i in range(count)
    ]


def test_a_vision_run_holds_what_the_model_decided(models, tmp_path):
    loaded = load_model("tiny-vision", [models], "cpu")
    samples = make_images()
    path = trace_samples(
        loaded,
        samples,
        tmp_path / "runs",
        run_id="r",
        dataset="d",
        batch_size=2,
        regions=("background", "object", "boundary"),
    )
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
    path = trace_samples(
        loaded, [Sample(image=None, text=text, label="prose", source="t", mask=None)], tmp_path / "runs", run_id="t"
    )
    encoded = loaded.tokenizer.encode(text)
    assert len(encoded.ids) > 2 * 16
    with Run.open(path) as run:
        answer = run.sample(0)
        tokens = answer["tokens"]
        assert answer["text"] == text
        assert [t["token_id"] for t in tokens] == encoded.ids.tolist()
        assert tokens[0]["char_start"] == 0
        assert tokens[-1]["char_end"] == len(text)
        predicted = [row[0] for row in run.rows(Query("SELECT predicted_id FROM token ORDER BY token"))]
        for start in range(0, len(encoded.ids), 16):
            ids = torch.from_numpy(encoded.ids[start : start + 17]).long()
            with torch.inference_mode():
                output = loaded.model(ids[None, :16])
            for step, decision in enumerate(output.decisions):
                given = [set(t["ribbon"][step]) for t in tokens[start : start + 16]]
                assert given == [set(row) for row in decision.module_ids.tolist()]
            losses = torch.nn.functional.cross_entropy(output.logits[0, : len(ids) - 1], ids[1:], reduction="none")
            given = [t["loss"] for t in tokens[start : start + len(ids) - 1]]
            # A level of log1p is kept of a token's loss.
            assert np.all(np.abs(given - losses.numpy()) <= (1 + losses.numpy()) / 4000)
            assert predicted[start : start + 16] == output.logits[0].argmax(dim=-1)[: len(predicted) - start].tolist()
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


@pytest.mark.parametrize("kind", ["vision", "text"])
def test_an_output_that_is_no_number_stops_the_trace(models, tmp_path, kind):
    loaded = load_model(f"tiny-{kind}", [models], "cpu")
    with torch.no_grad():
        loaded.model.head.weight[:] = float("inf")
    samples = make_images(2) if kind == "vision" else [Sample(image=None, text="the cat sat", label=None, source="a")]
    with pytest.raises(UserError, match="output holds NaN or infinite"):
        trace_samples(loaded, samples, tmp_path, run_id="r", dataset="d", twin=False)
    assert list(tmp_path.glob("*")) == []


def test_a_sample_of_the_other_kind_is_said(models, tmp_path):
    text_only = Sample(image=None, text="a path", label=None, source="t", mask=None)
    wrong = (("tiny-text", make_images(1)[0], "takes texts"), ("tiny-vision", text_only, "takes images"))
    for model, sample, words in wrong:
        with pytest.raises(UserError, match=words):
            trace_samples(load_model(model, [models], "cpu"), [sample], tmp_path / "runs", run_id="x")
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": 3}, "classes should be a list of names"),
        ({"classes": ["apple"]}, "1 classes for 3 outputs"),
        ({"validation": [1]}, "JSON objects"),
        ({"training": "yes"}, "JSON objects"),
        ({"config": {"modality": "vision", "width": 0}}, "width: Input should be greater than 0$"),
        ({"config": None}, "cannot be used"),
        ({"family": "none"}, "unknown"),
    ],
)
def test_an_odd_configuration_is_said_and_hides_no_other_model(tmp_path, changes, words):
    save_tiny(tmp_path / "good", "vision")
    save_tiny(tmp_path / "odd", "vision")
    about = json.loads((tmp_path / "odd" / "config.json").read_text())
    (tmp_path / "odd" / "config.json").write_text(json.dumps(about | changes))
    with pytest.raises(CheckpointError, match=words):
        load_model("odd", [tmp_path])
    rows = {row["model"]: row["problem"] for row in list_models([tmp_path])}
    assert rows["good"] is None
    assert "odd: " in rows["odd"]


def test_parameters_are_counted_without_weights(tmp_path):
    """By the configuration; of an older folder by the header, which holds buffers too."""
    save_tiny(tmp_path / "new", "vision")
    save_tiny(tmp_path / "old", "vision")
    about = json.loads((tmp_path / "old" / "config.json").read_text())
    num_params = about.pop("num_params")
    (tmp_path / "old" / "config.json").write_text(json.dumps(about))
    model = build_model(read_checkpoint(tmp_path / "new"))
    assert num_params == sum(p.numel() for p in model.parameters())
    stored = sum(tensor.numel() for tensor in load_file(tmp_path / "old" / "model.safetensors").values())
    rows = {row["model"]: row["num_params"] for row in list_models([tmp_path])}
    assert rows == {"new": num_params, "old": stored}


@pytest.mark.parametrize("name", sorted(path.parent.name for path in SHIPPED_MODELS.glob("*/config.json")))
def test_shipped_models_say_how_large_they_are(name):
    checkpoint = read_checkpoint(SHIPPED_MODELS / name)
    with torch.device("meta"):
        model = family_class(checkpoint.family)(checkpoint.config)
    assert checkpoint.num_params == sum(p.numel() for p in model.parameters())


def test_families_declare_the_configuration_of_their_model():
    for family, controls in FAMILY_CONTROLS.items():
        assert family_class(family).Config is controls.CONFIG


def test_a_model_that_nobody_foresaw_hides_no_other(tmp_path, monkeypatch):
    save_tiny(tmp_path / "good", "vision")
    save_tiny(tmp_path / "text", "text")

    def read(folder):
        if folder.name == "text":
            raise MemoryError
        return read_checkpoint(folder)

    monkeypatch.setattr("tokenpaths.engine.families.checkpoint_config.read_checkpoint", read)
    rows = {row["model"]: row["problem"] for row in list_models([tmp_path])}
    assert rows["good"] is None
    assert "MemoryError" in rows["text"]


def test_weights_of_whole_numbers_are_refused(tmp_path):
    save_tiny(tmp_path / "odd", "vision")
    tensors = load_file(tmp_path / "odd" / "model.safetensors")
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.ndim == 2)
    save_file(tensors | {name: tensors[name].to(torch.int16)}, tmp_path / "odd" / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{name} is .* of whole numbers, expected"):
        load_model("odd", [tmp_path])


@pytest.mark.parametrize("device", ["foo", "cuda:99", "meta", "cpu:cpu"])
def test_a_device_that_is_not_there_is_said(models, device):
    with pytest.raises(UserError) as caught:
        load_model("tiny-vision", [models], device)
    assert caught.value.field == "device"


def test_a_folder_of_any_name_makes_a_run(tmp_path):
    save_tiny(tmp_path / ".exp v1.0", "text")
    loaded = load_model(tmp_path / ".exp v1.0", [], "cpu")
    sample = Sample(image=None, text="the path", label=None, source="a", mask=None)
    path = trace_samples(loaded, [sample], tmp_path / "runs", dataset="…", twin=False)
    assert path.name.startswith("exp-v1-0-data-")
    assert all(is_name(new_run_id(name, "x" * 70)) for name in ("m" * 70, "..", "-a-"))


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
