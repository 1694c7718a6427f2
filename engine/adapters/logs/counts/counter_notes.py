"""What is wrong with counts: times that are counted twice, counters that go on, experts that every token uses.

Shapes: T times, S layers, M experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.wording import first_of

LEAST_RISES = 20
"""counts that rise, where each would rise or fall by chance"""
LEAST_EQUAL = 3
"""layers, of all times, that have as many tokens with an expert as the first layer of their time"""
_MOST_NAMED = 6


def repeated_times(twice: Sequence[int], times: int, axis: str, place: str = "") -> tuple[str, ...]:
    """A note on those times, of so many, that one file or rank counts ``twice``; none if there are none.

    Args:
        place: where the first of them comes again.
    """
    numbers = sorted(set(twice))
    if not numbers:
        return ()
    named = first_of(numbers, _MOST_NAMED) + (f", first at {place}" if place else "")
    return (
        f"{len(numbers):,} of {times:,} {axis}{_es(axis, times)} stand in the log again ({named}), as after a restart: "
        "their counts are added up",
    )


def running_counters(counts: np.ndarray, times: Sequence[int], axis: str) -> tuple[str, ...]:
    """A note on counts (T, S, M) of which none falls from one time to the next, but where all begin anew.

    Counts of single times rise and fall, each expert by itself; that so many rise together tells of a counter that
    goes on.
    """
    total = counts.sum(axis=(1, 2))
    change = np.diff(total)
    if (change > 0).sum() < max(2, 3 * (change < 0).sum()):
        return ()
    rises = 0
    for step in np.flatnonzero((change >= 0) & (total[:-1] > 0)).tolist():
        moved = counts[step + 1] - counts[step]
        if (moved < 0).any():
            return ()
        rises += int((moved > 0).sum())
    if rises < LEAST_RISES:
        return ()
    resets = first_of([times[step + 1] for step in np.flatnonzero(change < 0).tolist()], _MOST_NAMED)
    anew = f", but for {axis} {resets}, where they begin anew (a restart, perhaps)" if resets else ""
    return (
        f"no count falls from one {axis} to the next{anew}: if these are counters that go on, each {axis} counts those "
        "before it again",
    )


def experts_of_all_tokens(counts: np.ndarray) -> list[int]:
    """Experts that have the same number of tokens at every layer (T, S, M) of a time, and none has more.

    It is the number of all tokens, if the expert is one that every token uses beside others; hardly ever does chance
    make so many counts equal.
    """
    used_TS = counts.max(axis=2) > 0
    tokens_T = counts.max(axis=(1, 2))
    if np.maximum(used_TS.sum(axis=1) - 1, 0).sum() < LEAST_EQUAL:
        return []
    found = ((counts == tokens_T[:, None, None]) | ~used_TS[:, :, None]).all(axis=(0, 1))
    if found.sum() == counts.any(axis=(0, 1)).sum():  # all experts, as where experts choose tokens
        return []
    numbers: list[int] = np.flatnonzero(found).tolist()
    return numbers


def _es(word: str, count: int) -> str:
    return "" if count == 1 else "es" if word.endswith("s") else "s"
