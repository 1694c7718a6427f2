"""Shards, shared modules and perplexity against W, against plain loops and cases by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokenpaths.engine.analysis.association import nmi
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.dipaco_config import DiPaCoConfig
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.train.dipaco.documents import make_sequences
from tokenpaths.engine.train.dipaco.path_report import (
    PathScores,
    bounds,
    chosen_paths,
    levels_in_common,
    path_sequence,
    perplexity,
    perplexity_by_label,
    reroute_curve,
    score_all_paths,
    shard_table,
    shared_modules,
)

CONFIG = DiPaCoConfig(
    width=16, heads=2, mlp_width=32, levels=(2, 2), blocks=(1, 1), prefix=4, vocab_size=40, context=12, rerouter=True
)


@pytest.fixture(scope="module")
def model() -> DiPaCo:
    torch.manual_seed(0)
    made = DiPaCo(CONFIG).eval().requires_grad_(False)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


@pytest.fixture(scope="module")
def sequences():
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 39, size=n) for n in (30, 7, 12, 20, 5)]
    return make_sequences(texts, ["b", "a", "a", "b", "a"], CONFIG, end_id=39)


@pytest.fixture(scope="module")
def found(model, sequences) -> PathScores:
    return score_all_paths(model, sequences)


# Tables


def test_shards_are_counted_by_path_and_by_label():
    paths, labels = np.array([0, 2, 2, 0, 3]), np.array([0, 1, 1, 0, 0])
    table = shard_table(paths, labels, ["code", "math"], 4, shuffles=50)
    assert table.sizes.tolist() == [2, 0, 2, 1]
    assert table.counts.tolist() == [[2, 0, 0, 1], [0, 0, 2, 0]]
    assert table.association.nmi == pytest.approx(nmi(paths, labels))
    assert table.association.shuffles == 50
    assert shard_table(paths, np.zeros(5, dtype=int), ["all"], 4).association is None


@pytest.mark.parametrize(("paths", "field"), [([0, 4], "paths"), ([-1, 0], "paths")])
def test_a_path_that_is_none_is_refused(paths, field):
    with pytest.raises(UserError, match="between 0 and 3") as error:
        shard_table(np.array(paths), np.zeros(2, dtype=int), ["all"], 4)
    assert error.value.field == field


def test_paths_that_know_the_label_beat_their_null():
    labels = np.arange(300) % 3
    knowing = shard_table(labels * 1, labels, ["a", "b", "c"], 4).association
    assert knowing.nmi == pytest.approx(1)
    assert knowing.p_value < 0.01
    blind = shard_table(np.random.default_rng(0).integers(4, size=300), labels, ["a", "b", "c"], 4).association
    assert blind.nmi < 0.05
    assert blind.nmi == pytest.approx(blind.null_mean, abs=4 * blind.null_std)


def test_which_paths_share_which_module():
    config = CONFIG.model_copy(update={"levels": (2, 3)})
    found = {(m.level, m.module): m.paths for m in shared_modules(config)}
    assert found == {(0, 0): (0, 1, 2), (0, 1): (3, 4, 5), (1, 0): (0, 3), (1, 1): (1, 4), (1, 2): (2, 5)}
    common = levels_in_common(config)
    assert common.diagonal().tolist() == [2] * 6
    assert (common[0, 1], common[0, 3], common[0, 4]) == (1, 1, 0)
    assert (common == common.T).all()


# Perplexity against W


@pytest.mark.parametrize("every", [None, 3, 5])
def test_looked_up_losses_are_those_of_the_model_itself(model, sequences, found, every):
    paths = chosen_paths(found, every)
    total, count = 0.0, 0
    for row in range(len(sequences)):
        ids, targets = sequences.batch(torch.tensor([row]))
        output = model(ids, reroute_every=every)
        assert torch.equal(paths[row, : ids.shape[1]], output.paths[0, output.chunks])
        losses = torch.nn.functional.cross_entropy(output.logits[0], targets[0], reduction="none")
        total += float(losses[3:].sum())
        count += len(losses) - 3
    assert perplexity(found, paths) == pytest.approx(math.exp(total / count), rel=1e-4)


def test_perplexity_by_hand():
    # Two sequences, three positions, prefix 2: positions 1 and 2 count, the second sequence ends after 1.
    scores = torch.tensor([[[-9.0, -9], [-1, -2], [-3, -4]], [[-9, -9], [-5, -6], [0, 0]]])
    counted = torch.tensor([[False, True, True], [False, True, False]])
    made = PathScores(scores, counted, torch.tensor([0, 1]), torch.tensor([[1, 1, 0], [0, 0, 0]]), prefix=2)
    assert perplexity(made, chosen_paths(made, None)) == pytest.approx(math.exp((1 + 3 + 6) / 3))
    # W = 1: token 2 (position 1) is chunk 0; token 3 (position 2) chunk 1, chosen after token 2: path 0.
    again = chosen_paths(made, 1)
    assert again.tolist() == [[0, 0, 0], [1, 1, 0]]
    assert bounds(made) == {
        "best_single_path": pytest.approx(math.exp(3)),
        "best_in_hindsight": pytest.approx(math.exp(3)),
    }


def test_bounds_stand_around_every_choice_made_once(found):
    once = perplexity(found, chosen_paths(found, None))
    limits = bounds(found)
    assert limits["best_in_hindsight"] <= min(once, limits["best_single_path"])


def test_the_mean_over_labels_is_the_mean_of_all(found, sequences):
    paths = chosen_paths(found, None)
    by_label = perplexity_by_label(found, paths, sequences)
    counts = {name: int(found.counted[sequences.label == i].sum()) for i, name in enumerate(sequences.labels)}
    mean = sum(math.log(by_label[name]) * counts[name] for name in by_label) / sum(counts.values())
    assert math.exp(mean) == pytest.approx(perplexity(found, paths))


def test_the_curve_counts_switches_and_paths(found):
    curve = {point.every: point for point in reroute_curve(found, (None, 3))}
    assert curve[None].switched == 0
    assert curve[None].paths_per_sequence == 1
    paths, counted = chosen_paths(found, 3), found.counted
    changes = decisions = distinct = 0
    for row in range(len(paths)):
        own = [int(p) for p, c in zip(paths[row], counted[row], strict=True) if c]
        distinct += len(set(own))
        # The first counted position belongs to chunk 0, as the two behind it; then every third decides.
        for i in range(3, len(own), 3):
            decisions += 1
            changes += own[i] != own[i - 1]
    assert curve[3].switched == pytest.approx(changes / decisions)
    assert curve[3].paths_per_sequence == pytest.approx(distinct / len(paths))


def test_routing_again_without_a_learned_router_is_refused(found):
    made = PathScores(found.scores, found.counted, found.document, None, found.prefix)
    with pytest.raises(UserError, match="no learned router") as error:
        chosen_paths(made, 3)
    assert error.value.field == "reroute_every"


def test_the_paths_along_one_document(model, sequences):
    ids = sequences.ids[:12].long()
    rows = path_sequence(model, ids, 3)
    # Tokens 0–6 (prefix and three), 7–9, 10–11.
    assert [(r["start"], r["end"]) for r in rows] == [(0, 7), (7, 10), (10, 12)]
    output = model(ids[None, :-1], reroute_every=3)
    assert [r["path"] for r in rows] == output.paths[0].tolist()
    assert rows[1]["modules"] == CONFIG.path_modules[rows[1]["path"]].tolist()
    losses = torch.nn.functional.cross_entropy(output.logits[0], ids[1:], reduction="none")
    assert rows[0]["loss"] == pytest.approx(float(losses[3:6].mean()), rel=1e-5)
    assert rows[2]["loss"] == pytest.approx(float(losses[9:11].mean()), rel=1e-5)
    assert path_sequence(model, ids[:3], None)[0]["loss"] is None
