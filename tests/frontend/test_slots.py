"""Tokens that take no module at a step: skipped, dropped or not recorded, in charts, tables and on every page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import api_for
from tests.frontend.test_charts import data_of
from tests.frontend.test_figures import drawn
from tests.frontend.test_ink import explored
from tests.support.runs import make, make_experts, with_unrecorded, with_unused
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.frontend.charts.drawing import palette
from tokenpaths.frontend.charts.drawing.slots import SIGNS, idle, offered_ids
from tokenpaths.frontend.charts.families import experts
from tokenpaths.frontend.charts.flow.token_flow import token_flow_chart
from tokenpaths.frontend.charts.patches import MODULE_HUES, module_key, patch_rows
from tokenpaths.frontend.views.inspector.path import way

SKIPS, OFFERED = {9}, range(10)
STEPS: dict[str, list[int]] = {
    "works": [3, 9],
    "works behind an identity": [9, 3],
    "skipped": [9, 9],
    "dropped": [],
    "not recorded": [16, 17],
}


def token(number: int, modules: list[int]) -> dict[str, Any]:
    """A token with one step, as a response of ``/samples/{sample}`` has it."""
    numbers = {"rank": 1, "cdf": 1.0, "cdf_middle": 0.5, "path_tokens": 7, "compute": 1.0, "reuse": 0.0}
    place = {"token": number, "row": 0, "col": number}
    return place | numbers | {"ribbon": [modules], "weights": [[0.5] * len(modules)], "loss": None, "text": None}


def sample() -> dict[str, Any]:
    tokens = [token(place, modules) for place, modules in enumerate(STEPS.values())]
    return {"sample": 0, "label": None, "text": None, "grid": {"rows": 1, "cols": 5}, "tokens": tokens}


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_picture_table_and_key_have_one_colour_for_each_reason(theme: str) -> None:
    made, look = sample(), palette.theme_named(theme)
    picture = explored(made, theme, step=0, identities=SKIPS, offered=OFFERED)
    fills = [drawn["fill"] for drawn in picture["tokens"]]
    table = data_of(
        token_flow_chart(made, theme=theme, identities=SKIPS, offered=OFFERED, shade="module"), "step", "mark"
    )
    assert [row["fill"] for row in table] == fills
    assert [row["fill"] for row in patch_rows(made, theme=theme, step=0, identities=SKIPS, offered=OFFERED)] == fills
    assert fills == [MODULE_HUES[3]] * 2 + [look.identity, look.muted, look.grid]
    key = {row["label"]: row["colour"] for row in module_key(made["tokens"], 0, SKIPS, theme, OFFERED)}
    assert key == dict(zip(["3", "skipped", "dropped", "not recorded"], fills[1:], strict=True))
    assert [row["label"] for row in picture["legend"]["keys"]] == list(key)
    assert [row["mark"] for row in table] == ["3+9", "9+3", "skip", "–", "?"]


def test_what_nobody_recorded_is_no_module_in_words_and_no_place_in_the_flow() -> None:
    last = explored(sample(), "light", identities=SKIPS, offered=OFFERED)["tokens"][-1]
    assert last["head"].endswith("modules not recorded")
    assert "Not recorded at 1 step" in last["words"]
    assert "Dropped" not in last["words"]
    assert last["ribbon"] == [[]]
    assert explored(sample(), "light", identities=SKIPS, offered=OFFERED)["tokens"][1]["ribbon"] == [[9, 3]]
    assert way([[3], [], [16, 17], [9]], frozenset(SKIPS), OFFERED) == (
        "step 0: 3 → step 1: dropped at this step → step 2: not recorded → step 3: skipped"
    )


def test_choices_of_experts_that_nobody_recorded_are_counted_apart() -> None:
    tokens = [{"token": t, "modules": m, "weights": [0.5] * len(m)} for t, m in enumerate([[1, 2], [16, 17], [], [2]])]
    answer = {"tokens": tokens, "step": 1, "num_modules": 16}
    chart = experts.slice_chart(answer, offered=range(16))
    assert {row["expert"] for row in data_of(chart, "expert")} == {"1", "2"}
    assert [row["said"] for row in data_of(chart, "said")] == ["? not recorded", "– dropped"]
    assert experts.slice_words(answer, 0.0, range(16)) == (
        "4 tokens use 2 of the 16 experts of layer 1. Darker on a light page: larger weight. 1 of them was dropped "
        "here. What 1 of them chose is not recorded."
    )
    nothing = {**answer, "tokens": tokens[1:2]}
    assert experts.slice_chart(nothing, offered=range(16)).to_dict()


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of experts whose log lacks decisions, in which k varies, and of a model with identities that has both."""
    folder = tmp_path_factory.mktemp("slots")
    few = {"samples": 6, "steps": 3, "modules": 6, "top_k": 2, "identities": 1, "twin": False}
    for made in (
        with_unrecorded(make_experts("lacking", samples=4), 0.4),
        with_unused(make_experts("varied", samples=4), 0.3),
        with_unrecorded(with_unused(make("both", "text", **few), 0.3), 0.4),
        with_unrecorded(make("unknown", "text", **few), 1.0),
    ):
        made.write(folder / "runs")
    return folder


