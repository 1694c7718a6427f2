"""Two labels side by side: the difference by hand, and the page."""

from __future__ import annotations

import inspect

import pytest

from tests.backend.conftest import api_for
from tests.frontend.conftest import showing
from tests.frontend.test_pages import api, words  # noqa: F401 (fixtures)
from tests.support.runs import make_experts
from tokenpaths.frontend.charts.flow.flow_contrast import (
    contrast_map_chart,
    contrast_rows,
    contrast_words,
    flow_contrast,
    flow_contrast_chart,
)
from tokenpaths.frontend.page.widgets import numbers_behind


def flow(num_tokens: int, stay: float, cross: float) -> dict:
    """One step of two modules: ``stay`` tokens go 0 → 0, ``cross`` 0 → 1."""
    nodes = [(0, 0, stay + cross), (0, 1, 0.0), (1, 0, stay), (1, 1, cross)]
    links = [(0, 0, 0, stay), (0, 0, 1, cross)]
    return {
        "num_tokens": num_tokens,
        "steps": [0, 1],
        "own_modules": False,
        "other": [],
        "nodes": [{"step": s, "module": m, "name": f"block {m}", "kind": "mlp", "count": c} for s, m, c in nodes],
        "links": [{"step": s, "source": a, "target": b, "count": c} for s, a, b, c in links if c],
    }


def test_the_difference_is_of_shares_by_hand():
    made = flow_contrast(flow(10, 8, 2), flow(100, 50, 50))
    at = {(n["step"], n["module"]): (n["after"], n["before"], n["change"]) for n in made["nodes"]}
    assert at[1, 0] == pytest.approx((0.8, 0.5, 0.3))
    assert at[1, 1] == pytest.approx((0.2, 0.5, -0.3))
    assert at[0, 0][2] == pytest.approx(0.0)
    assert {(k["source"], k["target"]): round(k["change"], 6) for k in made["links"]} == {(0, 0): 0.3, (0, 1): -0.3}
    assert contrast_words(made, "cats", "dogs").startswith("They differ most at step 1: 80.0 % of the tokens of cats")


@pytest.mark.parametrize("names", [("cats", "dogs"), ("step", "change"), ("rows", "what"), ("module", "source")])
def test_the_table_keeps_its_columns_whatever_the_labels_are_called(names):
    made = flow_contrast(flow(10, 8, 2), flow(100, 50, 50))
    (row,) = [row for row in contrast_rows(made, names, "links") if row["target"] == 0]
    assert list(row.values()) == [0, 0, 0, 0.8, 0.5, pytest.approx(0.3)]
    assert list(row) == ["step", "source", "target", *(f"tokens of {name}" for name in names), "change"]
    inspect.signature(numbers_behind).bind([row], "ribbons", **dict.fromkeys((*row, *names)))


def test_a_flow_that_only_one_has_counts_from_nothing():
    made = flow_contrast(flow(10, 10, 0), flow(10, 0, 10))
    assert sorted(k["change"] for k in made["links"]) == [-1.0, 1.0]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_equal_flows_are_drawn_without_a_scale_of_nothing(theme):
    made = flow_contrast(flow(10, 8, 2), flow(10, 8, 2))
    assert "same modules" in contrast_words(made, "a", "b")
    text = flow_contrast_chart(made, theme=theme).to_json()
    assert "NaN" not in text
    assert "Infinity" not in text


def test_the_page_shows_both_and_says_when_it_cannot(show):
    page = show(view="routes", run="pictures")
    labels = [label for label in page.selectbox("in_label").options if label != "all labels"]
    page = show(view="routes", run="pictures", label=labels[0], other=labels[1])
    told = [caption.value for caption in page.caption]
    assert any("differ most" in text or "same modules" in text for text in told)
    assert len(page.subheader) >= 2
    assert "Both sides" in words(show(view="routes", run="pictures", label=labels[0], other=labels[0]))


