"""Series: runs are imported into one, put into one beside their sealed file, and taken out of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.backend.conftest import Serve, problem
from tests.engine.adapters.logs.engine_logs import ROWS, flame
from tests.support.foreign_runs import unmarked
from tests.support.runs import make_experts, make_run
from tests.support.runs.counted import make_load_run
from tokenpaths.cli.main import main
from tokenpaths.engine.jobs.registry import JobContext, find_kind, read_request
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs.saturation import runs as runs_of
from tokenpaths.engine.store.ask.topics.overview import list_runs


def places(cards: list[dict]) -> dict[str, tuple[str, int] | None]:
    return {c["run"]: c["series"] and (c["series"]["name"], c["series"]["iteration"]) for c in cards}


def test_a_run_is_put_into_a_series_and_taken_out(serve: Serve) -> None:
    served = serve()
    for name in ("early", "late", "alone"):
        make_experts(name, samples=4).write(served.runs_dir)
    before = {file.name: file.read_bytes() for file in served.runs_dir.glob("*.duckdb")}
    assert set(places(served.get("/runs").json()["runs"]).values()) == {None}
    assert problem(served.get("/runs/early/series"), 404)
    etag = served.get("/runs/early").headers["etag"]
    for name, iteration in (("late", 2000), ("early", 500)):
        said = served.client.put(f"/api/v1/runs/{name}/series", json={"name": "flame", "iteration": iteration})
        assert said.status_code == 204
    assert places(served.get("/runs").json()["runs"]) == {
        "early": ("flame", 500),
        "late": ("flame", 2000),
        "alone": None,
    }
    assert served.get("/runs/early").headers["etag"] != etag
    assert served.get("/runs/early").json()["series"] == {"name": "flame", "iteration": 500}
    training = served.get("/runs/late/series").json()
    assert [(p["run"], p["iteration"]) for p in training["points"]] == [("early", 500), ("late", 2000)]
    assert [p["run"] for p in served.get("/runs/early/saturation").json()["points"]] == ["early", "late"]
    assert [(r.run, r.iteration) for r in runs_of("flame", runs_dir=served.runs_dir)] == [
        ("early", 500),
        ("late", 2000),
    ]
    assert served.client.delete("/api/v1/runs/early/series").status_code == 204
    assert places(list_runs(served.runs_dir)) == {"early": None, "late": ("flame", 2000), "alone": None}
    assert places(served.get("/runs").json()["runs"]) == {"early": None, "late": ("flame", 2000), "alone": None}
    assert {file.name: file.read_bytes() for file in served.runs_dir.glob("*.duckdb")} == before


def test_what_was_recorded_gives_way_to_what_was_said(serve: Serve) -> None:
    served = serve()
    make_experts("recorded", series=("old", 7), samples=4).write(served.runs_dir)
    assert places(served.get("/runs").json()["runs"]) == {"recorded": ("old", 7)}
    served.client.put("/api/v1/runs/recorded/series", json={"name": "new", "iteration": 1})
    assert places(served.get("/runs").json()["runs"]) == {"recorded": ("new", 1)}
    served.client.delete("/api/v1/runs/recorded/series")
    assert places(served.get("/runs").json()["runs"]) == {"recorded": None}
    served.client.delete("/api/v1/runs/recorded")
    make_experts("recorded", series=("old", 8), samples=4).write(served.runs_dir)
    assert places(served.get("/runs").json()["runs"]) == {"recorded": ("old", 8)}  # another run of the name


def test_one_from_elsewhere_is_put_into_a_series(serve: Serve) -> None:
    served = serve(check_runs=True)
    unmarked(make_load_run(served.runs_dir, "given"))
    assert served.client.put("/api/v1/runs/given/series", json={"name": "a", "iteration": 3}).status_code == 204
    assert served.get("/runs/given/series").json()["points"][0]["num_paths"] is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "a"}, "name"),
        ({"name": "../a", "iteration": 1}, "name"),
        ({"name": "a", "iteration": -1}, "iteration"),
        ({"name": "a", "iteration": True}, "iteration"),
        ({"name": "a", "iteration": 1.5}, "iteration"),
        ({"name": "a", "iteration": 2**53}, "iteration"),
        ({"name": None, "iteration": 1}, "name"),
        ({"name": "a", "iteration": 1, "more": 2}, "name"),
    ],
)
def test_a_wrong_place_is_refused(serve: Serve, body: dict, field: str) -> None:
    served = serve()
    make_run(served.runs_dir, "one", samples=2, twin=False)
    said = problem(served.client.put("/api/v1/runs/one/series", json=body), 422, field)["detail"]
    if field == "iteration":
        assert "from 0 to 9,007,199,254,740,991" in said
    assert problem(served.client.put("/api/v1/runs/two/series", json={"name": "a", "iteration": 1}), 404)
    assert not (served.settings.data_dir / "run_series").exists()


def call(data_dir: Path, *words: object) -> int:
    return main([*map(str, words), "--data-dir", str(data_dir)])


def test_imports_form_a_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    trace = flame(tmp_path / "my trace", 3)
    assert call(data, "import", trace) == 0
    rows = runs_of("my-trace", runs_dir=data / "runs")
    assert [(row.run, row.iteration) for row in rows] == [(f"my-trace-{n}", n) for n in (100, 200, 300)]
    (tmp_path / "counts.json").write_text(json.dumps({"0": {"0": 6, "3": 2}, "1": {"1": 8}}))
    assert call(data, "import", tmp_path / "counts.json", "--run", "sums", "--series", "my-trace", "--at", 400) == 0
    assert call(data, "import", trace / "actives" / "iter_100", "--run", "again", "--series", "other", "--at", 1) == 0
    assert places(list_runs(data / "runs"))["sums"] == ("my-trace", 400)
    assert places(list_runs(data / "runs"))["again"] == ("other", 1)
    capsys.readouterr()
    assert call(data, "import", tmp_path / "counts.json", "--series", "my-trace") == 2
    assert "--series and --at belong together" in capsys.readouterr().err
    assert call(data, "series", "joined", "again@5", "sums@6") == 0
    assert [row.run for row in runs_of("joined", runs_dir=data / "runs")] == ["again", "sums"]
    assert call(data, "series", "-", "again") == 0
    assert [row.run for row in runs_of("joined", runs_dir=data / "runs")] == ["sums"]
    assert call(data, "series", "joined", "again") == 2
    assert call(data, "series", "joined", "nowhere@3") == 2


def test_a_job_imports_a_folder_of_checkpoints(tmp_path: Path) -> None:
    context = JobContext(tmp_path / "data", models_dirs=())
    flame(context.inbox_dir / "trace", 2)
    kind, folder = find_kind("import"), tmp_path / "job"
    folder.mkdir()
    request = read_request(kind, {"file": "trace", "run": "flame"})
    kind.check(request, context)
    job = kind.start(request, folder, context)
    while (before := job.advance()).done < ROWS or len(list(context.runs_dir.glob("*.duckdb"))) < 1:
        pass
    job.close()  # killed after its first run
    job = kind.start(request, folder, context)
    assert job.advance().done == before.done == ROWS, "what was done stays done"
    while not (progress := job.advance()).finished:
        pass
    job.close()
    assert progress.result is not None
    assert progress.done == 2 * ROWS
    assert progress.result["runs"] == ["flame-100", "flame-200"]
    with Run.open(context.runs_dir / "flame-100.duckdb") as run:
        assert set(run.info()["findings"]["notes"]) <= set(progress.result["notes"]) != set()
    with Run.open(context.runs_dir / "flame-200.duckdb") as run:
        assert run.card()["series"] == {"name": "flame", "iteration": 200}
        assert run.card()["num_tokens"] == ROWS
