"""Untrained twins that the command line leaves to a job."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenpaths.cli.support.refusals import problems_as_errors
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings


def traced_with(settings: Settings, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a twin job but the run, from the options of a trace.

    Raises:
        UserError: a job cannot read these data, or finds no model of this name.
    """
    from tokenpaths.engine.jobs.registry import BUNDLED_PREFIX, JobContext, find_kind, read_request
    from tokenpaths.engine.jobs.traces.trace_twin import KIND, TwinJob, twin_request

    request = twin_request("any", dict(options))
    inbox = settings.data_dir / "inbox"
    data = str(options["data"])
    if not data.startswith(BUNDLED_PREFIX):
        if Path(data).expanduser().resolve().parent != inbox.resolve():
            raise UserError(
                f"--twin later leaves the twin to a job, and jobs read bundled sets and what lies in {inbox}; put the "
                "data there, or give --twin now.",
                field="twin",
            )
        request["data"] = Path(data).name
    context = JobContext(settings.data_dir, tuple(settings.all_models_dirs), huggingface_dir=settings.checkpoints_dir)
    try:
        read_request(find_kind(KIND), request)
        TwinJob.check_source(request["model"], request["data"], context)
    except UserError as error:
        raise UserError(f"--twin later leaves the twin to a job, and for that: {error}", field="twin") from None
    return request


def queue_twin(settings: Settings, run: Path, request: Mapping[str, Any]) -> str | None:
    """Queue the twin of the sealed run in this file; name of the job, None if the run has its twin."""
    from tokenpaths.backend.jobs.service import Jobs
    from tokenpaths.engine.jobs.traces.trace_twin import KIND
    from tokenpaths.engine.store.ask.run import Run

    with Run.open(run) as opened:
        if opened.has_twin:
            return None
    with closing(Jobs(settings)) as jobs, problems_as_errors():
        return str(jobs.submit(KIND, {**request, "run": run.stem})["job"])
