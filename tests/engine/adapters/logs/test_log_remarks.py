"""What a log holds and a run does not is counted and said: labels, texts, ids, columns, weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.engine.adapters.logs.test_log_formats import (
    EXPERTS,
    IDS,
    SAMPLE,
    SAMPLES,
    TOKENS,
    WEIGHTS,
    imported,
    some_ids,
    vllm_lines,
    write_csv,
    write_lines,
    write_parquet,
)
from tests.engine.adapters.logs.test_log_notes import notes
from tests.engine.adapters.logs.test_log_refusals import refused


def test_labels_of_responses(tmp_path: Path) -> None:
    labels = [1.0, [1], {"a": 2}, True, "x" * 1_000_000, "a\tb", "Cat", "cat ", None, float("nan")]
    line = vllm_lines(lambda part: part.tolist())[0]
    lines = [line | {"label": label} for label in labels] + [line | {" LABEL": "bird"}]
    write_lines(tmp_path / "log.jsonl", lines)
    with imported(tmp_path, tmp_path / "log.jsonl", experts=EXPERTS) as run:
        rows = [sample["label"] for sample in run.samples()["samples"]]
        assert [label and label[:5] for label in rows] == [
            *("1", None, None, "true", "xxxxx", "a␉b", "Cat", "cat ", None, None, "bird")
        ]
        said = "; ".join(notes(run))
        assert len(json.dumps(run.info())) < 20_000
    for words in (
        "1 label written with a point, such as 1.0, is read as whole numbers (",
        "1 label given as a list is left out",
        "1 label given as an object is left out",
        "1 label given as true or false",
        "1 label longer than 200 characters is cut",
        "1 label with control characters",
        "1 label given as NaN or infinity is left out",
        "1 label under a key that is spelled otherwise",
        "4 of 11 samples have no label",
        '"Cat" (1), "cat " (1)',
    ):
        assert words in said, words


def test_texts_ids_and_names_of_responses(tmp_path: Path) -> None:
    lines = vllm_lines(lambda part: part.tolist())
    lines[0]["choices"][0] |= {"message": {"content": [{"type": "text", "text": "a"}]}, "token_ids": [1.0, 2.0]}
    lines[0]["choices"][0].pop("text", None)
    lines[1] |= {"id": "y" * 10_000, "prompt_token_ids": [1]}
    lines[1]["choices"][0]["token_ids"] = [2]
    write_lines(tmp_path / "log.jsonl", lines)
    with imported(tmp_path, tmp_path / "log.jsonl", experts=EXPERTS) as run:
        said = "; ".join(notes(run))
        assert max(len(sample["source"]) for sample in run.samples()["samples"]) == 500
    for words in (
        "1 text that is no string is left out",
        "1 list of token ids that is no whole numbers is left out",
        "the token ids of 1 answer is left out: there are more decisions than tokens",
        "1 name of samples longer than 500 characters is cut",
    ):
        assert words in said, words


def test_long_samples_are_said_to_be_cut(tmp_path: Path) -> None:
    sample = np.array([0] * 3000 + [1] * 10)
    np.savez(tmp_path / "log.npz", ids=some_ids(3010), sample=sample, text=np.array(["long", "short"]))
    with imported(tmp_path, tmp_path / "log.npz", experts=EXPERTS) as run:
        assert any(note.startswith("2 pieces of samples longer than 2,048 tokens are") for note in notes(run))


def test_weights_beyond_their_bounds_by_rounding(tmp_path: Path) -> None:
    weights = WEIGHTS.copy()
    weights[:2, 0, 0], weights[2, 0, -1] = 1 + 5e-5, -5e-5
    np.savez(tmp_path / "log.npz", ids=IDS, weights=weights, num_experts=np.array(EXPERTS))
    with imported(tmp_path, tmp_path / "log.npz") as run:
        assert "3 weights outside [0, 1] by rounding are set to 0 or 1 (the first: " in "; ".join(notes(run))


def test_columns_and_arrays_that_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", ids=IDS, num_experts=np.array(EXPERTS), temperature=np.ones(TOKENS))
    with imported(tmp_path, tmp_path / "log.npz") as run:
        assert "arrays that are not read: temperature" in notes(run)
    write_parquet(tmp_path / "log.parquet", domain=["a"] * TOKENS, x=[1] * TOKENS)
    with imported(tmp_path, tmp_path / "log.parquet") as run:
        assert "columns that are not read: domain, x" in notes(run)


def test_columns_of_a_csv_that_are_not_read(tmp_path: Path) -> None:
    rows = [[t, layer, expert, "a"] for layer in range(2) for t in range(3) for expert in (layer, layer + 1)]
    write_csv(tmp_path / "log.csv", rows, "token,layer,expert,label\n")
    with imported(tmp_path, tmp_path / "log.csv", experts=EXPERTS) as run:
        assert "columns that are not read: label" in notes(run)


@pytest.mark.parametrize("name", ["x" * 201, "x" * 1_000_000])
def test_names_without_end_are_refused(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "log.npz", ids=IDS, num_experts=np.array(EXPERTS), model=np.array(name))
    refused(tmp_path, tmp_path / "log.npz", f"has {len(name):,} characters, at most 200")


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    line = json.dumps(vllm_lines(lambda part: part.tolist())[0])
    (tmp_path / "log.jsonl").write_text(line[:-1] + ', "label": "a", "label": "b"}\n')
    refused(tmp_path, tmp_path / "log.jsonl", "'label' is there twice")


def test_labels_of_the_neutral_format(tmp_path: Path) -> None:
    label = np.array(["ok", "b\n", "c" * 300])
    np.savez(tmp_path / "log.npz", ids=IDS, sample=SAMPLE, label=label, num_experts=np.array(EXPERTS))
    with imported(tmp_path, tmp_path / "log.npz") as run:
        assert len(SAMPLES) == 3
        assert [len(sample["label"]) for sample in run.samples()["samples"]] == [2, 2, 200]
        assert "1 label longer than 200 characters" in "; ".join(notes(run))
