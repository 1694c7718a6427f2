"""Sections of the work view: each mark is a row of the answer, and each sentence is worked out from it."""

from __future__ import annotations

import json
import math

import pytest
import vl_convert

from tests.frontend.test_charts import data_of
from tests.support.runs import open_run
from tokenpaths.frontend.charts import training_curve, work
from tokenpaths.frontend.views.work import sections

IMAGES = open_run(samples=12, modules=8, identities=2, top_k=2)
TEXTS = open_run("text", samples=12, modules=8)
OUTCOMES = {
    "measure": "modules",
    "groups": [
        {
            "lowest": 10.0 * place,
            "value": 10.0 * place + 5,
            "highest": 10.0 * place + 10,
            "right": {"mean": 0.65 - place / 10, "low": 0.6 - place / 10, "high": 0.7 - place / 10},
            "confidence": None,
            "loss": {"mean": 1.0 + place, "low": 0.9 + place, "high": 1.1 + place},
        }
        for place in range(3)
    ],
    "differences": [
        {"outcome": "right", "least": 0.65, "most": 0.45, "difference": 0.2, "low": 0.1, "high": 0.3},
        {"outcome": "loss", "least": 1.0, "most": 3.0, "difference": -2.0, "low": -4.0, "high": 0.1},
    ],
}
HISTORY = [
    {"iteration": 200, "train_loss": 3.5, "val_loss": 3.0},
    {"iteration": 400, "train_loss": 2.5, "val_loss": 2.0},
    {"iteration": 600, "train_loss": 1.5, "val_loss": 2.5, "val_accuracy": float("nan")},
]
PHASES = [
    {"outer": 1, "sizes": [1, 3], "stop_loss": [math.log(100), math.log(200)]},
    {"outer": 2, "sizes": [1, 2], "stop_loss": [math.log(50), None]},
]


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_every_chart_of_work_compiles(theme):
    outcomes = IMAGES.outcomes("modules", groups=2)
    likeness, means = IMAGES.alikeness(), IMAGES.kind_means("compute")
    drawn = [
        *(work.outcome_chart(outcomes, name, unit="images", theme=theme) for name in work.OUTCOMES),
        work.kind_means_chart(means, theme=theme),
        work.kind_means_chart(means, IMAGES.kind_means("compute"), theme=theme),
        work.likeness_chart(likeness, theme=theme),
        work.module_kinds_chart(IMAGES.module_kinds(), theme=theme),
        work.kind_means_chart(TEXTS.kind_means("loss"), theme=theme),
        training_curve.training_curve_chart(HISTORY, theme=theme),
        training_curve.phase_chart(PHASES, theme=theme),
    ]
    for chart in drawn:
        spec = chart.to_dict()
        assert spec["title"]["text"]
        svg = vl_convert.vegalite_to_svg(json.dumps({**spec, "width": 600}, allow_nan=False))
        assert "NaN" not in svg
        assert "undefined" not in svg


def test_outcomes_are_said_with_what_is_sure():
    assert work.outcome_words(OUTCOMES, "right", "images") == (
        "Images that visit the fewest modules are right in 65.0 %, those that visit the most in 45.0 %."
    )
    assert work.outcome_words(OUTCOMES, "loss", "texts") == (
        "Texts that visit the fewest modules have a loss of 1.00 nats, those that visit the most 3.00: "
        "no sure difference."
    )
    assert work.outcome_words(OUTCOMES, "confidence", "images") == ""
    rows = data_of(work.outcome_chart(OUTCOMES, "right", unit="images"), "group", "low")
    assert [(row["group"], row["mean"]) for row in rows] == [(1, 0.65), (2, 0.55), (3, 0.45)]
    table = work.outcome_rows(OUTCOMES)
    assert table[2]["loss, 97.5 %"] == 3.1
    assert "confidence" not in table[0]


