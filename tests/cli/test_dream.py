"""``tokenpaths dream``: what it prints and keeps; stopped, the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.checkpoints import save_tiny
from tests.support.command_line import TOKENPATHS
from tokenpaths.cli.main import main
from tokenpaths.engine.base.files import HolderLock

ASK = ["dream", "--model", "tiny", "--data", "bundled:scenes", "--row", "3"]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "models" / "tiny", "vision")
    return tmp_path


def test_a_stopped_dream_goes_on_where_it_stood(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = [*ASK, "--until", "2", "--iterations", "320", "--data-dir", str(data_dir), "--device", "cpu"]
    stopped = subprocess.Popen([*TOKENPATHS, *ask], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not list(data_dir.glob("dreams/*/state.safetensors")) and time.monotonic() < until:
        time.sleep(0.05)
    stopped.send_signal(signal.SIGINT)
    assert "the same command goes on" in stopped.communicate(timeout=240)[1]
    assert stopped.returncode == 130
    assert main(ask) == 0
    said = capsys.readouterr().out
    assert "S = 2: objective" in said
    (folder,) = data_dir.glob("dreams/*")
    assert (folder / "artifacts" / "result.json").is_file()


def test_two_dreams_in_one_folder_are_refused(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = data_dir / "mine"
    out.mkdir()
    held = HolderLock(out / ".lock")
    held.acquire()
    ask = [*ASK, "--until", "1", "--iterations", "1", "--out", str(out), "--data-dir", str(data_dir)]
    try:
        assert main(ask) == 75
    finally:
        held.release()
    said = capsys.readouterr().err
    assert f"another process dreams in {out}" in said
    assert f"process {os.getpid()}" in said
    assert list(out.iterdir()) == []


def test_a_model_is_named_by_its_folder_too(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (data_dir / "models" / "tiny").rename(data_dir / "trained")
    (data_dir / "models" / "trained").mkdir()  # of the same name, and none: the folder that was given wins
    monkeypatch.chdir(data_dir)
    rest = ["--data", "bundled:scenes", "--row", "3", "--until", "1", "--iterations", "1", "--data-dir", str(data_dir)]
    assert main(["dream", "--model", "./trained", *rest, "--device", "cpu"]) == 0, capsys.readouterr().err
    (folder,) = data_dir.glob("dreams/trained-*")
    assert json.loads((folder / "artifacts" / "result.json").read_text())["request"]["model"] == "trained"
    assert main(["dream", "--model", "./nowhere", *rest]) == 2
    assert "There is no model folder ./nowhere" in capsys.readouterr().err
    (data_dir / "my model").mkdir()
    assert main(["dream", "--model", "./my model", *rest]) == 2
    assert "rename it" in capsys.readouterr().err


def test_a_text_dream_counts_its_two_parts_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny(tmp_path / "models" / "tiny-text", "text")
    ask = [
        "dream",
        "--model",
        "tiny-text",
        "--data",
        "bundled:texts",
        "--row",
        "0",
        "--until",
        "2",
        "--first",
        "3",
        "--length",
        "4",
        "--iterations",
        "2",
        "--data-dir",
        str(tmp_path),
        "--device",
        "cpu",
    ]
    assert main(ask) == 0
    told = capsys.readouterr()
    assert "% of the tokens match" in told.out
    (folder,) = tmp_path.glob("dreams/*")
    result = json.loads((folder / "artifacts" / "result.json").read_text())
    assert (result["request"]["target"]["first"], len(result["original"]["tokens"])) == (3, 4)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--until", "4"], "decides 3 times"),
        (["--patches", ""], "the group is empty"),
        (["--patches", "a,b"], "whole numbers"),
        (["--first", "2"], "takes images"),
        (["--first", "2", "--class", "1"], "are for the choices of an original"),
        (["--rank", "1", "--module", "2"], "different dreams"),
        (["--direction", "1.2"], "layer.head.direction"),
        (["--step", "1"], "is for --module"),
        (["--iterations", "1000000000"], "65536"),
        (["--iterations", "0"], "tokenpaths: `--iterations`: Input"),
        (["--length", "3", "--fluency", "3"], "--length and --fluency are for dreams of texts, and tiny takes images"),
        (["--length", "12"], "--length is for dreams of texts, and tiny takes images; leave it out"),
        (["--until", "-3"], "tokenpaths: `--until`: Input"),
        (["--module", "1", "--step", "-1"], "tokenpaths: `--step`: Input"),
        (["--image", "nowhere.png"], "no image file"),
    ],
)
def test_what_cannot_be_dreamed_is_one_line(
    data_dir: Path, extra: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASK, *extra, "--data-dir", str(data_dir)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--length", "0"], "tokenpaths: `--length`: Input"),
        (["--rate", "0.1", "--bfloat16"], "--rate and --bfloat16 are for dreams of images, and tiny-text takes texts"),
    ],
)
def test_what_a_text_cannot_be_dreamed_with_is_one_line(
    tmp_path: Path, extra: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny(tmp_path / "models" / "tiny-text", "text")
    ask = ["dream", "--model", "tiny-text", "--data", "bundled:texts", "--row", "0"]
    assert main([*ask, *extra, "--data-dir", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err


def test_an_image_that_is_none_is_named_as_given_and_not_kept(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.png"
    text.write_text("no picture")
    ask = [word for word in ASK if word not in ("--data", "bundled:scenes", "--row", "3")]
    assert main([*ask, "--image", str(text), "--data-dir", str(data_dir)]) == 2
    assert f"'{text}' is no image for" in capsys.readouterr().err
    assert list((data_dir / "inbox").iterdir()) == []
