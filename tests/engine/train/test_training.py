"""Training: schedules, resuming, stopping at NaN, exporting a checkpoint that can be read back."""

from __future__ import annotations

import io
import json
import math
import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.data.images import model_view
from tokenpaths.engine.families.checkpoint_config import CARD, WEIGHTS, CheckpointError, read_checkpoint
from tokenpaths.engine.families.hmodel_config import HModelConfig
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.models.dna import DNA, DNAConfig
from tokenpaths.engine.train.cards import curve, finish
from tokenpaths.engine.train.corpora import load_corpora, load_images
from tokenpaths.engine.train.dna_card import read_twin
from tokenpaths.engine.train.loop import (
    STATE,
    TrainingDiverged,
    _batches,
    evaluate,
    export,
    open_run,
    text_batch,
    train,
)
from tokenpaths.engine.train.recipes import RECIPES, AugmentConfig, Recipe

TEXT = DNAConfig(
    modality="text",
    width=32,
    heads=2,
    mlp_width=64,
    backbone=1,
    steps=2,
    top_k=2,
    transformers=3,
    identities=2,
    skip_ratio=0.3,
    skip_speed=0.01,
    vocab_size=280,
    context=24,
)
VISION = DNAConfig(
    modality="vision",
    width=32,
    heads=2,
    mlp_width=64,
    backbone=1,
    steps=2,
    transformers=4,
    image_size=16,
    patch_size=4,
    stem="conv",
    num_classes=3,
)


def text_recipe(**changes) -> Recipe:
    options = dict(
        name="t",
        model=TEXT,
        train_file="t.parquet",
        val_file="t.parquet",
        batch_size=4,
        iterations=12,
        warmup=3,
        learning_rate=3e-3,
        schedule="constant-linear",
        bfloat16=False,
    )
    return Recipe(**(options | changes))


