"""Charts of RayTracing and DiPaCo: hand-counted small cases, what is drawn is what was given, no NaN, no request."""

from __future__ import annotations

import functools
import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import vl_convert

from tests.frontend.test_charts import data_of, walk
from tokenpaths.frontend.charts.drawing import numbers, palette
from tokenpaths.frontend.charts.families import (
    dipaco_rerouting,
    dipaco_shards,
    raytracing_costs,
    raytracing_network,
    raytracing_stops,
)
from tokenpaths.frontend.charts.families.dipaco_tree_layout import tree_bars

RUN = {
    "config": {
        "layers": 2,
        "blocks": 2,
        "width": 2,
        "input_neurons": [1, 2],
        "input_density": 0.5,
        "conv_channels": [4],
        "conv_pools": [0],
        "image_size": 4,
        "num_classes": 3,
        "theta_steps": 6,
        "input_wires": [[0], [0, 1]],
        "block_wires": [[2, 3], [2, 4], [4, 4], [4, 4]],
    },
    "modules": [
        {
            "step": layer,
            "module": block + 2 * silent,
            "name": f"L{layer}B{block}",
            "num_params": 0 if silent else 10,
            "kind": "identity" if silent else "block",
        }
        for layer in (0, 1)
        for block in (0, 1)
        for silent in (0, 1)
    ],
}
VALUES = [[2.0, 0, 0, 0], [2.0, 0.9, 0, 0], [2.0, 0, 1.4, 0], [0, 0, 0, 0]]
NAMES = ["θ = 1", "θ = 0.9", "θ = 0.81", "θ = 0.729"]
NETWORK = raytracing_network.network_of(RUN)
SAMPLES = [
    {"sample": i, "label": "ab"[i % 2], "prediction": "a", "compute": i / 10, "loss": 0.1 * i, "has_image": True}
    for i in range(10)
]
VALIDATION = {"accuracy": 0.9, "params": 1000, "used_share": 0.25, "mlp_twin": {"accuracy": 0.92, "params": 990}}
USAGE = {
    "a": {
        "usage": [
            {"step": 0, "module": 0, "name": "L0B0", "kind": "block", "count": 3},
            {"step": 0, "module": 2, "name": "L0B0 silent", "kind": "identity", "count": 1},
        ]
    }
}


def path(rank: int, modules: tuple[int, ...], count: int, cdf: float = 1.0) -> dict[str, Any]:
    counts = {"count": count, "path_tokens": count}
    return {"rank": rank, "ribbon": [[m] for m in modules], **counts, "cdf": cdf, "cdf_middle": cdf - count / 200}


PATHS = [path(1, (0, 2), 60, 0.6), path(2, (1, 2), 30, 0.9), path(3, (1, 0), 10, 1.0)]
BY_LABEL = {"code": [path(1, (0, 2), 60)], "prose": [path(2, (1, 2), 30), path(3, (1, 0), 10)]}
TOKENS = [
    {
        "token": i,
        "rank": 1 if i < 6 else 2,
        "cdf": 0.6 if i < 6 else 0.9,
        "cdf_middle": 0.3 if i < 6 else 0.75,
        "path_tokens": 60 if i < 6 else 30,
        "ribbon": [[0 if i < 6 else 1], [2]],
        "loss": None if i == 0 else float(i),
        "char_start": 2 * i,
        "char_end": 2 * i + 2,
    }
    for i in range(10)
]
PARTS = dipaco_rerouting.chunks(TOKENS, [0, 3])
MEASURED = {
    "perplexity": 56.4,
    "rerouting": [{"every": 16, "perplexity": 53.8}, {"every": None, "perplexity": 56.4}],
    "beside": {"dense": 61.2, "flat": {"perplexity": 55.1}, "dipaco-2x2": {"perplexity": 56.4}, "nonsense": "x"},
}
ASKED = [
    {
        "step": i,
        "theta": NAMES[i],
        "prediction": "ab"[i > 0],
        "confidence": 0.3 * i + 0.2,
        "verdict": ["wrong", "right", "right"][i],
    }
    for i in range(3)
]


