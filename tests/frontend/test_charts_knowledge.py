"""Charts and sentences of what paths know and of searched tokens: every mark is a row of the answer."""

from __future__ import annotations

import json

import pytest

from tests.frontend.test_charts import data_of
from tokenpaths.frontend import charts
from tokenpaths.frontend.charts import knowledge, paths
from tokenpaths.frontend.views.paths.knowledge import _first

PROPERTY = {
    "values": 5,
    "nmi": 0.3,
    "null_mean": 0.1,
    "null_low": 0.08,
    "null_high": 0.12,
    "p_value": 0.005,
    "clear": True,
    "num_tokens": 900,
}
KNOWN = {
    "shuffles": 200,
    "properties": [
        {**PROPERTY, "property": "token_id", "shuffled": "sequences"},
        {**PROPERTY, "property": "label", "shuffled": "samples", "nmi": 0.1, "p_value": 0.4, "clear": False},
    ],
}
PATH = {"ribbon": [[1], [2]], "share_of_all": 0.1, "of": 50}
MODULE = {"name": "block", "kind": "mlp", "count": 9, "share": 0.5, "share_of_others": 0.2}
FOUND = {
    "found": {"num_tokens": 20, "share": 0.02, "num_samples": 4},
    "counted": {"num_tokens": 1000, "of_tokens": 1000, "num_samples": 40, "of_samples": 40, "exact": True},
    "num_paths": 3,
    "paths": [
        {**PATH, "rank": 7, "count": 4, "share": 0.2, "lift": 4.0, "low": 1.5, "high": 7.0, "clear": True},
        {**PATH, "rank": 2, "count": 12, "share": 0.6, "lift": 3.0, "low": 2.5, "high": 3.5, "clear": True},
        {**PATH, "rank": 1, "count": 4, "share": 0.2, "lift": 0.5, "low": None, "high": None, "clear": False},
    ],
    "modules": [
        {**MODULE, "step": 0, "module": 3, "delta": 0.3, "low": 0.2, "high": 0.4, "clear": True},
        {**MODULE, "step": 1, "module": 1, "delta": -0.3, "low": -0.5, "high": -0.1, "clear": True},
        {**MODULE, "step": 1, "module": 2, "delta": 0.01, "low": -0.1, "high": 0.12, "clear": False},
    ],
    "modules_reason": None,
}


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_every_property_and_module_is_a_mark(theme):
    drawn = charts.knowledge_chart(KNOWN, theme=theme)
    rows = data_of(drawn, "beyond", "low", "high")
    assert {(row["name"], row["what"]) for row in rows} == {
        ("token id", "more than chance"),
        ("label of the sample", "no more than chance"),
    }
    assert "NaN" not in json.dumps(drawn.to_dict())
    rows = data_of(charts.contrast_chart(FOUND, theme=theme), "delta", "low")
    assert [(row["name"], row["delta"], row["what"]) for row in rows] == [
        ("step 0 · module 3", 30.0, "more than others"),
        ("step 1 · module 1", -30.0, "less than others"),
        ("step 1 · module 2", 1.0, "not surely different"),
    ]


def test_the_axis_has_numbers_that_can_be_read_where_every_shuffle_gives_the_same():
    same = {"nmi": 0.2326214778296001, "null_mean": 0.2326214778296, "p_value": 1.0, "clear": False}
    same |= {"null_low": same["nmi"], "null_high": same["nmi"]}  # the mean differs by rounding
    drawn = charts.knowledge_chart(KNOWN | {"properties": [row | same for row in KNOWN["properties"]]})
    assert {(row["beyond"], row["low"], row["high"], row["above"]) for row in data_of(drawn, "beyond")} == {
        (0, 0, 0, "0")
    }
    domains = [part["scale"]["domain"] for part in layers_x(drawn) if part.get("scale")]
    assert domains
    assert all(domain == [-0.01, 0.01] for domain in domains)


def layers_x(chart) -> list:
    return [layer["encoding"]["x"] for layer in chart.to_dict()["layer"]]


def test_sentences_say_what_stands_in_the_answer():
    assert knowledge.knowledge_words(KNOWN) == (
        "Paths predict token id better than chance, but not label of the sample."
    )
    assert knowledge.knowledge_words({"properties": KNOWN["properties"][1:]}) == (
        "Paths predict none of these better than chance."
    )
    # Path 7 has the larger lift, but most of them take path 2, and surely more often than all tokens do.
    assert knowledge.preferred_path(FOUND)["rank"] == 2
    assert knowledge.preferred_words(FOUND) == (
        "They prefer the path of rank 2: 60.0 % of them take it, 3.00 times as often as all tokens do "
        "(95 %: 2.50 to 3.50)."
    )
    assert "None of their paths" in knowledge.preferred_words({**FOUND, "paths": FOUND["paths"][2:]})
    assert knowledge.contrast_words(FOUND) == (
        "They choose module 3 at step 0 more often than the other tokens: 50.0 % of them, 20.0 % of the others."
    )
    assert knowledge.search_words(FOUND, "“the”") == "20 tokens (2.00 %) of 4 samples are “the”; they take 3 paths."
    drawn = {
        **FOUND,
        "counted": {**FOUND["counted"], "of_tokens": 9000, "exact": False},
        "found": {**FOUND["found"], "low": 0.01, "high": 0.03},
    }
    assert "Counted on 1,000 of 9,000 tokens, in 40 whole samples drawn by hash" in knowledge.search_words(drawn, "x")


