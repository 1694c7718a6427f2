"""Pages of claims: their numbers come from results, and the figures behind the DNA page are right by hand."""

from __future__ import annotations

import ast
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import dna_choices, dna_figures, dream_tests
from benchmarks.science import __main__ as science
from benchmarks.science import dipaco_claims, dna_rows, hmodel_claims
from benchmarks.science.claims import (
    VERDICTS,
    Claim,
    above,
    above_all,
    agreed,
    below,
    below_all,
    outside,
    spanned,
    verdict,
)

MODULES = sorted(file for file in Path(science.__file__).parent.glob("*.py") if "Claim(" in file.read_text("utf-8"))


def observed(ids: np.ndarray, sample: np.ndarray, **outputs) -> dna_choices.Observed:
    count = len(ids)
    active = np.ones((ids.shape[1], int(ids.max()) + 1), dtype=bool)
    return dna_choices.Observed(ids, sample, np.ones(count), np.zeros(count), active, **outputs)


@pytest.mark.parametrize("module", MODULES, ids=lambda file: file.stem)
def test_no_measured_number_is_written_by_hand(module):
    calls = [
        node
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Claim"
    ]
    for call in calls:
        texts = [n.value for n in ast.walk(call.args[2]) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        assert not [text for text in texts if re.search(r"\d[.,]\d|\d ?%", text)]


def test_every_row_has_a_verdict_and_says_what_it_rests_on():
    for paper in science.PAPERS:
        for table in paper.tables:
            basis = table.basis(science.kept_document(table.benchmark)["results"])
            for row in science.rows_of(table):
                assert row.verdict in VERDICTS
                assert row.ours
                assert row.basis or basis
                assert "\n" not in row.line(basis)


def test_verdicts_and_spans():
    assert [verdict(True, True), verdict(True, False), verdict(False)] == ["holds", "partly", "not at this scale"]
    effect = {"value": -0.5, "low": -0.75, "high": -0.25, "untrained": [0.5, None, 0.25]}
    assert spanned(effect) == "−0.50 (−0.75 … −0.25), untrained 0.25 … 0.50"
    assert below(effect)
    assert not above(effect)


def test_an_effect_stands_against_chance_and_against_untrained_networks():
    effect = {"value": 0.3, "low": 0.2, "high": 0.4, "untrained": [0.1, None, float("nan")]}
    assert above_all(effect)
    assert not above_all(effect | {"untrained": [0.1, 0.25]})
    assert not above_all(effect | {"low": -0.1, "untrained": [-0.5]})
    assert above_all(effect | {"untrained": []})
    turned = {"value": -0.3, "low": -0.4, "high": -0.2, "untrained": [-0.1]}
    assert below_all(turned)
    assert not below_all(turned | {"untrained": [-0.25, 0.5]})
    assert not below_all(effect)
    assert [outside(one, 0.15) for one in (effect, turned, effect | {"low": 0.1})] == [True, True, False]


def test_each_test_of_each_network_is_a_setting():
    models = {"a": {"x": 1, "y": -1}, "b": {"x": -1, "y": -1}}
    each = dna_rows.tested(models, ("a", "b"))
    positive = [lambda m: m["x"] > 0, lambda m: m["y"] > 0]
    assert each(positive[0]) == "partly"
    assert each(*positive) == "partly"
    assert each(positive[1], opposite=lambda m: m["y"] < 0) == "the opposite"
    assert each(positive[1], opposite=lambda m: m["x"] < 0) == "not at this scale"


def test_an_h_model_is_better_only_with_both_numbers_in_every_training():
    row = lambda length, seed, loss, accuracy: {  # noqa: E731
        "iterations": length,
        "seed": seed,
        "loss": loss,
        "accuracy": accuracy,
    }
    trainings = {
        hmodel_claims.DEEP: [row(10, 0, 1.0, 0.5), row(30, 0, 3.0, 0.6), row(30, 1, 3.0, 0.4)],
        hmodel_claims.WIDE: [row(10, 0, 1.5, 0.4), row(30, 0, 2.0, 0.5), row(30, 1, 4.0, 0.5)],
    }
    assert hmodel_claims._better(trainings, hmodel_claims.DEEP, hmodel_claims.WIDE) == [True, False, False]
    assert hmodel_claims._beside(trainings, hmodel_claims.DEEP) == (
        "10 iterations: 4 layers, T = 4: 1.00 nats, 50.0 %<br>"
        "30 iterations: 4 layers, T = 4: 3.00, 3.00 nats, 60.0, 40.0 %"
    )
    assert hmodel_claims._basis(trainings[hmodel_claims.DEEP]) == (
        "1 network each of 10 iterations and 2 networks each of 30 iterations; held-out tenth"
    )


def test_trainings_that_disagree_hold_in_part():
    assert [
        agreed(row) for row in (("holds", "holds"), ("holds", "not at this scale"), ("partly", "the opposite"))
    ] == ["holds", "partly", "partly"]
    assert agreed(("the opposite", "not at this scale")) == "not at this scale"
    one = Claim("c", "p", "o", "holds", "r", "1 network each; 5 images")
    both = one.with_others([replace(one, verdict="not at this scale")])
    assert both.line("") == "| c | **partly**<br>(holds, not at this scale) | o | p | 2 networks each; 5 images | r |"
    assert one.with_others([one]).line("").startswith("| c | **holds**<br>(in all 2) |")


def test_networks_trained_anew_stand_beside_the_untrained_ones_of_the_shipped():
    shipped = {"alike": {"value": 1.0, "untrained": [0.5]}, "validation": {"loss": 1, "dense_twin": {"loss": 2}}}
    rest = dict.fromkeys(dna_rows.VISION, shipped)
    own = {"alike": {"value": 3.0, "untrained": []}, "validation": {"loss": 4}}
    results = {
        "models": rest,
        "between": {"vision": 1, "text": 2},
        "anew": {"2": {dna_rows.VISION[0]: own}, "1": dict.fromkeys(dna_rows.VISION, own)},
        "between_anew": {"1": {"vision": 5}, "2": {}},
    }
    found = dna_rows.images_anew(results)
    assert list(found) == ["1"]  # of seed 2 one network is missing
    assert found["1"]["models"][dna_rows.VISION[0]] == {
        "alike": {"value": 3.0, "untrained": [0.5]},
        "validation": {"loss": 4, "dense_twin": {"loss": 2}},
    }
    assert found["1"]["between"] == {"vision": 5}  # never the shipped pair's


def test_paths_trained_anew_are_compared_seed_by_seed():
    results = json.loads(json.dumps(science.kept_document("dipaco")["results"]))
    for name in dipaco_claims.PATHS:
        results[name]["by_seed"] = {"0": results[name]["by_seed"]["0"]}
    assert dipaco_claims.anew(results) == {}
    for seed, product in (("10", -0.05), ("2", 0.05)):
        for name in dipaco_claims.PATHS:
            value = {"dense": 0.0, "product": product}.get(name, 0.0)
            effect = {"loss_less_dense": value, "low": value - 0.01, "high": value + 0.01}
            results[name]["by_seed"][seed] = {"perplexity": 100.0 + value, "effect": effect}
    results["own-ends"] = {"perplexity": 1.0, "by_seed": {"0": {}}}  # what no row compares may lack a seed
    found = dipaco_claims.anew(results)
    assert list(found) == ["2", "10"]
    claim = "product k-means beats k-means"
    by_seed = {
        seed: {row.claim: row.verdict for row in dipaco_claims.dipaco(own) if row.trained}
        for seed, own in found.items()
    }
    assert [by_seed[seed][claim] for seed in found] == ["the opposite", "holds"]
    assert not any("re-router" in row for row in by_seed["2"])  # only the shipped paths have one
    assert "base" not in found["2"]  # it was not trained under that seed, so no row may stand for it


def test_effects_of_two_paths_are_apart_only_beyond_both_intervals():
    results = json.loads(json.dumps(science.kept_document("dipaco")["results"]))

    def verdict_of(change: float) -> str:
        for name, value in (("kmeans", -0.02), ("product", -0.02 + change)):
            results[name]["effect"] = {"loss_less_dense": value, "low": value - 0.003, "high": value + 0.003}
        rows = {row.claim: row.verdict for row in dipaco_claims.dipaco(results)}
        return rows["product k-means beats k-means"]

    # √2 · 0.003 = 0.00424
    results["product"]["less"] = {"dense": {"value": -1.0, "low": -1.1, "high": -0.9}}  # of another pair
    assert [verdict_of(change) for change in (-0.0044, -0.0041, 0.0041, 0.0044)] == [
        "holds",
        "not at this scale",
        "not at this scale",
        "the opposite",
    ]
    results["product"]["less"] = {"kmeans": {"value": -0.001, "low": -0.0015, "high": -0.0005}}
    assert verdict_of(0.0) == "holds"  # taken document by document


def test_likeness_of_a_path_counts_pairs_of_different_images():
    rng = np.random.default_rng(0)
    ids, sample = rng.integers(0, 2, size=(40, 2, 1)), np.repeat(np.arange(5), 8)
    looks, counts = rng.normal(size=(40, 3)), np.array([1, 2, 0, 1, 1])
    one = observed(ids, sample)
    weight = counts[sample]

    def mean_distance(tokens) -> tuple[float, float]:
        pairs = [(i, j) for i, j in itertools.combinations(tokens, 2) if sample[i] != sample[j]]
        weights = np.array([weight[i] * weight[j] for i, j in pairs])
        squares = np.array([((looks[i] - looks[j]) ** 2).sum() for i, j in pairs])
        return float((weights * squares).sum()), float(weights.sum())

    near = total = 0.0
    for path in np.unique(one.path_n):
        tokens = np.flatnonzero(one.path_n == path)
        squares, pairs = mean_distance(tokens)
        near += weight[tokens].sum() * squares / pairs
        total += weight[tokens].sum()
    squares, pairs = mean_distance(range(40))
    assert dna_figures.alike(one, looks, counts) == pytest.approx(1 - (near / total) / (squares / pairs))


def test_likeness_is_whole_for_equal_looks_and_none_without_shared_paths():
    ids, sample = np.arange(8)[:, None, None] % 4, np.repeat([0, 1], 4)
    looks = np.array([[0.0], [1.0], [2.0], [3.0]] * 2)
    assert dna_figures.alike(observed(ids, sample), looks, np.ones(2, dtype=int)) == pytest.approx(1.0)
    alone = observed(np.arange(8)[:, None, None], sample)
    assert np.isnan(dna_figures.alike(alone, looks, np.ones(2, dtype=int)))


def test_grouping_by_step_finds_the_step_that_sorts_by_label():
    rng = np.random.default_rng(0)
    label, sample = rng.integers(0, 4, size=2000), np.repeat(np.arange(20), 100)
    ids = np.stack([rng.integers(0, 4, size=2000), label], axis=1)[:, :, None]
    first, second = dna_figures.grouping_by_step(observed(ids, sample), label)
    assert abs(first["value"]) < 0.02
    assert second["value"] == pytest.approx(1.0)


def test_the_leading_path_of_a_kind():
    ids = np.array([0] * 6 + [1] * 4 + [2])[:, None, None]
    ends = np.array([True] * 3 + [False] * 3 + [True] * 3 + [False] + [True])
    found = dna_figures.leading_path(observed(ids, np.zeros(11, dtype=int)), ends)
    assert found == {"rank": 2, "tokens": 4, "share": 0.75}
    assert dna_figures.leading_path(observed(ids, np.zeros(11, dtype=int)), ids.ravel() > 2)["rank"] == 4


def test_no_cell_breaks_its_table():
    for page in science.pages().values():
        width = 0
        for line in page.splitlines():
            if line.startswith("|"):
                assert width in (0, line.count("|")), line
            width = line.count("|") if line.startswith("|") else 0


def test_outputs_are_means_over_the_predictions_of_a_sample():
    import torch

    sums = np.zeros((4, 2))
    logits = torch.log(torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]]))
    dna_choices.add_outputs(sums, logits, torch.tensor([0, 1, -100]), np.array([1, 1, 0]))
    assert sums[:, 0].tolist() == [0, 0, 0, 0]
    assert sums[0, 1] == 2
    assert sums[1, 1] == pytest.approx(-np.log(0.5) - np.log(0.75))
    assert sums[3, 1] == pytest.approx(1.25)


