"""A short soak, nothing lost; and what a soak says of figures that are not as promised."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.faults import soak
from tests.faults.conftest import Keep
from tests.faults.soak_summary import ROWS, complaints, in_words, thinned, trend, write

MINUTES = float(os.environ.get("SOAK_MINUTES", "2"))


@pytest.mark.slow_fault
@pytest.mark.timeout(60 * MINUTES * 2 + 900)
def test_nothing_is_lost_under_mixed_load(tmp_path: Path, figure: Keep) -> None:
    """Three who look, one who drops pictures, one with jobs, two who listen, a browser; workers are killed"""
    found = soak.run(MINUTES, tmp_path)
    assert complaints(found) == []
    assert found["kinds"]["look"] > 20 * MINUTES
    assert found["kinds"]["page"] > MINUTES
    assert sum(count for name, count in found["jobs"].items() if "succeeded" in name) > 0
    jobs = ", ".join(f"{count} {name}" for name, count in sorted(found["jobs"].items()))
    figure(
        3,
        f"{MINUTES:g} minutes of mixed load, {len(found['kills'])} kills: {found['requests']:,} requests, "
        f"{jobs}; 0 lost",
    )


def good() -> dict[str, Any]:
    """Ten minutes as they should be."""
    flat = {"median_megabytes": 400.0, "grows_megabytes": 3.0, "minutes": 5.0}
    figures = {"first_megabytes": 380.0, "last_megabytes": 400.0, "highest_megabytes": 410.0, "threads": 40, "files": 9}
    return {
        "minutes": 10.0,
        "measured_minutes": 10.0,
        "over": True,
        "requests": 9,
        "kinds": {"look": 9},
        "browser": "none",
        "kills": [100.0],
        "lost": [],
        "num_lost": 0,
        "jobs": dict.fromkeys(("count succeeded", "trace succeeded", "dream succeeded"), 3),
        "p95_fifths_ms": {what: [100.0] * 5 for what in ("look", "page")},
        "processes": {name: {**figures, "second_half": dict(flat)} for name in ("api", "worker", "page")},
    }


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda found: found.update(num_lost=2, lost=["run a", "run b"]), "2 things lost"),
        (lambda found: found.update(over=False, measured_minutes=4), "ended after 4 of 10"),
        (lambda found: found.update(kills=[]), "no worker was killed"),
        (lambda found: found["processes"]["api"]["second_half"].update(grows_megabytes=40.0), "the api grew by 40"),
        (lambda found: found["processes"].update(page={}), "the memory of the page was not seen"),
        (lambda found: found["processes"]["worker"].update(highest_of_lives=[500, 510, 505, 700]), "workers reach 700"),
        (lambda found: found["p95_fifths_ms"].update(look=[90, 60, 70, 300, 400.0]), "from 70 to 350 ms"),
        (lambda found: found["p95_fifths_ms"].update(page=[90, 60, 70, 300, None]), "too few views"),
        (lambda found: found["jobs"].pop("dream succeeded"), "no dream succeeded"),
    ],
)
def test_what_is_not_as_promised_is_said(spoil: Any, said: str) -> None:
    found = good()
    assert complaints(found) == []
    assert len(list(in_words(found))) == 7
    spoil(found)
    (sentence,) = complaints(found)
    assert said in sentence
    assert complaints(found, times=False) == ([] if "p95" in str(spoil.__code__.co_consts) else [sentence])


def test_a_trend_is_not_moved_by_single_heights() -> None:
    points = [(float(t), 300.0 + 0.5 * t + (200 if t % 10 == 3 else 0)) for t in range(100)]
    assert trend(points) == pytest.approx(0.5 * 99, rel=0.02)
    assert trend(points[:3]) == 0


def test_the_file_is_small_and_says_the_same(tmp_path: Path) -> None:
    rows = [
        {"t": float(t), "api_megabytes": 300.0 + t % 7, **({"page_megabytes": 1.0} if t % 2 else {})}
        for t in range(5000)
    ]
    kept = thinned(rows)
    assert len(kept) == ROWS
    assert all(302 <= row["api_megabytes"] <= 304 and row["page_megabytes"] == 1 for row in kept)
    assert thinned(rows[:7]) == rows[:7]
    write({"minutes": 3, "memory": kept}, tmp_path / "soak.json")
    assert json.loads((tmp_path / "soak.json").read_text()) == {"minutes": 3, "memory": kept}
    assert [file.name for file in tmp_path.iterdir()] == ["soak.json"]