def vision_recipe(**changes) -> Recipe:
    options = dict(
        name="v",
        model=VISION,
        train_file="v.parquet",
        val_file="v.parquet",
        batch_size=16,
        iterations=60,
        warmup=5,
        learning_rate=3e-3,
        augment=AugmentConfig(crop_padding=2, erase=0.2, mix=0.3),
        bfloat16=False,
    )
    return Recipe(**(options | changes))


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    words = ["path", "token", "router", "module", "step", "flow", "ribbon", "dream"]
    texts = [" ".join(rng.choice(words, 60)) + "." for _ in range(30)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "t.parquet")
    images, labels = [], []
    for i in range(96):
        colour = np.eye(3)[i % 3] * 200 + 20
        pixels = np.clip(rng.normal(colour, 25, (16, 16, 3)), 0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        images.append(buffer.getvalue())
        labels.append("rgb"[i % 3])
    pq.write_table(pa.table({"image": images, "label": labels}), tmp_path / "v.parquet")
    return tmp_path


CPU = torch.device("cpu")


def weights(run):
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def test_an_interrupted_run_resumed_equals_an_uninterrupted_one_bit_for_bit(data, tmp_path):
    recipe = text_recipe()
    train_set, val_set = load_corpora(recipe, data, None, tmp_path / "tok")
    whole = train(recipe, train_set, val_set, tmp_path / "whole", device=CPU)

    class Stop(Exception):
        pass

    def interrupt(progress):
        if progress.iteration == 7:
            raise Stop

    with pytest.raises(Stop):
        train(recipe, train_set, val_set, tmp_path / "parts", device=CPU, on_progress=interrupt)
    assert [p.name for p in (tmp_path / "parts").glob(f"*{STATE}")] == [f"0000007-{STATE}"]
    resumed = train(recipe, train_set, val_set, tmp_path / "parts", device=CPU)
    assert torch.equal(weights(whole), weights(resumed))
    assert torch.equal(whole.model.bias, resumed.model.bias)
    assert resumed.iteration == 12


def test_training_learns_and_the_export_carries_its_numbers(data, tmp_path):
    recipe = vision_recipe()
    train_set, val_set = load_corpora(recipe, data, None, tmp_path)
    run = train(recipe, train_set, val_set, tmp_path / "w", device=CPU)
    assert evaluate(run.model, val_set, CPU)["accuracy"] > 0.9
    twin_recipe = recipe.dense_twin().model_copy(update={"iterations": 3})
    twin = train(twin_recipe, train_set, val_set, tmp_path / "d", device=CPU)
    finish(twin, train_set, val_set, tmp_path / "dense", "command d")
    out = tmp_path / "models" / "v"
    numbers = finish(run, train_set, val_set, out, "tokenpaths train v", read_twin(tmp_path / "dense", recipe.model))

    checkpoint = read_checkpoint(out)
    assert checkpoint.config == VISION
    assert checkpoint.classes == ("b", "g", "r")
    assert checkpoint.validation["accuracy"] == numbers["accuracy"]
    again = evaluate(build_model(checkpoint), val_set, CPU)
    assert again["loss"] == pytest.approx(numbers["loss"], abs=1e-4)
    card = (out / CARD).read_text()
    assert "tokenpaths train v" in card
    assert "dense twin" in card
    assert f"{numbers['accuracy']:.1%}" in card


@pytest.mark.parametrize(
    ("altered", "shown"), [({}, True), ({"label_smoothing": 0.1}, False), ({"augment": AugmentConfig(mix=0.5)}, False)]
)
def test_a_card_shows_no_training_loss_of_labels_that_are_not_the_datas(altered, shown):
    rows = [{"iteration": 1, "train_loss": 2.5, "val_loss": 2.0}, {"iteration": 2, "val_loss": 1.0, "share": 0.5}]
    recipe = vision_recipe(augment=AugmentConfig(mix=0.0)).model_copy(update=altered)
    table = curve({"recipe": json.loads(recipe.model_dump_json()), "history": rows}, "share", "nothing")
    if shown:
        assert table[0] == "| iteration | train loss (one batch) | val loss | share |"
        assert table[2:] == ["| 1 | 2.5 | 2.0 | – |", "| 2 | – | 1.0 | 0.5 |"]
    else:
        assert table[0] == "| iteration | val loss | share |"
        assert table[2:] == ["| 1 | 2.0 | – |", "| 2 | 1.0 | 0.5 |"]


@pytest.mark.parametrize("save_every_s", [0.0, 1e9])
def test_nan_stops_with_the_iteration_and_keeps_the_last_good_state(data, tmp_path, monkeypatch, save_every_s):
    from safetensors.torch import load_file

    from tokenpaths.engine.train import loop

    recipe = text_recipe()
    train_set, val_set = load_corpora(recipe, data, None, tmp_path / "tok")
    runs = []
    original = loop.open_run
    monkeypatch.setattr(loop, "open_run", lambda *args: runs.append(original(*args)) or runs[0])

    def poison(progress):
        if progress.iteration == 4:
            loop.save_state(runs[0])
        if progress.iteration == 5:
            runs[0].model.head.weight.data[0, 0] = float("nan")

    with pytest.raises(TrainingDiverged, match=r"nan.* at iteration 5.*learning_rate"):
        train(recipe, train_set, val_set, tmp_path / "w", device=CPU, save_every_s=save_every_s, on_progress=poison)
    (kept,) = (tmp_path / "w").glob(f"*{STATE}")
    assert kept.name.startswith("0000004")
    assert all(torch.isfinite(t).all() for t in load_file(kept).values())


def test_a_run_that_diverges_before_its_first_save_keeps_its_beginning(data, tmp_path, monkeypatch):
    from safetensors.torch import load_file

    recipe = text_recipe()
    train_set, val_set = load_corpora(recipe, data, None, tmp_path / "tok")
    original = DNA.training_loss

    def steep(self, *args):
        loss, routing = original(self, *args)
        return loss + _Steep.apply(self.head.weight), routing

    monkeypatch.setattr(DNA, "training_loss", steep)
    with pytest.raises(TrainingDiverged, match=r"the gradient became (inf|nan) at iteration 0"):
        train(recipe, train_set, val_set, tmp_path / "w", device=CPU)
    (kept,) = (tmp_path / "w").glob(f"*{STATE}")
    assert kept.name.startswith("0000000")
    assert all(torch.isfinite(t).all() for t in load_file(kept).values())


class _Steep(torch.autograd.Function):
    """Zero, with an infinite gradient."""

    @staticmethod
    def forward(ctx, weight):
        ctx.shape = weight.shape
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx, grad):
        return torch.full(ctx.shape, float("inf"))


