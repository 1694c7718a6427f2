"""Flows and usage of any tokens of one slot, by way of their paths: a path is counted once, so often as it is taken.

The exact answer of a free filter. A hundred million tokens have eleven million paths, so this reads a tenth; and of a
filter without a label nothing but ``path``. The naive twin counts tokens (``flows.FlowCounter``).

Shapes: p paths, S steps, M modules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tokenpaths.engine.store.ask import path_index
from tokenpaths.engine.store.file.filters import Filters, Query, path_condition

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

PATHS_AT_ONCE = 262_144
Counted = tuple[int, dict[str, np.ndarray], list[tuple]]
"""num_tokens; columns step, source, target, count, weight of the links; rows step, module, count, and NaN for the
weight, which was not read"""


def count_paths(run: Run, filters: Filters, first: int, stop: int) -> Counted:
    """Of the tokens of ``filters`` without a label, between the steps ``first`` … ``stop`` − 1."""
    condition = path_condition(filters)
    query = Query(f"SELECT count, ribbon FROM path WHERE {condition.sql}", condition.parameters)

    def parts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        with run.cursor() as cursor:
            for batch in cursor.execute(query.sql, list(query.parameters)).to_arrow_reader(PATHS_AT_ONCE):
                if batch.num_rows:
                    flat = batch.column("ribbon").flatten().to_numpy(zero_copy_only=False)
                    yield batch.column("count").to_numpy(), flat.reshape(batch.num_rows, run.layout.num_steps)

    return _counted(run, parts(), first, stop)


def count_tokens_by_path(run: Run, condition: Query, first: int, stop: int) -> Counted:
    """Of the tokens of ``condition``."""
    found = run.arrays(
        Query(f"SELECT path_id, count(*) AS n FROM token WHERE {condition.sql} GROUP BY path_id", condition.parameters)
    )
    numbers, times = found["path_id"].astype(np.int64), found["n"].astype(np.int64)

    def parts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        # A page of paths is read once, whatever comes of it.
        order = np.argsort(numbers, kind="stable")
        for start in range(0, len(order), PATHS_AT_ONCE):
            some = order[start : start + PATHS_AT_ONCE]
            yield times[some], path_index.look_up(run, numbers[some])[1]

    return _counted(run, parts(), first, stop)


def _counted(run: Run, parts: Iterator[tuple[np.ndarray, np.ndarray]], first: int, stop: int) -> Counted:
    """``parts``: how often each path is taken (p,), and its ribbon (p, S)."""
    num_steps, size, num_tokens = run.layout.num_steps, run.layout.num_modules, 0
    links = np.zeros((num_steps, size * size))
    used = np.zeros((num_steps, size))
    for times, ribbons in parts:
        num_tokens += int(times.sum())
        columns = np.ascontiguousarray(ribbons.T).astype(np.int64)
        for step in range(num_steps):
            # Sums of whole numbers in float64 are exact below 2**53.
            used[step] += np.bincount(columns[step], times, minlength=size)
            if first <= step < stop - 1:
                links[step] += np.bincount(columns[step] * size + columns[step + 1], times, minlength=size * size)
    step, link = np.nonzero(links)
    count = links[step, link]
    found = {"step": step, "source": link // size, "target": link % size, "count": count, "weight": count}
    usage = [(int(s), int(m), int(used[s, m]), math.nan) for s, m in np.argwhere(used)]
    return num_tokens, found, usage