def all_charts(theme: str) -> dict[str, Any]:
    curve = raytracing_network.share_rows(NETWORK, VALUES, NAMES)
    return {
        "network": raytracing_network.network_chart(NETWORK, VALUES, 1, theme=theme),
        "network fired": raytracing_network.network_chart(NETWORK, VALUES, 2, theme=theme, prediction="seven 93 %"),
        "shares": raytracing_network.share_chart(curve, [0.2, 0.3, 0.4, 0.4], step=1, theme=theme),
        "fired": raytracing_stops.fired_chart(raytracing_stops.fired_rows([0, 3, 5], NAMES), chosen=1, theme=theme),
        "classes": raytracing_costs.class_chart(raytracing_costs.class_rows(SAMPLES), theme=theme),
        "difficulty": raytracing_costs.difficulty_chart(raytracing_costs.difficulty_points(SAMPLES), theme=theme),
        "used": raytracing_costs.used_chart(raytracing_costs.used_rows(VALIDATION), theme=theme),
        "class blocks": raytracing_costs.class_block_chart(
            raytracing_costs.class_block_rows(USAGE, {"a": 4}), theme=theme
        ),
        "sharpening": raytracing_costs.sharpening_chart(ASKED, step=1, theme=theme),
        "tree": dipaco_shards.tree_chart(BY_LABEL, {dipaco_shards.modules_of(p): p for p in PATHS}, theme=theme),
        "labels": dipaco_shards.label_path_chart(dipaco_shards.label_path_rows(BY_LABEL, PATHS), theme=theme),
        "sharing": dipaco_shards.sharing_chart(dipaco_shards.sharing_rows(PATHS), [2, 3], theme=theme),
        "rerouting": dipaco_rerouting.rerouting_chart(*dipaco_rerouting.rerouting_rows(MEASURED), theme=theme),
        "strip": dipaco_rerouting.strip_chart(PARTS, theme=theme),
    }


@functools.cache
def specs(theme: str) -> dict[str, dict[str, Any]]:
    return {name: chart.to_dict() for name, chart in all_charts(theme).items()}


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_every_chart_compiles_to_a_vector_picture(theme):
    for name, spec in specs(theme).items():
        text = json.dumps(spec, allow_nan=False)
        assert "http" not in text.replace(spec["$schema"], ""), f"{name} would fetch something"
        assert spec["title"]["text"].endswith("?"), name
        svg = vl_convert.vegalite_to_svg(json.dumps({**spec, "width": 600}))
        assert "NaN" not in svg, name
        assert "undefined" not in svg, name


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_only_paths_wear_the_colours_of_paths(theme):
    wanted = palette.cdf_scale(theme).to_dict()
    for name, spec in specs(theme).items():
        scales = [
            part["scale"]
            for part in walk(spec)
            if isinstance(part, dict) and part.get("field") == "cdf_middle" and "scale" in part
        ]
        assert bool(scales) == (name in ("tree", "strip")), name
        assert all(scale == wanted for scale in scales), name


# RayTracing


def test_a_network_is_read_from_its_run():
    assert NETWORK.wires == {
        (-1, 0): 1,
        (-2, 0): 1,
        (-2, 1): 1,
        (0, 2): 1,
        (0, 3): 1,
        (1, 2): 1,
        (1, 4): 1,
        (2, 4): 2,
        (3, 4): 2,
    }
    # 4 channels on 2 × 2 are 16 features, of which a neuron reads 8; 5 wires reach the output.
    assert NETWORK.input_params == 3 * 9
    assert NETWORK.total_params == 40 + 45


