"""Any number of runs side by side: the numbers against loops over the arrays, what is told apart, and what is not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from tests.support.runs import RunArrays, make, make_experts, with_unrecorded
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.several_runs import MOST_RUNS, many_runs, sample_matching
from tokenpaths.engine.store.ask.several_runs.many_runs import compare_runs
from tokenpaths.engine.store.ask.several_runs.series import over_training, relation_note, relation_of, same_numbering
from tokenpaths.engine.store.ask.tables.drawn_tokens import draw_groups


def named(made: RunArrays, run_id: str, **info: object) -> RunArrays:
    return replace(made, info=replace(made.info, run_id=run_id, **info))


def shifted(made: RunArrays, run_id: str, every: int = 2) -> RunArrays:
    batches = []
    for batch in made.batches:
        ids = batch.module_ids.copy()
        ids[::every] = (ids[::every] + 1) % made.info.num_modules
        batches.append(replace(batch, module_ids=ids))
    return named(replace(made, batches=batches), run_id)


def row(answer: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in answer["rows"] if one["name"] == name)


def test_numbers_are_those_of_loops_over_the_arrays(opened) -> None:
    first = make("first", "text", samples=12)
    second = shifted(first, "second")
    a, b = opened(first, second)
    answer = compare_runs([a, b])
    assert [one["run"] for one in answer["runs"]] == ["first", "second"]
    assert answer["equal_tokens"] == len(first.ids)
    for place, made in enumerate((first, second)):
        counts = np.array(list(Counter(map(tuple, made.ids[:, :, 0].tolist())).values()))
        shares = counts / counts.sum()
        assert row(answer, "num_paths")["values"][place] == len(counts)
        assert row(answer, "equal_effective_paths")["values"][place] == pytest.approx(
            np.exp(-(shares * np.log(shares)).sum())
        )
        loads = [np.bincount(made.ids[:, step, 0], minlength=6) for step in range(5)]
        assert row(answer, "load_cv")["values"][place] == pytest.approx(np.mean([c.std() / c.mean() for c in loads]))
        assert row(answer, "dead_modules")["values"][place] == sum(int((c == 0).sum()) for c in loads)
    values = [np.array([one["compute"] for one in run.samples(limit=100)["samples"]]) for run in (a, b)]
    weights = np.array([one.num_tokens for one in first.samples], dtype=float)
    gap = row(answer, "mean_compute")["differences"][1]
    assert gap["value"] == pytest.approx(
        np.average(values[1], weights=weights) - np.average(values[0], weights=weights)
    )
    shares = weights / weights.sum()
    part = shares * (values[1] - values[0] - gap["value"])
    error = np.sqrt((part**2 / (1 - 2 * shares + (shares**2).sum())).sum())
    half = scipy.stats.t.ppf(0.975, 1 / (shares**2).sum() - 1) * error
    assert (gap["low"], gap["high"]) == pytest.approx((gap["value"] - half, gap["value"] + half), abs=1e-6)
    assert gap["clear"] == (gap["low"] > 0 or gap["high"] < 0)
    assert row(answer, "num_paths")["untrained"][0] == a.fit()["untrained"]["num_paths"]
    known = next(row for row in a.knowledge()["properties"] if row["property"] == "label")
    for of, prefix in (("values", ""), ("untrained", "untrained_")):
        nmi, null = known[f"{prefix}nmi"], known[f"{prefix}null_mean"]
        assert row(answer, "knows_label")[of][0] == pytest.approx((nmi - null) / (1 - null))
    assert row(answer, "num_tokens")["differences"] == [None, None]


def test_the_same_routes_differ_in_nothing(opened) -> None:
    first = make("first", "text", samples=12, twin=False)
    answer = compare_runs(opened(first, named(first, "again"), named(first, "third")))
    told = [gap for one in answer["rows"] for gap in one["differences"] if gap is not None]
    assert len(told) > 10
    assert not any(gap["clear"] for gap in told)
    assert all(gap["value"] == 0 for gap in told)
    assert all(one["same_samples"] for one in answer["runs"])


def test_samples_in_another_order_are_paired(opened) -> None:
    first = make("first", "text", samples=10, twin=False)
    batch, rest = first.batches
    turned = shifted(replace(first, batches=[rest, batch]), "turned")
    straight = shifted(first, "straight", every=2)
    answer = compare_runs(opened(first, turned, straight))
    rows = sample_matching.pair_samples(*opened(named(first, "x"), named(turned, "y")))
    assert rows.rows_b.tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
    assert rows.whole
    assert answer["runs"][1]["same_samples"]
    assert row(answer, "mean_reuse")["differences"][1]["num"] == 10


def test_what_cannot_be_told_says_why(opened) -> None:
    first = make("first", "text", samples=12, twin=False)
    fewer = named(replace(first, batches=first.batches[1:]), "fewer")
    other = named(make("x", "text", samples=12, seed=5, twin=False), "other", dataset="other texts")
    runs = opened(first, fewer, other, make("pictures", samples=12, twin=False), make_experts("experts"))
    answer = compare_runs(runs)
    entropy = row(answer, "load_entropy")["reasons"]
    assert entropy[0] is None
    assert "samples of fewer are in first too, and this is a number of the whole run" in entropy[1]
    assert entropy[2] == "first is over 'toy text', other over 'other texts'"
    assert entropy[3] == "first is of text, pictures of vision"
    assert [one["num_common"] for one in answer["runs"]] == [None, len(fewer.samples), 0, 0, 0]
    assert answer["runs"][3]["reason"] == "first is of text, pictures of vision"
    assert not any(gap for one in answer["rows"] for gap in one["differences"][2:])
    assert answer["equal_tokens"] == min(run.row["num_tokens"] for run in runs)


def test_other_scales_and_other_tokens_are_not_subtracted(opened) -> None:
    first = make("first", "text", samples=12, twin=False)
    modules = make("x", "text", samples=1, modules=9, twin=False).modules
    (a, b) = opened(first, named(replace(first, modules=modules), "wide", num_modules=9))
    answer = compare_runs([a, b])
    assert row(answer, "max_violation")["reasons"][1] == "first has 6 modules, wide has 9: its scale is another"
    assert row(answer, "load_entropy")["differences"][1] is not None
    cut = []
    for batch in first.batches:  # every second token is left out: other tokens of the same texts
        numbers = np.repeat(np.arange(len(batch.samples)), [one.num_tokens for one in batch.samples])
        kept = np.arange(len(numbers)) % 2 == 0
        samples = [replace(s, num_tokens=int((numbers[kept] == n).sum())) for n, s in enumerate(batch.samples)]
        columns = {
            name: value[kept]
            for name, value in vars(batch).items()
            if isinstance(value, np.ndarray) and len(value) == len(kept)
        }
        cut.append(replace(batch, samples=samples, **columns))
    c = opened(named(replace(first, batches=cut), "cut"))[0]
    answer = compare_runs([a, c])
    assert not answer["runs"][1]["same_tokens"]
    assert "into other tokens" in row(answer, "loss")["reasons"][1]
    assert row(answer, "mean_reuse")["differences"][1] is not None
    behind = named(first, "behind", findings={"first_prediction": 3})
    (d,) = opened(behind)
    answer = compare_runs([a, d])
    assert answer["runs"][1]["same_tokens"]
    assert "from positions 0 and 3 of a text on" in row(answer, "loss")["reasons"][1]
    assert row(answer, "mean_reuse")["differences"][1] is not None


def test_too_many_runs_and_one_twice_are_refused(opened) -> None:
    (a,) = opened(make("first", "text", samples=2, twin=False))
    for runs, words in (([], "0 runs were given"), ([a, a], "given twice"), ([a] * (MOST_RUNS + 1), "1 to 32")):
        with pytest.raises(UserError, match=words) as caught:
            compare_runs(runs)
        assert caught.value.field == "runs"
    alone = compare_runs([a])
    assert all(one["differences"] == [None] for one in alone["rows"])
    assert row(alone, "load_entropy")["low"] == [None]  # two samples


@pytest.mark.parametrize("made", [make("a", "text", samples=40, twin=False), make_experts("b", samples=40)])
def test_a_draw_of_stretches_holds_their_choices(opened, made: RunArrays) -> None:
    (run,) = opened(made)
    samples = run.arrays(many_runs.Query(many_runs._SAMPLES))
    groups, ids, met = draw_groups(run, samples["first_row"], samples["num_tokens"], 10**6)
    assert np.array_equal(np.sort(ids, axis=2), np.sort(made.ids, axis=2))
    assert groups.tolist() == np.repeat(np.arange(40), samples["num_tokens"]).tolist()
    groups, ids, met = draw_groups(run, samples["first_row"], samples["num_tokens"], 200)
    assert 100 < len(ids) <= 200
    assert len(np.unique(groups)) == 32
    assert 32 <= met < 40, "a stretch that ends in its first sample counts as one"
    here = {tuple(map(int, one.ravel())) for one in np.sort(made.ids, axis=2)}
    assert all(tuple(map(int, one.ravel())) in here for one in np.sort(ids, axis=2))


def test_errors_of_a_draw_are_about_those_of_all(opened, monkeypatch) -> None:
    (run,) = opened(make("a", "text", samples=400, twin=False))
    whole = many_runs.numbers_of_run(run, 10**6).errors
    monkeypatch.setattr(many_runs, "DRAWN_TOKENS", 2000)
    part = many_runs.numbers_of_run(run, 10**6).errors
    for name in ("load_entropy", "load_cv", "effective_top_k"):
        assert part[name] == pytest.approx(whole[name], rel=0.6), name


def test_what_is_known_of_the_weights_is_said(opened) -> None:
    first = make("first", "text", samples=2, twin=False)
    a, log, again, other, bare, early, late = opened(
        first,
        named(first, "log", checkpoint_sha256=""),
        named(first, "again", checkpoint_sha256="", model=first.info.model),
        named(first, "other", checkpoint_sha256="1" * 64),
        named(first, "bare", checkpoint_sha256="2" * 64, model=first.info.model + "-untrained"),
        *(make_experts(f"at-{at}", series=("t", at), samples=2) for at in (1, 2)),
    )
    told = {
        (a, opened(named(first, "same"))[0]): "same weights",
        (early, late): "one training",
        (log, again): "one name",
        (a, log): "one name",
        (a, other): "other weights",
        (a, bare): "untrained",
        (a, early): "two models",
    }
    for (one, two), relation in told.items():
        assert relation_of(one, two) == relation == relation_of(two, one)
        assert same_numbering(one, two) == (relation in ("same weights", "one training", "one name"))
        note = relation_note(one, two)
        assert (note is None) == (relation in ("same weights", "one training"))
        assert "two trainings" not in (note or "")
    assert "no hash of the weights was recorded" in str(relation_note(log, again))
    assert "two models, toy-text and toy-experts" in str(relation_note(a, early))


def test_checkpoints_have_loads_by_step_and_what_they_keep(opened) -> None:
    made = [make_experts(f"at-{at}", series=("t", at), drift=drift) for at, drift in ((100, 0.8), (900, 0.0))]
    answer = over_training(opened(*made), "at-900")
    early, late = answer["points"]
    assert [one["kept"] for one in early["steps"]] == [None] * 4
    for step in range(4):
        shares = []
        for one in made:
            counts = np.bincount(one.ids[:, step].ravel(), minlength=16)
            shares.append(counts / counts.sum())
            told = (early, late)[len(shares) - 1]["steps"][step]
            assert told["dead"] == int((counts == 0).sum())
            assert told["max_violation"] == pytest.approx(counts.max() / counts.mean() - 1)
        assert late["steps"][step]["kept"] == pytest.approx(np.minimum(*shares).sum())
    assert answer["untrained"] is None


def test_steps_that_are_not_known_are_left_out_of_means(opened) -> None:
    made = [make_experts(f"at-{at}", series=("t", at), drift=drift) for at, drift in ((100, 0.8), (900, 0.0))]
    lacking = with_unrecorded(
        named(made[1], "at-950", config=made[1].info.config | {"series": {"name": "t", "iteration": 950}}), 1.0
    )
    runs = opened(made[0], with_unrecorded(made[1], 1.0, first_step=1), lacking)
    first, some, nothing = over_training(runs, "at-900")["points"]
    counts = np.bincount(made[1].ids[:, 0].ravel(), minlength=16)
    assert some["max_violation"] == pytest.approx(counts.max() / counts.mean() - 1)
    assert some["load_entropy"] == some["steps"][0]["load_entropy"] > 0
    for step in [*some["steps"][1:], *nothing["steps"]]:
        assert [step[name] for name in ("load_entropy", "max_violation", "effective_top_k", "dead", "kept")] == [
            None
        ] * 5
    assert nothing["max_violation"] is None
    answer = compare_runs(runs)
    assert row(answer, "max_violation")["values"] == [first["max_violation"], some["max_violation"], None]
    assert row(answer, "dead_modules")["values"][1:] == [int((counts == 0).sum()), None]


def test_the_untrained_twin_stands_before_the_first_checkpoint(opened) -> None:
    made = make("toy", "text", samples=8)
    with_series = [
        named(made, f"at-{at}", config={**made.info.config, "series": {"name": "t", "iteration": at}}) for at in (5, 9)
    ]
    runs = opened(*with_series)
    first = over_training(runs, "at-5")["untrained"]
    assert first["beside"] == "at-5"
    assert first["num_paths"] == runs[0].fit()["untrained"]["num_paths"]
    counts = np.bincount(made.twin[:, 2, 0], minlength=6)
    assert first["steps"][2]["max_violation"] == pytest.approx(counts.max() / counts.mean() - 1)
    start = named(made, "at-0", config={**made.info.config, "series": {"name": "t", "iteration": 0}})
    assert over_training([*runs, *opened(start)], "at-5")["untrained"] is None
    assert runs[0].card()["series"] == {"name": "t", "iteration": 5}
