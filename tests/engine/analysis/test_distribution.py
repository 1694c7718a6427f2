"""Values that come sorted and in parts are described as all of them at once."""

from __future__ import annotations

import numpy as np
import pytest

from tokenpaths.engine.analysis.distribution import describe, describe_sorted


@pytest.mark.parametrize("num", [0, 1, 2, 3, 99, 1000])
@pytest.mark.parametrize("part", [1, 7, 2000])
@pytest.mark.parametrize("kind", ["spread", "ties", "equal", "far"])
def test_sorted_parts_are_described_as_the_whole(num: int, part: int, kind: str) -> None:
    rng = np.random.default_rng(num)
    values = {
        "spread": rng.gamma(2.0, 1.5, num),
        "ties": rng.integers(0, 5, num) / 4,
        "equal": np.full(num, 0.3),
        "far": 1e6 + rng.random(num),  # a sum of squares would lose the spread
    }[kind]
    rising = np.sort(values)
    parts = (rising[start : start + part] for start in range(0, num, part))
    limits = (float(rising[0]), float(rising[-1])) if num else (0.0, 0.0)
    found, wanted = describe_sorted(parts, 10, num=num, limits=limits), describe(values, 10)
    assert list(found) == list(wanted)
    for name in ("num", "min", "max", "bins", "q01", "median", "q99"):
        assert found[name] == wanted[name], name
    for name in ("mean", "std"):
        assert found[name] == (wanted[name] and pytest.approx(wanted[name], rel=1e-9, abs=1e-12))