def test_both_sides_have_the_threshold_of_the_address_and_say_what_it_hides(show, monkeypatch):
    from tokenpaths.frontend.views.routes import routes as flow_view

    drawn = []
    true_chart = flow_view.flow_chart
    monkeypatch.setattr(
        flow_view, "flow_chart", lambda flow, **how: drawn.append(how["least"]) or true_chart(flow, **how)
    )
    sides = {"view": "routes", "run": "pictures", "other": "*"}
    labels = [
        label for label in show(view="routes", run="pictures").selectbox("in_label").options if label != "all labels"
    ]
    drawn.clear()
    for hide, said in ((0, 0), (5, 2)):
        page = show(**sides, label=labels[0], hide=hide)
        assert drawn[-2:] == [hide / 100] * 2
        captions = [caption.value.replace("\\", "") for caption in page.caption]
        hidden = [words for words in captions if "of all moves between steps" in words]
        assert len(hidden) == said
        assert all(f"under {hide}.00\xa0% of the tokens" in words for words in hidden)


def test_what_one_side_merged_is_compared_as_it_is(show, monkeypatch):
    from tokenpaths.frontend.views.routes import routes as flow_view

    seen = []
    true_contrast = flow_view.flow_contrast
    monkeypatch.setattr(flow_view, "flow_contrast", lambda *flows: seen.append(flows) or true_contrast(*flows))
    page = show(view="routes", run="pictures")
    first, second = [label for label in page.selectbox("in_label").options if label != "all labels"][:2]
    show(view="routes", run="pictures", label=first, other=second)
    show(view="routes", run="pictures", label=first, other=second, merge=20, hide=5)
    counts = [[{(n["step"], n["module"]): n["count"] for n in flow["nodes"]} for flow in flows] for flows in seen]
    assert counts[0] == counts[1]
    assert all(module >= 0 for flow in counts[1] for _, module in flow)


def test_a_difference_over_many_modules_is_a_map_whose_cells_say_what_both_sides_have():
    made = flow_contrast(flow(10, 8, 2), flow(100, 50, 50))
    drawn = contrast_map_chart(made, names=("a.b", "c[d]"), chosen="1.0").to_dict()
    # Data that every layer shares would stand outside of the layers, where Streamlit turns lists into what Vega cannot
    # flatten, and nothing would be drawn.
    assert "data" not in drawn
    first, second = drawn["layer"][0]["data"]["values"]
    assert (first["module"], first["value"]) == ([0, 1], [0, 0])
    assert (second["module"], second["value"]) == ([0, 1], [0.3, -0.3])
    assert second["words"][0].replace("\xa0", " ") == (
        "step: 1; module: 0; name: block 0; kind: mlp; tokens of a.b: 80.0 %; tokens of c[d]: 50.0 %; "
        "difference: +30.0 points"
    )
    assert all(field.isidentifier() for field in second)
    (frame,) = drawn["layer"][1]["data"]["values"]
    assert (frame["x"], frame["y"]) == (0.5, 0)


def test_labels_of_a_mixture_are_compared_as_maps_until_ribbons_are_asked_for(tmp_path, monkeypatch):
    make_experts("mixture", layers=3, experts=12, top_k=8, samples=6, length=20).write(tmp_path / "data" / "runs")
    with api_for(tmp_path / "data") as served, showing(str(served.client.base_url).rstrip("/"), monkeypatch) as show:

        def said(**more: object) -> str:
            page = show(view="routes", run="mixture", label="code", other="english", **more)
            assert not page.error
            told = [one.value for kind in ("caption", "subheader") for one in page.get(kind)]
            return " ".join([*told, *(one.label for one in page.expander)])

        for more in ({}, {"inspect": "module:1.2", "steps": "1:3"}):
            assert "They differ most at step" in said(**more)
            assert "on one scale for both" in said(**more)
            assert "The numbers behind this: cells" in said(**more)
        assert "The numbers behind this: ribbons" in said(drawn="ribbons")
        assert "on one scale for both" not in said(drawn="ribbons")
