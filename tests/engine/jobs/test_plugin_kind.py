"""A kind of job that a plugin adds: the example of the documentation, and what is said of broken ones."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.plugins import installed, write_plugin
from tests.support.runs import make_run
from tokenpaths.backend.jobs.service import Jobs
from tokenpaths.backend.settings import load_settings
from tokenpaths.cli.support.doctor_plugins import plugins
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.plugins import PluginError
from tokenpaths.engine.jobs.registry import PLUGIN_KINDS, JobContext, find_kind, known_kinds, read_request
from tokenpaths.engine.store.ask.run import Run

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "plugin_example"
BROKEN = """
class Nothing:
    kind = "nothing"
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[None]:
    points = {"path-table": "tokenpaths_path_table:PathTableJob", "trace": "tokenpaths_path_table:PathTableJob"}
    points |= {"nothing": "tokenpaths_nothing:Nothing"}
    folder = tmp_path / "site"
    code = (EXAMPLE / "tokenpaths_path_table.py").read_text()
    write_plugin(folder, "tokenpaths_path_table", code, {"tokenpaths.jobs": points})
    (folder / "tokenpaths_nothing.py").write_text(BROKEN)
    with installed(folder, PLUGIN_KINDS):
        yield


def test_the_example_goes_on_where_a_killed_worker_left_it(
    plugin: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "runs", "scenes", samples=3)
    kind = find_kind("path-table")
    monkeypatch.setattr("tokenpaths_path_table.AT_ONCE", 4)
    context, folder = JobContext(tmp_path), tmp_path / "job"
    folder.mkdir()
    request = read_request(kind, {"run": "scenes"})
    kind.check(request, context)
    with closing(kind.start(request, folder, context)) as job:
        assert job.advance().done == 4
    with closing(kind.start(request, folder, context)) as job:
        while not (progress := job.advance()).finished:
            assert progress.done % 4 == 0
    with Run.open(tmp_path / "runs" / "scenes.duckdb") as run:
        paths = run.paths(limit=1000)["paths"]
    assert progress.done == progress.total == len(paths) > 8
    head, *rows = csv.reader(io.StringIO((folder / "artifacts" / "paths.csv").read_text()))
    assert head == ["rank", "count", "ribbon"]
    assert rows == [[str(row["rank"]), str(row["count"]), json.dumps(row["ribbon"])] for row in paths]


def test_it_is_queued_and_refused_as_ours_are(plugin: None, tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "scenes", samples=3)
    with closing(Jobs(load_settings(data_dir=tmp_path))) as jobs:
        assert jobs.submit("path-table", {"run": "scenes"})["kind"] == "path-table"
        for request, words in (
            ({"run": "scene"}, "There is no run 'scene'"),
            ({"run": "scenes", "least": 2}, "has no `least`"),
        ):
            with pytest.raises(UserError, match=words):
                find_kind("path-table").check(read_request(find_kind("path-table"), request), JobContext(tmp_path))


def test_broken_kinds_are_sentences_and_ours_win(plugin: None, tmp_path: Path) -> None:
    assert {"path-table", "nothing"} <= set(known_kinds())
    with pytest.raises(PluginError, match="'nothing' of tokenpaths_path_table cannot be used: it lacks Request, a pyd"):
        find_kind("nothing")
    assert find_kind("trace").__module__ == "tokenpaths.engine.jobs.traces.trace"
    findings = {finding.text for finding in plugins(load_settings(data_dir=tmp_path))}
    assert any("kind of job path-table" in finding for finding in findings)
    assert any("Tokenpaths has its own kind of job of this name" in finding for finding in findings)