@pytest.mark.parametrize("spare", [0, -1])
def test_texts_of_fewer_tokens_than_a_batch_needs_are_refused(data, tmp_path, spare):
    recipe = text_recipe(iterations=2)
    train_set, val_set = load_corpora(recipe, data, None, tmp_path / "tok")
    context = recipe.model.context
    least = [replace(train_set, ids=train_set.ids[: n * context + 1]) for n in (2, 1)]
    if spare == 0:
        assert train(recipe, *least, tmp_path / "w", device=CPU).iteration == 2
        return
    for pair, needed in ((0, 2 * context + 1), (1, context + 1)):
        parts = [train_set, val_set]
        parts[pair] = replace(train_set, ids=train_set.ids[: needed + spare])
        with pytest.raises(UserError, match=rf"{needed + spare} tokens, and a context of 24 needs {needed} ") as error:
            train(recipe, *parts, tmp_path / "w", device=CPU)
        assert error.value.field == "context"
    assert not (tmp_path / "w").exists()


def test_a_part_of_a_text_is_read_evenly_whatever_its_length(data, tmp_path):
    """In float32 no number of tokens beyond 2²⁴ is counted exactly, and the last window lay behind the end."""
    _, val_set = load_corpora(text_recipe(), data, None, tmp_path / "tok")
    for count in (20_000_003, 33_000_001, 601, 65):
        val = replace(val_set, ids=torch.zeros(1, dtype=torch.int32).expand(count))
        places = torch.cat([places for places, _, _ in _batches(val, 64, 640)])
        assert len(places) == min(10, (count - 1) // 64)
        assert (int(places[0, 0]), int(places[-1, -1])) == (1, count - 1 if len(places) > 1 else 64)
        gaps = places[:, 0].diff()
        assert len(gaps) == 0 or int(gaps.max() - gaps.min()) <= 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", math.nan),
        ("learning_rate", -1),
        ("clip", 0),
        ("clip", math.inf),
        ("warmup", -1),
        ("weight_decay", math.nan),
        ("betas", (2, 0.9)),
        ("eps", math.nan),
        ("label_smoothing", 0.1),
        ("augment", {"crop_padding": -2}),
        ("augment", {"jitter": math.nan}),
        ("augment", {"jitter": 5}),
        ("augment", {"erase": 7}),
        ("augment", {"auto_augment": -0.1}),
        ("augment", {"mix": 2}),
        ("augment", {"mixup_alpha": 0}),
        ("augment", {"cutmix_alpha": math.inf}),
        ("skip_speed", 0),
    ],
)
def test_a_recipe_that_cannot_train_is_refused(name, value):
    changes = {"model": TEXT.model_copy(update={name: value})} if name == "skip_speed" else {name: value}
    with pytest.raises(ValidationError, match=name):
        Recipe(**text_recipe().model_dump() | changes)


def test_smoothed_labels_and_borders_are_for_images():
    assert vision_recipe(label_smoothing=0.1, augment=AugmentConfig(crop_padding=15)).label_smoothing == 0.1
    with pytest.raises(ValidationError, match="crop_padding 16 is not below image_size 16"):
        vision_recipe(augment=AugmentConfig(crop_padding=16))
    sizes = dict(width=16, heads=2, mlp_width=16, hidden=("transformer",), iterations=1)
    for task, smoothed in (("predict", 0.0), ("classify", 0.1)):
        model = HModelConfig(modality="text", task=task, num_classes=3, **sizes)
        assert text_recipe(family="hmodel", model=model, label_smoothing=smoothed).label_smoothing == smoothed


