"""A question that a plugin adds has a route, a schema, checks, a client call and a data frame, as ours have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.backend.conftest import Serve, problem
from tests.support.plugins import installed, write_plugin
from tests.support.runs import make_run
from tokenpaths.backend.routes.questions import plugin_routers
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.plugins import PluginError
from tokenpaths.engine.store.ask.frames import Frames
from tokenpaths.engine.store.ask.questions import QUESTIONS
from tokenpaths.engine.store.ask.run import OTHER_PATHS, PLUGIN_QUESTIONS, Run
from tokenpaths.frontend.api.client import ApiError, Client, Refused

CODE = '''
from typing import Annotated, Any
from tokenpaths.engine.store.ask.question import Argument, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel
from tokenpaths.engine.store.file.filters import Query

class Lengths(AnswerModel):
    """Lengths of samples."""
    run: str
    lengths: list[dict[str, int]]

@question("lengths", Lengths, tag="samples", rows="lengths")
def lengths(run: RunFile, *, least: Annotated[int, Argument("Fewest tokens", ge=0, le=999)] = 0) -> dict[str, Any]:
    """Samples of at least ``least`` tokens."""
    rows = run.rows(Query("SELECT sample, num_tokens FROM sample WHERE num_tokens >= ? ORDER BY sample", (least,)))
    return {"run": run.run_id, "lengths": [{"sample": sample, "tokens": tokens} for sample, tokens in rows]}

@question("samples/longest", Lengths, tag="samples")
def hidden(run: RunFile) -> dict[str, Any]:
    """Its address is that of a sample."""
    return {}

@question("card", Lengths, tag="samples")
def card(run: RunFile) -> dict[str, Any]:
    """A run has this method."""
    return {}

@question("odd", Lengths, tag="samples")
def odd(run: RunFile, what: "Nothing" = None) -> dict[str, Any]:
    """Its annotation names what is not there."""
    return {}

@question("strange", Lengths, tag="samples")
def strange(run: RunFile, what: Annotated[dict[str, int], Argument("A table")] = None) -> dict[str, Any]:
    """Its argument cannot be written into an address."""
    return {}
'''
NAMES = {name: f"lengths_plugin:{name}" for name in ("lengths", "hidden", "card", "odd", "strange", "absent")}


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    folder = write_plugin(tmp_path / "site", "lengths_plugin", CODE, {"tokenpaths.questions": {**NAMES, "flow": "x:y"}})
    with installed(folder, PLUGIN_QUESTIONS):
        try:
            yield folder
        finally:
            for name in ("lengths", "strange"):
                for owner in (Run, Frames):
                    with suppress(AttributeError):
                        delattr(owner, name)


def test_it_is_asked_like_ours(plugin: Path, serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "demo", samples=3)
    assert [row["tokens"] for row in served.get("/runs/demo/lengths").json()["lengths"]] == [64, 64, 64]
    assert served.get("/runs/demo/lengths?least=65").json()["lengths"] == []
    assert problem(served.get("/runs/demo/lengths?least=-1"), 422)["field"] == "least"
    assert problem(served.get("/runs/demo/lengths?most=1"), 422)["field"] == "most"
    operation = served.app.openapi()["paths"]["/api/v1/runs/{run}/lengths"]["get"]
    assert operation["description"] == "Samples of at least ``least`` tokens."
    client = Client(str(served.client.base_url))
    assert len(client.ask("demo", "lengths", least=3)["lengths"]) == 3
    with pytest.raises(Refused):
        client.ask("demo", "lengths", least=1000)


def test_one_that_cannot_be_used_says_so_where_it_is_asked(plugin: Path, serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "demo", samples=2)
    reason = problem(served.get("/runs/demo/absent"), 503)["detail"]
    assert "'absent' of lengths_plugin cannot be used: it cannot be imported (AttributeError" in reason
    assert "cannot be offered over REST" in problem(served.get("/runs/demo/strange"), 503)["detail"]
    with pytest.raises(ApiError, match="cannot be used"):
        Client(str(served.client.base_url)).ask("demo", "odd")
    assert served.get("/runs/demo/flow").status_code == 200
    assert served.get("/runs/demo/samples/0").status_code == 200
    problems = sorted(str(error) for _, error in plugin_routers() if error is not None)
    beginnings = [
        "the question 'absent' of lengths_plugin cannot be used: it cannot be imported (AttributeError",
        "the question 'card' of lengths_plugin cannot be used: a run has a method or an attribute of this name",
        "the question 'flow' of lengths_plugin cannot be used: Tokenpaths has its own question of this name",
        "the question 'hidden' of lengths_plugin cannot be used: its address 'samples/longest' is taken by 'samples/{",
        "the question 'odd' of lengths_plugin cannot be used: its declaration cannot be read (NameError",
        "the question 'strange' cannot be offered over REST: ",
    ]
    assert [text[: len(begins)] for text, begins in zip(problems, beginnings, strict=True)] == beginnings


def test_in_python_it_is_a_method_when_it_is_first_asked(plugin: Path, tmp_path: Path) -> None:
    with Run.open(make_run(tmp_path, "demo", samples=3)) as run:
        assert "lengths_plugin" not in sys.modules
        assert run.card()["num_samples"] == 3
        with pytest.raises(AttributeError, match="a run has no 'widths'"):
            run.widths()
        assert "lengths_plugin" not in sys.modules
        frame = run.frames.lengths(least=3)
        assert list(frame["tokens"]) == [64, 64, 64]
        assert run.lengths(least=65)["lengths"] == []
        with pytest.raises(UserError, match="least is -1, it should be 0 to 999"):
            run.lengths(least=-1)
        with pytest.raises(PluginError, match="'absent' of lengths_plugin"):
            run.absent()
        with pytest.raises(AttributeError, match="there is no data frame 'widths'"):
            run.frames.widths()


def test_the_addresses_that_are_no_questions_are_all_known(serve: Serve) -> None:
    ours = {route.path for question in QUESTIONS for route in question.routes}
    below = {
        path.removeprefix("/api/v1/runs/{run}").strip("/")
        for path in serve().app.openapi()["paths"]
        if path.startswith("/api/v1/runs/{run}")
    }
    assert {path.partition("/")[0] for path in below - ours} <= {path.partition("/")[0] for path in OTHER_PATHS}
