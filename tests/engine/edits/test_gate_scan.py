"""Scans of heads, uniform gates and positions: against loops over texts, one at a time and without padding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from torch.nn import functional as F

from tests.engine.analysis.test_directions import small
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.edits.gate_scan import (
    GRID,
    TRAINED,
    conditions,
    gain_trend,
    paired_rise,
    position_edges,
    scan_answer,
    text_losses,
)
from tokenpaths.engine.edits.prepared import PreparedSet
from tokenpaths.engine.models.directional import Directional
from tokenpaths.engine.models.directional_gates import Interventions
from tokenpaths.engine.tracing.text_windows import cut, padded

CONTEXT = 12


def texts() -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.integers(0, 31, size) for size in (5, 12, 30, 9)]


def prepared() -> PreparedSet:
    """As ``PreparedSet.close`` leaves them, two windows a pass; without a tokenizer."""
    data = PreparedSet.__new__(PreparedSet)
    data.batches, data.samples, data.num_samples = [], [], len(texts())
    windows = [(number, window) for number, ids in enumerate(texts()) for window in cut(ids, CONTEXT)]
    for start in range(0, len(windows), 2):
        part = windows[start : start + 2]
        data.batches.append(padded([window for _, window in part]))
        lengths = torch.tensor([len(window.ids) for _, window in part])
        data.samples.append(torch.tensor([number for number, _ in part]).repeat_interleave(lengths))
    return data


def naive_losses(model: Directional, act: Interventions) -> list[list[tuple[int, float]]]:
    """(position in its window, loss) of every token with a successor, text by text, window by window."""
    found = []
    for ids in texts():
        of_text = []
        for start in range(0, len(ids), CONTEXT):
            window = torch.from_numpy(ids[start : start + CONTEXT]).long()
            logits = model(window[None], None, act).logits[0]
            for place in range(len(window)):
                if start + place + 1 < len(ids):
                    target = torch.tensor(int(ids[start + place + 1]))
                    of_text.append((place, float(F.cross_entropy(logits[place], target))))
        found.append(of_text)
    return found


@pytest.fixture(scope="module")
def model() -> Directional:
    return small(context=CONTEXT)


@pytest.fixture(scope="module")
def answer(model: Directional) -> dict:
    edges, done, counts = position_edges(CONTEXT), {}, None
    for condition in conditions(model.config):
        done[condition.name], counts = text_losses(model, prepared(), condition.act, edges)
    assert counts is not None
    return scan_answer(model.config, counts, done, edges)


def naive_rise(changed: list[list[float]], trained: list[list[float]]) -> tuple[float, float]:
    """Mean rise over all tokens and its standard error clustered by text, both by loops."""
    pairs = [(a, b) for a, b in zip(changed, trained, strict=True) if b]
    tokens = sum(len(b) for _, b in pairs)
    rise = sum(sum(a) - sum(b) for a, b in pairs) / tokens
    rest = [sum(a) - sum(b) - rise * len(b) for a, b in pairs]
    left = expected([len(b) for _, b in pairs])
    return rise, math.sqrt(sum(r * r / part for r, part in zip(rest, left, strict=True))) / tokens


def expected(lengths: list[int]) -> list[float]:
    """What is expected of a squared residual, where that around the true mean is 1."""
    shares = [length / sum(lengths) for length in lengths]
    return [1 - 2 * share + sum(one * one for one in shares) for share in shares]


def quantile(texts: list[list[float]]) -> float:
    """Student's, 97.5 %, of as many texts as their lengths leave effective."""
    lengths = [len(text) for text in texts]
    return float(student.ppf(0.975, max(1, sum(lengths) ** 2 / sum(length**2 for length in lengths) - 1)))


def losses_of(model: Directional, act: Interventions, first: int = 0, last: int = CONTEXT) -> list[list[float]]:
    return [[loss for place, loss in text if first <= place <= last] for text in naive_losses(model, act)]


def test_every_knocked_out_head_is_a_loop_over_texts(model: Directional, answer: dict) -> None:
    trained = losses_of(model, Interventions())
    flat = [loss for text in trained for loss in text]
    assert answer["trained"] == {"loss": pytest.approx(np.mean(flat), abs=1e-5), "num_targets": 5 + 12 + 30 + 9 - 4}
    assert [(row["layer"], row["head"]) for row in answer["heads"]] == [(a, b) for a in range(2) for b in range(3)]
    for row in answer["heads"]:
        act = Interventions(knocked_out=((row["layer"], row["head"]),))
        rise, error = naive_rise(losses_of(model, act), trained)
        assert row["rise"] == pytest.approx(rise, abs=1e-5)
        assert row["error"] == pytest.approx(error, rel=1e-3)
        half = quantile(trained) * error
        assert [row["low"], row["high"]] == pytest.approx([rise - half, rise + half], abs=1e-4)
        assert row["loss"] == pytest.approx(np.mean(flat) + rise, abs=1e-5)


def test_uniform_gates_from_off_to_full(model: Directional, answer: dict) -> None:
    trained = losses_of(model, Interventions())
    assert [row["value"] for row in answer["uniform"]] == list(GRID)
    for row in (answer["uniform"][place] for place in (0, 3, 10)):
        rise, error = naive_rise(losses_of(model, Interventions.everywhere(row["value"])), trained)
        assert row["rise"] == pytest.approx(rise, abs=1e-5)
        assert row["error"] == pytest.approx(error, rel=1e-3)


