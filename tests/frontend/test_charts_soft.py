"""Connections and gates as specifications: what is drawn is what was given, differences have zero in the middle."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
import vl_convert

from tokenpaths.frontend.charts import effects
from tokenpaths.frontend.charts.drawing import palette
from tokenpaths.frontend.charts.families import directional_gates, gate_worth, hmodel_connections
from tokenpaths.frontend.views.common import validation_words
from tokenpaths.frontend.views.family import directional
from tokenpaths.frontend.views.family.dipaco import perplexity_data
from tokenpaths.frontend.views.family.directional import ablated_data

HIDDEN = ("transformer 0", "transformer 1")
NAMES = {"iteration": ("input", "1", "2"), "source": (*HIDDEN, "text input"), "target": (*HIDDEN, "it's next")}


def edges(shift: float = 0.0) -> dict[str, Any]:
    """Two hidden layers, two iterations, one input, one output; every possible connection has a value of its own."""
    values = [[[0.0] * 3 for _ in range(3)] for _ in range(3)]
    values[0][2] = [0.9, 0.1 + shift, 0.3]
    values[1][0], values[1][1] = [0.5, 0.2, 0.01], [0.4 + shift, 0.6, 0.7]
    values[2][0][2], values[2][1][2] = 0.8, 0.25
    return {
        "axes": [{"axis": axis, "names": list(names)} for axis, names in NAMES.items()],
        "values": values,
        "std": None,
        "num_samples": 1,
    }


def gate_answer(shift: float = 0.0) -> dict[str, Any]:
    axes = [
        {"axis": axis, "names": [f"{axis} {i}" for i in range(size)]}
        for axis, size in (("layer", 2), ("head", 3), ("direction", 2))
    ]
    values = [
        [[(layer + head + direction) / 8 + shift for direction in range(2)] for head in range(3)] for layer in range(2)
    ]
    return {"axes": axes, "values": values, "std": None, "num_samples": 4}


SEPARATION = {
    "within": 0.1,
    "between": 0.25,
    "ratio": 2.5,
    "null_mean": 1.0,
    "null_std": 0.02,
    "null_max": 1.1,
    "p_value": 1 / 201,
    "shuffles": 200,
    "labels": ["de", "sw"],
    "matrix": [[0.1, 0.25], [0.25, None]],
}
PCA = {
    "explained": [0.5, 0.25],
    "points": [{"sample": i, "label": ("code", "math", "prose")[i % 3], "x": i / 3, "y": -i / 5} for i in range(12)],
}
CENTROIDS = {"accuracy": 0.9, "balanced": 0.88, "null_mean": 0.33, "null_max": 0.5, "p_value": 1 / 201, "shuffles": 200}
VARIANCE = [[0.0, 0.1, 0.2], [0.3, 0.0, 0.05]]
LOSSES = [
    {"token": i, "text": "wörd"[:i], "before": 2.0, "after": 2.0 + (i - 2) / 4, "rise": (i - 2) / 4} for i in range(5)
]


def rise(by: float, spread: float | None = 0.02, **others: Any) -> dict[str, Any]:
    low, high = (None, None) if spread is None else (by - spread, by + spread)
    return others | {"rise": by, "loss": 2 + by, "low": low, "high": high, "clear": abs(by) > 0.05}


def by_position(first: int, last: int, gain: float, spread: float | None = 0.02) -> dict[str, Any]:
    both = {"off": rise(gain, spread), "neutral": rise(gain / 4, spread)}
    return {"first": first, "last": last, "num_targets": 40, "num_texts": 8, "loss": 2.0} | both


SCAN = {
    "trained": {"loss": 2.0, "num_targets": 320},
    "heads": [rise((layer - head) / 10, layer=layer, head=head) for layer in range(2) for head in range(3)],
    "uniform": [rise(abs(at - 6) / 10 + 0.01, value=at / 10) for at in range(11)],
    "positions": [by_position(0, 0, 0.5), by_position(1, 1, 0.3), by_position(2, 3, 0.1)],
}
WORD = {
    "word": " séa",
    "logit": {"all": 4.0, "embedding": 0.5, "heads": 3.0, "removed": -0.75, "mlps": 1.25},
    "directions": [
        {"layer": i, "head": 0, "direction": 1, "gate": 0.5, "logit": (i - 10) / 8, "first_order": i / 9}
        for i in range(16)
    ],
    "conditions": [
        {"name": name, "probability": p, "rank": 2, "best": " the", "best_probability": 0.5}
        for name, p in (("as trained", 0.04), ("off", 0.002), ("gates of text 3", 0.01))
    ],
}


@functools.cache
def all_charts(theme: str) -> dict[str, Any]:
    return {
        "graph": hmodel_connections.graph_chart(edges(), theme=theme),
        "difference": hmodel_connections.graph_chart(edges(), theme=theme, minus=edges(0.2), compact=True),
        "distance": hmodel_connections.distance_chart(SEPARATION, theme=theme),
        "gates": directional_gates.gate_chart(gate_answer(), theme=theme, chosen="1.2.0"),
        "gate difference": directional_gates.gate_chart(gate_answer(), theme=theme, minus=gate_answer(0.1)),
        "variance": directional_gates.variance_chart(VARIANCE, [{"layer": 1, "head": 0, "variance": 0.3}], theme=theme),
        "specialists": directional_gates.specialist_chart([0.0, 0.5], theme=theme),
        "plane": directional_gates.pca_chart(PCA, theme=theme, chosen=["code"], sample=3),
        "heads": gate_worth.head_chart(SCAN, theme=theme),
        "uniform": gate_worth.uniform_chart(SCAN, theme=theme),
        "positions": gate_worth.position_chart(SCAN, theme=theme),
        "directions": gate_worth.direction_chart(WORD, theme=theme),
        "conditions": gate_worth.condition_chart(WORD, theme=theme),
        "losses": effects.token_loss_chart(LOSSES, theme=theme),
    }


def walk(spec: Any):
    yield spec
    for value in spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ():
        yield from walk(value)


def data_of(chart: Any, *fields: str) -> list[dict[str, Any]]:
    """The rows of the first data set that has all ``fields``."""
    for values in chart.to_dict()["datasets"].values():
        if values and set(fields) <= set(values[0]):
            return values
    raise AssertionError(f"no data with {fields}")


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_every_chart_compiles_and_asks_a_question(theme):
    for name, chart in all_charts(theme).items():
        spec = chart.to_dict()
        assert spec["title"]["text"].endswith("?"), name
        assert spec["description"].startswith(spec["title"]["text"]), name
        svg = vl_convert.vegalite_to_svg(json.dumps({**spec, "width": 500}, allow_nan=False))
        assert "NaN" not in svg, name
        assert "undefined" not in svg, name


def test_only_connections_that_can_exist_are_listed():
    table = hmodel_connections.connection_rows(edges())
    assert len(table) == 3 + 6 + 2
    assert {row["to"] for row in table if row["iteration"] == "2"} == {"it's next"}
    assert {row["from"] for row in table if row["iteration"] == "input"} == {"text input"}
    against = hmodel_connections.connection_rows(edges(), edges(0.2))
    assert [round(row["difference"], 6) for row in against if row["difference"]] == [-0.2, -0.2]


def test_lines_go_from_an_iteration_to_the_next_and_weak_ones_are_counted():
    lines = data_of(hmodel_connections.graph_chart(edges()), "source", "target")
    assert len(lines) == 10
    assert all(line["x2"] == line["x"] + 1 for line in lines)
    assert [line["c"] for line in lines] == sorted(line["c"] for line in lines)
    own = next(line for line in lines if line["c"] == 0.5)
    assert own["y"] == own["y2"]
    assert hmodel_connections.hidden_words(hmodel_connections.connection_rows(edges())) == [
        "Not drawn: 1 connection weaker than 0.02."
    ]


def test_a_connection_that_only_the_other_has_is_drawn_as_a_difference():
    """The label hardly uses what the mean of all uses most: the largest negative difference there is."""
    label, every = edges(), edges()
    label["values"][1][0][1], every["values"][1][0][1] = 0.005, 0.6
    chart = hmodel_connections.graph_chart(label, minus=every, compact=True)
    strongest = data_of(chart, "source", "target")[-1]
    assert strongest["difference"] == pytest.approx(-0.595)
    assert (strongest["strength"], strongest["against"], strongest["words"]) == (0.6, "0.600", "0.00500")
    assert hmodel_connections.hidden_words(hmodel_connections.connection_rows(label, every)) == [
        "Not drawn: 1 connection weaker than 0.02."
    ]
    circles = {row["node"]: row["got"] for row in data_of(chart, "node", "got")}
    assert circles["2|transformer 1"] == "0.600"  # what the label itself sends: 0.6 from transformer 1, not 0.605


def test_a_layer_that_nothing_reaches_is_hollow():
    answer = edges()
    answer["values"][0][2][1] = 0.0
    circles = {row["node"]: row for row in data_of(hmodel_connections.graph_chart(answer), "node", "got")}
    assert circles["1|transformer 0"]["on"]
    quiet = edges()
    quiet["values"][0][2][1] = quiet["values"][1][1][0] = quiet["values"][1][1][1] = quiet["values"][1][1][2] = 0.0
    circles = {row["node"]: row for row in data_of(hmodel_connections.graph_chart(quiet), "node", "got")}
    assert not circles["1|transformer 1"]["on"]
    assert circles["1|transformer 1"]["got"] == "nothing"


def test_an_output_adds_up_what_arrives():
    circles = {row["node"]: row for row in data_of(hmodel_connections.graph_chart(edges()), "node", "got")}
    assert circles["3|it's next"]["got"] == "2.05"  # .3 + .7 + .8 + .25; the 0.01 is not drawn


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_every_difference_has_one_scale_with_zero_in_the_middle(theme):
    charts = all_charts(theme)
    less, more = palette.diverging_scale(1, theme).to_dict()["range"][::2]
    for name in ("difference", "gate difference", "heads", "losses"):
        scales = [
            part["scale"]
            for part in walk(charts[name].to_dict())
            if isinstance(part, dict)
            and part.get("field") in ("difference", "rise")
            and "range" in part.get("scale", {})
        ]
        assert scales, name
        for scale in scales:
            assert scale["range"][0] == less
            assert scale["range"][2] == more
            assert scale["domain"][0] == -scale["domain"][2] < scale["domain"][1] == 0
    assert less != more
    look = palette.theme_named(theme)
    assert min(palette.contrast(less, look.background), palette.contrast(more, look.background)) > 4.5


def test_every_gate_is_a_cell_and_the_chosen_one_is_outlined():
    chart = directional_gates.gate_chart(gate_answer(), chosen="1.2.0")
    cells = data_of(chart, "gate", "r")
    assert len(cells) == 12
    assert {cell["gate"] for cell in cells} >= {"0.0.0", "1.2.1"}
    assert len({(cell["layer"], cell["x"]) for cell in cells}) == 12
    outlined = [rows for rows in chart.to_dict()["datasets"].values() if len(rows) == 1]
    assert outlined[0][0]["gate"] == "1.2.0"


def test_gates_of_two_domains_as_a_difference():
    table = directional_gates.gate_rows(gate_answer(), gate_answer(0.1))
    assert all(row["difference"] == pytest.approx(-0.1) for row in table)
    assert directional_gates.gate_rows(gate_answer())[0] == {"layer": 0, "head": 0, "direction": 0, "r": 0.0}


def test_labels_have_shapes_and_not_colours():
    spec = directional_gates.pca_chart(PCA).to_dict()
    shapes = [part["shape"] for part in walk(spec) if isinstance(part, dict) and isinstance(part.get("shape"), dict)]
    assert shapes[0]["scale"]["domain"] == ["code", "math", "prose"]
    assert len(set(shapes[0]["scale"]["range"])) == 3
    assert not any(
        isinstance(part, dict) and isinstance(part.get("color"), dict) and part["color"].get("field")
        for part in walk(spec)
    )


def test_separation_stands_beside_its_null():
    told = hmodel_connections.separation_words(SEPARATION, "language")
    assert "2.50 times" in told
    assert "1.00 ± 0.020" in told
    assert "200 shuffles" in told
    assert "more than chance" not in told
    assert "not surely more than chance" in hmodel_connections.separation_words({**SEPARATION, "p_value": 0.4})
    assert "no scale" in hmodel_connections.separation_words({**SEPARATION, "ratio": None})


def test_other_numbers_in_sentences():
    assert "more than the 20.0 %" in hmodel_connections.self_share_words(0.3, 5)
    assert "less than the 20.0 %" in hmodel_connections.self_share_words(0.1, 5)
    assert "Stability 0.981" in hmodel_connections.stability_words(0.981)
    assert "16.7 %" in hmodel_connections.nearest_words(0.9, "language", 6)
    assert "90.0 %" in directional_gates.centroid_words(CENTROIDS)
    assert "The gates know the domain" in directional_gates.centroid_words(CENTROIDS)
    assert "not surely more than chance" in directional_gates.centroid_words({**CENTROIDS, "p_value": 0.3})
    assert "33.0 %" in directional_gates.centroid_words({"accuracy": 0.9, "null_mean": 0.33, "p_value": 0.01})


def test_ablations_in_words():
    table = [
        {"what": "normal", "perplexity": 80.0, "induction": 0.93},
        {"name": "off", "perplexity": 800.0, "induction": 0.0},
        {"what": "off in layer 3", "perplexity": 90.0},
    ]
    rows = directional_gates.ablation_rows(table)
    assert [row["what"] for row in rows] == ["as trained", "routing off (every gate 0)", "off in layer 3"]
    assert directional_gates.ablation_words(table) == (
        "With routing off, perplexity goes from 80.0 to 800, and repeating a sequence that it has just seen "
        "(induction) from 93.0 % right to 0 %."
    )
    assert directional_gates.ablation_words(table[:1]) is None


def test_each_loss_of_a_family_page_says_which_texts_it_is_of():
    run = {"num_samples": 150, "dataset": "texts", "loss": 4.908, "findings": {"validation": {"loss": 3.78}}}
    own = " The 150 texts of this run, from “texts”, have 4.91 nats."
    assert validation_words(run) == "Of all validation texts of the checkpoint." + own
    run["findings"]["validation"]["count"] = 311296
    assert validation_words(run) == "Of all validation texts of the checkpoint (311,296 predictions)." + own
    assert ablated_data(run) == (
        "Of a part of the validation texts (all of them: 3.78 nats): compare with the row “as trained”." + own
    )
    assert perplexity_data(run) == "Once per document it is a loss of 3.78 nats." + own
    assert directional_gates.ablation_rows([{"name": "normal"}])[0]["what"] == "as trained"
    assert "*normal*" not in directional.HELP["ablation"]
    bare = {**run, "loss": None, "findings": {}}
    assert validation_words(bare) == "Of all validation texts of the checkpoint."
    assert perplexity_data(bare) == ""


def test_losses_are_compared_token_by_token_or_not_at_all():
    before = [{"token": i, "token_id": i, "text": "x", "loss": None if i == 0 else 1.0} for i in range(3)]
    after = [{**one, "loss": one["loss"] and 1.5} for one in before]
    assert [row["rise"] for row in effects.loss_rows(before, after)] == [0.5, 0.5]
    assert effects.loss_rows(before, after[:2]) == []


@pytest.mark.parametrize(
    ("name", "words"), [("transformer 3", "T3"), ("text input", "text"), ("next-token output", "next"), ("", "")]
)
def test_names_for_a_small_space(name, words):
    assert hmodel_connections.short(name) == words


def test_the_scan_in_sentences():
    assert gate_worth.head_words(SCAN) == (
        "The loss rises most without layer 1, head 0, by 0.100 nats; 4 of 6 heads clearly change the loss"
    )
    assert gate_worth.uniform_words(SCAN).startswith("One value for all gates may do as well as the routers: the best")
    worse = {"uniform": [row | {"rise": row["rise"] + 1, "clear": True} for row in SCAN["uniform"]]}
    assert "the best of 11 values, 0.6, costs 1.01 nats" in gate_worth.uniform_words(worse)
    better = {"uniform": [rise(-0.2, value=0.5)]}
    assert "beats the routers: the only one that was tried, 0.5, saves 0.200 nats" in gate_worth.uniform_words(better)
    for low, high, told in (
        (0.1, 0.3, "falls with"),
        (-0.3, -0.1, "grows with"),
        (-0.1, 0.1, "does not clearly change"),
    ):
        early, late = {"first": 0, "last": 0, "rise": 0.5}, {"first": 4, "last": 7, "rise": 0.25}
        trend = {"off": {"early": early, "late": late, "low": low, "high": high}}
        words = gate_worth.position_words({"trend": trend})
        assert f"The gain {told}" in words
        assert "routing is worth 0.500 nats at position 0 and 0.250 at positions 4–7" in words
    one_text = {"positions": [by_position(0, 0, 0.5, None)], "trend": {"off": None}}
    assert gate_worth.position_words(one_text).startswith("Routing is worth 0.500 nats")


def test_a_words_directions_and_probabilities_in_sentences():
    assert gate_worth.direction_words(WORD) == (
        "What the gates remove takes 0.750 from the logit of “␣séa”; the largest part is layer 0, head 0, direction 1 "
        "(−1.25)"
    )
    other = max(WORD["directions"], key=lambda row: row["logit"])
    louder = [{**row, "logit": 9.0} if row is other else row for row in WORD["directions"]]
    assert gate_worth.direction_words({**WORD, "directions": louder}).endswith("direction 1 (−1.25)"), "of its own sign"
    told = gate_worth.condition_words(WORD)
    assert told == "“␣séa” has a probability of 4.00 % as trained and of 0.200 % with routing off"


def test_directions_beyond_the_first_are_one_bar_and_nothing_is_lost():
    bars = data_of(gate_worth.direction_chart(WORD), "logit", "gate")
    assert len(bars) == gate_worth.MOST_BARS + 1
    assert bars[-1]["name"] == "the other 4 together"
    assert sum(bar["logit"] for bar in bars) == pytest.approx(sum(row["logit"] for row in WORD["directions"]))


def test_certain_heads_have_a_dot_and_one_text_no_band():
    sets = gate_worth.head_chart(SCAN).to_dict()["datasets"].values()
    assert sorted(len(table) for table in sets) == [4, 6]
    alone = SCAN | {"uniform": [rise(0.1, None, value=0.5)], "positions": [by_position(0, 0, 0.5, None)]}
    band = data_of(gate_worth.uniform_chart(alone), "bottom", "top")
    assert band[0]["bottom"] == band[0]["top"] == 2.1
    assert data_of(gate_worth.position_chart(alone), "gain", "low")[0]["low"] == 0.5


def test_the_sentences_of_gates_name_their_ends():
    axes = [{"axis": name, "names": [str(i) for i in range(2)]} for name in ("layer", "head", "direction")]
    here = {"axes": axes, "values": [[[0.1, 0.5], [0.4, 0.4]], [[0.4, 0.9], [0.3, 0.3]]]}
    there = {"axes": axes, "values": [[[0.1, 0.0], [0.4, 0.4]], [[0.4, 0.8], [0.9, 0.3]]]}
    assert directional_gates.gate_words(here) == (
        "Removed most is direction 1 of head 0 in layer 1 (0.900), least direction 0 of head 0 in layer 0 (0.100)."
    )
    assert directional_gates.gate_words(here, there) == (
        "Removed more than in the other is above all direction 1 of head 0 in layer 0 (0.500), "
        "less direction 0 of head 1 in layer 1 (−0.600)."
    )
    assert directional_gates.variance_words([[0.1, 0.3], [0.2, 0.0]]) == (
        "Head 1 of layer 0 differs most between domains: variance 0.300, where the middle head has 0.200."
    )
    assert (
        directional_gates.specialist_words([0.0, 0.5, 0.5]) == "Layers 1 and 2 have most: 50.0 % of their heads each."
    )
    assert directional_gates.specialist_words([0.0, 0.5, 0.1]) == "Layer 1 has most: 50.0 % of its heads."
    assert directional_gates.centroid_title(CENTROIDS).startswith("88.0 % of the texts lie nearest to the centre of")
    assert "not surely more than with shuffled domains" in directional_gates.centroid_title(
        {**CENTROIDS, "p_value": 0.3}
    )
