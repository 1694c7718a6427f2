"""Several runs: their labels, the sentence, what is marked, flows at one scale, maps of a training; pure functions."""

from __future__ import annotations

import json

import pytest

from tokenpaths.frontend.charts.flow.flow_contrast import flow_contrast_chart
from tokenpaths.frontend.charts.flow.layout import flow_layout
from tokenpaths.frontend.charts.several_runs import numbers_table as table
from tokenpaths.frontend.charts.several_runs.run_labels import run_labels, short_names, without_middle
from tokenpaths.frontend.charts.several_runs.small_flows import alike_flows, as_maps, largest_circles
from tokenpaths.frontend.charts.several_runs.training_maps import (
    places_of,
    training_map,
    training_map_rows,
    training_words,
    with_saturation,
)
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.compare.compared import groups_of, names_compared, pair_of
from tokenpaths.frontend.views.compare.training import _untrained_usage


def test_cells_without_a_token_are_not_called_dead_modules() -> None:
    """Their sum over steps may be larger than the number of modules of which none is dead."""
    assert table.name_words("dead_modules") == "cells without a token"


def test_effective_paths_are_no_more_than_different_ones_in_digits_either():
    assert (table.value_words("num_paths", 4096), table.value_words("effective_paths", 4096.0)) == ("4,096", "4,096")
    assert table.value_words("equal_effective_paths", 12.345) == "12.3"
    assert table.value_words("effective_paths", None) == "–"


def test_a_difference_is_marked_only_where_its_interval_excludes_zero() -> None:
    clear = {"value": 0.2, "low": 0.1, "high": 0.3, "num": 9, "clear": True}
    vague = {"value": 0.1, "low": -0.1, "high": 0.3, "num": 9, "clear": False}
    labels = {name: f"<{name}>" for name in "ABC"}
    html = table.runs_table_html(answer_of_numbers(None, vague, clear), labels)
    assert html.count("▲") == 1
    assert "clearly higher than &lt;A&gt;: +0.200 (+0.100 … +0.300)" in html
    assert "<A>" not in html
    words = table.runs_words(answer_of_numbers(None, vague, clear), labels)
    assert words == (
        "All 3 runs are over the same 9 samples. Compared with <A>: loss (nats) is higher in <C> (2.20 instead of "
        "2.00)."
    )
    words = table.runs_words(answer_of_numbers(None, vague), labels)
    assert words == (
        "Both runs are over the same 9 samples. No number differs clearly from <A>: every 95 % interval includes zero."
    )
    apart = answer_of_numbers(None, None)
    apart["runs"][1] |= {"same_samples": False, "num_common": 0}
    assert table.runs_words(apart, labels) == f"<B> has none of the 9 samples of <A>. {table.OWN_NUMBERS}"
    assert "each run’s own" in table.OWN_NUMBERS, "below it stands which run has more"
    assert [row["clear"] for row in table.difference_rows(answer_of_numbers(None, vague, clear), labels)] == [
        "no",
        "yes",
    ]
    lower = {**clear, "value": -0.2, "low": -0.3, "high": -0.1}
    assert "▼" in table.runs_table_html(answer_of_numbers(None, lower), labels)
    answer = answer_of_numbers(None, vague, clear)
    assert table.number_title(answer["rows"][0], answer["runs"], labels) == "Loss (nats) is lowest in <A>: 2.00"
    paths = {**answer["rows"][0], "name": "equal_effective_paths", "values": [500.0, 500.0, 90.0]}
    assert table.number_title(paths, answer["runs"], labels) == "Effective paths, equal tokens are lowest in <C>: 90.0"
    assert table.number_title({**paths, "values": [500.0, 90.0, 90.0]}, answer["runs"], labels).endswith("<A>: 500")
    four = ({**paths, "values": [1.0, 1.0, 2.0, 2.0]}, [*answer["runs"], {"run": "D"}], {**labels, "D": "<D>"})
    assert table.number_title(*four).endswith("are highest in <C> and <D>: 2.00")


def test_runs_without_common_samples_are_listed_as_in_a_sentence() -> None:
    runs = [{"run": name, "num_samples": 16, "num_common": 0, "same_samples": False} for name in "ABC"]
    told = table._samples_words(runs[0], runs[1:], {name: name for name in "ABC"})
    assert told == "None of the 2 other runs is over exactly the 16 samples of A; B and C have none."


def test_a_number_that_is_the_same_everywhere_has_one_tick_that_can_be_read() -> None:
    answer, labels = answer_of_numbers(None, None, None), {name: name for name in "ABC"}
    same = {**answer["rows"][0], "name": "mean_reuse", **dict.fromkeys(("values", "low", "high"), [0.0] * 3)}
    axes = [
        layer["encoding"]["x"]["axis"]
        for layer in table.number_chart(same, answer["runs"], labels=labels).to_dict()["layer"]
        if "axis" in layer["encoding"]["x"]
    ]
    assert [(axis["values"], axis["labelExpr"]) for axis in axes] == [([0.0], "'0'")]