def test_the_gain_by_position_is_of_the_positions_of_that_group(model: Directional, answer: dict) -> None:
    groups = [(0, 0), (1, 1), (2, 3), (4, 7), (8, 11)]
    assert [(row["first"], row["last"]) for row in answer["positions"]] == groups
    for row in answer["positions"]:
        place = (row["first"], row["last"])
        trained = losses_of(model, Interventions(), *place)
        assert row["num_targets"] == sum(map(len, trained))
        assert row["num_texts"] == sum(map(bool, trained))
        assert row["loss"] == pytest.approx(np.mean([loss for text in trained for loss in text]), abs=1e-5)
        for name, value in (("off", 0.0), ("neutral", 0.5)):
            rise, error = naive_rise(losses_of(model, Interventions.everywhere(value), *place), trained)
            assert row[name]["rise"] == pytest.approx(rise, abs=1e-5)
            assert row[name]["error"] == pytest.approx(error, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", ["off", "neutral"])
def test_the_trend_is_early_minus_late_with_texts_drawn_once(model: Directional, answer: dict, name: str) -> None:
    trend, act = answer["trend"][name], Interventions.everywhere({"off": 0.0, "neutral": 0.5}[name])
    assert [trend[part][end] for part in ("early", "late") for end in ("first", "last")] == [0, 3, 8, 11]
    gains, rests = [], []
    for first, last in ((0, 3), (8, 11)):
        changed, trained = losses_of(model, act, first, last), losses_of(model, Interventions(), first, last)
        gain = naive_rise(changed, trained)[0]
        tokens = sum(map(len, trained))
        left = expected([len(b) for b in trained])
        texts = zip(changed, trained, left, strict=True)
        rests.append([(sum(a) - sum(b) - gain * len(b)) / tokens / math.sqrt(part) for a, b, part in texts])
        gains.append(gain)
    error = math.sqrt(sum((a - b) ** 2 for a, b in zip(*rests, strict=True)))
    assert [trend["early"]["rise"], trend["late"]["rise"]] == pytest.approx(gains, abs=1e-5)
    assert trend["difference"] == pytest.approx(gains[0] - gains[1], abs=1e-5)
    t = max(quantile(losses_of(model, Interventions(), *place)) for place in ((0, 3), (8, 11)))
    assert trend["high"] - trend["low"] == pytest.approx(2 * t * error, rel=1e-3)


def test_the_trend_covers_the_truth_as_often_as_it_says_where_few_texts_are_long() -> None:
    """Gains that do not change with the position: 95 % intervals that left out 0 much more often would be none."""
    edges, held = [0, 1, 2, 4], 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        counts = np.where(np.arange(30)[:, None] < (30, 30, 2), (1, 1, 2), 0)
        # Each text has a gain of its own, and each of its groups strays from it.
        rises = counts * (rng.standard_normal((30, 1)) + rng.standard_normal((30, 3)))
        trend = gain_trend(rises, counts, edges)
        assert trend is not None
        held += trend["low"] <= 0 <= trend["high"]
    assert held >= 0.93 * 300


def test_texts_of_one_position_or_a_single_one_have_no_trend() -> None:
    counts = np.array([[1, 0, 0], [1, 0, 0]])
    assert gain_trend(np.ones((2, 3)), counts, [0, 1, 2, 4]) is None
    assert gain_trend(np.ones((1, 3)), np.ones((1, 3), dtype=int), [0, 1, 2, 4]) is None


def test_one_text_has_no_interval_and_nothing_is_clear() -> None:
    one = paired_rise(np.array([4.0, 0]), np.array([2.0, 0]), np.array([2, 0]))
    assert one == {"rise": 1.0, "error": None, "low": None, "high": None, "clear": False}
    none = paired_rise(np.zeros(2), np.zeros(2), np.zeros(2, dtype=int))
    assert none["rise"] is None


def test_clear_is_judged_over_all_that_are_looked_at() -> None:
    rng = np.random.default_rng(0)
    count, trained = np.full(12, 10), np.zeros(12)
    changed = 10 * (0.1 + 0.15 * rng.standard_normal(12))
    alone, many = (paired_rise(changed, trained, count, tests) for tests in (1, 400))
    assert alone["low"] > 0
    assert alone["clear"]
    assert not many["clear"]
    assert {key: alone[key] for key in ("rise", "low")} == {key: many[key] for key in ("rise", "low")}


def test_an_unfinished_scan_tells_what_there_is(model: Directional) -> None:
    edges = position_edges(CONTEXT)
    sums, counts = text_losses(model, prepared(), Interventions(), edges)
    assert scan_answer(model.config, counts, {}, edges)["trained"] is None
    begun = scan_answer(model.config, counts, {TRAINED: sums}, edges)
    assert begun["heads"] == begun["uniform"] == []
    assert "off" not in begun["positions"][0]


def test_a_broken_model_is_a_sentence(model: Directional) -> None:
    broken = small(context=CONTEXT)
    broken.embed.weight.fill_(float("nan"))
    with pytest.raises(UserError, match="NaN or infinite"):
        text_losses(broken, prepared(), Interventions(), position_edges(CONTEXT))
