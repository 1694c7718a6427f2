"""The command line as people use it: in a process of its own."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.support.command_line import ROOT, plain_environment, run_cli
from tests.support.runs import make, make_run
from tokenpaths.backend.settings import load_settings
from tokenpaths.cli.doctor import examine, read_constraints
from tokenpaths.cli.main import main, write_crash
from tokenpaths.cli.support import progress_bar
from tokenpaths.cli.support.processes import pick_port
from tokenpaths.engine.base.errors import UserError

COMMANDS = [
    "up",
    "worker",
    "jobs",
    "demo",
    "trace",
    "import",
    "train",
    "ls",
    "export",
    "doctor",
    "seal",
    "figures",
    "report",
    "agree",
    "docs",
    "dream",
]
TRACE = ["trace", "--model", "dna-vision-top1"]
HEAVY = ["torch", "duckdb", "streamlit", "fastapi", "pandas", "numpy", "pyarrow", "PIL"]


def test_what_a_file_says_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Window titles, cleared screens, further rows and reversed text in the names of a run"""
    model, dataset = "\x1b]0;mine\x07\x1b[2Jm\nanother-run  ok", "d\x9b31m\u202e"
    arrays = make("given", samples=2, twin=False)
    replace(arrays, info=replace(arrays.info, model=model, dataset=dataset)).write(tmp_path / "runs")
    assert main(["ls", "runs", "--data-dir", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert len(listed.splitlines()) == 2
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(listed)
    assert "\\u001b[2Jm another-run" in listed
    assert main(["ls", "runs", "--data-dir", str(tmp_path), "--json"]) == 0
    plain = capsys.readouterr().out
    assert "\x9b" not in plain
    assert json.loads(plain)["runs"][0] | {"model": model, "dataset": dataset} == json.loads(plain)["runs"][0]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data folder with one good and one broken run."""
    make_run(tmp_path / "runs", "good", samples=3)
    (tmp_path / "runs" / "broken.duckdb").write_bytes(b"not a run")
    return tmp_path


def test_help_needs_nothing_heavy() -> None:
    """What makes `--help` quick, without a stopwatch."""
    code = (
        "import sys; from tokenpaths.cli.main import main; main(['--help']); main(['up', '--help']); "
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert "HEAVY []" in found.stdout, found.stdout + found.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"Example: tokenpaths {command}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tokenpaths ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["ls", "--nothing"],
        ["export"],
        ["export", "nothing", "path", "--data-dir", "{data}"],
        ["export", "broken", "path", "--data-dir", "{data}"],
        ["export", "good", "nothing", "--data-dir", "{data}"],
        ["export", "good", "-f", "csv", "--data-dir", "{data}"],
        ["export", "good", "--format", "dataset", "--data-dir", "{data}"],
        ["export", "good", "path", "--format", "dataset", "--out", "x", "--data-dir", "{data}"],
        ["export", "good", "--format", "dataset", "--out", "{data}", "--data-dir", "{data}"],
        ["export", "../good", "path", "--data-dir", "{data}"],
        ["export", "good", "path", "-o", "paths.xyz", "--data-dir", "{data}"],
        ["export", "good", "path", "-o", "{data}/runs/broken.duckdb/paths.csv", "--data-dir", "{data}"],
        ["up", "--port", "70000"],
        ["up", "--port", "8119", "--page-port", "8119", "--data-dir", "{data}"],
        ["up", "--host", "192.0.2.1", "--token", "0123456789abcdef", "--no-page", "--data-dir", "{data}"],
        ["jobs", "list", "--limit", "99999999999999999999", "--data-dir", "{data}"],
        ["series", "s", f"good@{'9' * 5000}", "--data-dir", "{data}"],
        ["import", "", "--data-dir", "{data}"],
        ["train", "dna-vision-top1", "--data", ""],
        ["train", "dna-vision-top1", "--data", "{data}", "--out", ""],
        ["export", "good", "path", "-f", "csv", "-o", "", "--data-dir", "{data}"],
        ["up", "--host", "0.0.0.0"],
        ["up", "--token", "short"],
        ["up", "--settings", "/nothing.toml"],
        ["up", "--data-dir", "{data}/runs/broken.duckdb"],
        ["worker", "--data-dir", "{data}/runs/broken.duckdb"],
        ["ls", "--data-dir", "{data}/runs/broken.duckdb"],
        ["export", "good", "path", "--data-dir", "{data}/runs/broken.duckdb"],
        [*TRACE, "--data", "bundled:scenes", "--data-dir", "{data}/runs/broken.duckdb"],
        [*TRACE, "--data", "~nobody-of-that-name/pictures", "--data-dir", "{data}"],
        [*TRACE, "--data", "bundled:scenes", "--data-dir", "{data}", "--run", "good"],
        [*TRACE, "--data", "bundled:scenes", "--data-dir", "{data}", "--run", "a b"],
        [*TRACE, "--data", "bundled:scenes", "--data-dir", "{data}", "--device", "abacus"],
        [*TRACE, "--data", "bundled:scenes", "--data-dir", "{data}", "--passage-chars", "100"],
        [*TRACE, "--data", "bundled:texts", "--data-dir", "{data}"],
        ["trace", "--model", "nothing", "--data", "bundled:texts", "--data-dir", "{data}"],
        ["train", "dna-vision-top1", "--data", "{data}", "--device", "abacus"],
        ["figures", "good", "--out", "", "--data-dir", "{data}"],
    ],
)
def test_wrong_input_is_one_line_and_code_2(
    data_dir: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main([argument.format(data=data_dir) for argument in arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    lines = [line for line in shown.err.splitlines() if line and not line.startswith(("Usage", "Try"))]
    assert len(lines) == 1, shown.err


@pytest.mark.parametrize(
    "command",
    [
        ["up"],
        ["worker"],
        ["jobs"],
        ["jobs", "list"],
        ["demo"],
        ["ls"],
        ["doctor"],
        ["export", "good", "path"],
        ["seal", "good"],
        ["report", "good", "--out", "x.html"],
        ["agree", "good", "better"],
        ["dream", "--model", "m"],
        ["import", "x.npy"],
        [*TRACE, "--data", "x"],
    ],
)
def test_a_data_folder_without_a_name_is_not_the_current_one(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """``--data-dir "$RUNS"`` where RUNS is not set."""
    monkeypatch.chdir(data_dir)
    before = sorted(data_dir.rglob("*"))
    assert main([*command, "--data-dir", ""]) == 2
    assert "The name of a folder is empty" in capsys.readouterr().err
    assert sorted(data_dir.rglob("*")) == before


def test_ls(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "runs", "--data-dir", str(data_dir)]) == 0
    shown = capsys.readouterr().out
    assert "good" in shown
    assert "! broken:" in shown
    assert main(["ls", "runs", "--json", "--data-dir", str(data_dir)]) == 0
    cards = {card["run"]: card["status"] for card in json.loads(capsys.readouterr().out)["runs"]}
    assert cards == {"good": "sealed", "broken": "unreadable"}


def test_ls_models(
    data_dir: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENPATHS_MODELS_DIRS", str(models_dir))
    assert main(["ls", "--data-dir", str(data_dir)]) == 0
    shown = capsys.readouterr().out
    assert "tiny-vision" in shown
    assert "good" in shown


def test_ls_of_an_empty_folder_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "runs", "--data-dir", str(tmp_path)]) == 0
    assert "tokenpaths trace" in capsys.readouterr().out


def test_export(data_dir: Path, tmp_path: Path) -> None:
    done = run_cli("export", "good", "path", "--data-dir", str(data_dir))
    assert done.returncode == 0
    rows = done.stdout.splitlines()
    assert rows[0].startswith('"rank"')
    file = tmp_path / "paths.parquet"
    assert main(["export", "good", "path", "-o", str(file), "--data-dir", str(data_dir)]) == 0
    assert pyarrow.parquet.read_table(file).num_rows == len(rows) - 1
    assert [f for f in tmp_path.iterdir() if f.suffix == ".tmp"] == []


def test_export_as_a_data_set(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    assert main(["export", "good", "--format", "dataset", "--out", str(folder), "--data-dir", str(data_dir)]) == 0
    assert "open it with datasets.load_from_disk" in capsys.readouterr().err
    assert json.loads((folder / "dataset_dict.json").read_text())["splits"] == ["samples", "tokens", "paths", "modules"]
    assert main(["export", "good", "-f", "dataset", "-o", str(folder), "--data-dir", str(data_dir)]) == 2
    assert "it is there already" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.endswith(".tmp")] == []


def test_every_table_that_is_listed_can_be_written(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["export", "good", "--data-dir", str(data_dir)]) == 0
    listed = {line.split()[0]: int(line.split()[1].replace(",", "")) for line in capsys.readouterr().out.splitlines()}
    assert {"token", "path", "path_member", "sample", "flow", "usage", "image"} <= listed.keys()
    for table, rows in listed.items():
        file = tmp_path / f"{table}.parquet"
        assert main(["export", "good", table, "-o", str(file), "--data-dir", str(data_dir)]) == 0
        assert pyarrow.parquet.read_table(file).num_rows == rows


@pytest.mark.skipif(os.name == "nt", reason="named pipes")
def test_an_export_into_a_pipe_leaves_the_pipe(data_dir: Path, tmp_path: Path) -> None:
    """`-o /dev/null` by an administrator must not put a file in the place of the device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    lines: list[bytes] = []
    reader = threading.Thread(target=lambda: lines.extend(pipe.read_bytes().splitlines()))
    reader.start()
    assert main(["export", "good", "path", "-f", "csv", "-o", str(pipe), "--data-dir", str(data_dir)]) == 0
    reader.join(10)
    assert pipe.is_fifo()
    assert lines[0].startswith(b'"rank"')


def test_a_letter_that_the_terminal_cannot_show_is_no_error(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "good", samples=3, labels=False)  # its accuracy is a dash
    done = run_cli("ls", "runs", "--data-dir", str(tmp_path), encoding_of_output="ascii")
    assert done.returncode == 0, done.stderr
    assert "good" in done.stdout


# -- trace ------------------------------------------------------------------------------------------


@pytest.fixture
def tracing_home(tmp_path: Path, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder and a models folder that only the settings file names."""
    (tmp_path / "settings.toml").write_text(
        f"data_dir = {json.dumps(str(tmp_path / 'home'))}\nmodels_dirs = [{json.dumps(str(models_dir))}]\n"
    )
    monkeypatch.setenv("TOKENPATHS_SETTINGS_FILE", str(tmp_path / "settings.toml"))
    return tmp_path / "home"


def test_trace_heeds_the_settings_and_says_what_it_left_out(
    tracing_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"text": "the cat sat on the mat. " * 8}), *["no json"] * 21, '{"text": 5}']
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    command = ["trace", "--model", "tiny-text", "--data", str(tmp_path / "texts.jsonl"), "--run", "mine"]
    assert main([*command, "--skip-bad", "--passage-chars", "50", "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert "22 samples were left out; the first 20:" in shown.err
    assert shown.err.count("is not JSON") == 20
    assert shown.out.startswith("run mine is in")
    assert main(["ls", "runs", "--json"]) == 0
    (card,) = json.loads(capsys.readouterr().out)["runs"]
    assert (card["run"], card["num_samples"]) == ("mine", 4)
    assert (tracing_home / "runs" / "mine.duckdb").is_file()
    assert main([*command, "--skip-bad", "--overwrite"]) == 0


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pictures").symlink_to(tmp_path / "unmounted")
    assert main([*TRACE, "--data", str(tmp_path / "pictures"), "--data-dir", str(tmp_path)]) == 2
    assert "is a link that leads nowhere" in capsys.readouterr().err


def test_trace_clears_away_what_a_killed_one_left(tracing_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tracing_home / "runs").mkdir(parents=True)
    (tracing_home / "runs" / ".killed.partial").write_bytes(b"half")
    options = ["--model", "tiny-vision", "--data", "bundled:scenes", "--limit", "2", "--run", "r", "--twin", "no"]
    assert main(["trace", *options]) == 0
    assert [file.name for file in (tracing_home / "runs").iterdir()] == ["r.duckdb"]


def test_trace_says_which_labels_the_model_does_not_know(
    tracing_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["trace", "--model", "raytracing-digits", "--twin", "no", "--run"]
    assert main([*command, "known", "--data", "bundled:digits", "--limit", "4"]) == 0
    assert "class of" not in capsys.readouterr().err
    assert main([*command, "foreign", "--data", "bundled:scenes", "--limit", "4"]) == 0
    told = capsys.readouterr().err
    assert "No label is a class of raytracing-digits" in told
    assert "4 samples have a prediction but no loss" in told


def test_progress_on_a_pipe_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without any call of ``update`` too: the longest steps report nothing."""
    monkeypatch.setattr(progress_bar, "FIRST_LINE_SECONDS", 0.05)
    monkeypatch.setattr(progress_bar, "LINE_SECONDS", 0.05)
    with progress_bar.waiting("reading"):
        time.sleep(0.3)
    assert "reading: 0 s so far" in capsys.readouterr().err
    with progress_bar.bar("tracing", 200, "samples") as progress:
        progress.update(50, "3,200 tokens")
        time.sleep(0.3)
    shown = capsys.readouterr().err
    assert "tracing: 50/200 samples, " in shown
    assert "samples/s" in shown
    assert "min left" in shown
    assert "3,200 tokens" in shown
    resumed = progress_bar.Bar("training", 10_000, "it", first=9_000)
    resumed._started -= 100  # what was done before the pause does not count
    resumed.update(9_050)
    assert "9,050/10,000 it, 0.5 it/s, 31.7 min left" in resumed.line()
    with progress_bar.bar("quick", 2, "samples"):
        pass
    assert capsys.readouterr().err == ""


def test_the_crash_log_keeps_no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["tokenpaths", "up", "--token", "a-secret", "--token=a-secret", "--port", "1"])
    log = write_crash(ValueError("x")).read_text()
    assert "a-secret" not in log
    assert "--token … --token=… --port 1" in log


def test_failed_export_leaves_the_old_file(data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "paths.csv"
    file.write_text("precious")
    assert main(["export", "good", "nothing", "-o", str(file), "--data-dir", str(data_dir)]) == 2
    assert file.read_text() == "precious"


def test_unforeseen_error_goes_to_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("what nobody expected")

    monkeypatch.setattr("tokenpaths.backend.settings.load_settings", broken)
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", str(tmp_path))
    assert main(["ls"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert str(tmp_path / "logs" / "cli.log") in shown
    assert "Traceback" in (tmp_path / "logs" / "cli.log").read_text()


def test_a_place_that_may_not_be_used_is_told_in_one_line(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dreams").write_text("a file where a folder should be")
    ask = ["dream", "--model", "dna-vision-top1", "--data", "bundled:scenes", "--row", "0", "--data-dir", str(tmp_path)]
    assert main(ask) == 2
    said = capsys.readouterr().err
    assert "dreams" in said
    assert "(Not a directory)" in said
    (data_dir / "jobs.sqlite").mkdir()
    assert main(["jobs", "--data-dir", str(data_dir)]) == 2
    assert "jobs.sqlite" in capsys.readouterr().err


def test_interrupted_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tokenpaths.backend.settings.load_settings", interrupted)
    assert main(["ls"]) == 130
    assert capsys.readouterr().err == "Stopped.\n"


def test_an_interrupt_that_c_drops_is_heard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @ctypes.CFUNCTYPE(None)
    def called_from_c() -> None:
        raise KeyboardInterrupt

    def load(*_: object, **__: object) -> None:
        called_from_c()
        for _ in range(100):  # in short naps: a signal that comes just before a sleep is heard after it only
            time.sleep(0.05)

    monkeypatch.setattr("tokenpaths.backend.settings.load_settings", load)
    assert main(["ls"]) == 130
    assert capsys.readouterr().err == "Stopped.\n"


@pytest.mark.parametrize("command", [["ls", "runs"], ["export", "good"], ["export", "good", "token"]])
def test_a_pipe_that_is_closed_ends_quietly(tmp_path: Path, command: list[str]) -> None:
    """`tokenpaths ls | head -1`"""
    make_run(tmp_path / "runs", "good", samples=3)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = run_cli(
            *command, "--data-dir", str(tmp_path), capture_output=False, stdout=closed, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_standard_streams_that_are_closed_are_none_of_a_files() -> None:
    """`tokenpaths … >&- 2>&- <&-`, as a daemon starts it: what is opened next would get their numbers."""
    code = (
        "import os, sys; from tokenpaths import __main__; "
        "sys.argv = ['tokenpaths', '--version']; done = __main__.main(); "
        "null = os.stat(os.devnull); "
        "os._exit(done or sum(not os.path.samestat(os.fstat(number), null) for number in range(3)))"
    )
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(closed, cwd=ROOT, env=plain_environment(), timeout=60).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_answer_that_has_no_room_is_said_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = run_cli("--version", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert "is full" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_doctor_finds_the_broken_run(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--data-dir", str(data_dir)]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {finding["what"] for finding in findings} >= {"python", "packages", "device", "data", "runs", "ports"}
    assert any(finding["state"] == "broken" and "broken" in finding["text"] for finding in findings)
    (data_dir / "runs" / "broken.duckdb").unlink()
    states = {
        finding.state for finding in examine(load_settings(data_dir=data_dir)) if finding.what in ("runs", "data")
    }
    assert "broken" not in states


def test_doctor_on_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    findings = list(examine(load_settings(data_dir=tmp_path / "file")))
    assert any(finding.state == "broken" and "not writable" in finding.text for finding in findings)


def test_constraints_are_read() -> None:
    assert read_constraints("a==1.0\n# b==2\nc>=3\nd==4 ; python_version > '3'\n") == {"a": "1.0", "d": "4"}


def test_busy_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port}.*--port"):
            pick_port("127.0.0.1", port, "--port")
    assert pick_port("127.0.0.1", 0, "--port") > 0


def test_the_demo_shows_each_model_what_it_learnt_from() -> None:
    from tokenpaths.cli.demo import _sets
    from tokenpaths.engine.data.datasets import BUNDLED

    assert _sets("raytracing-digits-relaxed", "vision") == ("bundled:digits",)
    assert _sets("hmodel-languages", "text") == ("bundled:languages",)
    assert _sets("dna-text-top1", "text") == ("bundled:texts",)
    for model in ("raytracing-cifar10", "dna-vision-top1"):
        assert set(_sets(model, "vision")) <= set(BUNDLED)


SCRIPT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["tokenpaths"].partition(":")


@pytest.mark.parametrize(
    "start",
    [
        "runpy.run_module('tokenpaths', run_name='__main__')",
        f"from {SCRIPT[0]} import {SCRIPT[2]}; sys.exit({SCRIPT[2]}())",
    ],
)
@pytest.mark.parametrize("module", ["typer", "tokenpaths.cli.main", "tokenpaths.cli.up"])
def test_ctrl_c_while_the_command_line_is_imported_is_one_word(start: str, module: str) -> None:
    code = (
        "import os, runpy, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        f"{start}"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "ls"],
        env=plain_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Stopped.\n")
