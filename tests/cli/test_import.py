"""``tokenpaths import`` as people call it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.engine.adapters.logs.engine_logs import flame
from tokenpaths.cli.main import main
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.store.ask.run import Run

EXPERTS = 8
IDS = np.random.default_rng(0).random((30, 3, EXPERTS)).argsort(axis=2)[:, :, :2]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "my log.npz"
    np.savez(file, ids=IDS, token_id=np.arange(30), sample=np.repeat([0, 1], 15), model=np.array("org/Model-1"))
    return file


def call(tmp_path: Path, *arguments: object) -> int:
    return main(["import", *map(str, arguments), "--data-dir", str(tmp_path / "data")])


def runs(tmp_path: Path) -> list[str]:
    folder = tmp_path / "data" / "runs"
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_a_log_becomes_a_run(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path, log, "--run", "mine", "--experts", 12) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"run mine is in {tmp_path / 'data' / 'runs' / 'mine.duckdb'}",
        "30 tokens in 2 samples; nothing suspicious was noticed",
    ]
    with Run.open(tmp_path / "data" / "runs" / "mine.duckdb") as run:
        card = run.card()
        assert (card["model"], card["num_tokens"], card["num_modules"]) == ("org/Model-1", 30, 12)
        assert [t["ribbon"] for t in run.sample(1)["tokens"]] == IDS[15:].tolist()


def test_a_run_without_a_name_is_called_after_its_model(log: Path, tmp_path: Path) -> None:
    assert call(tmp_path, log, "--model", "other") == 0
    (name,) = runs(tmp_path)
    assert name.startswith("Model-1-20")
    with Run.open(tmp_path / "data" / "runs" / name) as run:
        assert run.card()["model"] == "other"


def test_a_series_says_what_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = flame(tmp_path / "trace", iterations=2)
    (folder / "actives" / "iter_200" / "layer_03.parquet").write_bytes(b"no")
    assert call(tmp_path, folder, "--run", "s") == 2
    assert "s-100 was imported before" in capsys.readouterr().err
    assert runs(tmp_path) == ["s-100.duckdb"]


def test_what_was_guessed_is_said(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path, log, "--run", "mine") == 0
    assert "the largest id in the log, there may be more" in capsys.readouterr().err


def test_tokens_are_shown_as_text_with_a_tokenizer(log: Path, tmp_path: Path) -> None:
    tokenizer = TextTokenizer.train(["some words to learn, and more words"], vocab_size=300)
    tokenizer.save(tmp_path / "tokenizer" / "tokenizer.json")
    assert call(tmp_path, log, "--run", "mine", "--tokenizer", tmp_path / "tokenizer") == 0
    with Run.open(tmp_path / "data" / "runs" / "mine.duckdb") as run:
        texts = [t["text"] for t in run.sample(0)["tokens"]]
        assert texts == [tokenizer.token_texts[i] for i in range(15)]
        assert run.sample(0)["text"] == "".join(texts)


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an exit with code 2."""
    error = capsys.readouterr().err.splitlines()[-1]  # on a slow machine the progress stands before it
    assert error.startswith("tokenpaths: ")
    return error


def test_an_artefact_stops_an_import_unless_although(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = np.random.default_rng(0).random((8, 3, EXPERTS)).argsort(axis=2)
    np.save(tmp_path / "log.npy", ids.transpose(0, 2, 1).reshape(-1, 2, 3).transpose(0, 2, 1))
    assert call(tmp_path, tmp_path / "log.npy", "--run", "mine") == 2
    assert "every 4 consecutive tokens visit all 8 experts exactly once" in refused(capsys)
    assert runs(tmp_path) == []
    assert call(tmp_path, tmp_path / "log.npy", "--run", "mine", "--although") == 0
    assert "32 tokens in 1 sample; noticed: strided view (see the notes)" in capsys.readouterr().out


def test_a_table_is_read_by_a_map_and_bad_responses_are_skipped(tmp_path: Path) -> None:
    rows = [[sample, token, IDS[token].tolist()] for sample in "ab" for token in range(5)]
    lines = [json.dumps(dict(zip(("name", "at", "route"), row, strict=True))) for row in rows]
    (tmp_path / "table").write_text("\n".join(lines))
    (tmp_path / "map.toml").write_text('[columns]\nsequence = "name"\ntoken = "at"\nexpert = "route"\n')
    assert call(tmp_path, tmp_path / "table", "--run", "mapped", "--map", tmp_path / "map.toml") == 0
    answer = {"choices": [{"routed_experts": IDS[:4].tolist()}]}
    (tmp_path / "log").write_text(f"{json.dumps(answer)}\nnonsense\n")
    assert call(tmp_path, tmp_path / "log", "--run", "rest") == 2
    assert call(tmp_path, tmp_path / "log", "--run", "rest", "--skip-bad") == 0
    with Run.open(tmp_path / "data" / "runs" / "mapped.duckdb") as run:
        assert [t["ribbon"] for t in run.sample(1)["tokens"]] == IDS[:5].tolist()
    with Run.open(tmp_path / "data" / "runs" / "rest.duckdb") as run:
        assert run.card()["num_tokens"] == 4


def test_a_missing_tokenizer(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path, log, "--run", "mine", "--tokenizer", tmp_path) == 2
    assert "there is no tokenizer.json in" in refused(capsys)
    assert runs(tmp_path) == []


def test_a_taken_name_is_refused_before_the_log_is_read(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(tmp_path, log, "--run", "mine") == 0
    capsys.readouterr()
    assert call(tmp_path, tmp_path / "nowhere", "--run", "mine") == 2
    assert "There is a run 'mine' already" in refused(capsys)
    assert call(tmp_path, log, "--run", "mine", "--overwrite") == 0
    assert call(tmp_path, log, "--run", "../mine") == 2


def test_a_broken_log_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = IDS.copy()
    ids[20, 1] = 3
    np.save(tmp_path / "log.npy", ids)
    assert call(tmp_path, tmp_path / "log.npy", "--run", "mine", "--experts", EXPERTS) == 2
    assert "log.npy, row 20: the same expert twice at layer 1" in refused(capsys)
    assert runs(tmp_path) == []


def test_counts_become_a_run_of_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "counts.json").write_text(json.dumps({"expert_counts": {"0": {"0": 6, "3": 2}, "1": {"1": 8}}}))
    assert call(tmp_path, tmp_path / "counts.json", "--run", "mine") == 0
    out, error = capsys.readouterr()
    assert "note: these are counts of tokens by expert: the run knows the load, and no paths" in error
    header, first, second, _, last = out.splitlines()
    assert last == "the load of 2 layers × 4 experts, no tokens"
    assert header.split() == ["layer", "choices", "load", "entropy", "MaxVio", "effective", "top-k", "dead", "experts"]
    assert first.split() == ["layer", "0", "8", "0.406", "2.00", "1.13", "2"]
    assert second.split() == ["layer", "1", "8", "0.000", "3.00", "1.00", "3"]
    with Run.open(tmp_path / "data" / "runs" / "mine.duckdb") as run:
        assert run.card()["kind"] == "load"
        assert [row["count"] for row in run.usage()["usage"]] == [6, 0, 0, 2, 0, 8, 0, 0]


def test_help_teaches_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--help"]) == 0
    assert "Example: tokenpaths import" in capsys.readouterr().out