def test_shares_count_blocks_so_far():
    curve = raytracing_network.share_rows(NETWORK, VALUES, NAMES)
    assert raytracing_network.last_step(VALUES) == 2
    assert [row["lit"] for row in curve] == [0.25, 0.5, 0.5]
    assert [row["lit_so_far"] for row in curve] == [0.25, 0.5, 0.75]
    # Inputs 27, biases of the output 3. Step 0: block 0 fires on two wires of inputs, 2 · 2 weights and 2 biases.
    # Step 1: block 1 on one, 2 and 2, and one of its wires ends at the output, 3. Step 2: block 2 on wires of blocks 0
    # and 1, which both fired before, 2 · 2 and 2; the output reads two wires of block 2, 6, and none of block 1.
    assert [row["used"] for row in curve] == pytest.approx([36 / 85, 43 / 85, 52 / 85])
    assert [row["theta"] for row in curve] == NAMES[:3]


def test_a_sample_in_which_nothing_fired_has_one_step():
    assert raytracing_network.last_step([[0.0] * 4] * 3) == 0
    assert raytracing_network.share_rows(NETWORK, [[0.0] * 4] * 3)[0]["used"] == 30 / 85
    raytracing_network.network_chart(NETWORK, [[0.0] * 4] * 3, 0).to_dict()


def test_silent_blocks_are_drawn_and_their_wires_are_not():
    chart = raytracing_network.network_chart(NETWORK, VALUES, 1)
    blocks = data_of(chart, "block", "since")
    assert [row["words"] for row in blocks] == ["2.00", "0.900", "silent", "silent"]
    assert [row["since"] for row in blocks] == ["step 0", "step 1", "not yet", "not yet"]
    wires = {(row["source"], row["target"]): row["shown"] for row in data_of(chart, "wires", "shown")}
    assert wires[0, 2] > wires[1, 2] > 0
    assert wires[2, 4] == wires[3, 4] == 0


def test_the_output_speaks_at_the_last_step_only():
    assert "seven" not in json.dumps(raytracing_network.network_chart(NETWORK, VALUES, 1, prediction="seven").to_dict())
    assert "seven" in json.dumps(raytracing_network.network_chart(NETWORK, VALUES, 2, prediction="seven").to_dict())


def test_labels_of_small_paths_stand_near_their_bars_and_are_joined_to_them():
    """Labels pushed up from the bottom stood beside the bars of other paths."""
    counts = {(0, 0): 43, (1, 0): 2, (2, 0): 2, (3, 0): 2, (0, 1): 43, (1, 1): 2, (2, 1): 2, (3, 1): 2, (0, 2): 2}
    paths = [path(rank, modules, count) for rank, (modules, count) in enumerate(counts.items(), 1)]
    bars, _bands = tree_bars({"a": paths})
    height, line = 230.0, 13.5
    places = dipaco_shards.apart(bars, height, line)
    last = [(bar, at * height) for bar, at in zip(bars, places, strict=True) if bar.column == 3]
    for (_, above), (_, below) in pairwise(last):
        assert below - above >= line - 1e-6
    assert all(line / 2 - 1e-6 <= at <= height - line / 2 + 1e-6 for _, at in last)
    off = [at - (bar.top + bar.bottom) / 2 * height for bar, at in last]
    assert min(off[1:4]) < 0 < max(off[1:4]), "three small bars in a row: their labels spread both ways"
    drawn = data_of(
        dipaco_shards.tree_chart({"a": paths}, {dipaco_shards.modules_of(one): one for one in paths}), "bar", "place"
    )
    joined = {(row["bar"], row["place"]): row["y"] for row in drawn}
    for bar, _at in last:
        assert joined[bar.key, 0] == pytest.approx((bar.top + bar.bottom) / 2)


def test_documents_without_a_label_and_of_smaller_ones_are_a_row_of_their_own():
    """Three labels of 40, 30 and 10 tokens, and 20 tokens of none."""
    of_label = {"a": [path(1, (0, 2), 40)], "b": [path(2, (1, 2), 30)], "c": [path(3, (1, 0), 10)]}
    labels = [{"label": name, "num_tokens": sum(p["count"] for p in rows)} for name, rows in of_label.items()]
    every = dipaco_shards.ways([*labels, {"label": None, "num_tokens": 20}], PATHS, of_label.__getitem__)
    assert list(every) == ["a", "b", "c", "no label"]
    assert [(row["rank"], row["count"]) for row in every["no label"]] == [(1, 20)]
    assert sum(p["count"] for rows in every.values() for p in rows) == 100
    many = [{"label": f"{i:02d}", "num_tokens": 1} for i in range(15)]
    few = dipaco_shards.ways(many, PATHS, lambda label: [path(1, (0, 2), 1)])
    assert list(few) == [*(f"{i:02d}" for i in range(11)), "4 others"]
    both = dipaco_shards.ways([*many, {"label": None, "num_tokens": 1}], PATHS, lambda label: [path(1, (0, 2), 1)])
    assert list(both)[-1] == "4 others, no label"
    assert dipaco_shards.ways([], PATHS, of_label.__getitem__) == {"all documents": PATHS}