def test_a_first_run_without_the_number_is_said_and_has_no_line() -> None:
    answer, labels = answer_of_numbers(None, None, None), {name: name for name in "ABC"}
    row = answer["rows"][0]

    def drawn(row: dict) -> dict:
        return table.number_chart(row, answer["runs"], labels=labels).to_dict()

    spec = drawn(row)
    (dashed,) = [layer for layer in spec["layer"] if "strokeDash" in layer["mark"]]
    assert [one["run"] for one in spec["datasets"][dashed["data"]["name"]]] == ["A"]
    without = drawn({**row, "values": [None, *row["values"][1:]]})
    assert not [layer for layer in without["layer"] if "strokeDash" in layer["mark"]]
    words = str(without["title"]["subtitle"])
    assert "A, the first run, does not have this number." in words
    assert "Dashed" not in words


def test_runs_of_counts_have_no_samples_to_compare() -> None:
    labels = {name: name for name in "ABC"}

    def words(*counted: str) -> str:
        answer = answer_of_numbers(None, None)
        for run in answer["runs"]:
            if run["run"] in counted:
                run |= {"kind": "load", "num_samples": None, "num_tokens": None, "same_samples": False, "num_common": 0}
        return table.runs_words(answer, labels)

    assert words("A", "B") == f"Runs of counts have no samples to compare. {table.OWN_NUMBERS}"
    assert words("A").startswith("A is a run of counts: it has no samples that others could be compared on")
    assert words("B").startswith("B has none of the 9 samples of A.")


def test_what_samples_the_others_have_is_said_in_plain_words() -> None:
    labels = {name: name for name in "ABC"}
    some = answer_of_numbers(None, None, None)
    some["runs"][1] |= {"same_samples": False, "num_common": 4}
    assert table.runs_words(some, labels).startswith(
        "1 of the 2 other runs is over exactly the 9 samples of A; B has 4 of them."
    )
    some["runs"][2] |= {"same_samples": False, "num_common": 0}
    assert table.runs_words(some, labels).startswith(
        "None of the 2 other runs is over exactly the 9 samples of A; B has 4 of them, C has none."
    )
    assert table.name_words("mean_reuse") == "reuse per token"  # Samples gives means per sample


def test_the_untrained_column_has_shares_of_tokens_as_every_checkpoint_has() -> None:
    cells = [{"step": 0, "module": m, "count": 9, "utilisation": 1.5, "share": 0.9} for m in range(3)]
    twin = {"counts": [[12, 6, 2]], "num_tokens": 10}
    usage = _untrained_usage({"usage": cells, "steps": []}, twin)
    assert [cell["share"] for cell in usage["usage"]] == pytest.approx([1.2, 0.6, 0.2]), "top-2: they sum to 2"
    assert [cell["utilisation"] for cell in usage["usage"]] == pytest.approx([1.8, 0.9, 0.3])


def test_flows_side_by_side_have_one_scale_and_one_order() -> None:
    def node(step: int, module: int, count: int) -> dict:
        return {"step": step, "module": module, "name": str(module), "kind": "mlp", "count": count, "share": 0}

    one = {"num_tokens": 10, "steps": [0], "nodes": [node(0, 0, 6), node(0, 1, 4)], "links": []}
    two = {"num_tokens": 100, "steps": [0], "nodes": [node(0, 1, 90), node(0, 2, 10)], "links": []}
    alike = alike_flows([one, two])
    assert [[(n["module"], n["count"]) for n in flow["nodes"]] for flow in alike] == [
        [(0, 6), (1, 4), (2, 0)],
        [(0, 0), (1, 90), (2, 10)],
    ]
    assert [n["order_by"] for n in alike[0]["nodes"]] == pytest.approx([0.3, 0.65, 0.05])
    assert largest_circles([one, two]) == pytest.approx([9, 90])
    layouts = [
        flow_layout({**flow, "own_modules": True}, largest=largest)
        for flow, largest in zip(alike, largest_circles([one, two]), strict=True)
    ]
    assert layouts[0].place == layouts[1].place
    assert layouts[0].place[0, 1] < layouts[0].place[0, 0] < layouts[0].place[0, 2]
    radii = [{n.module: n.radius for n in layout.nodes} for layout in layouts]
    assert radii[0][1] / radii[1][1] == pytest.approx((0.4 / 0.9) ** 0.5)
    assert as_maps([{"num_modules": 64, "top_k": 1}])
    assert not as_maps([{"num_modules": 18, "top_k": 2}])


def test_a_small_difference_of_flows_is_pale() -> None:
    node = {"step": 0, "module": 0, "name": "0", "kind": "mlp", "before": 0.5, "after": 0.501, "change": 0.001}
    flow = {"num_tokens": [9, 9], "steps": [0], "nodes": [node], "links": []}
    assert '"domain": [-0.01, 0, 0.01]' in json.dumps(flow_contrast_chart(flow).to_dict())
    large = {**flow, "nodes": [{**node, "after": 0.8, "change": 0.3}]}
    assert '"domain": [-0.3, 0, 0.3]' in json.dumps(flow_contrast_chart(large).to_dict())


