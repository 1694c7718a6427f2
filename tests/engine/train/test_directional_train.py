"""Directional recipes: one plan for three models, a tiny one trained, shipped and carded; its figures run."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks import directional as figures
from benchmarks import induction as copying
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.models.directional import DirectionalConfig
from tokenpaths.engine.train import directional_recipes
from tokenpaths.engine.train.cards import finish, note, write_card
from tokenpaths.engine.train.corpora import load_text
from tokenpaths.engine.train.directional_recipes import DIRECTIONAL_RECIPES, PREFIX, SEQUENCE, SHIPPED, UNROUTED
from tokenpaths.engine.train.loop import train

WORDS = {
    "code": "def return self import class yield for in if else",
    "math": "sum of two numbers is seven times three minus",
    "prose": "the old house stood by a river under trees",
}


def test_the_three_recipes_differ_in_their_routing_only():
    plans = [r.model_dump(exclude={"name", "model"}) for r in DIRECTIONAL_RECIPES.values()]
    assert plans[0] == plans[1] == plans[2]
    models = {name: r.model.model_dump() for name, r in DIRECTIONAL_RECIPES.items()}
    assert models[PREFIX] == models[SEQUENCE] | {"pooling": "prefix"}
    assert models[UNROUTED] == models[SEQUENCE] | {"directions": 0}
    assert set(SHIPPED) == {SEQUENCE, PREFIX}


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A data folder of three domains, and the three recipes shrunk to seconds."""
    rng = np.random.default_rng(0)
    domains = [name for name in WORDS for _ in range(6)]
    texts = [" ".join(rng.choice(WORDS[d].split(), 400)) for d in domains]
    (tmp_path / "text").mkdir()
    for split in ("train", "val"):
        pq.write_table(pa.table({"text": texts, "domain": domains}), tmp_path / f"text/english_{split}.parquet")
    tokenizer = TextTokenizer.train(texts, 300)
    tokenizer.save(tmp_path / "tokenizer.json")
    config = DirectionalConfig(
        width=16,
        heads=2,
        mlp_width=16,
        layers=2,
        directions=2,
        router_width=8,
        tied=False,
        vocab_size=tokenizer.vocab_size,
        context=256,
    )
    models = {
        SEQUENCE: config,
        PREFIX: config.model_copy(update={"pooling": "prefix"}),
        UNROUTED: config.unrouted_twin(),
    }
    for name, model in models.items():
        small = {"model": model, "iterations": 2, "batch_size": 2, "bfloat16": False}
        monkeypatch.setitem(DIRECTIONAL_RECIPES, name, DIRECTIONAL_RECIPES[name].model_copy(update=small))
    monkeypatch.setattr(directional_recipes, "SHARED_TOKENIZER", tmp_path / "tokenizer.json")
    monkeypatch.setattr(figures, "SHARED_TOKENIZER", tmp_path / "tokenizer.json")
    return tmp_path


def test_from_training_to_cards_and_figures(world, monkeypatch):
    tokenizer = TextTokenizer.load(world / "tokenizer.json")
    val = load_text(world / "text/english_val.parquet", tokenizer)
    for name in (SEQUENCE, PREFIX, UNROUTED):
        run = train(DIRECTIONAL_RECIPES[name], val, val, world / "work" / name, device=torch.device("cpu"))
        if name in SHIPPED:
            out = world / "models" / name
            finish(run, val, val, out, f"train {name}")
    card = (out / "card.md").read_text(encoding="utf-8")
    assert "strictly causal" in card
    assert "`train directional-text-prefix`" in card
    numbers = read_checkpoint(out).validation
    assert numbers["perplexity"] == pytest.approx(math.exp(numbers["loss"]), rel=1e-3)
    assert "Routing changed" not in card

    monkeypatch.setattr(figures, "SHIPPED_MODELS", world / "models")
    monkeypatch.setattr(figures, "WINDOWS", 32)
    monkeypatch.setattr(figures, "LAST_WINDOWS", 40)
    kept = []
    monkeypatch.setattr(figures, "report", lambda name, command, results: kept.append(json.dumps(results)))
    figures.main(["--data", str(world), "--work", str(world / "work"), "--write-cards"])
    results = json.loads(kept[0])
    assert {row["reproduced"] for row in results["claims"]} <= {True, False}
    assert results["lookahead"][PREFIX]["gain"] == pytest.approx(0, abs=1e-3)
    assert results["models"][SEQUENCE]["params"] > results["models"][UNROUTED]["params"]
    assert results["knowledge"][SEQUENCE]["counts"] == dict.fromkeys(WORDS, 6)
    names = [row["name"] for row in results["ablations"][PREFIX]]
    assert names[:5] == ["normal", "off", "neutral", "full", "mean gates"]
    for name, words in ((SEQUENCE, "sees ahead"), (PREFIX, "specialist heads per layer")):
        folder = world / "models" / name
        card = (folder / "card.md").read_text(encoding="utf-8")
        assert words in card
        assert f"| {UNROUTED} | no |" in card
        assert "| mean gates |" in card
        assert write_card(folder).read_text(encoding="utf-8") == card


def test_figures_of_a_model_that_is_not_trained_to_the_end_are_refused(world):
    with pytest.raises(SystemExit, match="0 of 2 iterations"):
        figures.trained(world / "empty")


def test_a_note_keeps_what_the_card_knew(world):
    tokenizer = TextTokenizer.load(world / "tokenizer.json")
    val = load_text(world / "text/english_val.parquet", tokenizer)
    run = train(DIRECTIONAL_RECIPES[SEQUENCE], val, val, world / "work", device=torch.device("cpu"))
    out = world / "models" / SEQUENCE
    finish(run, val, val, out, "train")
    before = read_checkpoint(out).validation
    note(out, {"extra": 1})
    assert read_checkpoint(out).validation == before | {"extra": 1}


def test_the_copying_benchmark_measures_every_intervention():
    changes = {"width": 16, "mlp_width": 16, "layers": 2, "router_width": 8, "directions": 2}
    tiny = copying.MODEL.model_copy(update=changes)
    found = copying.measure(copying.copier(tiny, 0, 2))
    assert {
        "normal",
        "off",
        "neutral",
        "full",
        "mean gates",
        "off in layer 1",
        "gates of another sequence",
        "strongest head knocked out",
        "3 other heads knocked out",
    } <= set(found)
    assert all(0 <= value <= 1 for value in found.values())
    plain = copying.measure(copying.copier(tiny.unrouted_twin(), 0, 2))
    assert set(plain) == {name for name in found if "knocked" in name or name == "normal"}
    assert copying.over_seeds([{"a": 0.5}, {"a": 1.0}]) == {"a": {"mean": 0.75, "seeds": [0.5, 1.0]}}


def test_copying_rows_repeat_with_their_period():
    rows = copying.copying_rows(np.random.default_rng(0))
    assert rows.shape == (64, 65)
    for row in rows[:8].tolist():
        period = row[1:].index(row[0]) + 1
        assert 4 <= period <= 32
        assert all(row[i] == row[i % period] for i in range(65))
