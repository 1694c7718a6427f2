"""The history of the table: what is added, what is a slip, the chart's data, and the page and picture that are kept."""

from __future__ import annotations

import json

import pytest

from benchmarks import over_time
from benchmarks.measure import PAGE
from benchmarks.table import GOALS, Row

MACHINE = "chip, 1 threads, torch 1"


def row(key: str, value: float | None, spread: tuple[float, float] | None, date: str, **more: str) -> Row:
    return Row(key, value, spread, command="python -m benchmarks.speed", **{"machine": MACHINE, "date": date} | more)


@pytest.fixture
def history(tmp_path, monkeypatch):
    """Adds rows as if at a commit, and reads all."""
    monkeypatch.setattr(over_time, "commit_here", lambda: f"abc{len(list(tmp_path.iterdir()))}")

    def kept(*rows: Row) -> list[over_time.Measurement]:
        over_time.add(rows, tmp_path)
        return over_time.read(tmp_path)

    return kept


def test_two_measurements_give_the_charts_data_and_the_sentence_of_a_slip(history, tmp_path):
    first = row("forward", 0.9251, (0.92, 0.93), "2026-01-01")
    assert over_time.slips(history(first)) == []
    found = history(row("forward", 1.05, (1.0, 1.1), "2026-01-02", machine="chip, 1 threads, torch 2"))
    assert [json.loads(file.read_text())["commit"] for file in sorted(tmp_path.iterdir())] == ["abc0", "abc1"]
    assert [
        {key: dot[key] for key in ("value", "low", "high", "machine")} for dot in over_time.points(found, "forward")
    ] == [
        {"value": 0.9251, "low": 0.92, "high": 0.93, "machine": "chip, 1 threads"},
        {"value": 1.05, "low": 1.0, "high": 1.1, "machine": "chip, 1 threads"},
    ]
    (sentence,) = over_time.slips(found)
    assert sentence == (
        "routed forward / dense, fp32 CPU, batch ≥ 16, trained and skewed routing got worse by more than its noise: "
        "0.925 (0.920–0.930) at abc0 (2026-01-01), 1.050 (1.000–1.10) at abc1 (2026-01-02), chip, 1 threads"
    )
    assert sentence in over_time.page_part(found)
    assert "0.9251" in json.dumps(over_time.chart(found).to_dict())


def test_only_what_is_new_and_whole_is_added(history):
    one = row("dream", 164.2, (163.0, 164.0), "2026-01-01")
    assert len(history(one, row("gpu_forward", None, None, ""))) == 1
    assert len(history(one)) == 1, "kept, not measured again"
    assert len(history(Row("dream", 164.4, (163.1, 164.3), machine=MACHINE, date="2026-01-01"))) == 1, "as in the table"
    assert len(history(Row("query_warm", 9.0, missing="100 M tokens", machine=MACHINE, date="2026-01-01"))) == 1
    assert len(history(row("dream", 164.2, (163.0, 164.0), "2026-01-02"))) == 2


@pytest.mark.parametrize(
    ("key", "old", "new", "slipped"),
    [
        ("ingest", (0.3, None), (0.28, None), False),
        ("ingest", (0.3, None), (0.2, None), True),
        ("ingest", (0.2, None), (0.3, None), False),
        ("naive", (8.0, (8.0, 8.0)), (7.6, (7.6, 7.6)), False),
        ("naive", (8.0, (7.9, 8.1)), (7.6, (7.5, 7.7)), True),
        ("forward", (1.0, (0.9, 1.1)), (1.1, (1.05, 1.2)), False),
    ],
)
def test_what_is_a_slip(history, key, old, new, slipped):
    history(row(key, *old, "2026-01-01"))
    assert bool(over_time.slips(history(row(key, *new, "2026-01-02")))) == slipped
    other = history(row(key, *old, "2026-01-03", machine="other, 1 threads, torch 1"))
    assert over_time.slips(other) == [], "the newest is the first of its machine"


def test_the_page_and_the_picture_are_those_of_the_history():
    found = over_time.read()
    text = PAGE.read_text(encoding="utf-8")
    assert over_time.page_with(text, found) == text, "python -m benchmarks.bench --show --write-docs"
    picture = over_time.PICTURE.read_text(encoding="utf-8")
    assert [one.label for one in found if one.label not in picture] == [], "python -m benchmarks.over_time"
    assert picture.count(">not measured yet<") == len(GOALS) - len({one.key for one in found})
