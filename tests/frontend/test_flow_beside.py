"""Two labels side by side: the difference by hand, and the page."""

from __future__ import annotations

import inspect

import pytest

from tests.frontend.test_pages import api, words  # noqa: F401 (fixtures)
from tokenpaths.frontend.charts.flow.flow_contrast import (
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
