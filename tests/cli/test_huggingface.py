"""``tokenpaths trace --model hf:…`` as people use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tiny_huggingface import TEXTS, save_tiny
from tokenpaths.cli.main import main
from tokenpaths.engine.adapters.huggingface.elsewhere import Elsewhere, read_elsewhere
from tokenpaths.engine.store.ask.run import Run


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
    place = read_elsewhere(tmp_path / "models")["tiny-olmoe"]
    assert place == Elsewhere(str(olmoe.resolve()), info["checkpoint_sha256"]), "the page finds it without a setting"
    assert str(olmoe) not in json.dumps(info), "the run itself says nothing of this machine"
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
    olmoe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
    said: str,
) -> None:
    """And it is said before any weights are read."""
    monkeypatch.setattr(
        "tokenpaths.engine.adapters.huggingface.loading.load", lambda *a, **k: pytest.fail("weights were read")
    )
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


def counts_of(run: Run) -> list[dict[int, int]]:
    """Per layer how many tokens visited each expert."""
    cells, steps = run.usage()["usage"], run.info()["num_steps"]
    return [{cell["module"]: cell["count"] for cell in cells if cell["step"] == step} for step in range(steps)]


BAN = {"edits": [{"edit": "ban", "modules": [0], "step": 0}]}


def edited(olmoe: Path, texts: Path, tmp_path: Path, controls: str, *more: str) -> list[str]:
    options = ["--model", f"hf:{olmoe}", "--data", str(texts), "--data-dir", str(tmp_path), "--device", "cpu"]
    return ["trace", *options, "--controls", controls, *more]


def test_an_edited_run_and_the_unchanged_one_beside_it(
    olmoe: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(edited(olmoe, texts, tmp_path, json.dumps(BAN), "--beside", "--run", "mine")) == 0
    said = capsys.readouterr().out
    assert said.startswith("edits: ban module 0 at step 0\nloss ")
    assert said.endswith(f"run mine is in {tmp_path / 'runs' / 'mine.duckdb'}\n")
    with Run.open(tmp_path / "runs" / "mine-before.duckdb") as old, Run.open(tmp_path / "runs" / "mine.duckdb") as new:
        effect, info = new.effect(old), new.info()
        counts = [counts_of(run)[0][0] for run in (old, new)]
        assert "controls" not in old.info()["config"]
    assert info["config"]["controls"] == BAN
    assert counts[0] > 0 == counts[1]
    loss = effect["loss"]
    assert f"loss {loss['before']:.4f} → {loss['after']:.4f} nats" in said
    assert f"paths changed: {100 * effect['paths_changed']:.1f} % of {effect['num_tokens']} tokens" in said
    assert f"KL {effect['outputs']['kl']:.4f} nats" in said
    assert main(edited(olmoe, texts, tmp_path, json.dumps(BAN), "--beside", "--run", "mine")) == 2
    (tmp_path / "runs" / "mine.duckdb").unlink()
    assert main(edited(olmoe, texts, tmp_path, json.dumps(BAN), "--beside", "--run", "mine")) == 2
    assert "'mine-before' already" in capsys.readouterr().err


def test_a_share_of_each_layers_experts(olmoe: Path, texts: Path, tmp_path: Path) -> None:
    controls = json.dumps({"ban_share": 0.25, "which": "top"})
    assert main(edited(olmoe, texts, tmp_path, controls, "--run", "share")) == 0
    assert (
        main(
            [
                "trace",
                "--model",
                f"hf:{olmoe}",
                "--data",
                str(texts),
                "--data-dir",
                str(tmp_path),
                "--run",
                "all",
                "--device",
                "cpu",
            ]
        )
        == 0
    )
    with Run.open(tmp_path / "runs" / "share.duckdb") as run:
        edits, after = run.info()["config"]["controls"]["edits"], counts_of(run)
    with Run.open(tmp_path / "runs" / "all.duckdb") as run:
        before = counts_of(run)
    assert [edit["step"] for edit in edits] == list(range(len(before)))
    for edit, old, new in zip(edits, before, after, strict=True):
        assert len(edit["modules"]) == 2
        least = min(old[module] for module in edit["modules"])
        assert all(count <= least for module, count in old.items() if module not in edit["modules"])
        assert not any(new[module] for module in edit["modules"])


@pytest.mark.parametrize(
    ("controls", "said"),
    [
        ('{"edits": [', "--controls is no JSON"),
        ("[1]", "--controls is a list"),
        ("{}", "--controls is an empty object"),
        ('{"ban_share": NaN}', "NaN is no number of JSON"),
        ('{"edits": [{"edit": "vanish"}]}', "a moe model has no edit 'vanish'; it has: ban, force"),
        ('{"edits": [{"edit": "top_k", "k": 0}]}', "k is 0"),
        ('{"alpha": 1}', "a moe model has no control 'alpha'"),
        ('{"ban_share": 1.5}', "control ban_share is 1.5"),
        ('{"ban_share": 0.5, "edits": [{"edit": "ban", "modules": [0]}]}', "give one of the two"),
        ('{"which": "top"}', "there is no edit"),
    ],
)
def test_controls_that_mean_nothing_are_one_line_and_code_2(
    olmoe: Path,
    texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    controls: str,
    said: str,
) -> None:
    """And it is said before any weights are read."""
    monkeypatch.setattr(
        "tokenpaths.engine.adapters.huggingface.loading.load", lambda *a, **k: pytest.fail("weights were read")
    )
    assert main(edited(olmoe, texts, tmp_path, controls)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert said in lines[0]


def test_bans_that_leave_too_few_leave_no_run(
    olmoe: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for modules, said in ((list(range(7)), "left with 7 of 8 banned"), ([99], "there is no module 99")):
        controls = json.dumps({"edits": [{"edit": "ban", "modules": modules}]})
        assert main(edited(olmoe, texts, tmp_path, controls, "--beside")) == 2
        assert said in capsys.readouterr().err
    assert main(["trace", "--model", f"hf:{olmoe}", "--data", str(texts), "--beside", "--data-dir", str(tmp_path)]) == 2
    assert "--beside is for --controls" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*"))
