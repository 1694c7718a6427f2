"""The section on close decisions, its chart, and the words of unused slots."""

from __future__ import annotations

from tokenpaths.frontend.charts.margins import margin_chart, margin_words
from tokenpaths.frontend.views.modules.margins import pair_rows
from tokenpaths.frontend.views.modules.modules import unused_words

ANSWER = {
    "close": 0.05,
    "steps": [
        {"step": 0, "num": 40, "close": 0.1, "median": 0.3},
        {"step": 1, "num": 40, "close": 0.75, "median": 0.02},
        {"step": 2, "num": 0, "close": None, "median": None},
    ],
    "pairs": [
        {"step": 0, "winner": 1, "runner_up": 2, "share": 0.25, "mean": 0.3},
        {"step": 1, "winner": 4, "runner_up": 3, "share": 0.5, "mean": 0.01},
    ],
}


def test_the_chart_shows_known_steps_and_says_which_are_closest():
    assert margin_words(ANSWER) == (
        "At step 1 75.0 % of the decisions were close, at step 0 10.0 %: the runner-up was less than 0.05 behind, in "
        "probability."
    )
    drawn = margin_chart(ANSWER).to_dict()
    (data,) = drawn["datasets"].values()
    assert [(row["step"], row["close"]) for row in data] == [(0, 0.1), (1, 0.75)]
    assert margin_words({"close": 0.05, "steps": []}) == ""


def test_pairs_stand_by_their_share():
    assert [row["decision"] for row in pair_rows(ANSWER)] == ["4 → 3", "1 → 2"]


def test_unused_slots_are_said_only_where_k_varies():
    steps = [{"step": 0, "unused": 0.0}, {"step": 1, "unused": 0.062}]
    words = unused_words({"steps": steps})
    assert words.startswith("k varies: 3.1")
    assert "most at step 1" in words
    assert unused_words({"steps": [{"step": 0, "unused": None}]}) == ""
