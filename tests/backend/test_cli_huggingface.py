"""``tokenpaths trace --model hf:…`` as people use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.cli import main
from engine.store import Run
from tests.engine.adapters.tiny_huggingface import TEXTS, save_tiny


@pytest.fixture(scope="module")
def olmoe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny-olmoe", "olmoe")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.jsonl"
    rows = [{"text": text, "domain": "code" if "for" in text else "prose"} for text in TEXTS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_checkpoint_folder_becomes_a_run(
    olmoe: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["trace", "--model", f"hf:{olmoe}", "--data", str(texts), "--label-column", "domain", "--run", "tiny"]
    assert main([*arguments, "--data-dir", str(tmp_path), "--device", "cpu"]) == 0
    file = tmp_path / "runs" / "tiny.duckdb"
    assert capsys.readouterr().out == f"run tiny is in {file}\n"
    with Run.open(file) as run:
        info, flow, paths = run.info(), run.flow(), run.paths(limit=3)
    assert (info["family"], info["model"], info["num_samples"]) == ("moe", "tiny-olmoe", len(TEXTS))
    assert info["weight_semantics"]["renormalised"] is False, "OLMoE's weights are not divided by their sum"
    assert info["weight_semantics"]["shared_experts"] == 0
    assert flow
    assert paths
    assert main([*arguments, "--data-dir", str(tmp_path)]) == 2
    assert "There is a run 'tiny' already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--model": "hf:owner/.."}, "without '..'"),
        ({"--model": "hf:{empty}"}, "holds no config.json"),
        ({"--dtype": "int3"}, "no number format"),
        ({"--device": "abacus"}, "is no device"),
        ({"--data": "bundled:scenes"}, "vision models"),
        ({"--image-column": "image"}, "takes texts"),
        ({"--model": "dna-vision-top1", "--dtype": "bfloat16"}, "--dtype is for hf: models"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(
    olmoe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str], said: str,
) -> None:  # fmt: skip
    """And it is said before any weights are read."""
    monkeypatch.setattr("engine.adapters.huggingface.load", lambda *a, **k: pytest.fail("weights were read"))
    (tmp_path / "empty").mkdir()
    options = {"--model": f"hf:{olmoe}", "--data": "bundled:texts", "--data-dir": str(tmp_path)} | changes
    arguments = [part.format(empty=tmp_path / "empty") for pair in options.items() for part in pair]
    assert main(["trace", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 1, shown.err
    assert said in lines[0]
    assert not (tmp_path / "runs").exists()


def test_a_failure_on_the_way_leaves_nothing(
    olmoe: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts.write_text(texts.read_text() + '{"text": ""}\n')
    arguments = ["--model", f"hf:{olmoe}", "--data", str(texts), "--data-dir", str(tmp_path), "--run", "half"]
    assert main(["trace", *arguments, "--batch-size", "1"]) == 2
    assert "empty" in capsys.readouterr().err
    assert not list((tmp_path / "runs").glob("*half*.duckdb"))
    assert not list((tmp_path / "runs").glob(".half*"))