def test_means_by_kind_name_the_surest_ends():
    answer = IMAGES.kind_means("reuse")
    rows = data_of(work.kind_means_chart(answer, answer), "difference", "whose")
    assert len(rows) == 2 * len(answer["kinds"])
    assert {row["whose"] for row in rows} == {work.RUN, work.TWIN}
    kind = {
        "mean": 0.5,
        "difference": 0.1,
        "difference_low": 0.05,
        "difference_high": 0.15,
        "kind": "edge",
        "clear": True,
    }
    low = {
        **kind,
        "kind": "background",
        "mean": 0.3,
        "difference": -0.1,
        "difference_low": -0.2,
        "difference_high": -0.05,
    }
    unsure = {**kind, "kind": "flat", "difference": 0.9, "difference_low": -0.1, "difference_high": 2.0, "clear": False}
    told = work.kind_words({"measure": "compute", "kinds": [unsure, kind, low]})
    assert told == "Surely more compute: busy patches (edges) (0.500), least: background (0.300).", "flat has more"
    told = work.kind_words({"measure": "compute", "kinds": [kind, low, {**unsure, "difference": -0.9}]})
    assert told == "Most compute: busy patches (edges) (0.500), surely less: background (0.300)."
    told = work.kind_words({"measure": "compute", "kinds": [low, {**unsure, "difference": -0.9}]})
    assert told == "Surely less compute: background (0.300)."
    assert "No kind" in work.kind_words({"measure": "loss", "kinds": [unsure]})
    one_of_many = {**kind, "clear": False}  # its own interval leaves 0 out, those of all kinds together do not
    assert "No kind" in work.kind_words({"measure": "loss", "kinds": [unsure, one_of_many]})


def test_likeness_says_what_places_and_the_untrained_model_give():
    answer = IMAGES.alikeness()
    row = answer["looks"][0]
    assert [one["rank"] for one in data_of(work.likeness_chart(answer), "rank", "low")] == [
        one["rank"] for one in row["paths"]
    ]
    told = {**row, "likeness": 0.567, "null_mean": 0.01, "p_value": 0.01, "untrained": 0.85, "trained": 0.53}
    assert work.likeness_words({"looks": [told]}) == (
        "Patches of one path are alike in colour: 0.567, where 1 is equal and places alone give 0.010; "
        "before training they were more alike (0.850, now 0.530 on the same tokens)."
    )
    assert "places alone give 0;" in work.likeness_words({"looks": [{**told, "null_mean": 0.0000401}]})
    # Above the mean of the exchanges, but not above them all: the sentence says between what they lie.
    told |= {"p_value": 0.1, "untrained": None, "likeness": 0.234, "null_mean": 0.134, "null_low": -0.02}
    assert work.likeness_words({"looks": [{**told, "null_high": 0.3}]}) == (
        "Patches of one path are not surely more alike in colour than by chance: 0.234 (1 = equal), and places alone "
        "give −0.0200 to 0.300."
    )
    trace = {**told, "look": "word_class", "p_value": 0.01, "likeness": 0.00121, "null_mean": 0.0002}
    assert work.likeness_words({"looks": [trace]}) == (
        "Words of one path are only a trace more alike in kind than by chance: 0.00121, where 1 is equal and places "
        "alone give 0.000200."
    )


def test_likeness_whose_interval_holds_chance_is_not_told_as_sure():
    row = IMAGES.alikeness()["looks"][0] | {"likeness": 0.252, "null_mean": 0.001, "p_value": 0.01, "untrained": None}
    told = work.likeness_words({"looks": [row | {"low": -0.0016, "high": 0.505}]})
    assert told == (
        "Patches of one path are alike in colour: 0.252, where 1 is equal and places alone give 0.001; but samples "
        "differ so much that it could be chance (95 % −0.00160 to 0.505)."
    )
    assert "could be chance" not in work.likeness_words({"looks": [row | {"low": 0.1, "high": 0.4}]})
    assert "could be chance" not in work.likeness_words({"looks": [row | {"low": None, "high": None}]})


def test_nothing_is_called_grey_where_no_path_is_drawn():
    answer = IMAGES.alikeness()
    drawn = sections.how_sure_of_likeness({}, answer | {"untrained_reason": None})
    assert "Grey: 95 % of 99 exchanges" in drawn
    none = answer | {"looks": [{**answer["looks"][0], "paths": []}], "untrained_reason": None}
    told = sections.how_sure_of_likeness({}, none)
    assert "to be drawn. 95 % of 99 exchanges" in told
    assert "Grey" not in told


