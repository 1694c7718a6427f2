"""No sentence of the API says where anything lies on its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.conftest import API, Serve, problem
from tests.support.runs import make_run
from tokenpaths.backend.http import redact_paths
from tokenpaths.backend.http.redact_paths import redact, redact_folders_of
from tokenpaths.backend.jobs.table import JobTable
from tokenpaths.backend.settings import load_settings
from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.store.file.open_file import Connection


def test_folders_are_named_and_their_neighbours_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact_paths, "_names", {})
    monkeypatch.setattr(redact_paths, "_pattern", [])
    assert redact(f"{tmp_path}/x") == f"{tmp_path}/x", "a command says it"
    redact_folders_of(load_settings(data_dir=tmp_path / "data", huggingface_dir=tmp_path / "data" / "hf"))
    here = tmp_path / "data"
    assert redact(f"no {here}/runs/x.duckdb in “{here}/hf”; see {here}.") == (
        "no <data folder>/runs/x.duckdb in “<Hugging Face folder>”; see <data folder>."
    )
    assert str(here) not in redact(f'IO Error: "{here}/runs": {here}')
    for other in (f"{here}base/x", f"{here}.old", f"/elsewhere{here}", "a/b of 3/4, /docs"):
        assert "<data folder>" not in redact(other)


def test_the_words_of_duckdb_do_not_say_where_a_run_lies(tmp_path: Path) -> None:
    """Many places of a file, each with other words of DuckDB's own."""
    file = make_run(tmp_path / "secret-place" / "runs", "given", samples=20)
    whole, said = file.read_bytes(), []
    for number in range(40):
        spoiled = bytearray(whole)
        spoiled[number * len(whole) // 40] ^= 0xFF
        file.write_bytes(spoiled[: len(whole) if number % 2 else -50_000])
        try:
            opened = Connection(file, 10)
            opened.rows("SELECT sum(hash(t)) FROM token t")
            opened.close()
        except RunFileError as error:
            said.append(str(error))
    assert len(said) > 10
    assert not [sentence for sentence in said if "secret-place" in sentence]
    assert all("given.duckdb" in sentence for sentence in said)


def test_no_answer_of_the_api_says_it(serve: Serve, tmp_path: Path) -> None:
    served = serve(data_dir=tmp_path / "secret-place")
    for number, place in enumerate((9, 4096 * 2 + 9, 4096 * 3 + 40, -3000)):
        file = make_run(served.runs_dir, f"bad{number}", samples=3, twin=False)
        data = bytearray(file.read_bytes())
        data[place] ^= 0xFF
        file.write_bytes(data)
    table = JobTable(served.settings.jobs_file)
    job = table.submit("count", {}).job
    lease = table.lease("w")
    assert lease is not None
    table.end(
        lease,
        "failed",
        problem={
            "type": "urn:tokenpaths:x",
            "title": "x",
            "status": 500,
            "detail": f"{served.runs_dir}/x.duckdb is gone.",
        },
    )
    table.close()
    answers = [served.get(path) for path in ("/runs", "/runs/bad0", "/runs/bad1/flow", "/jobs", f"/jobs/{job}")]
    answers += [served.get(f"/jobs/{job}/events")]
    missing = {"kind": "import", "request": {"file": "nothing.jsonl"}}
    answers += [served.client.post(f"{API}/jobs", json=missing)]
    assert "<data folder>" in answers[-1].json()["detail"]
    assert "<data folder>/runs/x.duckdb is gone" in answers[-2].text
    assert "<data folder>/runs/x.duckdb is gone" in answers[-3].json()["problem"]["detail"]
    assert not [answer.url for answer in answers if "secret-place" in answer.text]
    served.runs_dir.rename(served.runs_dir.with_name("moved"))
    served.runs_dir.write_text("no folder")
    assert "secret-place" not in problem(served.get("/runs"), 422, "data_dir")["detail"]