def test_a_folder_of_another_recipe_is_not_overwritten(data, tmp_path):
    recipe = text_recipe(iterations=1)
    train_set, val_set = load_corpora(recipe, data, None, tmp_path / "tok")
    train(recipe, train_set, val_set, tmp_path / "w", device=CPU)
    with pytest.raises(UserError, match="other settings"):
        train(text_recipe(iterations=2), train_set, val_set, tmp_path / "w", device=CPU)


@pytest.mark.parametrize("how", ["no JSON", "a list", "nothing in it", "no tensors", "cut tensors"])
def test_a_damaged_state_is_said(data, tmp_path, how):
    folder = tmp_path / "work"
    corpora = load_corpora(text_recipe(), data, None, folder)
    train(text_recipe(iterations=1), *corpora, folder, device=CPU)
    (tensors,) = folder.glob(f"*-{STATE}")
    text = {"no JSON": "{", "a list": "[]", "nothing in it": "{}"}.get(how)
    if text is not None:
        (folder / "state.json").write_text(text)
    elif how == "no tensors":
        tensors.unlink()
    else:
        tensors.write_bytes(tensors.read_bytes()[:500])
    with pytest.raises(UserError, match="delete the folder") as caught:
        train(text_recipe(iterations=1), *corpora, folder, device=CPU)
    assert caught.value.field == "work"


@pytest.mark.parametrize(
    ("recipe", "columns", "words"),
    [
        (text_recipe, {"text": ["a path", None]}, "row 1: the text is missing"),
        (text_recipe, {"text": pa.array([], pa.string())}, "no rows"),
        (text_recipe, {"text": ["a path"] * 5}, "one batch takes 121"),
        (vision_recipe, {"image": [b"broken"] * 3, "label": ["r", "g", "b"]}, "row 0: "),
        (vision_recipe, {"image": pa.array([None] * 3, pa.binary()), "label": ["r", "g", "b"]}, "row 0: There are no"),
        (vision_recipe, {"image": "first three", "label": ["r", None, "b"]}, "row 1: the column label holds no label"),
        (vision_recipe, {"image": "first three", "label": ["r", "g", "b"]}, "holds 3 images, one batch takes 16"),
    ],
)
def test_data_that_cannot_be_trained_on_is_said(data, tmp_path, recipe, columns, words):
    if columns.get("image") == "first three":
        columns = columns | {"image": pq.read_table(data / "v.parquet")["image"].to_pylist()[:3]}
    load_corpora(text_recipe(), data, None, tmp_path / "work")
    pq.write_table(pa.table(columns), data / recipe().train_file)
    tokenizer = tmp_path / "work" / "tokenizer.json"
    with pytest.raises(UserError, match=words):
        load_corpora(recipe(), data, tokenizer, tmp_path / "work")


