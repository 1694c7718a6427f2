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


def sealed_run(folder: Path, context: JobContext, *, job: Path | None = None) -> str | None:
    """Name of the run of the claim in ``folder`` if the job sealed it before it was restarted; ``job`` as for
    ``claim_run``."""
    run = _claim(folder).get("run")
    return run if run is not None and _is_made_by(job or folder, run, context) else None


def keep_result(folder: Path, result: dict[str, Any]) -> None:
    """Keep the result of the job beside its claim. Call it before the run is sealed: a job that is killed right after
    that still has it."""
    write_atomically(folder / CLAIM, json.dumps(_claim(folder) | {"result": result}).encode())


def kept_result(folder: Path) -> dict[str, Any]:
    """What ``keep_result`` kept; empty if nothing."""
    return dict(_claim(folder).get("result") or {})


def claim_run(
    folder: Path, context: JobContext, wanted: str | None, make_name: Callable[[], str], *, job: Path | None = None
) -> tuple[str, bool]:
    """(name of the job's run, whether the run already exists because the job sealed it before it was restarted).

    ``folder`` stores the claim; ``job`` is the job's own folder if that is another. The run is sealed with
    ``made_by(job)`` among its findings.

    Raises:
        UserError: another program has made a run of this name since the job was submitted.
    """
    run = _claim(folder).get("run")
    if run is not None:
        if _is_made_by(job or folder, run, context):
            return run, True
        check_run_name(run, context)  # a job of another name may have been quicker while this one was stopped
        return run, False
    check_run_name(wanted, context)
    run = wanted or make_name()
    write_atomically(folder / CLAIM, json.dumps({"run": run}).encode())
    return run, False


def _claim(folder: Path) -> dict[str, Any]:
    file = folder / CLAIM
    return dict(json.loads(file.read_bytes())) if file.is_file() else {}


def _is_made_by(job: Path, run_id: str, context: JobContext) -> bool:
    """Whether the run exists and was made by this job."""
    if not run_file(context.runs_dir, run_id).is_file():
        return False
    with context.open_run(run_id) as run:
        return run.info()["findings"].get(MADE_BY) == job.name


class Finished:
    """A job that sealed its run just before it was killed."""

    def __init__(
        self,
        result: dict[str, Any],
        done: int | None,
        unit: str,
        following: tuple[tuple[str, dict[str, Any]], ...] = (),
    ) -> None:
        self.result, self.done, self.unit, self.following = result, done or 0, unit, following

    def advance(self) -> Progress:
        """Return the final progress."""
        return Progress(self.done, self.done, self.unit, finished=True, result=self.result, following=self.following)

    def close(self) -> None:
        """Nothing to release."""