def test_boundary_groups_are_those_of_the_box_unless_few_or_most():
    from PIL import Image

    from tokenpaths.engine.data.sources.sample import Sample

    def boxed(*box: int) -> Sample:
        mask = np.zeros((64, 64), dtype=np.uint8)
        mask[box[1] : box[3], box[0] : box[2]] = 1
        return Sample(Image.new("RGB", (64, 64)), None, "x", "a", mask)

    crossed, whole, inside = dream_tests.groups_of(
        [boxed(4, 4, 36, 36), boxed(0, 0, 64, 64), boxed(1, 1, 7, 7)], (8, 8)
    )
    assert len(crossed) == 16
    assert crossed[:6] == [0, 1, 2, 3, 4, 8]
    assert whole == inside == []


def test_dreams_of_the_right_class_are_counted_beside_those_dealt_to_others():
    rows = [
        {"says": says, "answer": answer, "label": 0, "p_answer": 0.5, "p_label": 0.25, "matched": 1.0}
        for says, answer in ((0, 0), (1, 1), (1, 0), (2, 2))
    ]
    found = dream_tests.summary(rows)
    assert found["is_answer"]["value"] == 0.75
    assert found["is_answer_dealt"] == pytest.approx(2 / 12)  # the first as of image 2, the third as of 1
    assert found["is_label"]["value"] == 0.25
    assert found["p_answer"] == {"value": 0.5, "low": 0.5, "high": 0.5}


