"""Jobs about runs from elsewhere: where its numbers make a job fail, that is the fault of the run, not ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tokenpaths.backend.runs.registry import RunRegistry
from tokenpaths.engine.jobs.registry import JobContext


class OpenedRuns:
    """Notes which runs a job opens through ``context``, a copy of the one that is given."""

    def __init__(self, context: JobContext) -> None:
        self.registry = RunRegistry(context.runs_dir)
        self.names: list[str] = []
        asked = context.problem_of_run

        def noted(file: Path) -> str | None:
            self.names.append(file.stem)
            return asked(file) if asked is not None else None

        self.context = replace(context, problem_of_run=noted)

    def told(self, error: Exception) -> Exception:
        """``error``; or, where nobody foresaw it and a run that was not sealed here was opened, Problem 409."""
        try:
            with self.registry.fitting(*self.names):
                raise error
        except Exception as found:
            return found
