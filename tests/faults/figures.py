"""What the fault tests measured: one JSON object a line in ``build/faults.jsonl``, the newest last."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.rows import ROWS

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "build" / "faults.jsonl"


@dataclass(frozen=True)
class Figure:
    """What one test found out about one row."""

    row: int
    test: str
    """``tests/faults/test_….py::test_…``"""
    measured: str
    how: str
    """one sentence: what the test does"""
    machine: str
    date: str


def machine() -> str:
    """The processor, the number of cores and the system, in a few words."""
    name = platform.processor() or platform.machine()
    if (about := Path("/proc/cpuinfo")).exists():
        found = [line.split(":", 1)[1] for line in about.read_text().splitlines() if line.startswith("model name")]
        name = " ".join(found[0].split()) if found else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores of {name}, {platform.system()}, Python {platform.python_version()}"


def keep(row: int, test: str, measured: str, how: str, file: Path = FIGURES) -> None:
    """Print a figure and add it to ``file``."""
    found = Figure(row, test, measured, how, machine(), datetime.now(UTC).date().isoformat())
    print(f"row {row}: promised: {ROWS[row].promised}; measured: {measured}")
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(found), ensure_ascii=False) + "\n")


def newest(file: Path = FIGURES) -> list[Figure]:
    """The last figure of each test for each row, by row and test."""
    if not file.is_file():
        return []
    kept = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        figure = Figure(**json.loads(line))
        kept[figure.row, figure.test] = figure
    return [kept[key] for key in sorted(kept)]
