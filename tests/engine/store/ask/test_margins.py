"""How close the decisions of a run were, beside loops over what was written."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.runs import RunArrays, make, make_experts, with_unused
from tests.support.runs.margins import with_margins
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.seal_marks import identity_of
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.weight_codes import NO_MARGIN, decode_margins, encode_margins
from tokenpaths.engine.store.intake.rebuild import ReaderLimits, rebuild

MADE = {
    "top1": lambda: make("top1", "text", samples=8),
    "top2": lambda: make("top2", "vision", top_k=2, samples=4),
    "packed": lambda: make_experts("packed", layers=9, experts=20, top_k=8, samples=4, length=12),
    "varied": lambda: with_unused(make("varied", "text", top_k=3, samples=6), 0.3),
}


@pytest.fixture(params=MADE)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = with_margins(MADE[request.param]())
    with Run.open(made.write(tmp_path)) as run:
        yield made, run


def decisions(made: RunArrays, label: str | None = None) -> list[list[tuple[int, int, float]]]:
    """(winner, runner-up, margin) of each known decision, by step, one token at a time."""
    unused = {m.module for m in made.modules if m.kind == "unused"}
    labels = made.per_token([s.label for s in made.samples])
    margins = np.concatenate([batch.margin for batch in made.batches])
    runners = np.concatenate([batch.runner_up for batch in made.batches])
    found: list[list[tuple[int, int, float]]] = [[] for _ in range(made.info.num_steps)]
    for token, ribbon in enumerate(made.ids.tolist()):
        for step, modules in enumerate(ribbon):
            used = [m for m in modules if m not in unused]
            margin = margins[token, step]
            if used and not np.isnan(margin) and label in (None, labels[token]):
                found[step].append((used[-1], int(runners[token, step]), round(margin * 65_534) / 65_534))
    return found


def test_margins_equal_loops_over_decisions(written: Any):
    made, run = written
    for label, close in ((None, 0.05), (made.samples[0].label, 0.2)):
        answer = run.margins(label=label, close=close, each=3)
        assert answer["reason"] is None
        for row, known in zip(answer["steps"], decisions(made, label), strict=True):
            values = [margin for _, _, margin in known]
            assert row["num"] == len(values)
            assert row["mean"] == pytest.approx(np.mean(values))
            assert row["median"] == pytest.approx(np.median(values))
            assert (row["q10"], row["q90"]) == pytest.approx((np.quantile(values, 0.1), np.quantile(values, 0.9)))
            assert row["close"] == pytest.approx(sum(v < close for v in values) / len(values))
            assert sum(row["counts"]) == len(values)
            for low, high, count in zip(answer["edges"][:-1], answer["edges"][1:], row["counts"], strict=True):
                assert count == sum(low <= v < high or v == high == 1 for v in values)
            pairs = Counter((winner, runner_up) for winner, runner_up, _ in known)
            expected = sorted(pairs, key=lambda pair: (-pairs[pair], pair))[:3]
            found = [pair for pair in answer["pairs"] if pair["step"] == row["step"]]
            assert [(pair["winner"], pair["runner_up"]) for pair in found] == expected
            for pair in found:
                own = [m for w, r, m in known if (w, r) == (pair["winner"], pair["runner_up"])]
                assert (pair["count"], pair["share"]) == (len(own), len(own) / len(values))
                assert pair["mean"] == pytest.approx(np.mean(own))
                assert pair["close"] == pytest.approx(sum(m < close for m in own) / len(own))


def test_a_token_tells_its_margins_and_runners_up(written: Any):
    made, run = written
    batch = made.batches[0]
    for place, token in enumerate(run.sample(0)["tokens"]):
        for margin, runner_up, kept in zip(batch.margin[place], batch.runner_up[place], token["margins"], strict=True):
            if np.isnan(margin):
                assert kept == {"margin": None, "runner_up": None}
            else:
                assert kept == {"margin": pytest.approx(margin, abs=2e-5), "runner_up": int(runner_up)}


def test_a_run_without_scores_says_so_in_a_sentence(tmp_path: Path):
    with Run.open(make("bare", "text", samples=3).write(tmp_path)) as run:
        answer = run.margins()
        assert answer["steps"] == answer["pairs"] == []
        assert "holds no scores" in answer["reason"]
        assert run.sample(0)["tokens"][0]["margins"] is None
        assert "margins" not in run.token_columns


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("moe", "trace the model, or import the scores"),
        ("directional", "no module is chosen before another: each head"),
        ("raytracing", "each block is active where enough signal"),
        ("hmodel", "each layer sends to each of the others"),
        ("dipaco", "scores whole paths, once for a document"),
    ],
)
def test_the_reason_fits_where_the_run_comes_from(tmp_path: Path, family: str, said: str):
    """A run that was traced here is not told to be a log, nor to be traced."""
    made = make("bare", "text", samples=3)
    with Run.open(replace(made, info=replace(made.info, family=family)).write(tmp_path)) as run:
        reason = run.margins()["reason"]
    assert said in reason
    assert ("log" in reason or "trace the model" in reason) == (family == "moe")


def test_margins_without_their_runners_up_are_refused(tmp_path: Path):
    made = with_margins(make("half", "text", samples=3))
    with pytest.raises(UserError, match="give both or none"):
        made.with_changes(runner_up=None).write(tmp_path)
    with pytest.raises(UserError, match="margin goes up to 1.5"):
        made.with_changes(margin=np.full(made.batches[0].margin.shape, 1.5)).write(tmp_path)


def test_levels_of_margins():
    values = np.array([[0.0, 1.0, 0.3, np.nan]])
    assert encode_margins(values)[0, 3] == NO_MARGIN
    np.testing.assert_allclose(decode_margins(encode_margins(values)), values, atol=8e-6)


def test_tables_leave_with_their_margins_and_a_copy_answers_the_same(written: Any, tmp_path: Path):
    made, run = written
    header = next(run.export("token", "csv")).decode().splitlines()[0]
    assert "margins" in header
    copy = tmp_path / "copy.duckdb"
    limits = ReaderLimits(seconds=60, megabytes=2000)
    rebuild(run.file, identity_of(os.stat(run.file)), copy, tmp_path / ".copy.partial", limits, lambda share: None)
    with Run.open(copy) as other:
        for ask in (Run.margins, Run.flow, Run.usage):
            assert ask(other) | {"run": ""} == ask(run) | {"run": ""}