def test_the_plainer_answer_comes_first():
    """A module that 30 points more of them choose says more than a path of 50 points more, or the other way round."""
    assert not knowledge.modules_first(FOUND)  # path 2: 60 % of them, 10 % of all
    rare = {**FOUND, "paths": [{**FOUND["paths"][1], "share": 0.02, "share_of_all": 0.01}]}
    assert knowledge.modules_first(rare)
    assert knowledge.module_words(knowledge.preferred_module(rare)) == (
        "Above all they choose module 3 at step 0: 50.0 % of them, 20.0 % of the others."
    )
    assert not knowledge.modules_first({**rare, "modules": FOUND["modules"][1:]})
    assert knowledge.modules_first({**FOUND, "paths": []})


TWIN = {
    "untrained_nmi": 0.2,
    "untrained_null_mean": 0.15,
    "untrained_null_low": 0.1,
    "untrained_null_high": 0.18,
    "untrained_p_value": 0.01,
    "untrained_clear": True,
}


def test_the_untrained_twin_stands_below_the_run_beside_the_same_shuffles():
    first, second = KNOWN["properties"]
    both = {**KNOWN, "properties": [{**first, **TWIN}, {**second, **TWIN}]}
    rows = data_of(charts.knowledge_chart(both), "beyond", "low", "high")
    null, own_null = first["null_mean"], TWIN["untrained_null_mean"]
    expected = [
        ("token id", "this run", 0.3 - null, 0.08 - null),
        ("label of the sample", "this run", 0.1 - second["null_mean"], 0.08 - second["null_mean"]),
        ("token id", "untrained twin", 0.2 - own_null, 0.1 - own_null),
        ("label of the sample", "untrained twin", 0.2 - own_null, 0.1 - own_null),
    ]
    assert [(row["name"], row["whose"]) for row in rows] == [one[:2] for one in expected]
    for row, one in zip(rows, expected, strict=True):
        assert (row["beyond"], row["low"]) == pytest.approx(one[2:])
    assert knowledge.knowledge_words(both).endswith(
        "The untrained model's paths predict the same and label of the sample. Beyond what shuffling gives, they tell "
        "less than this run of token id."
    )
    assert knowledge.knowledge_rows(both)[0]["untrained NMI"] == 0.2
    blind = {**KNOWN, "properties": [{**first, **TWIN, "untrained_p_value": 0.3, "untrained_clear": False}]}
    assert knowledge.knowledge_words(blind).endswith("The untrained model's paths predict none of these.")
    alone = {**KNOWN, "properties": [{**first, **TWIN, "p_value": 0.5, "clear": False, "nmi": first["null_mean"]}]}
    assert knowledge.knowledge_words(alone) == (
        "Paths predict none of these better than chance. The untrained model's paths predict token id."
    )
    assert "untrained NMI" not in knowledge.knowledge_rows(KNOWN)[0]


def test_the_sentence_about_the_twin_compares_what_the_chart_lets_one_compare():
    """Rare paths have a high NMI with everything, and so have their shuffles: compared is the distance from them."""
    right = {**TWIN, "untrained_nmi": 0.8, "untrained_null_mean": 0.75}  # right of the run's, nearer to its shuffles
    rows = [{**PROPERTY, "property": name, "shuffled": "sequences", **right} for name in ("token_id", "word_class")]
    assert knowledge.knowledge_words({"properties": rows}) == (
        "Paths predict token id and kind of word better than chance. The untrained model's paths predict the same. "
        "Beyond what shuffling gives, they tell less than this run of each."
    )
    as_much = {**right, "untrained_null_mean": 0.5}
    mixed = {"properties": [{**rows[0], **as_much}, rows[1]]}
    assert knowledge.knowledge_words(mixed).endswith(
        "they tell less than this run of kind of word, and at least as much of token id."
    )
    assert knowledge.knowledge_words({"properties": [{**rows[0], **as_much}]}).endswith(
        "they tell at least as much as this run of token id."
    )
    some = {"properties": [rows[0], {**rows[1], "untrained_p_value": 0.5, "untrained_clear": False}]}
    assert "The untrained model's paths predict token id. " in knowledge.knowledge_words(some)
    drawn = data_of(charts.knowledge_chart(mixed), "beyond")
    beyond = {(row["name"], row["whose"]): row["beyond"] for row in drawn}
    assert beyond["token id", "untrained twin"] >= beyond["token id", "this run"]
    assert beyond["kind of word", "untrained twin"] < beyond["kind of word", "this run"]


