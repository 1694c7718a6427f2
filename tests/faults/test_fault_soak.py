"""A short soak: nothing lost while people look, trace, start and cancel, and the worker is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import soak
from tests.faults.conftest import Keep

MINUTES = float(os.environ.get("SOAK_MINUTES", "2"))
GROWTH = 1.25
"""of the API's memory between the second and the last fifth; a leak of 10 kB a request would be more"""


@pytest.mark.slow_fault
@pytest.mark.timeout(60 * MINUTES * 2 + 900)
def test_nothing_is_lost_under_mixed_load(tmp_path: Path, figure: Keep) -> None:
    """Three who look, one who drops pictures, one who starts and cancels jobs, two who listen; workers are killed"""
    found = soak.run(MINUTES, tmp_path)
    assert found["lost"] == []
    assert found["kills"]
    assert found["statuses"]["200"] > 20 * MINUTES
    assert sum(count for name, count in found["jobs"].items() if "succeeded" in name) > 0
    first, last = found["api_megabytes"]
    assert last < GROWTH * first
    jobs = ", ".join(f"{count} {name}" for name, count in sorted(found["jobs"].items()))
    figure(3, f"{MINUTES:g} minutes of mixed load, {len(found['kills'])} kills: {found['requests']:,} requests, "
              f"{jobs}; 0 lost; API {first:.0f} → {last:.0f} MB; p95 {found['p95_first_fifth_ms']} → "
              f"{found['p95_last_fifth_ms']} ms")  # fmt: skip
