"""Each data frame holds what REST says, value by value; and no frame is forgotten."""

from __future__ import annotations

import inspect
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.backend.conftest import API, Served, api_for
from tests.support.runs import make, make_experts, make_run, make_soft
from tests.support.runs.counted import make_load_run
from tests.support.runs.margins import with_margins
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.frames import PAGE, Frames
from tokenpaths.engine.store.ask.run import Run

Rows = list[dict[str, Any]]


def kinds(answer: dict[str, Any], leave: str) -> Rows:
    """One row for each kind of fit."""
    rows = []
    for kind in ("observed", "untrained", "independent"):
        if answer[kind]:
            row = {"kind": kind, **{k: v for k, v in answer[kind].items() if k not in (leave, "lognormal")}}
            rows.append(row | {f"lognormal_{k}": v for k, v in (answer[kind].get("lognormal") or {}).items()})
    return rows


def points(answer: dict[str, Any], name: str) -> Rows:
    found = ("observed", "untrained", "independent")
    return [{"kind": k, **point} for k in found for point in (answer[k] or {}).get(name, [])]


def preferences(answer: dict[str, Any]) -> Rows:
    heads = ("step", "module", "name")
    return [{**{h: m[h] for h in heads}, **p} for m in answer["modules"] for p in m["prefers"]]


def edges(answer: dict[str, Any]) -> Rows:
    rows = []
    names = [axis["names"] for axis in answer["axes"]]
    for i, iteration in enumerate(names[0]):
        for j, source in enumerate(names[1]):
            for k, target in enumerate(names[2]):
                value, std = answer["values"][i][j][k], answer["std"][i][j][k]
                row = {"iteration": iteration, "source": source, "target": target, "value": value, "std": std}
                rows.append(row)
    return rows


def key(name: str) -> Callable[[dict[str, Any]], Rows]:
    return lambda answer: answer[name]


