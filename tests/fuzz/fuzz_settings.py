"""Hypothesis settings of the fuzz tests: the same few examples in a test run, many random ones with ``make fuzz``."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

TIMES = float(os.environ.get("FUZZ_TIMES", "0"))
"""0: the few examples of every test run, always the same; 20: twenty times as many, others each time"""


def fuzzed_with(examples: int, **more: Any) -> settings:
    """Settings of a test that tries ``examples`` in every run, and ``FUZZ_TIMES`` as many with ``make fuzz``."""
    return settings(
        max_examples=max(1, round(examples * (TIMES or 1))),
        derandomize=not TIMES,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if TIMES else [])],
        suppress_health_check=list(HealthCheck),
        **more,
    )
