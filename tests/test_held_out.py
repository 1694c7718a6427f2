"""Held-out numbers with intervals: means over predictions, resampled by text, in the tables of networks."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.held_out import Sums, documents, of_corpus, unseen
from benchmarks.measure import kept_document
from benchmarks.science import __main__ as science
from tests.engine.train.test_training import TEXT, VISION, data, text_recipe, vision_recipe  # noqa: F401
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.models.dna import DNA
from tokenpaths.engine.train.corpora import load_corpora
from tokenpaths.engine.train.loop import evaluate

CPU = torch.device("cpu")


def test_a_text_ends_with_its_end_token() -> None:
    corpus = SimpleNamespace(ids=torch.tensor([5, 6, 0, 7, 0, 0, 8]), tokenizer=SimpleNamespace(end_id=0))
    assert documents(corpus).tolist() == [0, 0, 0, 1, 1, 2, 3]


def test_means_are_over_predictions_and_intervals_over_texts() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 60, 40)
    text_n = np.repeat(np.arange(40), sizes)
    level_b = rng.normal(3, 1, 40)
    loss_n = level_b[text_n] + rng.normal(0, 0.1, len(text_n))
    right_n = rng.random(len(text_n)) < 0.25
    found = Sums.of(text_n, loss_n, right_n).figures()
    assert (found["count"], found["samples"]) == (len(text_n), 40)
    assert found["loss"]["value"] == pytest.approx(loss_n.mean())
    assert found["accuracy"]["value"] == pytest.approx(right_n.mean())
    # Tokens of a text agree: as 40 things drawn the mean is far less certain than as a thousand.
    half = (found["loss"]["high"] - found["loss"]["low"]) / 2
    assert half > 3 * 1.96 * loss_n.std() / len(loss_n) ** 0.5
    assert found["loss"]["low"] < found["loss"]["value"] < found["loss"]["high"]


def test_texts_of_the_training_file_are_not_unseen(tmp_path) -> None:
    for part, texts in (("train", ["one", "two", "two\n"]), ("val", ["two", "three", "Two", "one"])):
        pq.write_table(pa.table({"text": texts}), tmp_path / f"english_{part}.parquet")
    card = SimpleNamespace(validation={"file": "english_val.parquet"}, config=SimpleNamespace(modality="text"))
    keep_b = unseen(card, tmp_path)
    assert keep_b is not None
    assert keep_b.tolist() == [False, True, True, False]
    sums = Sums(np.array([1.0, 2, 4]), np.array([0.0, 1, 1]), np.array([2.0, 2, 2]))  # of the last text nothing is told
    assert sums.only(keep_b).loss_b.tolist() == [2, 4]
    assert sums.only(keep_b).count_b.sum() == 4
    pictures = SimpleNamespace(validation={"file": "x_val.parquet"}, config=SimpleNamespace(modality="vision"))
    assert unseen(pictures, tmp_path) is None


@pytest.mark.parametrize("kind", ["text", "vision"])
def test_sums_by_sample_add_up_to_what_training_measures(kind: str, data, tmp_path) -> None:  # noqa: F811
    torch.manual_seed(0)
    recipe, model = (text_recipe(), DNA(TEXT)) if kind == "text" else (vision_recipe(), DNA(VISION))
    corpus, _ = load_corpora(recipe, data, None, tmp_path)
    sums, whole = of_corpus(model, corpus, None), evaluate(model, corpus, CPU)
    assert sums.count_b.sum() == whole["count"]
    assert sums.loss_b.sum() / whole["count"] == pytest.approx(whole["loss"], rel=1e-6)
    assert sums.right_b.sum() / whole["count"] == pytest.approx(whole["accuracy"])
    assert len(sums.count_b) <= (30 if kind == "text" else 96)


def test_every_shipped_network_stands_beside_an_untrained_one() -> None:
    results = kept_document("held_out")["results"]
    for folder in SHIPPED_MODELS.glob("*/config.json"):
        card = json.loads(folder.read_text(encoding="utf-8"))["validation"]
        found = results[folder.parent.name]
        for key in ("loss", "accuracy"):
            assert found[key]["value"] == pytest.approx(card[key], abs=1e-3)
            assert found[key]["low"] <= found[key]["value"] <= found[key]["high"]
        assert found["untrained"]["loss"]["value"] > found["loss"]["high"]
    pages = science.pages()
    for paper in science.PAPERS:
        table = pages[f"{paper.page}.md"].split("## Networks")[1].split("## Limits")[0]
        for name in paper.models:
            assert f"| {name} |" in table
