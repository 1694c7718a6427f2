"""``tokenpaths train`` for every family: from small data to a checkpoint that can be loaded and traced."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from tokenpaths.cli.main import main
from tokenpaths.engine.base.files import HolderLock
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import trace_samples
from tokenpaths.engine.train import directional_recipes, hmodel_recipes, raytracing_recipe
from tokenpaths.engine.train.catalogue import find_training, trainings
from tokenpaths.engine.train.dipaco import dipaco_recipe

WORDS = {
    "one": "def return self import class yield for in if else",
    "two": "sum of two numbers is seven times three minus",
    "three": "the old house stood by a river under trees",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """English texts with domains, and texts with languages, of the same small vocabulary."""
    rng = np.random.default_rng(0)
    kinds = [name for name in WORDS for _ in range(12)]
    texts = [" ".join(rng.choice(WORDS[kind].split(), 40)) for kind in kinds]
    folder = tmp_path / "data" / "text"
    folder.mkdir(parents=True)
    for split in ("train", "val"):
        pq.write_table(pa.table({"text": texts, "domain": kinds}), folder / f"english_{split}.parquet")
        pq.write_table(pa.table({"text": texts, "language": kinds}), folder / f"languages_{split}.parquet")
    TextTokenizer.train(texts, 300).save(tmp_path / "tokenizer.json")
    return tmp_path


@pytest.fixture
def small(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipes shrunk to seconds."""
    vocab = TextTokenizer.load(data / "tokenizer.json").vocab_size
    size = {"width": 16, "heads": 2, "mlp_width": 16, "vocab_size": vocab}
    short = {"batch_size": 2, "bfloat16": False}

    def shrink(recipes: dict, name: str, model: dict, **changes) -> None:
        recipe = recipes[name]
        made = recipe.model_copy(update={"model": recipe.model.model_copy(update=size | model), **short, **changes})
        monkeypatch.setitem(recipes, name, made)

    shrink(directional_recipes.DIRECTIONAL_RECIPES, "directional-text", {"layers": 2, "context": 16}, iterations=2)
    hidden = hmodel_recipes.HMODEL_RECIPES["hmodel-languages"].model.hidden[:2]
    shrink(
        hmodel_recipes.HMODEL_RECIPES,
        "hmodel-languages",
        {"hidden": hidden, "iterations": 2, "context": 16},
        iterations=2,
    )
    for name, blocks in (("base", (2,)), ("dipaco-2x2", (1, 1))):
        shrink(
            dipaco_recipe.RECIPES,
            name,
            {"blocks": blocks, "context": 24, "prefix": 4},
            inner_iterations=1,
            outer_steps=2,
            warmup=1,
            router_share=0.2,
            **({"reshard_at": (1,)} if name != "base" else {}),
        )
    digits = raytracing_recipe.RECIPES["raytracing-digits"]
    monkeypatch.setitem(
        raytracing_recipe.RECIPES, "raytracing-digits", digits.model_copy(update={"feature_epochs": 1, "epochs": 1})
    )
    return data


def train(small: Path, name: str, *options: str) -> Path:
    out = small / "models" / name
    arguments = ["--data", str(small / "data"), "--work", str(small / "work"), "--out", str(out)]
    assert main(["train", name, *arguments, "--device", "cpu", "--threads", "1", *options]) == 0
    return out