def test_whole_images_are_not_called_patches():
    told = {**IMAGES.alikeness()["looks"][0], "likeness": 0.5, "null_mean": -0.001, "p_value": 0.01, "untrained": None}
    whole = work.likeness_words({"looks": [told]}, whole=True)
    assert whole == "Images of one path are alike in colour: 0.500, where 1 is equal and chance alone gives −0.001."
    kinds = [{"by": "patch", "kind": "edge"}, {"by": "region", "kind": "sky"}]
    assert sections.of_images({"kinds": kinds})["kinds"] == kinds[1:]


def test_of_two_kinds_of_modules_one_is_drawn_and_of_many_three():
    share = {"step": 0, "low": 0.1, "high": 0.9, "even": 0.5, "untrained": None}
    two = [{**share, "kind": "attention", "share": 0.7}, {**share, "kind": "mlp", "share": 0.3}]
    assert work.drawn_kinds(two) == ["mlp"]
    many = [{**share, "kind": kind, "share": place / 10} for place, kind in enumerate("abcd", 1)]
    assert work.drawn_kinds(many) == ["d", "c", "b"]
    answer = IMAGES.module_kinds()
    rows = data_of(work.module_kinds_chart(answer), "step", "share")
    assert {row["kind"] for row in rows} == set(work.drawn_kinds(answer["shares"]))
    assert "take most at step" in work.kind_share_words(answer)


def test_training_is_read_from_the_checkpoint():
    model = {"config": {"training": {"history": HISTORY}}}
    assert training_curve.history_of(model) == HISTORY
    for nothing in ({}, {"config": None}, {"config": {"training": 3}}, {"config": {"training": {"history": "x"}}}):
        assert training_curve.history_of(nothing) == []
    assert training_curve.curve_words(HISTORY) == (
        "The validation loss fell from 3.00 to 2.50 nats, from iteration 200 to 600; it was lowest at iteration 400 "
        "(2.00)."
    )
    assert training_curve.curve_words(HISTORY[:1]) == ""
    rows = data_of(training_curve.training_curve_chart(HISTORY), "iteration", "set")
    assert len(rows) == 6


def test_a_training_loss_of_other_labels_than_the_datas_is_named_so():
    def name(**recipe):
        return training_curve.training_loss_name({"config": {"training": {"recipe": recipe}}})

    assert name() == name(label_smoothing=0.0, augment={"mix": 0.0}) == name(augment=None) == "training"
    assert name(label_smoothing=0.1, augment={"mix": 0.0}) == "training, labels smoothed"
    assert name(label_smoothing=0.1, augment={"mix": 0.5}) == "training, labels smoothed and mixed"
    for nothing in ({}, {"config": {"training": 3}}, {"config": {"training": {"recipe": []}}}):
        assert training_curve.training_loss_name(nothing) == "training"
    chart = training_curve.training_curve_chart(HISTORY, training="training, labels smoothed")
    assert {row["set"] for row in data_of(chart, "iteration", "set")} == {"training, labels smoothed", "validation"}


def test_perplexity_by_phase_weights_paths_by_their_predictions_where_these_are_kept():
    (row,) = training_curve.phase_rows([{**PHASES[0], "stop_count": [3, 1]}])
    assert row["perplexity"] == pytest.approx(100**0.75 * 200**0.25)


def test_perplexity_by_phase_weights_paths_by_their_documents():
    first, second = training_curve.phase_rows([*PHASES, {"outer": 3, "stop_loss": 2.0}, {"iteration": 4}])
    assert first["perplexity"] == pytest.approx(100**0.25 * 200**0.75)
    assert (first["low"], first["high"]) == (pytest.approx(100), pytest.approx(200))
    assert second == {
        "phase": 2,
        "perplexity": pytest.approx(50),
        "low": pytest.approx(50),
        "high": pytest.approx(50),
        "paths": 1,
    }
    assert training_curve.phase_words(PHASES).startswith("Perplexity fell from 168 after phase 1 to 50.0 after phase 2")
    assert training_curve.phase_words(HISTORY) == ""