def test_rarer_paths_that_are_not_drawn_are_counted(monkeypatch):
    answer = {"num_paths": 3, "num_tokens": 100, "paths": PATHS}
    assert dipaco_shards.hidden_words(answer) == ""
    monkeypatch.setattr(dipaco_shards, "MOST_PATHS", 2)
    assert dipaco_shards.hidden_words(answer) == " Not drawn: 1 rarer path with 10.0 % of the tokens."


def test_stops_are_counted_by_step():
    assert raytracing_stops.fired_rows([1, 3, 0, 4], NAMES) == [
        {"step": 0, "theta": "θ = 1", "samples": 3, "share": 0.375},
        {"step": 2, "theta": "θ = 0.81", "samples": 4, "share": 0.5},
        {"step": None, "theta": "never", "samples": 1, "share": 0.125},
    ]


def test_a_sample_that_never_fired_has_no_step_and_is_counted_beside_the_bars():
    table = raytracing_stops.fired_rows([2, 3, 0, 4], NAMES)
    chart = raytracing_stops.fired_chart(table)
    assert [row["step"] for row in data_of(chart, "lo", "hi")] == [0, 2]
    assert "In 2 samples no block ever fired: not drawn." in chart.to_dict()["description"]
    assert raytracing_stops.never_words(table[:2]) == ""
    silent = [[0.0] * 4] * 3
    assert raytracing_network.silent(silent)
    assert not raytracing_network.silent(VALUES)
    told = raytracing_stops.step_words(
        NETWORK,
        raytracing_network.share_rows(NETWORK, silent, NAMES),
        0,
        0,
        NAMES,
        {"theta_steps": 3},
        {"prediction": "seven", "confidence": 0.5},
    )
    assert told == "No block fired at any threshold: the output is read without them and says “seven” (50.0 %)."
    drawn = json.dumps(raytracing_network.network_chart(NETWORK, silent, 0, prediction="seven").to_dict())
    assert "still silent" in drawn
    assert "has fired" not in drawn


def test_many_labels_are_said_to_be_drawn_in_part():
    table = raytracing_costs.class_rows([{"label": f"{i:02d}", "compute": i / 100} for i in range(40)])
    chart = raytracing_costs.class_chart(table)
    assert [row["label"] for row in data_of(chart, "label", "half")] == [
        *(f"{i:02d}" for i in range(39, 24, -1)),
        *(f"{i:02d}" for i in range(14, -1, -1)),
    ]
    told = "The 15 labels that light most and the 15 that light least, of 40."
    assert told in raytracing_costs.ends_words(table)
    assert told in chart.to_dict()["description"]
    assert raytracing_costs.ends_words(table[:30]) == ""


def test_classes_are_sorted_by_their_mean():
    table = raytracing_costs.class_rows([*SAMPLES, {"label": None, "compute": 1.0}, {"label": "c", "compute": 0.99}])
    assert [row["label"] for row in table] == ["c", "b", "a"]
    assert table[1]["mean"] == pytest.approx(0.5)
    assert (table[1]["q05"], table[1]["q25"], table[1]["q95"]) == pytest.approx((0.14, 0.3, 0.86))
    assert table[0]["q05"] == table[0]["q95"] == 0.99


