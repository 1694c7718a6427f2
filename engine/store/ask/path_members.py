"""Who takes a path: tokens of ``member``, the table behind the view ``path_member``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tokenpaths.engine.store.file.columns import MEMBERS
from tokenpaths.engine.store.file.filters import Query

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run


def members(run: Run, places: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """(sample, token) in reading order of these rows of ``path_member``, all of ``rank``.

    The view would sort the first rows of all samples to find them; ``Run`` holds these.
    """
    marks = ", ".join("?" * len(places))
    # The rank lets DuckDB skip to the rows.
    where = f"WHERE rank = ? AND rowid IN ({marks})"
    if run.row["schema_version"] < 6:
        return run.rows(Query(f"SELECT sample, token FROM path_member {where} ORDER BY sample, token", (rank, *places)))
    rows = np.sort(run.arrays(Query(f"SELECT row FROM {MEMBERS} {where}", (rank, *places)))["row"])
    samples = np.searchsorted(run.first_rows, rows, side="right") - 1
    return list(zip(samples.tolist(), (rows - run.first_rows[samples]).tolist(), strict=True))
