"""A kind of job: the paths of a run as a CSV file, a thousand at a time. A killed one goes on where it was."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.jobs.registry import JobContext, Progress, write_artifact

AT_ONCE = 1000


class PathTableRequest(BaseModel):
    """What ``POST /jobs`` takes as ``request``."""

    model_config = ConfigDict(extra="forbid")

    run: str = Field(description="name of a run")


class PathTableJob:
    """Rank, count and ribbon of every path."""

    kind: ClassVar[str] = "path-table"
    Request: ClassVar[type[BaseModel]] = PathTableRequest

    def __init__(self, run: Any, folder: Path) -> None:
        self.run, self.folder = run, folder
        state = folder / "state.json"
        self.rows: list[list[Any]] = json.loads(state.read_bytes()) if state.is_file() else []

    @staticmethod
    def check(request: PathTableRequest, context: JobContext) -> None:
        """Refuse before it is queued, in a process without models: here a run that is not there."""
        context.open_run(request.run).close()

    @classmethod
    def start(cls, request: PathTableRequest, folder: Path, context: JobContext) -> PathTableJob:
        """Begin, or go on from what an earlier process left in ``folder``."""
        return cls(context.open_run(request.run), folder)

    def advance(self) -> Progress:
        """About a second of work, kept before it is told."""
        page = self.run.paths(limit=AT_ONCE, offset=len(self.rows))
        self.rows += [[path["rank"], path["count"], json.dumps(path["ribbon"])] for path in page["paths"]]
        write_atomically(self.folder / "state.json", json.dumps(self.rows).encode())
        finished = len(self.rows) == page["num_paths"]
        if finished:
            text = io.StringIO()
            csv.writer(text).writerows([["rank", "count", "ribbon"], *self.rows])
            write_artifact(self.folder, "paths.csv", text.getvalue().encode())
        return Progress(len(self.rows), page["num_paths"], "paths", "reading paths", finished=finished)

    def close(self) -> None:
        self.run.close()