@pytest.mark.parametrize(
    ("interval", "words"),
    [((0.1, 0.5), "light more blocks"), ((-0.5, -0.1), "light fewer blocks"), ((-0.1, 0.5), "nothing reliable")],
)
def test_a_correlation_claims_no_more_than_its_interval(interval, words):
    found = {"pearson": 0.2, "pearson_low": interval[0], "pearson_high": interval[1], "num_samples": 30}
    assert words in raytracing_costs.correlation_words(found, 30)
    assert "no correlation" in raytracing_costs.correlation_words(None, 2)
    assert "no correlation" in raytracing_costs.correlation_words({**found, "pearson": None}, 2)


def test_right_and_wrong_differ_by_shape():
    points = raytracing_costs.difficulty_points(SAMPLES)
    assert [p["verdict"] for p in points[:3]] == ["right", "wrong", "right"]


def test_used_parameters_of_network_and_twin():
    rows = raytracing_costs.used_rows(VALIDATION)
    assert [(row["model"], row["used"]) for row in rows] == [("RayTracing", 250), ("MLP twin", 990)]
    assert raytracing_costs.used_rows({}) == []


def test_a_class_lights_a_block_in_a_share_of_its_samples():
    (row,) = raytracing_costs.class_block_rows(USAGE, {"a": 4})
    assert row == {"label": "a", "block": "L0B0", "layer": 0, "row": 0, "share": 0.75}


# DiPaCo


def test_no_token_is_lost_between_the_columns():
    bars, bands = dipaco_shards.tree_bars(BY_LABEL)
    for column in range(4):
        assert sum(bar.tokens for bar in bars if bar.column == column) == 100
        assert sum(bar.bottom - bar.top for bar in bars if bar.column == column) == pytest.approx(0.84)
    for column in range(3):
        assert sum(band["tokens"] for band in bands if band["column"] == column) == 100
    assert {(b["from"], b["to"]): b["tokens"] for b in bands if b["column"] == 1} == {
        ("0.0", "1.2"): 60,
        ("0.1", "1.2"): 30,
        ("0.1", "1.0"): 10,
    }


def test_bands_fill_their_bars_without_overlap():
    bars, bands = dipaco_shards.tree_bars(BY_LABEL)
    for bar in bars:
        for side, end, key in ((0, "y0", "from"), (1, "y1", "to")):
            own = sorted(
                (b[end], b[end] + b["width"]) for b in bands if b[key] == bar.key and b["column"] + side == bar.column
            )
            if own:
                assert own[0][0] == pytest.approx(bar.top)
                assert own[-1][1] == pytest.approx(bar.bottom)
                assert all(a[1] == pytest.approx(b[0]) for a, b in zip(own, own[1:], strict=False))