@pytest.fixture(scope="module")
def api(data_dir: Path) -> Iterator[str]:
    with api_for(data_dir) as served:
        yield str(served.client.base_url).rstrip("/")


def said(page: AppTest) -> str:
    assert not page.error, [error.value for error in page.error]
    kinds = ("markdown", "caption", "subheader", "header", "info")
    values = [str(element.value) for kind in kinds for element in page.get(kind)]
    return " ".join([*values, *(str(table.proto.body) for table in page.get("html"))]).replace("\\", "")


@pytest.mark.parametrize("run", ["lacking", "varied", "both", "unknown"])
def test_modules_are_shown_of_a_run_with_stand_ins(show, run: str) -> None:
    words = said(show(view="modules", run=run))
    assert ("Which kinds of modules does each step choose?" in words) == (run in ("both", "unknown"))
    assert ("No token here chose a module." in words) == (run == "unknown")


@pytest.mark.parametrize("run", ["lacking", "both"])
def test_no_page_shows_a_stand_in_as_a_module(data_dir: Path, show, run: str) -> None:
    with Run.open(data_dir / "runs" / f"{run}.duckdb") as opened:
        offered = offered_ids(opened.info())
        tokens = opened.sample(0)["tokens"]
        used = {module for path in opened.paths(limit=1000)["paths"] for step in path["ribbon"] for module in step}
    unknown = sorted(used - offered)
    assert unknown
    place = next(t["token"] for t in tokens if any(set(step) <= set(unknown) and step for step in t["ribbon"]))
    pair = "+".join(map(str, unknown))

    paths = show(view="paths", run=run)
    (table,) = [frame.value for frame in paths.dataframe if "path" in frame.value]
    assert any("not recorded" in path for path in table["path"])
    assert not any(pair in path for path in table["path"])
    words = said(show(view="samples", run=run, sample=0, tint=1, inspect=f"token:0.{place}"))
    assert pair not in words.replace(" ", "")
    assert "0 + 0" not in words, "weights of nothing"
    assert "?: what the token chose at this step is not recorded." in words
    assert "not recorded" in said(show(view="paths", run=run, inspect="path:1"))
    if run == "lacking":
        shown = said(show(view="family", run=run, layer=1))
        here = [t["ribbon"][1] for t in tokens]
        known = {module for modules in here for module in modules} & offered
        missing = sum(idle(modules, (), offered) is not None for modules in here)
        assert f"use {len(known)} of the 16 experts" in shown
        assert f"What {missing} of them chose is not recorded." in shown


def test_reports_and_notebooks_name_them_as_well(data_dir: Path) -> None:
    pytest.importorskip("anywidget")
    from tokenpaths.frontend.notebook.explorer import Explorer

    with Run.open(data_dir / "runs" / "lacking.duckdb") as run:
        figures = drawn(run, "fig1f")[0] | drawn(run, "fig18")[0]
        rows = [row for figure in figures.values() for table in figure.tables.values() for row in table]
        ribbons = [step for row in rows for step in row["ribbon"]]
        assert ["not recorded"] in ribbons
        assert {module for step in ribbons for module in step} <= {*offered_ids(run.info()), "not recorded"}
        tokens = Explorer(run)._view["data"]["tokens"]
        assert any("not recorded" in one["head"] for one in tokens)
        assert SIGNS["not recorded"] in {one["mark"] for one in Explorer(run, tint=1)._view["data"]["tokens"]}