@pytest.mark.parametrize("name", ["directional-text", "hmodel-languages", "dipaco-2x2"])
def test_texts_from_the_command_line_to_a_run(small: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    # The H-Model trains a tokenizer of its own on the texts that are not held out.
    options = () if name == "hmodel-languages" else ("--tokenizer", str(small / "tokenizer.json"))
    out = train(small, name, *options)
    assert "loss" in capsys.readouterr().out
    assert read_checkpoint(out).validation["loss"] > 0
    assert (out / "card.md").read_text(encoding="utf-8").startswith(f"# {name}")
    loaded = load_model(out, [])
    samples = [Sample(None, "the old house stood by a river under trees", "three", "t")] * 2
    with Run.open(trace_samples(loaded, samples, small / "runs", run_id="r")) as run:
        assert run.card()["family"] == loaded.checkpoint.family
        assert run.flow()["num_tokens"] == run.card()["num_tokens"] > 0


def test_a_dipaco_ships_with_a_rerouter_that_has_learnt(small: Path) -> None:
    out = train(small, "dipaco-2x2", "--tokenizer", str(small / "tokenizer.json"))
    (state,) = (small / "work" / "dipaco-2x2").glob("outer-*.safetensors")
    before, after = load_file(state), load_file(out / "model.safetensors")
    for name in ("router.rerouter.head.weight", "router.rerouter.block.mlp.up.weight"):
        assert not torch.equal(before[f"model.{name}"].bfloat16(), after[name])
    learnt = read_checkpoint(out).validation["rerouter"]
    assert learnt["sequences"] > 0
    assert 0 < learnt["accuracy"] <= 1
    assert "base path and learned re-router included" in (out / "card.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "folder"), [("dipaco-2x2", "dipaco-base"), ("raytracing-digits", "digits-convolutions-0")]
)
def test_what_trainings_share_is_trained_by_one_at_a_time(small: Path, name: str, folder: str, capsys) -> None:
    (small / "work").mkdir()
    lock = HolderLock(small / "work" / f".{folder}.lock")
    lock.acquire()
    arguments = ["--data", str(small / "data"), "--work", str(small / "work"), "--out", str(small / "models" / name)]
    arguments += ["--tokenizer", str(small / "tokenizer.json"), "--device", "cpu", "--threads", "1"]
    assert main(["train", name, *arguments]) == 75
    said = capsys.readouterr().err
    assert f"{folder} (.{folder}.lock is held by process {os.getpid()}); wait for it" in said
    assert not (small / "work" / folder).exists()
    lock.release()
    assert main(["train", name, *arguments]) == 0


def test_digits_from_the_command_line_to_a_run(small: Path) -> None:
    out = train(small, "raytracing-digits")
    model = build_model(read_checkpoint(out))
    assert model.family == "raytracing"
    assert "mlp_twin" in read_checkpoint(out).validation


def test_a_second_call_goes_on_and_changes_nothing(small: Path) -> None:
    options = ("--tokenizer", str(small / "tokenizer.json"))
    first = (train(small, "directional-text", *options) / "model.safetensors").read_bytes()
    assert (train(small, "directional-text", *options) / "model.safetensors").read_bytes() == first


@pytest.mark.parametrize("name", ["directional-text", "hmodel-languages", "dipaco-2x2"])
def test_a_training_keeps_to_its_tokenizer(small: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    given, other = small / "tokenizer.json", small / "other.json"
    out = train(small, name, "--tokenizer", str(given))
    assert TextTokenizer.load(out / "tokenizer.json").token_texts == TextTokenizer.load(given).token_texts
    content = json.loads(given.read_text(encoding="utf-8"))
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    other.write_text(json.dumps(content), encoding="utf-8")
    before = (out / "config.json").read_bytes()
    again = ["--data", str(small / "data"), "--work", str(small / "work"), "--out", str(out), "--device", "cpu"]
    cases = [(name, ["--tokenizer", str(other)], str(other))]
    if name == "hmodel-languages":  # the others have the vocabulary of a shipped model then, which is larger
        cases += [(name, [], "one trained on the texts")]
    if name == "dipaco-2x2":  # a folder of its own, but the base is the one of all
        cases += [("dipaco-base", ["--tokenizer", str(other), "--seed", "1"], str(other))]
    for folder, options, than in cases:
        assert main(["train", name, *again, *options]) == 2
        said = capsys.readouterr().err
        assert f"{folder} holds a training with another tokenizer than {than}; give" in said
    assert (out / "config.json").read_bytes() == before
    assert train(small, name, "--tokenizer", str(given)) == out


def test_another_seed_gives_another_network_in_a_folder_of_its_own(small: Path) -> None:
    options = ("--tokenizer", str(small / "tokenizer.json"))
    first = train(small, "directional-text", *options)
    weights = (first / "model.safetensors").read_bytes()
    other = train(small, "directional-text", *options, "--seed", "1")
    assert (other / "model.safetensors").read_bytes() != weights
    assert read_checkpoint(other).training["recipe"]["seed"] == 1
    assert {folder.name for folder in (small / "work").iterdir() if folder.is_dir()} == {
        "directional-text",
        "directional-text-seed1",
    }


def test_seeds_of_a_raytracing_network_share_nothing_but_its_convolutions(small: Path) -> None:
    weights = {seed: (train(small, "raytracing-digits", *seed) / "model.safetensors").read_bytes() for seed in SEEDS}
    assert weights[()] != weights["--seed", "1"]
    assert {folder.name.partition("raytracing-digits")[2] for folder in (small / "work").glob("raytracing-*")} == {
        "",
        "-twin",
        "-used-twin",
        "-seed1",
        "-seed1-twin",
        "-seed1-used-twin",
    }


SEEDS: tuple[tuple[str, ...], ...] = ((), ("--seed", "1"))


@pytest.mark.parametrize("name", ["dipaco-2x2", "raytracing-digits"])
def test_a_length_that_is_part_of_the_recipe_is_refused(small: Path, name: str, capsys) -> None:
    arguments = ["--data", str(small / "data"), "--work", str(small / "work"), "--iterations", "3"]
    assert main(["train", name, *arguments, "--device", "cpu"]) == 2
    assert "its length is part of the recipe" in capsys.readouterr().err


def test_every_family_can_be_trained_and_every_name_is_one_of_its() -> None:
    assert {training.family for training in trainings().values()} == {
        "dna",
        "directional",
        "hmodel",
        "dipaco",
        "raytracing",
    }
    assert all(find_training(name).name == name for name in trainings())
