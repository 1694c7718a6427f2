"""The series of checkpoints that a run is part of: as it was recorded, or as a user said later, beside the sealed file.

What a user says is one small JSON file a run (``base.files.series_file``); it holds for the run that was there then,
told by when it was sealed, not for a later one of the same name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import check_name, series_file, write_atomically
from tokenpaths.engine.store.ask.run_file import RunFile

MOST_BYTES = 2_000
MOST_ITERATION = 2**53
Place = dict[str, Any]
"""``name`` and ``iteration``"""


def series_place(config: str) -> Place | None:
    """{name, iteration} of the training that a run with this configuration was recorded as a checkpoint of; None: none.

    >>> series_place('{"series": {"name": "flame", "iteration": 400}}')
    {'name': 'flame', 'iteration': 400}
    """
    series = json.loads(config).get("series")
    return _place(series) if isinstance(series, dict) else None


def _place(series: Mapping[str, Any]) -> Place | None:
    name, iteration = series.get("name"), series.get("iteration")
    known = isinstance(name, str) and type(iteration) is int
    return {"name": name, "iteration": iteration} if known else None


def place_of(run: RunFile) -> Place | None:
    """The series of a run: what a user said, else what was recorded."""
    said = _said(series_file(run.file), run)
    return series_place(run.row["config"]) if said is None else _place(said)


def _said(file: Path, run: RunFile) -> Mapping[str, Any] | None:
    try:
        if file.stat().st_size > MOST_BYTES:
            return None
        said = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    ours = isinstance(said, dict) and said.get("created_at") == run.row["created_at"]
    return said if ours else None


def put_into_series(run: RunFile, name: str | None, iteration: int | None) -> None:
    """Say that ``run`` is of a series; without a name, that it is of none.

    Raises:
        UserError: an invalid name, or a name without an iteration.
    """
    place: Place = {"name": None, "iteration": None}
    if name is not None:
        place = {"name": check_series_name(name, "name"), "iteration": check_iteration(iteration, "iteration")}
    said = {"created_at": run.row["created_at"], **place}
    write_atomically(series_file(run.file), json.dumps(said).encode())


def check_series_name(name: str, field: str = "series") -> str:
    """UserError, about ``field``, unless ``name`` can be that of a series."""
    return check_name(name, "name of a series", field=field)


def check_iteration(iteration: object, field: str = "at") -> int:
    """UserError, about ``field``, unless ``iteration`` is a whole number from 0 to below ``MOST_ITERATION``."""
    if type(iteration) is not int or not 0 <= iteration < MOST_ITERATION:
        raise UserError(
            f"the iteration is {repr(iteration)[:40]}, it should be a whole number from 0 to {MOST_ITERATION - 1:,}: "
            "where in the series the run stands",
            field=field,
        )
    return iteration
