"""Refusals that several commands share: a name that is taken, and what the API would answer with a problem."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings


def refuse_taken_name(settings: Settings, run: str | None, overwrite: bool) -> None:
    """Check the name of a new run before anything is loaded.

    Raises:
        UserError: it is no name, or there is a run of that name that is not to be replaced.
    """
    from tokenpaths.engine.base.files import run_file

    if run is not None and run_file(settings.runs_dir, run).exists() and not overwrite:
        raise UserError(f"There is a run {run!r} already; give another name with --run, or --overwrite.", field="run")


@contextmanager
def problems_as_errors(option: str | None = None) -> Iterator[None]:
    """Turn a ``Problem`` of the backend into a UserError about ``option``, by default about the problem's own field."""
    from tokenpaths.backend.problems import Problem

    try:
        yield
    except Problem as problem:
        raise UserError(problem.detail, field=option or problem.field) from None