def test_differences_of_dreams_are_taken_image_by_image():
    rows = [
        {"kind": kind, "image": image, "p_answer": p}
        for image in range(50)
        for kind, p in (("one", 0.3 + 0.01 * image), ("other", 0.2 + 0.01 * image))
    ]
    found = dream_tests.difference(rows, "one", "other")
    assert [found[key] for key in ("value", "low", "high")] == pytest.approx([0.1] * 3)


def test_repeated_visits_are_told_from_first_ones():
    # Module 0 sees all four tokens at both steps but for one token, which goes to module 1 at the second.
    ids = np.array([[0, 0], [0, 0], [0, 0], [0, 1]])[:, :, None]
    found = dna_figures.repeats_attend_more(observed(ids, np.zeros(4, dtype=int)))
    first, again = (4 * 1.0 + 0.25) / 5, 0.75
    assert found == pytest.approx([again - first])
    alone = observed(np.array([[0, 1], [1, 2]])[:, :, None], np.zeros(2, dtype=int))
    assert np.isnan(dna_figures.repeats_attend_more(alone)).all()


def test_only_the_same_recipe_under_another_seed_counts_as_trained_anew(tmp_path):
    from benchmarks.dna import check_anew
    from tokenpaths.engine.base.errors import UserError
    from tokenpaths.engine.base.files import SHIPPED_MODELS

    shipped = SHIPPED_MODELS / "dna-vision-top1"
    config = json.loads((shipped / "config.json").read_text(encoding="utf-8"))

    def trained(name: str, **changes) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        recipe = config["training"]["recipe"] | changes
        document = config | {"training": config["training"] | {"recipe": recipe}}
        (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
        return folder

    assert check_anew(trained("dna-vision-top1-seed1", seed=1), shipped, 1)["recipe"]["seed"] == 1
    with pytest.raises(UserError, match="was trained under seed 0"):
        check_anew(trained("dna-vision-top1-seed0"), shipped, 0)
    with pytest.raises(UserError, match="was trained under seed 3"):
        check_anew(trained("dna-vision-top1-seed2", seed=3), shipped, 2)
    with pytest.raises(UserError, match="no network of dna-vision-top1's recipe"):
        check_anew(trained("dna-vision-top1-seed5", seed=5, batch_size=7), shipped, 5)