LAW = {"alpha": 2.0, "alpha_error": 0.1, "x_min": 3, "num_tail": 60, "num_paths": 100}
BETTER = {"ratio": -3.0, "p_value": 0.001}


@pytest.mark.parametrize(
    ("law", "sentence"),
    [
        (
            {**LAW, "p_value": 1 / 101, "lognormal": BETTER},
            "A pure power law does not fit (p ≤ 0.01, none of 100 simulations); a lognormal fits better.",
        ),
        (
            {**LAW, "p_value": 0.5, "lognormal": BETTER},
            "A pure power law is plausible (p = 0.50, 100 simulations), but a lognormal fits better.",
        ),
        (
            {**LAW, "p_value": 0.5, "lognormal": {"ratio": -1.0, "p_value": 0.3}},
            "A pure power law is plausible (p = 0.50, 100 simulations); a lognormal fits about as well.",
        ),
        (
            {**LAW, "p_value": 0.5, "lognormal": {"ratio": 3.0, "p_value": 0.01}},
            "A pure power law is plausible (p = 0.50, 100 simulations); a lognormal fits worse.",
        ),
        ({"num_paths": 3, "reason": "3 paths are too few"}, "No power law is fitted: 3 paths are too few."),
    ],
)
def test_the_verdict_on_a_law(law, sentence):
    assert paths.verdict_words(law) == sentence


def test_the_table_of_laws_has_a_row_for_whatever_was_traced():
    curves = {"observed": {"num_paths": 100, "slope": -1.2}, "independent": {"num_paths": 9, "slope": None}}
    fit = {**curves, "untrained": None}
    refused = paths.law_rows(fit, {"observed": {**LAW, "p_value": 1 / 101, "lognormal": BETTER}, "draws": 100})
    assert refused[0]["p"] == "≤ 0.01"  # 101 data sets tell no smaller one
    rows = paths.law_rows(fit, {"observed": {**LAW, "p_value": None, "lognormal": BETTER}, "independent": None})
    assert [(row["whose"], row["slope"], row["α"], row["p"], row["lognormal"]) for row in rows] == [
        ("this run", "−1.20", "2.00 ± 0.10", "–", "−3.00"),
        ("independent steps", "–", "–", "–", "–"),
    ]


@pytest.mark.parametrize(
    ("observed", "independent", "said"),
    [
        ((300, 40), (300, 90), "300 tokens take 40 paths, 90 if steps were independent; the most frequent one has "),
        ((300, 40), (200, 90), "300 tokens take 40 paths; the most frequent one has "),
        ((300, 40), None, "300 tokens take 40 paths; the most frequent one has "),
        ((300, 300), (300, 300), "Each of the 300 tokens takes a path of its own."),
    ],
)
def test_the_number_of_paths_is_said_beside_that_of_independent_steps(observed, independent, said):
    def curve(counts):
        points = [{"share": 0.05, "cdf_middle": 0.025}]
        return {"num_tokens": counts[0], "num_paths": counts[1], "points": points} if counts else None

    words = paths.count_words({"observed": curve(observed), "independent": curve(independent)})
    assert words == said or words == said + "5.00 % of the tokens."


def test_paths_that_are_equally_frequent_are_not_called_the_most_frequent_one():
    tied = {"num_tokens": 300, "num_paths": 40, "points": [{"share": 0.05, "cdf_middle": 0.3}]}
    words = paths.count_words({"observed": tied})
    assert words == "300 tokens take 40 paths; the 12 most frequent have 5.00 % of the tokens each."


@pytest.mark.parametrize(
    ("further", "said"),
    [
        (0, "A pure power law does not fit"),
        (4, "A pure power law does not fit"),
        (9, "Whether a pure power law fits is open (p = 0.099, 100 simulations: too few to tell it from 0.1)"),
        (12, "Whether a pure power law fits is open"),
        (30, "A pure power law is plausible"),
    ],
)
def test_a_p_value_beside_its_threshold_is_no_verdict(further: int, said: str) -> None:
    assert paths.verdict_words(LAW | {"p_value": (1 + further) / 101}).startswith(said)


@pytest.mark.parametrize("clear", [True, False])
def test_the_most_specific_of_many_is_called_so_as_surely_as_it_is(clear):
    row = {"step": 1, "module": 3, "label": "cat", "share": 0.5, "base": 0.25, "lift": 2.0, "low": 1.2, "high": 3.0}
    answer = {"label": None, "num_candidates": 30, "rows": [row | {"clear": clear}]}
    told = _first(answer, "module")
    assert "Module 3 at step 1 is the most specific of 30 modules" in told
    assert told.startswith("No module is surely specific to a label. ") is not clear
    assert told.endswith("by chance.") is not clear
