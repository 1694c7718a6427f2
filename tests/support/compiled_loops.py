"""The ways in which the loops of large imports run: their twins in numpy, interpreted, and compiled by numba."""

from __future__ import annotations

import numpy as np
import pytest

from tokenpaths.engine.analysis.compiled import comparisons, loops

wraps_around = np.errstate(over="ignore")
INTERPRETED = loops.Loops(
    wraps_around(loops.sort_slots),
    wraps_around(loops.sort_eights),
    wraps_around(loops.hash_words),
    wraps_around(loops.sum_sets),
    loops.squeeze,
    loops.count_links,
    loops.count_visits,
    loops.count_chains,
    loops.sum_known,
    wraps_around(loops.count_distinct),
    loops.enter,
    loops.refill,
)
KINDS = (np.dtype(np.uint8), np.dtype(np.uint16))


def run_loops(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on runs of any size are counted in this way: numpy, interpreted or compiled (skips without numba)."""
    if way == "numpy":
        monkeypatch.setattr(loops, "LEAST_TOKENS", 2**62)
        monkeypatch.setattr(loops, "_READY", {})
        return
    monkeypatch.setattr(loops, "LEAST_TOKENS", 0)
    if way == "interpreted":
        monkeypatch.setattr(loops, "_READY", dict.fromkeys(KINDS, INTERPRETED))
        return
    pytest.importorskip("numba", reason="the extra 'fast' is not installed")
    made = {kind: _COMPILED.setdefault(kind, loops._compiled(kind)) for kind in KINDS if kind not in _COMPILED}
    assert None not in made.values(), "numba is there, and compiles"
    monkeypatch.setattr(loops, "_READY", dict(_COMPILED))


_COMPILED: dict[np.dtype, loops.Loops | None] = {}


def run_comparisons(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on pages are compared in this way: numpy, interpreted or compiled (skips without numba)."""
    if way == "numpy":
        monkeypatch.setattr(comparisons, "_made", [None])
        return
    if way == "interpreted":
        made = comparisons.Comparisons(comparisons.sum_roots, wraps_around(comparisons.count_shared))
        monkeypatch.setattr(comparisons, "_made", [made])
        return
    pytest.importorskip("numba", reason="the extra 'fast' is not installed")
    if not _COMPARISONS:
        _COMPARISONS.append(comparisons.made_with(comparisons._compile))
    assert _COMPARISONS[0] is not None, "numba is there, and compiles"
    monkeypatch.setattr(comparisons, "_made", list(_COMPARISONS))


_COMPARISONS: list[comparisons.Comparisons | None] = []
