"""What commands that only look things up must not load: that is what makes them quick, without a stopwatch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.checkpoints import save_tiny
from tests.support.command_line import ROOT, plain_environment
from tests.support.runs import make, make_run
from tokenpaths.backend.jobs.service import job_table
from tokenpaths.backend.settings import load_settings
from tokenpaths.engine.store.ask.run import Run

HEAVY = ["torch", "transformers", "streamlit", "scipy", "pandas", "sklearn"]
WEB = ["fastapi", "starlette"]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data folder with a run that no index knows yet, a broken one, a model, a broken one, and a job."""
    make_run(tmp_path / "runs", "good", samples=3)
    (tmp_path / "runs" / "broken.duckdb").write_bytes(b"not a run")
    save_tiny(tmp_path / "models" / "mine", "vision")
    save_tiny(tmp_path / "models" / "cut-short", "vision")
    weights = tmp_path / "models" / "cut-short" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    table = job_table(load_settings(data_dir=tmp_path))
    table.submit("trace", {"model": "mine", "data": "bundled:scenes"})
    table.close()
    return tmp_path


def run_and_list(arguments: list[str], modules: list[str]) -> tuple[str, list[str]]:
    """(output, those of ``modules`` that are loaded at the end) of a command in a process of its own."""
    code = (
        "import sys; from tokenpaths.cli.main import main; code = main(sys.argv[1:]); "
        f"print('LOADED', [name for name in {modules!r} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, *arguments]
    environment = plain_environment()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120, check=False)
    output, mark, loaded = done.stdout.rpartition("LOADED ")
    assert mark, done.stdout + done.stderr
    return output, json.loads(loaded.replace("'", '"'))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["ls"], ["good", "! broken:", "mine", "! cut-short: model.safetensors is damaged"]),
        (["doctor", "--quick"], ["cut-short: model.safetensors is damaged", "with a card", "1 in the list"]),
        (["jobs"], ["trace-"]),
        (["export", "--help"], ["Example"]),
        (["--help"], ["doctor"]),
    ],
)
def test_what_only_looks_things_up_loads_nothing_heavy(data_dir: Path, command: list[str], expected: list[str]) -> None:
    given = [] if "--help" in command else ["--data-dir", str(data_dir)]
    output, loaded = run_and_list([*command, *given], [*HEAVY, *WEB])
    assert [word for word in expected if word not in output] == [], output
    assert loaded == []


def test_a_list_of_known_runs_opens_none(data_dir: Path) -> None:
    """The second list takes its cards from the index, so it needs no database."""
    (data_dir / "runs" / "broken.duckdb").unlink()
    assert "duckdb" in run_and_list(["ls", "runs", "--data-dir", str(data_dir)], ["duckdb"])[1]
    output, loaded = run_and_list(["ls", "runs", "--data-dir", str(data_dir)], ["duckdb"])
    assert "good" in output
    assert loaded == []


def test_an_export_loads_no_data_frames(data_dir: Path) -> None:
    output, loaded = run_and_list(["export", "good", "--data-dir", str(data_dir)], HEAVY)
    assert "token" in output
    assert loaded == []


@pytest.mark.parametrize("file_format", ["csv", "parquet", "arrow"])
def test_an_export_writes_what_the_api_answers(tmp_path: Path, file_format: str) -> None:
    """Without pandas, which other tests have loaded and this command hides; labels that a spreadsheet would run."""
    arrays = make("good", "text", samples=4)
    for batch in arrays.batches:
        batch.samples[:] = [replace(sample, label=f"={sample.label}") for sample in batch.samples]
    file = arrays.write(tmp_path / "runs")
    with Run.open(file) as run:
        tables = [row["table"] for row in run.tables()["tables"]]
        expected = {table: b"".join(run.export(table, file_format)) for table in tables}
    code = (
        "import sys; from tokenpaths.cli.main import main\n"
        "for table in sys.argv[3:]: assert not main(['export', 'good', table, '--data-dir', sys.argv[1], "
        "'-o', f'{sys.argv[1]}/{table}.{sys.argv[2]}'])\nassert 'pandas' not in sys.modules"
    )
    command = [sys.executable, "-c", code, str(tmp_path), file_format, *tables]
    subprocess.run(command, check=True, cwd=ROOT, env=plain_environment(), timeout=120)
    written = {table: (tmp_path / f"{table}.{file_format}").read_bytes() for table in tables}
    if file_format == "arrow":  # what is not used of its bytes may be anything
        written = {table: pa.ipc.open_file(content).read_all() for table, content in written.items()}
        expected = {table: pa.ipc.open_file(content).read_all() for table, content in expected.items()}
    assert written == expected
    assert file_format != "csv" or b"'=" in written["sample"]
