"""The run that a job creates: its id is fixed once, so that a killed job neither duplicates nor loses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import check_name, run_file, write_atomically
from tokenpaths.engine.jobs.registry import JobContext, Progress

CLAIM = "run.json"
MADE_BY = "job"
"""finding of a run: name of the job that made it"""


def check_run_name(name: str | None, context: JobContext) -> None:
    """UserError if ``name`` is invalid or taken; None is valid."""
    if name is not None and run_file(context.runs_dir, check_name(name, "name of a run", field="run")).exists():
        raise UserError(f"There is a run {name!r} already; give another name, or leave it out.", field="run")


def made_by(job: Path) -> dict[str, str]:
    """The finding by which the job with this folder recognises its own run."""
    return {MADE_BY: job.name}


def claim_run(
    folder: Path, context: JobContext, wanted: str | None, make_name: Callable[[], str], *, job: Path | None = None
) -> tuple[str, bool]:
    """(name of the job's run, whether the run already exists because the job sealed it before it was restarted).

    ``folder`` stores the claim; ``job`` is the job's own folder if that is another. The run is sealed with
    ``made_by(job)`` among its findings.

    Raises:
        UserError: another program has made a run of this name since the job was submitted.
    """
    file = folder / CLAIM
    if file.is_file():
        run = json.loads(file.read_bytes())["run"]
        if _is_made_by(job or folder, run, context):
            return run, True
        check_run_name(run, context)  # a job of another name may have been quicker while this one was stopped
        return run, False
    check_run_name(wanted, context)
    run = wanted or make_name()
    write_atomically(file, json.dumps({"run": run}).encode())
    return run, False


def _is_made_by(job: Path, run_id: str, context: JobContext) -> bool:
    """Whether the run exists and was made by this job."""
    if not run_file(context.runs_dir, run_id).is_file():
        return False
    with context.open_run(run_id) as run:
        return run.info()["findings"].get(MADE_BY) == job.name


class Finished:
    """A job that sealed its run just before it was killed."""

    def __init__(
        self, run: str, done: int | None, unit: str, following: tuple[tuple[str, dict[str, Any]], ...] = ()
    ) -> None:
        self.run, self.done, self.unit, self.following = run, done or 0, unit, following

    def advance(self) -> Progress:
        """Return the final progress."""
        result = {"run": self.run}
        return Progress(self.done, self.done, self.unit, finished=True, result=result, following=self.following)

    def close(self) -> None:
        """Nothing to release."""