def test_a_pass_over_the_text_reads_every_window_once(data, tmp_path):
    recipe = text_recipe()
    corpus, _ = load_corpora(recipe, data, None, tmp_path)
    windows = (len(corpus.ids) - 24 - 1) // 24
    seen = []
    for i in range(windows // recipe.batch_size):
        inputs, targets = text_batch(corpus, recipe, i)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        seen += [tuple(row) for row in inputs.tolist()]
    assert len(seen) == len(set(seen)) == windows // recipe.batch_size * recipe.batch_size


def test_the_numbers_of_a_twin_may_come_from_a_model_that_has_the_same():
    shipped = SHIPPED_MODELS / "dna-vision-top1"
    numbers = read_twin(shipped, RECIPES["dna-n-vision-top1"].model)
    assert numbers == read_checkpoint(shipped).validation["dense_twin"]
    with pytest.raises(UserError, match="routed, and its card has no numbers"):
        read_twin(shipped, RECIPES["dna-text-top1"].model)


def test_a_dense_twin_of_another_family_or_modality_or_without_numbers_is_refused(data, tmp_path):
    with pytest.raises(UserError, match="hmodel-languages is of the family hmodel; give the folder of a trained dense"):
        read_twin(SHIPPED_MODELS / "hmodel-languages", RECIPES["dna-text-top1"].model)
    run = open_run(vision_recipe(model=VISION.dense_twin()), tmp_path / "work", CPU)
    for of, words in ((TEXT, "d is for vision; give the folder"), (VISION, "d has no validation numbers")):
        with pytest.raises(UserError, match=words) as caught:
            read_twin(export(run, tmp_path / "d", ("r", "g", "b"), {}, "tokenpaths train d"), of)
        assert caught.value.field == "dense_twin"


def test_a_picture_that_is_not_square_is_trained_on_as_it_is_traced(tmp_path):
    wide = np.random.default_rng(0).integers(0, 255, (16, 48, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(wide).save(buffer, "PNG")
    pq.write_table(pa.table({"image": [buffer.getvalue()] * 2, "label": ["a", "b"]}), tmp_path / "v.parquet")
    images = load_images(tmp_path / "v.parquet", 16).images
    assert np.array_equal(images[1].permute(1, 2, 0).numpy(), wide[:, 16:32])
    images = load_images(tmp_path / "v.parquet", 8).images
    assert np.array_equal(images[0].permute(1, 2, 0).numpy(), model_view(Image.fromarray(wide), 8))


def test_weights_may_be_read_by_whoever_may_read_their_configuration(tmp_path):
    before = os.umask(0o022)
    try:
        out = export(open_run(vision_recipe(), tmp_path / "work", CPU), tmp_path / "v", (), {}, "tokenpaths train v")
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in out.iterdir()} == {0o644}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains_what_it_says(name):
    recipe = RECIPES[name]
    assert Recipe(**json.loads(recipe.model_dump_json())) == recipe
    if recipe.model.steps:
        assert recipe.dense_twin().model.steps == 0


def test_routed_and_dense_twins_meet_equal_parameters():
    from tokenpaths.engine.train.dna_card import active_params

    for name, dense in (
        ("dna-vision-top1", "vision"),
        ("dna-vision-top2-skip", "vision"),
        ("dna-n-vision-top1", "vision"),
        ("dna-text-top1", "text"),
        ("dna-text-top2-skip", "text"),
    ):
        routed = active_params(RECIPES[name].model)
        assert routed == pytest.approx(active_params(RECIPES[f"dense-{dense}"].model), rel=0.07)


def spoil(folder, how):
    path = folder / WEIGHTS
    data = path.read_bytes()
    if how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "missing":
        path.unlink()
    elif how == "pickle":
        path.write_bytes(b"\x80\x04cos\nsystem\n(S'false'\ntR.")
    elif how == "nan":
        from safetensors.torch import load_file, save_file

        state = load_file(path)
        state["norm.weight"][0] = math.nan
        save_file(state, path)
    elif how == "shapes":
        about = json.loads((folder / "config.json").read_text())
        about["config"]["width"] = 64
        (folder / "config.json").write_text(json.dumps(about))
    elif how == "family":
        about = json.loads((folder / "config.json").read_text())
        about["family"] = "elephant"
        (folder / "config.json").write_text(json.dumps(about))
    elif how == "config":
        (folder / "config.json").write_text('{"family": "dna", "config": {"width": "wide"}}')


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", "damaged or not a safetensors file"),
        ("missing", "is missing"),
        ("pickle", "damaged or not a safetensors file"),
        ("nan", "norm.weight holds NaN"),
        ("shapes", "do not fit the configuration; first difference"),
        ("family", "'elephant' is unknown"),
        ("config", "cannot be used"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_says_why(data, tmp_path, how, words):
    recipe = vision_recipe(iterations=1)
    train_set, val_set = load_corpora(recipe, data, None, tmp_path)
    run = train(recipe, train_set, val_set, tmp_path / "w", device=CPU)
    finish(run, train_set, val_set, tmp_path / "out", "c")
    spoil(tmp_path / "out", how)
    with pytest.raises(CheckpointError, match=words):
        build_model(read_checkpoint(tmp_path / "out"))
