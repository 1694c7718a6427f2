"""How the untrained twin of a run stands: in the run, being traced by a job, or neither, in words."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tokenpaths.backend.http.redact_paths import redact_problem
from tokenpaths.backend.jobs.rows import JobRow
from tokenpaths.backend.jobs.table import JobTable
from tokenpaths.engine.jobs.traces.trace_twin import KIND

MOST_JOBS = 1000
"""jobs of twins that are looked through, the newest first"""


def twin_state(run: str, has_twin: bool, created_at: str, table: JobTable) -> dict[str, Any]:
    """The answer of ``GET /runs/{run}/twin``.

    Args:
        has_twin: whether the run's file holds the twin's paths.
        created_at: when the run was made. A job that ended before was for an earlier run of this name; one that is
            not over opens the run of this name when it begins.
    """
    if has_twin:
        return {"run": run, "state": "there", "job": None, "reason": None}
    jobs = table.page(kinds=[KIND], limit=MOST_JOBS)
    newest = next((row for row in jobs if row.request.get("run") == run), None)
    is_earlier = newest is not None and newest.ended and (newest.finished_at or 0.0) < _seconds(created_at)
    if newest is None or is_earlier or newest.state == "succeeded":  # of an earlier run of this name
        return {"run": run, "state": "none", "job": None, "reason": "no untrained twin was traced with this run"}
    return {"run": run, "state": newest.state, "job": newest.job, "reason": _reason(newest)}


def _seconds(created_at: str) -> float:
    try:
        return datetime.fromisoformat(created_at).timestamp()
    except (ValueError, OverflowError, OSError):  # a run from elsewhere may say anything
        return 0.0


def _reason(row: JobRow) -> str:
    if row.state == "failed":
        problem = redact_problem(row.problem) or {}
        return f"the untrained twin was not traced: {problem.get('detail', 'its job failed')}".rstrip(".")
    if row.state == "cancelled":
        return "the untrained twin was not traced: its job was cancelled"
    if row.state == "running" and row.total:
        return f"the untrained twin is being traced ({row.done:,} of {row.total:,} samples so far)"
    return "the untrained twin is being traced in the background, after all other jobs"