SAME: dict[str, tuple[str, Callable[[Frames], pd.DataFrame], str, Callable[[dict[str, Any]], Rows]]] = {
    "card": ("vision", lambda f: f.card(), "/runs", lambda a: [r for r in a["runs"] if r["run"] == "vision"]),
    "labels": ("vision", lambda f: f.labels(), "/runs/vision", key("labels")),
    "modules": ("text", lambda f: f.modules(), "/runs/text", key("modules")),
    "associations": ("text", lambda f: f.associations(), "/runs/text", key("associations")),
    "tables": ("soft", lambda f: f.tables(), "/runs/soft/export", key("tables")),
    "flow": (
        "text",
        lambda f: f.flow(label="code", through=[(1, 2)]),
        "/runs/text/flow?label=code&through=1.2",
        key("links"),
    ),
    "nodes": ("vision", lambda f: f.nodes(steps=(0, 3)), "/runs/vision/flow?steps=0:3", key("nodes")),
    "usage": ("text", lambda f: f.usage(), "/runs/text/usage", key("usage")),
    "load": ("text", lambda f: f.load("code"), "/runs/text/usage?label=code", key("steps")),
    "paths": ("vision", lambda f: f.paths(order="reuse"), "/runs/vision/paths?order=reuse&limit=500", key("paths")),
    "fit": ("vision", lambda f: f.fit(), "/runs/vision/paths/fit", lambda a: kinds(a, "points")),
    "fit_points": ("vision", lambda f: f.fit_points(), "/runs/vision/paths/fit", lambda a: points(a, "points")),
    "law": ("vision", lambda f: f.law(3), "/runs/vision/paths/law?draws=3", lambda a: kinds(a, "curve")),
    "law_curve": ("vision", lambda f: f.law_curve(), "/runs/vision/paths/law?draws=0", lambda a: points(a, "curve")),
    "slopes": (
        "vision",
        lambda f: f.slopes(3),
        "/runs/vision/paths/slopes?draws=3",
        lambda a: [{"kind": kind, **row} for kind in ("observed", "untrained", "independent") for row in a[kind] or []],
    ),
    "examples": ("text", lambda f: f.examples(2, 5, 3), "/runs/text/paths/2/examples?limit=5&seed=3", key("examples")),
    "knowledge": ("text", lambda f: f.knowledge(), "/runs/text/paths/knowledge", key("properties")),
    "summaries": ("vision", lambda f: f.summaries(), "/runs/vision/summaries", key("rows")),
    "module": ("vision", lambda f: f.module("0.1"), "/runs/vision/modules/0.1", key("strongest")),
    "path": ("vision", lambda f: f.path(1), "/runs/vision/paths/1", key("strongest")),
    "alikeness": ("vision", lambda f: f.alikeness(), "/runs/vision/paths/alikeness", key("looks")),
    "outcomes": (
        "vision",
        lambda f: f.outcomes("reuse", groups=2),
        "/runs/vision/outcomes/reuse?groups=2",
        key("differences"),
    ),
    "outcome_groups": (
        "vision",
        lambda f: f.outcome_groups("compute", groups=3),
        "/runs/vision/outcomes/compute?groups=3",
        key("groups"),
    ),
    "kind_means": ("text", lambda f: f.kind_means("reuse"), "/runs/text/means/reuse", key("kinds")),
    "skip_and_reuse": ("vision", lambda f: f.skip_and_reuse(), "/runs/vision/skip_and_reuse", key("groups")),
    "module_kinds": ("text", lambda f: f.module_kinds(), "/runs/text/usage/kinds", key("shares")),
    "specific": (
        "vision",
        lambda f: f.specific("module", least=2),
        "/runs/vision/specific?of=module&least=2",
        key("rows"),
    ),
    "search": ("text", lambda f: f.search(q="the"), "/runs/text/tokens/search?q=the", key("paths")),
    "search_modules": ("text", lambda f: f.search_modules(q="the"), "/runs/text/tokens/search?q=the", key("modules")),
    "search_examples": (
        "text",
        lambda f: f.search_examples(q="the"),
        "/runs/text/tokens/search?q=the",
        key("examples"),
    ),
    "samples": (
        "vision",
        lambda f: f.samples(order="loss"),
        "/runs/vision/samples?order=loss&limit=500",
        key("samples"),
    ),
    "tokens": ("text", lambda f: f.tokens(2), "/runs/text/samples/2", key("tokens")),
    "last_tokens": ("text", lambda f: f.last_tokens(limit=3), "/runs/text/tokens/last?limit=3", key("tokens")),
    "distribution": (
        "text",
        lambda f: f.distribution("loss", "token", 7),
        "/runs/text/distributions/loss?per=token&bins=7",
        key("bins"),
    ),
    "by_label": ("vision", lambda f: f.by_label("compute"), "/runs/vision/distributions/compute", key("by_label")),
    "similar_samples": ("vision", lambda f: f.similar_samples(1), "/runs/vision/samples/1/similar", key("similar")),
    "similar_paths": (
        "vision",
        lambda f: f.similar_paths(1, 4),
        "/runs/vision/tokens/similar?sample=1&token=4",
        key("paths"),
    ),
    "map": ("vision", lambda f: f.map(), "/runs/vision/map", key("points")),
    "specialisation": (
        "experts",
        lambda f: f.specialisation("input", 1),
        "/runs/experts/specialisation?of=input&step=1",
        preferences,
    ),
    "co_activation": ("experts", lambda f: f.co_activation(2), "/runs/experts/co_activation?step=2", key("pairs")),
    "repetition": ("experts", lambda f: f.repetition(), "/runs/experts/repetition", key("steps")),
    "margins": ("close", lambda f: f.margins(), "/runs/close/margins", key("steps")),
    "margin_pairs": ("close", lambda f: f.margin_pairs(), "/runs/close/margins", key("pairs")),
    "load_over_time": ("counts", lambda f: f.load_over_time(1), "/runs/counts/load?step=1", key("bins")),
    "balance_over_time": ("counts", lambda f: f.balance_over_time(), "/runs/counts/load/balance", key("balance")),
    "load_by_label": ("domains", lambda f: f.load_by_label(1), "/runs/domains/load/labels?step=1", key("labels")),
    "soft": ("soft", lambda f: f.soft("edges"), "/runs/soft/edges", edges),
}
TWO_RUNS = {"compare", "effect"}
WHOLE = {"table", "arrow"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data_dir = tmp_path_factory.mktemp("frames")
    make_run(data_dir / "runs", "vision", samples=30, seed=1)
    make_run(data_dir / "runs", "other", samples=30, seed=2)
    make_run(data_dir / "runs", "text", "text", samples=14, top_k=2, seed=2)
    make_experts("experts", samples=9, length=60).write(data_dir / "runs")
    with_margins(make("close", "text", samples=6)).write(data_dir / "runs")
    make_load_run(data_dir / "runs", "counts")
    make_load_run(data_dir / "runs", "domains", domains=True)
    make_soft(edges=np.random.default_rng(0).random((6, 2, 3, 3))).write(data_dir / "runs")
    with api_for(data_dir) as api:
        yield api


def opened(served: Served, name: str) -> Run:
    return Run.open(served.runs_dir / f"{name}.duckdb")


def rows_of(frame: pd.DataFrame) -> Rows:
    """The rows as plain values, gaps as None."""
    return [{name: plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def plain(value: Any) -> Any:
    if isinstance(value, list | dict):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    return None if value is pd.NA or isinstance(value, float) and math.isnan(value) else value


@pytest.mark.parametrize("name", SAME)
def test_a_frame_holds_what_rest_says(served: Served, name: str) -> None:
    run, ask, path, rows = SAME[name]
    answer = served.get(path)
    assert answer.status_code == 200, answer.text
    wanted = rows(answer.json())
    assert wanted, "nothing to compare"
    with opened(served, run) as one:
        frame = ask(one.frames)
    columns = {column for row in wanted for column in row}
    assert set(frame.columns) == columns
    assert rows_of(frame) == [dict.fromkeys(columns) | row for row in wanted]
    once = {k: v for k, v in answer.json().items() if v is None or isinstance(v, str | int | float)}
    if name not in ("card", "paths", "samples"):
        assert frame.attrs == once | ({} if "next" not in frame.attrs else {"next": None})


def test_no_frame_is_forgotten() -> None:
    made = {name for name, _ in inspect.getmembers(Frames, inspect.isfunction) if not name.startswith("_")}
    assert made == SAME.keys() | TWO_RUNS | WHOLE


def test_two_runs_side_by_side(served: Served) -> None:
    with opened(served, "vision") as a, opened(served, "other") as b:
        compared = served.get("/compare?a=vision&b=other&measure=compute").json()
        assert rows_of(a.frames.compare(b, "compute")) == compared["points"]
        changed = served.get("/runs/other/effect?of=vision").json()
        assert rows_of(b.frames.effect(a)) == changed["links"]


def test_all_pages_come_and_a_limit_ends_them(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenpaths.engine.store.ask.frames.PAGE", 7)
    assert PAGE >= 500
    with opened(served, "vision") as run:
        whole = run.frames.paths()
        assert len(whole) == run.row["num_paths"] > 50
        assert whole["rank"].tolist() == list(range(1, len(whole) + 1))
        assert run.frames.paths(limit=15)["rank"].tolist() == list(range(1, 16))
        assert run.frames.samples(limit=3, offset=4)["sample"].tolist() == [4, 5, 6]


@pytest.mark.parametrize("table", ["token", "path", "sample", "flow", "module"])
def test_a_whole_table_is_the_exported_one(served: Served, table: str) -> None:
    exported = pa.ipc.open_file(io.BytesIO(served.get(f"/runs/text/export/{table}.arrow").content)).read_all()
    with opened(served, "text") as run:
        assert run.frames.arrow(table).equals(exported)
        pd.testing.assert_frame_equal(run.frames.table(table), exported.to_pandas())


def test_gaps_keep_whole_numbers_whole_and_errors_are_those_of_the_run(served: Served) -> None:
    with opened(served, "vision") as run:
        assert str(run.frames.modules()["module"].dtype) == "int64"
        with pytest.raises(UserError, match="no label 'cheese'"):
            run.frames.usage("cheese")
        with pytest.raises(UserError, match="there is no table"):
            run.frames.table("cheese")
    assert Path(API).name == "v1"


def test_a_name_that_is_only_that_of_a_frame_is_told_so_and_frames_list_their_own(tmp_path: Path) -> None:
    with Run.open(make_run(tmp_path, "demo", samples=3)) as run:
        with pytest.raises(AttributeError, match=r"a run has no 'load'; run\.frames\.load\(\) is a data frame"):
            run.load()
        with pytest.raises(AttributeError, match="there is no data frame 'pahts'") as refused:
            run.frames.pahts()
        with pytest.raises(
            AttributeError, match=r"run\.search_tokens\(\) as frames: search, search_modules, search_examples$"
        ):
            run.frames.search_tokens()
        assert (refused.value.name, refused.value.obj.__class__) == ("pahts", Frames), "Python names what is near"
        assert "demo" in repr(run.frames)
        assert ", paths, " in repr(run.frames)
