"""When routing settled: the saturation of experts over the checkpoints of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.runs import make_experts, with_unrecorded, with_unused
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs import saturation
from tokenpaths.engine.store.ask.tables import drawn_tokens


def series(folder: Path, *iterations: int, drift: dict[int, float], change=lambda made: made, **options) -> list[Run]:
    made = [make_experts(f"at{i}", series=("training", i), drift=drift[i], **options) for i in iterations]
    return [Run.open(change(one).write(folder, overwrite=True)) for one in made]


@pytest.mark.parametrize("options", [{}, {"layers": 5, "experts": 40, "top_k": 14}], ids=["columns", "packed"])
def test_saturation_is_the_share_of_experts_that_the_last_checkpoint_keeps(tmp_path: Path, options: dict) -> None:
    runs = series(tmp_path, 100, 2000, 30, drift={30: 1.0, 100: 0.5, 2000: 0.0}, **options)
    made = {
        i: make_experts("x", series=("training", i), drift=d, **options).ids
        for i, d in ((30, 1.0), (100, 0.5), (2000, 0.0))
    }
    answer = saturation.of_series(runs, "at30")
    assert (answer["series"], answer["final"], answer["left_out"]) == ("training", "at2000", [])
    assert [point["iteration"] for point in answer["points"]] == [30, 100, 2000]
    for point in answer["points"]:
        final = made[2000]
        naive = np.mean(
            [
                [len(set(a) & set(b)) / final.shape[2] for a, b in zip(x, y, strict=True)]
                for x, y in zip(made[point["iteration"]], final, strict=True)
            ],
            axis=0,
        )
        assert np.allclose(point["by_step"], naive)
        assert point["saturation"] == pytest.approx(naive.mean())
    values = [point["saturation"] for point in answer["points"]]
    assert values[0] < values[1] < values[2] == 1.0
    for run in runs:
        run.close()


def test_the_page_and_the_analysis_of_a_series_say_the_same(tmp_path: Path) -> None:
    runs = series(tmp_path, 5, 60, 700, drift={5: 0.9, 60: 0.4, 700: 0.0})
    page = saturation.of_series(runs, "at5")
    whole = saturation.saturation(series="training", runs_dir=tmp_path)
    assert [point["run"] for point in page["points"]] == [point.run for point in whole.checkpoints]
    for shown, exact in zip(page["points"], whole.checkpoints, strict=True):
        assert np.allclose(shown["by_step"], exact.steps)
        assert shown["saturation"] == pytest.approx(exact.mean)
    assert page["baseline"] == pytest.approx(np.mean(whole.chance))
    for run in runs:
        run.close()


@pytest.mark.parametrize(
    "change", [lambda made: made, lambda made: with_unrecorded(with_unused(made, 0.3), 0.3)], ids=["whole", "lacking"]
)
def test_a_long_series_is_drawn_and_says_how_far_it_may_be_off(tmp_path: Path, monkeypatch: Any, change: Any) -> None:
    options = {"samples": 120, "length": 30, "layers": 3}
    runs = series(tmp_path, 5, 700, drift={5: 0.6, 700: 0.0}, change=change, **options)
    exact = saturation.of_series(runs, "at5")
    assert exact["counted"]["exact"]
    assert [point["error"] for point in exact["points"]] == [0.0, 0.0]
    inside = 0
    for seed in range(20):
        monkeypatch.setattr(drawn_tokens, "SEED", seed)
        monkeypatch.setattr(saturation, "DRAWN_TOKENS", 900)
        drawn = saturation.of_series(runs, "at5", most_choices=1)
        counted = drawn["counted"]
        assert (counted["num_tokens"], counted["of_tokens"], counted["num_samples"]) == (900, 3600, 30)
        assert not counted["exact"]
        first, last = drawn["points"]
        assert last["saturation"] == 1
        assert last["error"] == 0
        assert 0 < first["error"] < 0.05
        inside += abs(first["saturation"] - exact["points"][0]["saturation"]) <= first["error"]
    assert inside >= 17  # 95 % of them
    monkeypatch.setattr(saturation, "DRAWN_TOKENS", 20)
    assert saturation.of_series(runs, "at5", most_choices=1)["points"][0]["error"] is None
    for run in runs:
        run.close()


def test_runs_of_other_tokens_or_shapes_are_left_out_with_a_reason(tmp_path: Path) -> None:
    good = series(tmp_path, 10, 20, drift={10: 0.5, 20: 0.0})
    odd = [
        Run.open(make_experts(name, series=("training", i), **options).write(tmp_path))
        for name, i, options in (
            ("twin", 10, {}),
            ("seeded", 12, {"seed": 5}),
            ("wide", 13, {"top_k": 3}),
            ("short", 14, {"samples": 4}),
        )
    ]
    answer = saturation.of_series([*odd, *good], "at10")
    assert [point["run"] for point in answer["points"]] == ["at10", "at20"]
    reasons = {row["run"]: row["reason"] for row in answer["left_out"]}
    assert set(reasons) == {"twin", "seeded", "wide", "short"}
    assert "is of iteration 10, as run 'at10' is" in reasons["twin"]
    assert "is over other tokens than 'at20': at sample 0" in reasons["seeded"]
    assert "has 3 slots" in reasons["wide"]
    assert "tokens, 'at20' has" in reasons["short"]
    for run in (*good, *odd):
        run.close()


def test_two_runs_of_the_last_iteration_have_one_final(tmp_path: Path) -> None:
    for name in ("c", "b", "a"):
        options = {"series": ("training", 9 if name != "a" else 3), "drift": 0.5 if name == "b" else 0.0}
        make_experts(name, **options).write(tmp_path)
    runs = [Run.open(tmp_path / f"{name}.duckdb") for name in "cab"]
    assert saturation.of_series(runs, "a")["final"] == "b"
    assert saturation.saturation(series="training", runs_dir=tmp_path).final == "b"
    for run in runs:
        run.close()
