"""The run that a job makes: its name is settled once, so that a killed job neither makes two nor loses one."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from engine.disk import check_name, run_file, write_atomically
from engine.errors import UserError
from engine.jobs import JobContext, Progress

CLAIM = "run.json"


def check_run_name(name: str | None, context: JobContext) -> None:
    """UserError where ``name`` is no name or a run has it already; None is fine."""
    if name is not None and run_file(context.runs_dir, check_name(name, "name of a run", field="run")).exists():
        raise UserError(f"There is a run {name!r} already; give another name, or leave it out.", field="run")


def claim_run(folder: Path, context: JobContext, wanted: str | None, make_name: Callable[[], str]) -> tuple[str, bool]:
    """(name of the job's run, whether the run is there already because an earlier life of the job sealed it).

    Raises:
        UserError: somebody else has made a run of this name since the job was submitted.
    """
    file = folder / CLAIM
    if file.is_file():
        claim = json.loads(file.read_bytes())
        return claim["run"], _is_newer(run_file(context.runs_dir, claim["run"]), claim["at"])
    check_run_name(wanted, context)
    run = wanted or make_name()
    claim = {"run": run, "at": datetime.now(UTC).isoformat()}
    write_atomically(file, json.dumps(claim).encode())
    return run, False


def _is_newer(file: Path, claimed_at: str) -> bool:
    """Whether there is a run made after the claim. It can only be ours: others refuse names that are taken."""
    if not file.is_file():
        return False
    from engine.store import Run

    with Run.open(file) as run:
        created_at = datetime.fromisoformat(str(run.card()["created_at"]))
    if created_at.tzinfo is None:
        created_at = created_at.replace(tzinfo=UTC)
    return created_at.timestamp() >= datetime.fromisoformat(claimed_at).timestamp() - 1


class Finished:
    """A job whose run an earlier life of it sealed, just before that was killed."""

    def __init__(self, run: str, done: int | None, unit: str) -> None:
        self.run, self.done, self.unit = run, done or 0, unit

    def advance(self) -> Progress:
        """Nothing is left to do."""
        return Progress(self.done, self.done, self.unit, finished=True, result={"run": self.run})

    def close(self) -> None:
        """Holds nothing."""
