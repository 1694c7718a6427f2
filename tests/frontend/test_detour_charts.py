"""The charts of what an edit changed: they compile, ask a question and share one diverging scale."""

from __future__ import annotations

import json

import pytest
import vl_convert

from tokenpaths.frontend.charts import effects
from tokenpaths.frontend.charts.drawing.choices import choices_of
from tokenpaths.frontend.charts.drawing.palette import DIVERGING
from tokenpaths.frontend.page.selection import from_query
from tokenpaths.frontend.views.detour.result import after_words
from tokenpaths.frontend.views.detour.sweep import opened_by

LINKS = [
    {"step": 0, "source": 1, "target": 2, "before": 0.5, "after": 0.1, "change": -0.4},
    {"step": 0, "source": 1, "target": 3, "before": 0.0, "after": 0.4, "change": 0.4},
    {"step": 1, "source": 3, "target": 0, "before": 0.0, "after": 0.1, "change": 0.1},
]


TOP5 = {
    "before": [{"name": "cat", "probability": 0.6}, {"name": " dog", "probability": 0.3}],
    "after": [{"name": "cat", "probability": 0.4}, {"name": "\n", "probability": 0.5}],
}


ROWS = [
    {
        "module": module,
        "step": step,
        "name": f"m{module}",
        "loss_change": change,
        "loss_error": 0.01,
        "kl": abs(change),
        "paths_changed_after": 0.2,
        "problem": None,
        "share": None,
        "which": None,
    }
    for module, step, change in [(0, 0, 0.3), (0, 1, -0.1), (0, None, 0.5), (1, 0, 0.0)]
] + [
    {
        "module": 1,
        "step": None,
        "name": "m1",
        "loss_change": None,
        "loss_error": None,
        "kl": None,
        "paths_changed_after": None,
        "problem": "too few are left",
        "share": None,
        "which": None,
    }
]


SHARES = [
    {"share": share, "which": which, "loss_change": share * place, "loss_error": None, "kl": 0.1, "module": None}
    for share in (0.1, 0.5)
    for place, which in enumerate(("top", "bottom", "random"))
]


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_every_chart_compiles_and_asks_a_question(theme):
    for chart in (
        effects.flow_difference_chart({"links": LINKS}, theme=theme),
        effects.answers_chart(TOP5, theme=theme),
        *(effects.importance_chart(ROWS, measure=m, theme=theme) for m in effects.MEASURES),
        effects.share_chart(SHARES, theme=theme),
        effects.flow_difference_chart({"links": []}, theme=theme),
    ):
        spec = chart.to_dict()
        assert spec["title"]["text"].endswith("?")
        vl_convert.vegalite_to_vega(json.dumps(spec))


def _scales(spec: object) -> list[dict]:
    if isinstance(spec, dict):
        own = [spec["scale"]] if isinstance(spec.get("scale"), dict) and "range" in spec["scale"] else []
        return own + [scale for part in spec.values() for scale in _scales(part)]
    return [scale for part in spec for scale in _scales(part)] if isinstance(spec, list) else []


def test_differences_have_one_diverging_scale_with_zero_in_the_middle():
    for chart in (effects.flow_difference_chart({"links": LINKS}), effects.importance_chart(ROWS)):
        (scale,) = [scale for scale in _scales(chart.to_dict()) if DIVERGING["light"][0] in scale["range"]]
        low, middle, high = scale["domain"]
        assert (middle, low) == (0, -high)
        assert (scale["range"][0], scale["range"][2]) == DIVERGING["light"]


def test_a_sweep_says_of_how_many_samples_it_took_some():
    from tokenpaths.frontend.views.detour.sweep import samples_told

    told = [samples_told({"num_samples": 64} | more) for more in ({}, {"of_samples": 64}, {"of_samples": 3000})]
    assert told == ["64 samples", "64 samples", "64 of 3,000 samples"]


def test_answers_before_and_after():
    rows = {row["answer"]: (row["before"], row["after"]) for row in effects.answer_rows(TOP5)}
    assert rows == {"cat": (0.6, 0.4), "\n": (None, 0.5), " dog": (0.3, None)}
    seen = [effects.answer_words(one) for one in (" dog", "\n", "Persian cat", " ")]
    assert seen == ["␣dog", "⏎", "Persian cat", "␣"]


def test_what_would_come_next_is_said_to_be_after_the_last_token_and_what_has_one_mark():
    assert effects.answers_caption(TOP5) == (
        "Circle: before; diamond: after; without a circle: not among the 2 likeliest before; "
        "without a diamond: not among the 2 likeliest after."
    )
    assert effects.answers_caption({"before": TOP5["before"], "after": TOP5["before"]}) == (
        "Circle: before; diamond: after."
    )
    tokens = [{"token": 0, "text": "a"}, {"token": 1, "text": "\n"}]
    assert after_words(tokens) == "After the last token of the text, 1 “↵”, whichever token is chosen."
    assert after_words([{"token": 1408, "text": None}]).startswith("After the last token of the text, 1,408, ")


def test_every_cell_of_the_heat_map_opens_a_module():
    choices = choices_of(effects.importance_chart(ROWS), (effects.CELL_PICK,))
    opened = {choice.value: opened_by(choice.value, ROWS, "loss_change") for choice in choices}
    assert opened == {"0.0": "0.0", "0.1": "0.1", "1.0": "1.0", "all.0": "0.0", "all.1": "0.1"}
    assert opened_by("all.0", [*ROWS[1:], {**ROWS[0], "loss_change": None}], "loss_change") == "1.0"
    assert opened_by("all.7", ROWS, "kl") == "0.7"
    for node in opened.values():
        assert not from_query({"inspect": f"module:{node}"})[1]


def test_a_sweep_begins_with_the_module_that_matters_most():
    assert effects.importance_words(ROWS, "loss_change") == (
        "Banned at one step, module 0 at step 0 raises the loss most (+0.300 ± 0.010); banned at every step, module 0 "
        "does (+0.500 ± 0.010)."
    )
    assert effects.importance_words(ROWS[1:2], "kl") == (
        "Banned at one step, module 0 at step 1 changes the answers most (0.100)."
    )
    assert effects.importance_words(ROWS[1:2], "loss_change") == "", "no ban raises the loss"
    noise = [{**row, "loss_change": 0.01, "loss_error": 0.009} for row in ROWS if row.get("module") is not None]
    assert effects.importance_words(noise, "loss_change") == (
        "Banned at one step, no module surely raises the loss; banned at every step, no module surely raises the loss."
    )
    alike = [{**row, "kl": 0.1} for row in ROWS if row.get("module") is not None and row["step"] is not None]
    assert f"changes the answers most (0.100, as do {len(alike) - 1} others)." in effects.importance_words(alike, "kl")
