"""Training RayTracing: the bundled digits, frozen convolutions, early stopping, resuming, stopping at NaN, the card."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.bundled import digits
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.data.images import model_view
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.families.checkpoint_config import CARD, read_checkpoint
from tokenpaths.engine.families.raytracing_config import RayTracingConfig
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.models.raytracing import RayTracing
from tokenpaths.engine.train import raytracing_fit
from tokenpaths.engine.train.loop import STATE, TrainingDiverged
from tokenpaths.engine.train.raytracing_fit import Plan, Samples, fit, measure
from tokenpaths.engine.train.raytracing_recipe import RECIPES, Corpora, RayTracingRecipe, find_recipe, load_corpora
from tokenpaths.engine.train.train_raytracing import (
    extract,
    extract_all,
    finish,
    summary,
    train,
    train_convolutions,
    train_network,
)

TINY = RayTracingConfig(
    image_size=8,
    conv_channels=(4, 8),
    conv_kernel=3,
    conv_pools=(0,),
    input_neurons=(4, 8),
    input_density=0.05,
    layers=2,
    blocks=4,
    width=4,
)


def recipe(**changes) -> RayTracingRecipe:
    options = dict(name="tiny", model=TINY, data="digits", feature_epochs=2, epochs=4, patience=3, batch_size=64)
    return RayTracingRecipe(**(options | changes))


@pytest.fixture(scope="module")
def corpora() -> Corpora:
    return load_corpora(recipe(), None)


@pytest.fixture
def clusters() -> tuple[Samples, Samples]:
    """Two clouds of points, for a stage without images."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % 2
    points = torch.randn(80, 6, generator=generator) + 2.0 * labels[:, None]
    return Samples(points[:60], labels[:60]), Samples(points[60:], labels[60:])