def test_maps_of_a_training_begin_with_the_untrained_model() -> None:
    def steps(*values: float) -> list[dict]:
        return [
            {"step": i, "load_entropy": v, "max_violation": 1 - v, "effective_top_k": 2.0, "dead": i, "kept": None}
            for i, v in enumerate(values)
        ]

    training = {
        "series": "s",
        "untrained": {"beside": "b", "steps": steps(1.0, 0.9)},
        "points": [
            {"run": name, "iteration": at, "steps": steps(*v)}
            for name, at, v in (("a", 5, (0.5, 0.6)), ("b", 9, (0.4, 0.8)))
        ],
    }
    assert [place["label"] for place in places_of(training)] == ["untrained", "5", "9"]
    assert training_words(training, "load_entropy") == (
        "Load entropy fell from 0.950 (untrained) to 0.600 (iteration 9) (means over steps), most at step 0."
    )
    assert training_words(training, "kept") == "Load kept is not known of these checkpoints."
    assert "dead modules" in training_map_rows(training)[0]
    with_choices = with_saturation(training, {"points": [{"run": "b", "by_step": [1.0, 1.0]}]})
    assert [step["saturation"] for step in with_choices["points"][1]["steps"]] == [1.0, 1.0]
    assert with_choices["points"][0]["steps"][0]["saturation"] is None
    drawn = training_map(training, "load_entropy", chosen="5").to_dict()
    assert drawn["layer"][0]["encoding"]["x"]["sort"] == ["untrained", "5", "9"]
    assert "0.950" in drawn["description"]
    none = {**training, "untrained": None, "points": [{"run": "a", "iteration": 1, "steps": steps(1.0)[:1]}]}
    assert training_words(none, "dead") == "At no time is a module dead."


def answer_of_numbers(*differences: dict | None) -> dict:
    runs = [
        {
            "run": name,
            "model": "m",
            "dataset": "d",
            "split": "",
            "num_samples": 9,
            "same_samples": True,
            "num_common": 9,
        }
        for name in ("A", "B", "C")[: len(differences)]
    ]
    row = {
        "name": "loss",
        "group": "outcome",
        "values": [2.0 + 0.1 * i for i in range(len(differences))],
        "low": [None] * len(differences),
        "high": [None] * len(differences),
        "untrained": [None] * len(differences),
        "differences": list(differences),
        "reasons": [None] * len(differences),
    }
    return {"runs": runs, "rows": [row], "equal_tokens": 9, "window": [10, 1000]}


def test_names_are_as_short_as_still_tells_them_apart() -> None:
    assert short_names("scenes-dna-top1", "scenes-dna-top1-untrained") == ("top1", "top1-untrained")
    assert short_names("a-1", "a-2") == ("a-1", "a-2")
    assert short_names("scenes-top1", "photos-top1") == ("scenes-top1", "photos-top1")
    assert short_names("flame-moe-00000", "flame-moe-11029", "flame-moe-5512") == ("moe-00000", "moe-11029", "moe-5512")
    long = [
        {"run": f"a-run-with-a-very-long-name-{end}"} for end in ("of-the-first-kind-0001", "of-the-first-kind-0002")
    ]
    labels = run_labels(long, most=12)
    assert len(set(labels.values())) == 2
    assert all(label.endswith(("0001", "0002")) and len(label) <= 12 for label in labels.values())
    assert len(without_middle("x" * 99, 20)) == 20
    named = [{"run": "scenes-a", "name": "mine"}, {"run": "scenes-b", "name": None}]
    assert run_labels(named) == {"scenes-a": "mine", "scenes-b": "scenes-b"}
    assert run_labels([{**card, "name": "mine"} for card in named]) == {"scenes-a": "scenes-a", "scenes-b": "scenes-b"}
    series = [{"run": f"r{at}", "series": {"name": "s", "iteration": at}} for at in (0, 11029)]
    assert list(run_labels(series).values()) == ["iteration 0", "iteration 11,029"]
    twice = [*series, {"run": "again", "series": {"name": "s", "iteration": 0}}]
    assert list(run_labels(twice).values()) == ["r0", "r11029", "again"]


def test_which_runs_an_address_means() -> None:
    card = {"modality": "text", "dataset": "x", "split": "all", "family": "dna", "num_samples": 4, "model": "m"}
    cards = [{**card, "run": name} for name in "abc"]
    assert names_compared(Selection(run="a"), cards) == ("a", "b")
    assert names_compared(Selection(run="a", against="c"), cards) == ("a", "c")
    assert names_compared(Selection(run="a", against="c", runs=("b", "c")), cards) == ("b", "c")
    assert pair_of(Selection(), ("a", "b", "c")) == ("a", "b")
    assert pair_of(Selection(run="c", against="a"), ("a", "b", "c")) == ("c", "a")
    assert pair_of(Selection(run="b", against="b"), ("a", "b", "c")) == ("b", "a")
    assert pair_of(Selection(), ("a",)) is None
    placed = [{**one, "series": {"name": "s", "iteration": -i}} for i, one in enumerate(cards)]
    assert groups_of([*placed, {**card, "run": "d", "dataset": "y"}]) == {
        "training s": ["c", "b", "a"],
        "model m": ["a", "b", "c", "d"],
        "data x": ["a", "b", "c"],
    }
