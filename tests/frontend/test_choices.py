"""What a click can choose can be chosen from a list: the same things, under the same values, in words."""

from __future__ import annotations

import altair as alt
import pytest

from tests.frontend.test_pages import api  # noqa: F401  (fixtures)
from tests.support.runs import open_run
from tokenpaths.frontend import charts
from tokenpaths.frontend.charts.drawing.choices import choices_of

RUN = open_run(samples=10, modules=8)
FLOW = RUN.flow()
USAGE = RUN.usage()
TEXT = open_run("text", modules=8).sample(0)
FIT = RUN.fit() | {"untrained": None}
DISTRIBUTION = RUN.distribution("compute", "sample")
POINTS = [{"sample": i, "compute": 0.7 + i / 500, "reuse": 0.3 + (i * 7 % 13) / 100, "label": None} for i in range(40)]
SKIP = RUN.skip_and_reuse()
MAP = {
    "points": [
        {"sample": i, "x": i / 7, "y": -i / 9, "label": "ab"[i % 2], "thumbnail": RUN.image(0)} for i in (2, 10)
    ],
    "num_samples": 2,
    "of_samples": 2,
    "explained": [0.5, 0.25],
}


def values(chart, *names):
    return [choice.value for choice in choices_of(chart, names)]


def test_circles_and_ribbons_of_a_flow():
    nodes = {f"{n['step']}.{n['module']}": n["count"] for n in FLOW["nodes"] if n["count"]}
    links = {f"{k['step']}.{k['source']}>{k['step'] + 1}.{k['target']}": k["count"] for k in FLOW["links"]}
    found = choices_of(charts.flow_chart(FLOW, least=0), ["node", "link"])
    assert {c.value for c in found if c.name == "node"} == set(nodes)
    assert {c.value for c in found if c.name == "link"} == set(links)
    assert [c.name for c in found] == sorted((c.name for c in found), reverse=True), "circles stand before ribbons"
    for choice in found:
        count = nodes[choice.value] if choice.name == "node" else links[choice.value]
        assert f": {count:,.0f} tokens (" in choice.words
        assert choice.words.startswith(("module ", "from module "))


def test_cells_are_steps_and_modules_by_number_with_names_or_without(monkeypatch):
    wanted = sorted((r["step"], r["module"]) for r in USAGE["usage"])
    for most in (6000, 10):  # above the limit the cells have no accessible names, and what points at them tells
        monkeypatch.setattr(charts.usage, "MOST_VECTORS", most)
        found = choices_of(charts.load_chart(USAGE), ["node"])
        assert [tuple(map(int, c.value.split("."))) for c in found] == wanted
        cell = next(r for r in USAGE["usage"] if (r["step"], r["module"]) == (2, 3))
        told = next(c.words for c in found if c.value == "2.3")
        assert "module" in told
        assert f"{cell['count']:,}" in told


def test_cells_of_one_token_are_one_choice_with_the_words_that_all_share():
    found = choices_of(charts.token_flow_chart(TEXT, identities=[7]), ["token"])
    assert [c.value for c in found] == list(range(TEXT["num_tokens"]))
    for choice, token in zip(found, TEXT["tokens"], strict=True):
        assert f"rank of its path {token['rank']:,}" in choice.words
        assert "step" not in choice.words, "which step differs from cell to cell"


def test_points_bars_and_ranks():
    assert values(charts.rank_frequency_chart(FIT), "rank") == [p["rank"] for p in FIT["observed"]["points"]]
    assert values(charts.skip_reuse_chart(POINTS, SKIP), "sample") == list(range(40))
    bars = [i for i, b in enumerate(DISTRIBUTION["bins"]) if b["count"]]
    assert set(bars) <= set(values(charts.histogram_chart(DISTRIBUTION), "bin"))
    found = choices_of(charts.sample_map_chart(MAP), ["sample"])
    assert [(c.value, c.words) for c in found] == [(2, "sample 2, a"), (10, "sample 10, a")]


def test_any_value_has_a_place_in_the_list():
    """5² is a digit to Python's isdigit, and no number to its int."""
    pick = alt.selection_point(name="label", fields=["label"], on="click")
    names = ["10", "5²", "²", "2", "x"]
    bars = alt.Chart(alt.Data(values=[{"label": name} for name in names])).mark_bar().encode(x="label:O")
    assert [c.value for c in choices_of(bars.add_params(pick), ["label"])] == ["2", "5²", "10", "x", "²"]


def test_nothing_to_choose_in_a_picture_without_clicks():
    assert choices_of(charts.flow_chart(FLOW, interactive=False), ["node", "link"]) == []
    assert choices_of(charts.top_k_chart(USAGE), ["node"]) == []


@pytest.mark.parametrize(
    ("view", "panel", "begins", "key"),
    [
        ("routes", "choose_flow_node_link_0", "module 1 at step 1", "module:1.1"),
        ("modules", "choose_load_node_0", "step: 1; module", "module:1."),
        ("samples", "choose_sample-map_sample_0", "sample 3", "sample:3"),
        ("paths", "choose_rank-frequency_rank_0", "rank 2", "path:2"),
    ],
)
def test_a_choice_from_the_list_does_what_a_click_does(show, view, panel, begins, key):
    page = show(view=view, run="pictures")
    assert not [box for box in page.selectbox if box.key == f"{panel}_one"], "the list is made when it is opened"
    page.session_state[f"{panel}_panel"] = True
    page.run()
    box = page.selectbox(key=f"{panel}_one")
    words = next(words for words in box.options if words.startswith(begins))
    box.select(words).run()
    assert not page.exception
    assert page.query_params["inspect"].startswith(key)
