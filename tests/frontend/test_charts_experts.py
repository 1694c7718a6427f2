"""Charts of experts: what is drawn is what was counted, what is merged is counted, nothing breaks without text."""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from tests.frontend.test_charts_soft import data_of
from tests.support.runs import make_experts
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs.saturation import of_series
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import with_text
from tokenpaths.frontend.charts.families import expert_load, expert_stability, experts
from tokenpaths.frontend.charts.flow import token_flow
from tokenpaths.frontend.charts.flow.flow import flow_chart, flow_thumbnail
from tokenpaths.frontend.charts.flow.flow_words import flow_words, hidden_words, merged_words, moves_of
from tokenpaths.frontend.charts.flow.layout import OTHER, flow_layout
from tokenpaths.frontend.charts.usage import load_of_flow
from tokenpaths.frontend.components.explorer_data import small_flow
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.family.moe import MANY_COLUMNS, least_share, off_by
from tokenpaths.frontend.views.modules.modules import dead_words


@functools.cache
def answers() -> dict[str, Any]:
    """Answers of a real run of 6 layers × 20 experts, top-3, and of a log of it without text."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        options = {"layers": 6, "experts": 20, "top_k": 3, "length": 40}
        series = [
            Run.open(make_experts(f"at{i}", series=("s", i), drift=d, samples=3, **options).write(Path(folder)))
            for i, d in ((10, 0.8), (90, 0.3), (500, 0.0))
        ]
        log = Run.open(make_experts("log", text=False, token_ids=False, labels=False, **options).write(Path(folder)))
        with Run.open(make_experts("moe", **options).write(Path(folder))) as run:
            found = {
                "info": run.info(),
                "usage": run.usage(),
                "flow": run.flow(),
                "merged": run.flow(most_modules=4),
                "slice": run.token_slice(1, 2),
                "log slice": log.token_slice(1, 2),
                "log sample": log.sample(1),
                "sample": run.sample(1),
                "label": run.specialisation("label", 1, limit=10),
                "input": run.specialisation("input", 1, limit=10),
                "next": run.specialisation("next", 1, limit=10),
                "together": run.co_activation(1, limit=12),
                "repetition": run.repetition(),
                "saturation": of_series(series, "at90"),
            }
        for one in (*series, log):
            one.close()
    return found


@functools.cache
def all_charts(theme: str) -> dict[str, Any]:
    found = answers()
    return {
        "load": expert_load.load_band_chart(found["usage"], theme=theme, chosen=2),
        "dead": expert_load.dead_chart(found["usage"], theme=theme, chosen=2),
        "slice": experts.slice_chart(found["slice"], theme=theme, chosen=3),
        "merged slice": experts.slice_chart(found["slice"], theme=theme, least=0.2),
        "log slice": experts.slice_chart(found["log slice"], theme=theme),
        "domains": experts.domain_chart(found["label"], theme=theme),
        "words": experts.word_chart(found["input"], theme=theme),
        "next": experts.word_chart(found["next"], theme=theme),
        "together": experts.co_activation_chart(found["together"], theme=theme),
        "repetition": expert_stability.repetition_chart(found["repetition"], theme=theme),
        "saturation": expert_stability.saturation_chart(found["saturation"], theme=theme, step=1, run="at90"),
        "merged flow": flow_chart(found["merged"], theme=theme, ribbon=found["sample"]["tokens"][0]["ribbon"]),
        "weights": token_flow.token_flow_chart(found["sample"], theme=theme, shade="weight"),
        "no weights": token_flow.token_flow_chart(found["sample"], theme=theme, shade="overlap"),
    }


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_every_chart_compiles_and_asks_a_question(theme):
    for name, chart in all_charts(theme).items():
        spec = chart.to_dict()
        assert spec["title"]["text"].endswith("?"), name
        assert len(spec["description"]) > len(spec["title"]["text"]) + 10, name
        svg = vl_convert.vegalite_to_svg(json.dumps({**spec, "width": 500}, allow_nan=False))
        assert "NaN" not in svg, name
        assert "undefined" not in svg, name


def test_no_quantity_but_the_cdf_of_paths_is_drawn_in_its_colours():
    for name, chart in all_charts("light").items():
        assert "#440154" not in json.dumps(chart.to_dict()), name


def test_load_is_that_of_every_cell():
    usage = answers()["usage"]
    for row in expert_load.load_rows(usage):
        cells = sorted(c["utilisation"] for c in usage["usage"] if c["step"] == row["layer"])
        assert row["highest"] == cells[-1] == pytest.approx(row["MaxVio"] + 1)
        assert row["middle"] == pytest.approx((cells[9] + cells[10]) / 2)
        assert row["low"] <= row["middle"] <= row["high"] <= row["highest"]
        assert row["dead"] == cells.count(0)
    dead = sum(row["dead"] for row in expert_load.load_rows(usage))
    assert f"Dead: {dead} of 120 experts" in expert_load.load_words(usage)
    assert f"{dead} of 120 modules never got a token" in dead_words(usage)
    only = [{**s, "dead": [0] if s["step"] == 1 else []} for s in usage["steps"]]
    assert expert_load.load_words({**usage, "steps": only}).endswith("in 1 layer.")
    alive = {**usage, "steps": [{**s, "dead": []} for s in usage["steps"]]}
    assert "No expert is dead" in expert_load.load_words(alive)
    assert "No module is dead" in dead_words(alive)
    idle = {(row["step"], module) for row in usage["steps"] for module in row["dead"]}
    assert "No module is dead" in dead_words(usage, idle)
    of_label = dead_words(usage, (), "code"), dead_words(alive, (), "code")
    assert f"{dead} of 120 modules got no token of label “code”" in of_label[0]
    assert of_label[1] == "Each module got at least one token of label “code”."
    some, none = (_unknown(alive, first) for first in (1, 0))
    assert dead_words(some) == (
        "No module is dead: each one got at least one token at each step whose choices are known."
    )
    assert "No expert is dead" in expert_load.load_words(some)
    assert dead_words(none) == expert_load.load_words(none) == "No choice is known."

    of_label = expert_load.load_words(usage, "code"), expert_load.load_words(alive, "code")
    assert f"Without a token of label “code”: {dead} of 120 experts" in of_label[0]
    assert of_label[1].endswith("Each expert gets a token of label “code”.")


@pytest.mark.parametrize("least", [0.0, 0.1, 0.3, 1.1])
def test_every_choice_has_a_cell_or_is_counted_in_other(least):
    found = answers()["slice"]
    counts = Counter(module for token in found["tokens"] for module in token["modules"])
    table = experts.slice_rows(found, least)
    per_token = defaultdict(int)
    for row in table:
        per_token[row["token"]] += row["choices"]
        if row["slot"] is not None:
            assert counts[int(row["expert"])] / len(found["tokens"]) >= least
    assert set(per_token.values()) == {3}
    assert len(per_token) == len(found["tokens"])
    for token in found["tokens"]:
        weight = sum(row["weight"] for row in table if row["token"] == token["token"])
        assert weight == pytest.approx(sum(token["weights"]))
    assert ("other" in experts.slice_words(found, least)) == any(row["slot"] is None for row in table)


def test_a_single_small_expert_is_not_called_other():
    tokens = [{"token": t, "modules": [0, 1 if t else 2], "weights": [0.6, 0.4], "text": "a"} for t in range(10)]
    table = experts.slice_rows({"tokens": tokens}, 0.5)
    assert {row["expert"] for row in table} == {"0", "1", "2"}


def test_few_enough_columns_are_left_unless_a_share_is_asked_for():
    from tokenpaths.frontend.page.selection import Selection

    tokens = [{"token": t, "modules": [t, t + 1, 200], "weights": [0.4, 0.3, 0.3]} for t in range(0, 120, 2)]
    found = {"tokens": tokens}
    least = least_share(found, Selection())
    named = {row["expert"] for row in experts.slice_rows(found | {"step": 0}, least) if row["slot"] is not None}
    assert 1 <= len(named) <= MANY_COLUMNS
    assert least_share(answers()["slice"], Selection()) == 0.0
    assert least_share(found, Selection(merge=25.0)) == 0.25


def test_rows_without_text_are_ids_or_positions():
    tokens = [{"token": 3, "text": " the"}, {"token": 4, "text": None, "token_id": 17}, {"token": 5}]
    assert experts.token_labels([*tokens, {"token": 6, "row": 1, "col": 2}]) == ["3  the", "4 #17", "5", "r1 c2"]
    assert [row["label"] for row in data_of(all_charts("light")["log slice"], "expert", "weight")][0] == "0"


def test_a_sample_without_text_gets_words_that_its_tokens_cover():
    log = with_text(answers()["log sample"])
    assert log["text"].split() == [str(token["token"]) for token in log["tokens"]]
    for token in log["tokens"]:
        assert log["text"][token["char_start"] : token["char_end"]] == str(token["token"])
    whole = answers()["sample"]
    assert with_text(whole) == whole
    tokens = [{"token": 0, "token_id": 5, "text": None}, {"token": 1, "token_id": 6, "text": "ab"}]
    ids = {"text": None, "tokens": tokens}
    assert with_text(ids)["text"] == "#5 ab"


def test_domain_cells_are_shares_and_multiples_of_the_even_one():
    found = answers()["label"]
    for row in experts.domain_rows(found):
        assert row["share"] == pytest.approx(row["count"] / row["of"])
        assert row["times"] == pytest.approx(row["share"] * 20 / 3)
    best = found["modules"][0]["module"]
    assert f"expert {best} gets" in experts.domain_words(found)


def test_words_are_listed_from_the_strongest():
    for of in ("input", "next"):
        by_expert = defaultdict(list)
        for row in experts.word_rows(answers()[of]):
            by_expert[row["expert"]].append((row["place"], row["share"]))
        assert len(by_expert) == 10
        for cells in by_expert.values():
            assert [place for place, _ in cells] == list(range(1, len(cells) + 1))
            assert [share for _, share in cells] == sorted((share for _, share in cells), reverse=True)
    bare = {"modules": [{"module": 1, "prefers": [{"token_id": 9, "text": None, "share": 1, "count": 10, "of": 10}]}]}
    assert experts.word_rows(bare)[0]["word"] == "#9"


def test_pairs_of_an_expert_with_itself_are_not_drawn():
    found = answers()["together"]
    table = experts.co_activation_rows(found)
    count = len(found["modules"])
    assert len(table) == count * (count - 1)
    pair = found["pairs"][0]
    cell = next(row for row in table if (row["expert"], row["other"]) == (pair["module"], pair["other"]))
    assert cell["share"] == pytest.approx(pair["share"], abs=1e-6)
    assert numbers.percent(pair["share"]) in experts.co_activation_words(found)
    nothing = {**found, "pairs": [], "modules": [], "values": []}
    assert "No two experts" in experts.co_activation_words(nothing)


def test_repetition_stands_beside_chance():
    found = answers()["repetition"]
    table = expert_stability.repetition_rows(found)
    assert [row["what"] for row in table[:2]] == ["first choice", "any of 3"]
    assert table[0]["baseline"] == 1 / 20
    assert len(expert_stability.repetition_rows({**found, "top_k": 1})) == 6
    assert numbers.count(found["num_pairs"]) in expert_stability.repetition_words(found)


def test_chance_is_that_of_the_loads():
    found = answers()["repetition"]
    told = expert_stability.repetition_words(found)
    shuffled = [row["by_load_first"] for row in found["steps"]]
    assert f"in random order {numbers.percent(sum(shuffled) / len(shuffled))} would" in told
    pair = (together := answers()["together"])["pairs"][0]
    assert f"(by their loads {numbers.percent(pair['by_load'])})" in experts.co_activation_words(together)


def test_the_most_one_sided_expert_is_none_that_is_merely_busy():
    domains = [{"label": "mixed", "num_tokens": 100}, {"label": "code", "num_tokens": 300}]

    def row(module: int, mixed: int, code: int) -> dict:
        prefers = [
            {"label": "mixed", "count": mixed, "of": 100, "share": mixed / 100},
            {"label": "code", "count": code, "of": 300, "share": code / 300},
        ]
        return {"module": module, "count": mixed + code, "prefers": prefers}

    answer = {"baseline": 0.1, "domains": domains, "modules": [row(1, 46, 135), row(2, 30, 9)]}
    told = experts.domain_words(answer)
    assert told == "Most one-sided: expert 2 gets 30.0 % of the tokens of “mixed”, and 3.00 % of all others."


def test_repetition_says_nothing_of_layers_without_known_pairs():
    found = answers()["repetition"]
    steps = [dict(row) for row in found["steps"]]
    steps[1] |= {"first": None, "any": None, "baseline_any": None}
    some = {**found, "steps": steps}
    layers = [row["step"] for row in steps if row["step"] != steps[1]["step"]]
    assert sorted({row["layer"] for row in expert_stability.repetition_rows(some)}) == layers
    known = [row["first"] for row in steps if row["first"] is not None]
    assert expert_stability.repetition_words(some).startswith(numbers.percent(sum(known) / len(known)))
    assert expert_stability.repetition_chart(some).to_dict()["height"]
    none = {**found, "steps": [{**row, "first": None, "any": None, "baseline_any": None} for row in steps]}
    assert "No two neighbouring tokens" in expert_stability.repetition_words(none)
    assert expert_stability.repetition_chart(none).to_dict()["height"]


def test_saturation_names_when_most_is_settled():
    found = answers()["saturation"]
    table = expert_stability.saturation_rows(found, 1)
    assert [row["iteration"] for row in table] == [10, 90, 500]
    assert table[-1]["saturation"] == table[-1]["layer"] == 1
    reached = next(point["iteration"] for point in found["points"] if point["saturation"] >= 0.8)
    assert f"80 % are reached at iteration {reached}" in expert_stability.saturation_words(found)


# -- the shared flow picture ----------------------------------------------------------------------


def test_each_column_has_its_busiest_expert_at_the_top_and_other_below():
    layout = flow_layout(answers()["merged"])
    assert layout.own
    for step in layout.steps:
        column = sorted((node for node in layout.nodes if node.step == step), key=lambda node: node.y)
        counts = [node.count for node in column if not node.other]
        assert counts == sorted(counts, reverse=True)
        assert [node.other for node in column] == [False] * (len(column) - 1) + [True]
    assert len({node.y for node in layout.nodes if node.other}) == 1


def test_ribbons_join_the_circles_that_they_name_and_fit_into_them():
    for flow in (answers()["merged"], answers()["flow"]):
        layout = flow_layout(flow)
        circle = {node.key: node for node in layout.nodes}
        for link in layout.links:
            for key, y in ((f"{link.step}.{link.source}", link.y0), (f"{link.step + 1}.{link.target}", link.y1)):
                node = circle[key]
                assert not node.other
                assert abs(y - node.y) + link.width / 2 <= node.radius * (1 + 1e-9)


def test_flows_of_other_are_counted_and_not_drawn():
    merged = answers()["merged"]
    layout = flow_layout(merged)
    touching = [link for link in merged["links"] if OTHER in (link["source"], link["target"])]
    assert touching
    assert len(layout.links) == len(merged["links"]) - len(touching)
    drawn = sum(link.count for link in layout.links)
    hidden = sum(row["count"] for row in layout.other)
    assert drawn + hidden == pytest.approx(moves_of(merged))
    assert (layout.merged.num_links, layout.merged.count) == (len(touching), pytest.approx(hidden))
    share = numbers.percent(hidden / moves_of(merged))
    assert hidden_words(layout, moves_of(merged)) == [
        f"{len(touching)} flows from or to “other” are not drawn ({share} of all moves between steps)."
    ]
    circles = data_of(flow_chart(merged), "node", "count")
    assert all(row["module"] != OTHER for row in circles)


def test_the_sentence_of_a_flow_counts_the_modules_that_get_half_of_the_choices():
    def flow(*steps: dict[int, float], **more: Any) -> dict[str, Any]:
        nodes = [
            {"step": step, "module": module, "count": count, "kind": "expert"}
            for step, counts in enumerate(steps)
            for module, count in counts.items()
        ]
        return {"num_tokens": 100, "nodes": nodes, **more}

    assert flow_words(flow({0: 40, 1: 10, 2: 30, 3: 20}, {1: 90, 0: 10, 4: 0})) == (
        "Half of each step’s choices go to 1 to 2 of the 2 to 4 modules visited; module 1 at step 1 is the busiest, "
        "with 90.0 % of the tokens."
    )
    even = flow_words(flow(dict.fromkeys(range(64), 25)))  # 16 choices a token
    assert even.startswith("Half of the step’s choices go to 32 of the 64 modules visited; module 0 at step 0 ")
    assert flow_words(flow({5: 100}, {2: 100})) == "All tokens take the same way."
    hidden = flow({0: 20, OTHER: 80})
    assert flow_words(hidden) == "Module 0 at step 0 is the busiest, with 20.0 % of the tokens."
    asleep = flow({0: 20, 1: 80})
    asleep["nodes"][1]["kind"] = "identity"
    assert "module 1 (skip) at step 0 is the busiest" in flow_words(asleep)
    assert flow_words(flow({0: 0})) == "No token."


def test_other_says_how_many_experts_it_is():
    merged = answers()["merged"]
    sizes = [node["num_modules"] for node in merged["nodes"] if node["module"] == OTHER]
    words = merged_words(merged)[0]
    assert f"{min(sizes)} to {max(sizes)} smaller experts" in words or f"{min(sizes)} smaller experts" in words
    assert merged_words(answers()["flow"]) == []
    drawn = [row for table in flow_chart(merged).to_dict()["datasets"].values() for row in table]
    assert {row["name"] for row in drawn if "other" in row.get("name", "")} == {
        node["name"] for node in merged["nodes"] if node["module"] == OTHER
    }
    assert flow_thumbnail(merged).to_dict()["height"] > 0


def test_the_small_picture_has_a_place_for_every_expert_of_a_token():
    merged = answers()["merged"]
    picture = small_flow(merged)
    for step, modules in enumerate(answers()["sample"]["tokens"][0]["ribbon"]):
        for module in modules:
            kept = any(node["step"] == step and node["module"] == module for node in merged["nodes"])
            assert (f"{step}.{module}" in picture["y"]) == kept
    assert picture["other"] is not None
    assert max(picture["y"].values()) <= picture["height"]


def test_repetition_without_weights_leaves_the_first_choice_out():
    found = answers()["repetition"]
    bare = {**found, "first_missing": "no weights", "steps": [{**row, "first": None} for row in found["steps"]]}
    assert {row["what"] for row in expert_stability.repetition_rows(bare)} == {f"any of {found['top_k']}"}
    assert "at least one choice" in expert_stability.repetition_words(bare)
    assert "No weights" not in expert_stability.repetition_words(found)
    assert expert_stability.repetition_chart(bare).to_dict()["height"]


def test_a_drawn_series_says_how_far_it_may_be_off():
    exact = {"counted": {"exact": True}, "points": [{"error": 0.0}]}
    assert off_by(exact) == ""
    drawn = {"counted": {"exact": False}, "points": [{"error": 0.0123}, {"error": 0.0}]}
    assert "± 1.2 percentage points" in off_by(drawn)
    assert "One sample says nothing" in off_by({**drawn, "points": [{"error": None}]})


def test_long_ribbons_are_cut_in_words():
    assert numbers.ribbon_words([[1], [2]]) == "1 → 2"
    assert numbers.ribbon_words([[1, 2]] * 24).count("→") == 23
    assert numbers.ribbon_words([[1, 2, 3, 4, 5, 6, 7, 8]] * 64).endswith("… (60 more steps)")


def test_small_runs_are_drawn_whole_and_many_experts_merged():
    from tokenpaths.frontend.page.selection import Selection, from_query, to_query

    info = answers()["info"]
    assert common.own_modules(info)
    assert common.merging(info, Selection()) == {}
    assert common.merging({**info, "num_modules": 256}, Selection()) == {"most_modules": common.DRAWN_MODULES}
    assert common.merging({**info, "num_modules": 256}, Selection(merge=0.0)) == {"merge_share": 0.0}
    for selection in (Selection(merge=0.0), Selection(merge=2.5, words="next")):
        assert from_query(to_query(selection)) == (selection, [])


def test_without_weights_a_cell_says_what_the_token_before_took_too():
    tokens = [
        {"token": 0, "ribbon": [[1, 2], [3, 4]]},
        {"token": 1, "ribbon": [[2, 5], [3, 4]]},
        {"token": 2, "ribbon": [[6, 7], [4, 9]]},
    ]
    drawn = {"weights": [[0.5, 0.5]] * 2, "cdf": 1.0, "cdf_middle": 0.5, "path_tokens": 3, "rank": 1, "text": "a"}
    chart = token_flow.token_flow_chart({"tokens": [drawn | token for token in tokens]}, shade="overlap", first=1)
    (data,) = [rows for rows in chart.to_dict()["datasets"].values() if len(rows) == 4]
    assert {(row["token"], row["step"]): row["overlap"] for row in data} == {
        (1, 0): 0.5,
        (1, 1): 1.0,
        (2, 0): 0.0,
        (2, 1): 0.5,
    }
    assert token_flow.overlap([1, 2], []) == 0.0


@pytest.mark.parametrize("top_k", [1, 3])
def test_the_load_of_all_tokens_of_a_flow_is_the_usage_of_the_run(tmp_path: Path, top_k: int) -> None:
    made = make_experts("experts", layers=3, experts=12, top_k=top_k, samples=8, length=30)
    with Run.open(made.write(tmp_path)) as run:
        usage, labels = run.usage(), [row["label"] for row in run.info()["labels"]]
        for label in (None, labels[0]):
            expected = run.usage(label=label)["usage"]
            found = load_of_flow(run.flow(limit=1, label=label), usage)["usage"]
            for row, other in zip(expected, found, strict=True):
                assert {name: value for name, value in row.items() if name != "weight"} == pytest.approx(other)
        part = load_of_flow(run.flow(limit=1, steps=(1, 3)), usage)
        assert {row["step"] for row in part["usage"]} == {1, 2}


def test_the_same_expert_stands_at_the_same_height_in_charts_side_by_side():
    for name in ("domains", "words"):
        (order,) = {tuple(layer["encoding"]["y"]["sort"]) for layer in all_charts("light")[name].to_dict()["layer"]}
        assert list(order) == sorted(order, key=int), name


def test_an_axis_that_is_not_linear_says_so():
    spec = json.dumps(all_charts("light")["load"].to_dict())
    assert '"type": "sqrt"' in spec
    assert "square-root scale" in spec


def test_circles_carry_the_number_of_their_module_where_a_row_is_none():
    def flow(modules: int, own: bool = True) -> dict[str, Any]:
        nodes = [
            {"step": s, "module": m, "name": str(m), "kind": "expert", "count": 1 + 3 * m * m, "share": 0.1}
            for s in (0, 1)
            for m in range(modules)
        ]
        return {"num_tokens": 900, "steps": [0, 1], "nodes": nodes, "links": [], "other": [], "own_modules": own}

    def numbered(chart: Any) -> list[str]:
        tables = [values for values in chart.to_dict()["datasets"].values() if values and "id" in values[0]]
        assert all(int(row["node"].partition(".")[2]) == int(row["id"]) for values in tables for row in values)
        return sorted({row["node"] for values in tables for row in values})

    assert numbered(flow_chart(flow(16))) == sorted(f"{s}.{m}" for s in (0, 1) for m in range(16))
    assert numbered(flow_chart(flow(16, own=False))) == [], "there the rows are the modules"
    assert numbered(flow_chart(flow(80))) == [], "too dense to be read"


def _unknown(usage: dict, first: int) -> dict:
    """An answer in which no choice is known from step ``first`` on."""
    lost = {"load_entropy": None, "max_violation": None, "effective_top_k": None, "dead": []}
    cells = [c | ({"count": 0, "utilisation": None} if c["step"] >= first else {}) for c in usage["usage"]]
    return usage | {"usage": cells, "steps": [s | (lost if s["step"] >= first else {}) for s in usage["steps"]]}
