"""What runs say of soft routers: known answers on made-up samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.runs import make_soft
from tokenpaths.engine.analysis.families.family_findings import SoftSamples, connections, gates, lights
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.write.seal_findings import plain
from tokenpaths.frontend.charts.families.directional_gates import centroid_words

AXES = {"source": ("layer 0", "layer 1", "text input"), "target": ("layer 0", "layer 1", "words")}


def samples(values: np.ndarray, labels: list[str | None], **axes) -> SoftSamples:
    n = len(labels)
    return SoftSamples(values.astype(np.float32), labels, np.zeros(n), np.ones(n), axes)


def by_label(rng: np.random.Generator, shape: tuple[int, ...], labels: list[str], apart: float) -> np.ndarray:
    centres = {label: rng.random(shape) for label in sorted(set(labels))}
    return np.stack([0.5 * (1 - apart) + apart * centres[label] + 0.02 * rng.random(shape) for label in labels])


def test_labels_with_connections_of_their_own_are_found_and_others_are_not():
    rng = np.random.default_rng(0)
    labels = ["german", "swahili", "chinese"] * 8
    apart = connections(samples(by_label(rng, (3, 3, 3), labels, 0.8), labels, **AXES))
    alike = connections(samples(by_label(rng, (3, 3, 3), labels, 0.0), labels, **AXES))
    assert apart["num_hidden"] == 2
    assert apart["separation"]["ratio"] > 5
    assert apart["separation"]["p_value"] < 0.01
    assert apart["nearest_label_accuracy"] == 1.0
    assert alike["separation"]["p_value"] > 0.05
    assert 0 < apart["self_share"] < 1


def test_without_labels_the_comparison_is_left_out():
    found = connections(samples(np.random.default_rng(0).random((5, 3, 3, 3)), [None] * 5, **AXES))
    assert "separation" not in found
    assert "stability" in found


def test_gates_name_the_heads_that_tell_domains_apart_and_keep_sample_numbers():
    rng = np.random.default_rng(1)
    labels: list[str | None] = ["code", "prose", None] * 10
    values = 0.5 + 0.01 * rng.random((30, 4, 2, 3))
    values[[i for i, label in enumerate(labels) if label == "code"], 2, 1] += 0.4
    found = gates(samples(values, labels))
    assert found["specialists"][0]["layer"] == 2 or {"layer": 2, "head": 1} in [
        {"layer": row["layer"], "head": row["head"]} for row in found["specialists"]
    ]
    assert np.unravel_index(np.argmax(found["variance"]), (4, 2)) == (2, 1)
    assert found["centroid_accuracy"]["accuracy"] == 1.0
    assert found["centroid_accuracy"]["left_out"] == []
    assert [point["sample"] for point in found["pca"]["points"][:3]] == [0, 1, 3]


def test_a_domain_of_one_text_does_not_hide_what_is_known_of_the_others():
    rng = np.random.default_rng(1)
    labels: list[str | None] = ["code", "prose"] * 8 + ["poem"]
    values = 0.5 + 0.01 * rng.random((17, 4, 2, 3))
    values[:16:2, 2, 1] += 0.4
    found = gates(samples(values, labels))["centroid_accuracy"]
    assert (found["accuracy"], found["left_out"], found["num_samples"]) == (1.0, ["poem"], 16)
    assert "with one text only: poem." in centroid_words(found)


def test_lights_say_which_class_is_dear_and_that_hard_samples_light_up_more():
    rng = np.random.default_rng(2)
    labels = ["easy", "hard"] * 20
    lit = np.array([2 if label == "easy" else 6 for label in labels])
    rates = np.zeros((40, 3, 8), dtype=np.float32)
    for i, n in enumerate(lit):
        rates[i, : 1 + (n > 4), :n] = 0.5
    found = lights(SoftSamples(rates, labels, lit + 0.1 * rng.random(40), np.ones(40)))
    assert [(row["label"], row["mean"]) for row in found["active_share_by_label"]] == [("easy", 0.25), ("hard", 0.75)]
    assert found["correlation"]["pearson"] > 0.9
    assert found["steps_until_fired"]["counts"].tolist() == [0, 20, 20, 0]


def test_samples_without_labels_have_no_domains_to_tell_apart():
    assert gates(samples(np.full((2, 3, 2, 2), 0.5), [None, None])) == {"num_samples": 0}


def test_findings_are_sealed_and_served_with_the_run(tmp_path: Path):
    edges = by_label(np.random.default_rng(0), (2, 3, 3), ["a", "b"] * 3, 0.8)
    with Run.open(make_soft(edges=edges.astype(np.float32)).write(tmp_path)) as run:
        found = run.info()["findings"]
    assert found["connections"]["num_hidden"] == 2
    assert found["connections"]["separation"]["labels"] == ["german", "swahili"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("nan")])
def test_what_is_not_finite_becomes_null(value):
    assert json.dumps(plain({"a": [value, np.arange(2)]}), allow_nan=False) == '{"a": [null, [0, 1]]}'
