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


def make_data_folders(settings: Settings) -> None:
    """Make the folders of a data folder that others will write into, without what killed writers left there.

    Raises:
        UserError: they cannot be made.
    """
    try:
        for folder in (settings.runs_dir, settings.logs_dir):
            folder.mkdir(parents=True, exist_ok=True)
        if any(settings.runs_dir.glob(".*.partial")):
            from tokenpaths.engine.store.write.writer import remove_abandoned

            remove_abandoned(settings.runs_dir)
    except OSError as error:
        raise UserError(
            f"The data folder {settings.data_dir} cannot be made or written to ({error.strerror}); "
            "choose another with --data-dir.",
            field="data_dir",
        ) from None


@contextmanager
def problems_as_errors(option: str | None = None) -> Iterator[None]:
    """Turn a ``Problem`` of the backend into a UserError about ``option``, by default about the problem's own field."""
    from tokenpaths.backend.problems import Problem

    try:
        yield
    except Problem as problem:
        raise UserError(problem.detail, field=option or problem.field) from None
