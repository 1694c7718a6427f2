"""Names of modules and paths as charts show them: the user's own before automatic ones, in tooltips and for the ear."""

from __future__ import annotations

import json

import pytest

from tests.support.runs import open_run
from tokenpaths.frontend.charts.drawing.thing_names import bare, thing_names
from tokenpaths.frontend.charts.flow.flow import flow_chart
from tokenpaths.frontend.charts.usage import load_chart

ROWS = [
    {"step": 0, "module": 1, "name": "block 1", "words": "ends of sentences, 98 %"},
    {"step": 0, "module": 2, "name": "block 2", "words": None},
    {"step": 1, "module": 1, "name": "block 1", "words": "“dinner”, 40 %"},
]


def test_own_names_take_the_place_of_automatic_ones() -> None:
    own = {
        "module:0.2": {"name": "mine", "note": ""},
        "module:1.1": {"name": "", "note": "only a note"},
        "module:7.7": {"name": "no such module", "note": ""},
        "path:900": {"name": "rare", "note": ""},
        "run": {"name": "the run", "note": ""},
    }
    assert thing_names({"rows": ROWS}, own) == {
        "module:0.1": "block 1 · ends of sentences, 98 %",
        "module:0.2": "block 2 · mine",
        "module:1.1": "block 1 · “dinner”, 40 %",
        "path:900": "path 900 · rare",
    }
    assert thing_names(None, None) == {}
    paths = thing_names({"rows": [{"rank": 2, "ribbon": [[1]], "words": "numbers, 80 %"}]}, {})
    assert bare(paths, "path:2") == "numbers, 80 %"
    assert bare(paths, "path:3") is None


def tooltips(chart: object) -> str:
    return json.dumps(chart.to_dict(), ensure_ascii=False)  # type: ignore[attr-defined]


@pytest.mark.parametrize("interactive", [True, False])
def test_charts_show_names_and_are_the_same_without(interactive: bool) -> None:
    run = open_run("text", samples=20)
    flow, usage = run.flow(), run.usage()
    busiest = max((row for row in usage["usage"] if row["step"] == 0), key=lambda row: row["count"])
    name = {f"module:0.{busiest['module']}": "block · <b>it's “mine”</b>, 98 %"}
    plain, named = flow_chart(flow, interactive=interactive), flow_chart(flow, interactive=interactive, names=name)
    assert "it's “mine”" in tooltips(named)
    assert "it's “mine”" not in tooltips(plain)
    assert tooltips(flow_chart(flow, interactive=interactive, names=None)) == tooltips(plain)
    heat = load_chart(usage, names=name)
    assert "name: block · <b>it's “mine”" in tooltips(heat)
    assert tooltips(load_chart(usage, names={})) == tooltips(load_chart(usage))
    if interactive:
        assert f"0.{busiest['module']}, block · <b>it's “mine”" in tooltips(named), "at the ends of ribbons too"