def test_names_in_the_tree_never_touch():
    many = {"x": [path(i + 1, (i // 6, i % 6), 1 if i else 500) for i in range(36)]}
    bars, _bands = dipaco_shards.tree_bars(many)
    height = 23.0 * 36
    places = dipaco_shards.apart(bars, height)
    column = sorted(at for bar, at in zip(bars, places, strict=True) if bar.column == 3)
    assert all(b - a >= 13.4 / height for a, b in zip(column, column[1:], strict=False))
    assert 0 <= column[0] < column[-1] <= 1


def test_a_labels_shares_sum_to_one():
    table = dipaco_shards.label_path_rows(BY_LABEL, PATHS)
    assert [row["share"] for row in table] == [1, 0, 0, 0, 0.75, 0.25]
    assert [row["path"] for row in table[:3]] == ["0·2", "1·2", "1·0"]


def test_who_shares_a_module():
    table = dipaco_shards.sharing_rows(PATHS)
    assert {(row["path"], row["level"]): row["sharers"] for row in table} == {
        ("0·2", 0): 0,
        ("0·2", 1): 1,
        ("1·2", 0): 1,
        ("1·2", 1): 1,
        ("1·0", 0): 1,
        ("1·0", 1): 0,
    }


def test_perplexities_are_read_as_numbers_or_objects():
    by_w, baselines = dipaco_rerouting.rerouting_rows(MEASURED, "dipaco-2x2")
    assert [(row["W"], row["perplexity"]) for row in by_w] == [(None, 56.4), (16, 53.8)]
    assert baselines == [{"model": "flat mixture", "perplexity": 55.1}, {"model": "dense path", "perplexity": 61.2}]
    assert dipaco_rerouting.rerouting_rows({}) == ([], [])
    assert dipaco_rerouting.rerouting_rows(
        {"rerouting": [{"every": 8}, 3], "beside": {"dense": float("nan"), "flat": True}}
    ) == ([], [])
    assert [row["W"] for row in dipaco_rerouting.rerouting_rows({"perplexity": 9.0, "beside": 3})[0]] == [None]


def test_decisions_are_where_the_router_makes_them():
    # prefix 4, W 8: position t belongs to decision max(0, t + 1 − 4) // 8, anew in each window of 20.
    wanted = [t for t in range(50) if t % 20 == 0 or (t % 20 + 1 - 4) // 8 > max(0, t % 20 - 4) // 8]
    assert dipaco_rerouting.decisions(50, 4, 8, 20) == wanted == [0, 11, 19, 20, 31, 39, 40]
    assert dipaco_rerouting.decisions(50, 4, None, 20) == [0, 20, 40]


def test_a_document_is_cut_at_decisions_and_where_the_path_changes():
    assert [(part.first, part.end, part.rank) for part in PARTS] == [(0, 3, 1), (3, 6, 1), (6, 10, 2)]
    assert PARTS[0].loss == 1.5
    assert PARTS[2].modules == (1, 2)
    assert dipaco_rerouting.chunk_rows(PARTS)[2]["path"] == "1·2"


def test_the_sentence_of_paths_of_documents_counts_those_of_half_of_the_tokens():
    def of(*counts: int) -> dict[str, Any]:
        # In the order of the whole run, which need not be that of one label.
        rows = [path(rank, (rank, 0), count) for rank, count in enumerate(counts, 1)]
        return {"paths": [row | {"share": row["count"] / sum(counts)} for row in rows], "num_paths": len(rows)}

    assert dipaco_shards.busiest_words(of(60, 30, 10)) == "Path 1·0 takes 60.0 % of the tokens."
    assert dipaco_shards.busiest_words(of(10, 25, 40, 25)) == (
        "Path 3·0 takes 40.0 % of the tokens; half of them go along 2 of 4 paths."
    )


@pytest.mark.parametrize("num", [4, 6, 30])
def test_the_correlation_of_one_label_is_the_engines(num):
    from tokenpaths.engine.analysis.paired_runs import pearson

    rng = np.random.default_rng(num)
    x = rng.normal(size=num)
    for y in (rng.normal(size=num) * np.abs(x), 0.7 * x + rng.normal(size=num), -x, np.arange(num) == 2):
        ours, theirs = numbers.correlation(x.tolist(), [float(value) for value in y]), pearson(x, np.asarray(y, float))
        assert ours["r"] == pytest.approx(theirs.r)
        # Student's quantile at 2 degrees of freedom is far out: its series reaches 4.2 of 4.3.
        assert (ours["low"], ours["high"]) == pytest.approx((theirs.low, theirs.high), abs=0.02 if num == 4 else 0.005)
    one = [0.25] * (num - 1) + [0.7], [0.1] * (num - 1) + [0.33]
    assert numbers.correlation(*one) == {"r": pytest.approx(1.0), "low": -1.0, "high": 1.0, "num": num}
    found = pearson(*map(np.asarray, one))
    assert (found.low, found.high) == (-1.0, 1.0), "it rests on one pair"


def test_an_interval_of_another_kind_is_not_shown_as_todays():
    today = {"pearson": 0.2, "pearson_low": 0.1, "pearson_high": 0.3, "num_samples": 30}
    assert raytracing_costs.kept_correlation({"findings": {"lights": {"correlation": today}}}) == today
    before = {"findings": {"lights": {"correlation": {**today, "resamples": 1000}}}}
    assert raytracing_costs.kept_correlation(before) is raytracing_costs.kept_correlation({"findings": {}}) is None
