"""Histograms of a measure over samples and tokens, against numpy over what was written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.naive_store import Case
from tests.support.runs import make
from tokenpaths.engine.analysis.contrast import mean_of
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables import queries


def _values(case: Case, measure: str, per: str) -> tuple[np.ndarray, list]:
    """Value and label of every token or sample."""
    made, naive = case.naive.made, case.naive
    if measure in ("compute", "reuse"):
        tokens = np.array([getattr(naive, measure)(t) for t in range(len(naive.keys))])
    elif measure == "gate_entropy":
        tokens = np.concatenate([b.gate_entropy.mean(axis=1) for b in made.batches]).astype(np.float64)
    else:
        parts = [np.full(b.num_tokens, np.nan) if b.loss is None else b.loss for b in made.batches]
        tokens = np.concatenate(parts).astype(np.float32).astype(np.float64)
    if per == "token":
        return tokens, naive.labels
    if measure == "loss":
        return np.array([s.loss for s in made.samples]), [s.label for s in made.samples]
    owner = np.array(naive.sample_of)
    means = np.array([tokens[owner == s].mean() for s in range(len(made.samples))])
    return means, [s.label for s in made.samples]


@pytest.mark.parametrize("per", ["sample", "token"])
@pytest.mark.parametrize("measure", ["compute", "reuse", "loss", "gate_entropy"])
def test_distributions(case: Case, measure: str, per: str):
    values, labels = _values(case, measure, per)
    if np.isnan(values).all():
        with pytest.raises(UserError, match="recorded no loss per token"):
            case.run.distribution(measure, per)
        return
    for label in {None, case.label}:
        wanted = np.array([v for v, name in zip(values, labels, strict=True) if label in (None, name)])
        wanted = wanted[~np.isnan(wanted)]
        for bins in (40, 7):
            answer = case.run.distribution(measure, per, bins, label)
            # Tokens hold loss and gate entropy as levels.
            rough = per == "token" and measure in ("loss", "gate_entropy")
            close = (1 + wanted.max()) / 4000 if rough else 1e-9
            assert answer["num"] == len(wanted) == sum(b["count"] for b in answer["bins"])
            assert answer["mean"] == pytest.approx(wanted.mean(), abs=close)
            assert answer["std"] == pytest.approx(wanted.std(), abs=close)
            assert answer["median"] == pytest.approx(np.median(wanted), abs=close)
            assert answer["q99"] == pytest.approx(np.quantile(wanted, 0.99), abs=close)
            assert len(answer["bins"]) in (bins, 1)
        names = sorted({name for name in labels if name})
        assert [row["label"] for row in answer["by_label"]] == names
        for row in answer["by_label"]:
            of_label = np.array([v for v, name in zip(values, labels, strict=True) if name == row["label"]])
            of_label = of_label[~np.isnan(of_label)]
            assert (row["num"], row["mean"]) == (len(of_label), pytest.approx(of_label.mean(), abs=close))
            assert (row["low"] is None) == (row["high"] is None)
            if rough:
                assert (row["low"], row["clear"]) == (None, False), "sums by sample are not kept"
        if not rough:
            _check_intervals(case, measure, per, answer["by_label"])
    if measure in ("compute", "reuse"):
        assert (answer["bins"][0]["lo"], answer["bins"][-1]["hi"]) == (0, 1)


def _check_intervals(case: Case, measure: str, per: str, by_label: list) -> None:
    """Each label's samples, weighed by their tokens where these are counted."""
    values, labels = _values(case, measure, "sample")
    weights = np.array([float(s.num_tokens) if per == "token" else 1.0 for s in case.naive.made.samples])
    of_shares = {"least": 0.0, "most": 1.0} if measure in ("compute", "reuse") else {}
    for row in by_label:
        own = np.array([label == row["label"] for label in labels]) & ~np.isnan(values)
        wanted = mean_of((values * weights)[own], weights[own], **of_shares)
        if len(by_label) > 1 and own.sum() > 1 and 1e-12 > np.ptp(values[own]) < np.ptp(values[~np.isnan(values)]):
            assert row["low"] < row["high"], "all of its samples tie, which says nothing of the scatter"
        elif len(by_label) > 1 and own.sum() > 1 and np.ptp(values[~np.isnan(values)]) > 1e-6:
            assert (row["low"], row["high"]) == (pytest.approx(wanted.low), pytest.approx(wanted.high))
        else:
            assert row["low"] is None


def test_what_is_equal_for_all_paths_needs_no_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    measure_values = queries.measure_values

    def counted(measure: str, per: str, label_id: int | None) -> queries.Query:
        asked.append(measure)
        assert label_id is None or measure != "compute"
        return measure_values(measure, per, label_id)

    monkeypatch.setattr(queries, "measure_values", counted)
    with Run.open(make("even", "text", identities=0).write(tmp_path)) as run:
        tokens = {label: num for _, label, _, num in run.labels}
        assert len(tokens) > 1
        for label, num in tokens.items():
            answer = run.distribution("compute", "token", 10, label)
            assert (answer["num"], answer["min"], answer["max"]) == (num, 1.0, 1.0)
            assert run.distribution("reuse", "token", 10, label)["num"] == num
    assert asked.count("compute") == 1
    assert len(asked) > 2
