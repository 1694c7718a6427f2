"""docs/scale.md says what was measured, and its arithmetic is right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "shards.json").read_text(encoding="utf-8"))["results"]
TOKENS = 10**10


def row(name: str) -> tuple[str, str]:
    """The two cells behind ``name`` in the table."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name}")]
    _, measured, at_scale = [cell.strip() for cell in line.split("|")[1:-1]]
    return measured, at_scale


def first_number(text: str) -> float:
    found = re.search(r"\d[\d,.]*\d|\d", text)
    assert found, text
    return float(found[0].replace(",", ""))


def test_the_figures_are_those_of_the_result() -> None:
    assert MEASURED["differing_tables"] == []
    shards, sealed = MEASURED["shards"], MEASURED["seal"]
    assert first_number(row("writing shards")[0]) == shards["tokens_per_cpu_second"]
    assert first_number(row("bytes of the shards")[0]) == pytest.approx(shards["bytes_per_token"], abs=0.05)
    assert first_number(row("sealing")[0]) == sealed["tokens_per_cpu_second"]
    assert first_number(row("bytes of the run")[0]) == pytest.approx(sealed["bytes_per_token"], abs=0.05)
    assert first_number(row("distinct paths")[0]) == sealed["paths"]
    assert f"{sealed['peak_MiB']} MiB" in PAGE


def test_the_arithmetic_is_right() -> None:
    for name in ("tracing, without", "tracing, with the"):
        rate, hours = (first_number(cell) for cell in row(name))
        assert TOKENS / rate / 3600 == pytest.approx(hours, rel=0.01)
    rate, hours = (first_number(cell) for cell in row("writing shards"))
    assert TOKENS / rate / 3600 == pytest.approx(hours, rel=0.02)
    rate, hours = (first_number(cell) for cell in row("sealing"))
    assert TOKENS / rate / 3600 == pytest.approx(hours, rel=0.03)
    each, gigabytes = (first_number(cell) for cell in row("bytes of the run"))
    assert TOKENS * each / 1e9 == pytest.approx(gigabytes, rel=0.02)
    paths = MEASURED["seal"]["paths"] * (TOKENS / MEASURED["tokens"]) ** 0.77
    assert paths == pytest.approx(2e8, rel=0.15)