def linear(seed=0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(6, 2)


def plan(**changes) -> Plan:
    return Plan(**(dict(name="line", epochs=6, batch_size=16, learning_rate=1e-2) | changes))


class Stop(Exception):
    pass


def test_the_digits_are_all_there_each_labelled_and_every_fifth_held_out():
    data = open_dataset("bundled:digits", "vision")
    samples = list(data)
    assert len(samples) == data.num_samples == 1797
    assert data.labels == tuple(sorted(digits.LABELS))
    assert {s.image.size for s in samples} == {(8, 8)}
    assert [s.source for s in samples[3:5]] == ["digit 3, for training", "digit 4, held out"]
    assert sum("held out" in s.source for s in samples) == 359
    pixels, numbers = digits.load_digits()
    assert np.array_equal(np.asarray(samples[7].image)[..., 1], pixels[7])
    assert samples[7].label == digits.LABELS[numbers[7]]
    assert (pixels.min(), pixels.max()) == (0, 255)


def test_what_training_sees_of_a_digit_is_what_a_trace_sees(corpora):
    sample = list(open_dataset("bundled:digits", "vision"))[4]
    assert np.array_equal(model_view(sample.image, 8), corpora.test.images[0].permute(1, 2, 0).numpy())
    assert corpora.test.classes[corpora.test.labels[0]] == sample.label


def test_training_validation_and_test_share_no_image(corpora):
    parts = [corpora.train, corpora.val, corpora.test]
    assert [len(p.labels) for p in parts] == [1150, 288, 359]
    rows = [{bytes(image.numpy().tobytes()) for image in part.images} for part in parts]
    assert not rows[0] & rows[1]
    assert not rows[1] & rows[2]
    assert not rows[0] & rows[2]
    again = load_corpora(recipe(), None)
    assert torch.equal(again.val.images, corpora.val.images)


def test_cifar10_is_read_from_the_data_folder(tmp_path):
    (tmp_path / "vision").mkdir()
    for split, count in (("train", 40), ("test", 20)):
        images = []
        for i in range(count):
            buffer = io.BytesIO()
            Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(buffer, "PNG")
            images.append(buffer.getvalue())
        table = pa.table({"image": images, "label": [f"class {i % 10}" for i in range(count)]})
        pq.write_table(table, tmp_path / "vision" / f"cifar10_{split}.parquet")
    found = load_corpora(recipe(data="cifar10"), tmp_path)
    assert [len(p.labels) for p in (found.train, found.val, found.test)] == [32, 8, 20]
    with pytest.raises(UserError, match="needs the folder") as error:
        load_corpora(recipe(data="cifar10"), None)
    assert error.value.field == "data"
    few = TINY.model_copy(update={"num_classes": 7})
    with pytest.raises(UserError, match="10 classes, tiny expects 7"):
        load_corpora(recipe(data="cifar10", model=few), tmp_path)


def test_a_stage_stopped_early_keeps_the_best_weights(clusters, tmp_path, monkeypatch):
    """Validation losses by script: the lowest at epoch 2, then three without a lower one."""
    losses = iter([0.9, 0.5, 0.6, 0.5, 0.7, 0.1])
    after = []

    def scripted(logits_of, samples):
        after.append(network.weight.detach().clone())
        return {"loss": next(losses), "accuracy": 0.0, "count": 1}

    monkeypatch.setattr(raytracing_fit, "measure", scripted)
    network = linear()
    run = fit(plan(patience=3), network, network, *clusters, tmp_path / "s")
    assert [entry["epoch"] for entry in run.history] == [1, 2, 3, 4, 5]
    assert (run.best_loss, run.stopped) == (0.5, True)
    assert torch.equal(network.weight, after[1])
    assert not torch.equal(network.weight, after[4])


def test_an_interrupted_stage_resumed_equals_an_uninterrupted_one_bit_for_bit(clusters, tmp_path):
    whole_network = linear()
    whole = fit(plan(), whole_network, whole_network, *clusters, tmp_path / "whole")

    def interrupt(progress):
        if progress.iteration == 10:  # within the third epoch of four batches
            raise Stop

    broken = linear()
    with pytest.raises(Stop):
        fit(plan(), broken, broken, *clusters, tmp_path / "parts", on_progress=interrupt)
    assert [p.name for p in (tmp_path / "parts").glob(f"*{STATE}")] == [f"0000010-{STATE}"]
    resumed_network = linear(seed=9)
    resumed = fit(plan(), resumed_network, resumed_network, *clusters, tmp_path / "parts")
    assert torch.equal(whole_network.weight, resumed_network.weight)
    assert resumed.history == whole.history
    assert resumed.iteration == 24
    finished = linear(seed=3)
    fit(plan(), finished, finished, *clusters, tmp_path / "parts")
    assert torch.equal(finished.weight, whole_network.weight), "a finished stage only loads its best weights"


def test_an_epochs_measurement_that_was_interrupted_is_made_up_for(clusters, tmp_path, monkeypatch):
    expected = fit(plan(), line := linear(), line, *clusters, tmp_path / "whole").history
    original, calls = raytracing_fit.measure, []

    def flaky(*args):
        calls.append(1)
        if len(calls) == 3:
            raise Stop
        return original(*args)

    monkeypatch.setattr(raytracing_fit, "measure", flaky)
    with pytest.raises(Stop):
        fit(plan(), line := linear(), line, *clusters, tmp_path / "parts")
    assert fit(plan(), line := linear(), line, *clusters, tmp_path / "parts").history == expected


@pytest.mark.parametrize("save_every_s", [0.0, 1e9])
def test_nan_stops_with_the_iteration_and_keeps_the_last_good_state(clusters, tmp_path, save_every_s):
    network = linear()

    def poison(progress):
        if progress.iteration == 6:
            network.weight.data[0, 0] = float("nan")

    with pytest.raises(TrainingDiverged, match=r"line: .*became (nan|NaN).* at iteration 6.*learning_rate"):
        fit(plan(), network, network, *clusters, tmp_path / "w", save_every_s=save_every_s, on_progress=poison)
    (kept,) = (tmp_path / "w").glob(f"*{STATE}")
    assert kept.name.startswith("0000000" if save_every_s else "0000005")
    assert all(torch.isfinite(t).all() for t in load_file(kept).values())
    resumed = linear()
    assert fit(plan(), resumed, resumed, *clusters, tmp_path / "w").iteration == 24


def test_a_weight_that_breaks_between_losses_is_never_saved(clusters, tmp_path):
    network = linear()

    def poison(progress):
        if progress.iteration == 3:
            network.bias.data[0] = float("inf")
            raise Stop

    with pytest.raises(TrainingDiverged, match="bias became NaN or infinite at iteration 3"):
        fit(plan(), network, network, *clusters, tmp_path / "w", on_progress=poison)
    (kept,) = (tmp_path / "w").glob(f"*{STATE}")
    assert kept.name.startswith("0000000")


def test_data_that_cannot_be_learnt_from_are_refused_before_training(clusters, tmp_path):
    good, val = clusters
    bad = Samples(good.inputs.clone(), good.labels)
    bad.inputs[3, 2] = float("nan")
    network = linear()
    with pytest.raises(UserError, match="training data hold NaN") as error:
        fit(plan(), network, network, bad, val, tmp_path / "a")
    assert error.value.field == "data"
    with pytest.raises(UserError, match="no validation samples"):
        fit(plan(), network, network, good, Samples(val.inputs[:0], val.labels[:0]), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_folder_of_other_settings_is_not_overwritten(clusters, tmp_path, corpora):
    network = linear()
    fit(plan(epochs=1), network, network, *clusters, tmp_path / "s")
    for other in (plan(epochs=2), plan(epochs=1, network="another")):
        with pytest.raises(UserError, match="other settings"):
            fit(other, network, network, *clusters, tmp_path / "s")


def test_other_wires_of_the_same_shape_are_other_settings(corpora, tmp_path):
    """Two wirings can agree in every shape; their weights must not be mixed up all the same."""
    one = recipe(epochs=1, feature_epochs=1)
    convolutions = train_convolutions(one, corpora, tmp_path / "c")
    features = extract_all(convolutions, corpora)
    train_network(one, convolutions, features, tmp_path / "n")
    swapped = tuple(tuple(reversed(ends)) for ends in TINY.block_wires)
    assert swapped != TINY.block_wires
    other = recipe(epochs=1, feature_epochs=1, model=RayTracingConfig(**(TINY.model_dump() | {"block_wires": swapped})))
    with pytest.raises(UserError, match="other settings"):
        train_network(other, convolutions, features, tmp_path / "n")


def test_training_learns_freezes_the_convolutions_and_exports_what_it_measured(corpora, tmp_path):
    torch.manual_seed(5)
    trained = train(recipe(epochs=25, learning_rate=1e-2, feature_epochs=3), corpora, tmp_path / "work")
    stage = load_file(next((tmp_path / "work" / "digits-convolutions-0").glob(f"*{STATE}")))
    for i, name in ((0, "0.weight"), (3, "3.bias")):
        assert torch.equal(trained.model.convolutions[i].get_parameter(name.split(".")[1]), stage[f"best.0.{name}"])
        assert torch.equal(trained.twin.convolutions[i].get_parameter(name.split(".")[1]), stage[f"best.0.{name}"])
    before = measure(RayTracing(TINY).logits_of, trained.features.test)["accuracy"]
    after = summary(trained.model, trained.features.test)
    assert before < 0.3
    assert after["accuracy"] > 0.6
    assert 0 < after["active_share"] < 1
    assert 0 < after["used_share"] < after["lit_params_share"] < 1
    assert after["used_share"] <= after["reachable_share"] <= 1
    used = after["used_share"] * after["params"]
    # An MLP has whole neurons: as close as one of them comes.
    neuron = TINY.num_features + 1 + TINY.num_classes
    assert abs(trained.used_twin.trainable_params - used) <= max(neuron, 0.2 * used)
    assert after["params"] == trained.model.trainable_params

    numbers = finish(trained, tmp_path / "models" / "tiny", "tokenpaths train tiny")
    checkpoint = read_checkpoint(tmp_path / "models" / "tiny")
    assert checkpoint.config == TINY
    assert checkpoint.classes == tuple(sorted(digits.LABELS))
    model = build_model(checkpoint)
    output = model(normalise(corpora.test.images))
    accuracy = float((output.logits.argmax(1) == corpora.test.labels).float().mean())
    assert accuracy == pytest.approx(numbers["accuracy"], abs=1e-4)
    card = (tmp_path / "models" / "tiny" / CARD).read_text()
    for words in ("tokenpaths train tiny", f"{accuracy:.1%}", "MLP twin", f"{numbers['params']:,}"):
        assert words in card


def test_features_are_those_that_the_model_reads_from_images(corpora):
    torch.manual_seed(0)
    model = RayTracing(TINY).eval()
    few = corpora.test.images[:9]
    torch.testing.assert_close(extract(model.convolutions, few), model.features(normalise(few)))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_the_papers_network_on_its_data(name):
    one = find_recipe(name)
    assert RayTracingRecipe.model_validate_json(one.model_dump_json()) == one
    paper = RayTracingConfig()
    for field in ("input_neurons", "input_density", "layers", "blocks", "width", "theta", "decay", "next_layer"):
        assert getattr(one.model, field) == getattr(paper, field)
    assert one.model.theta_out == (80.0 if name.endswith("relaxed") else 0.5)
    assert (one.epochs, one.patience, one.learning_rate, one.validation_share) == (500, 10, 1e-3, 0.2)


def test_an_unknown_recipe_is_refused():
    with pytest.raises(UserError, match="raytracing-digits"):
        find_recipe("raytracing-mnist")
