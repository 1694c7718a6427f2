"""``tokenpaths jobs``: the queue of long jobs, without a server. ``tokenpaths worker``: one more worker for it."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenpaths.cli.support.options import DataDir
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.jobs.service import Jobs

COLUMNS = ("job", "state", "place", "progress", "left", "about")
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")]
Name = Annotated[str, typer.Argument(help="Name of the job, as `tokenpaths jobs list` shows it.")]


def jobs_app() -> typer.Typer:
    """``tokenpaths jobs …``."""
    app = typer.Typer(help=HELP, invoke_without_command=True, rich_markup_mode=None)

    @app.callback()
    def without_command(context: typer.Context, data_dir: DataDir = None) -> None:
        """The text of ``--help`` is HELP."""
        context.obj = data_dir
        if context.invoked_subcommand is None:
            list_jobs(context)

    app.command("list")(list_jobs)
    for command in (show, cancel, retry, remove):
        app.command()(command)
    return app


HELP = """Long jobs: what runs, what waits, what became of the others.

Example: tokenpaths jobs; tokenpaths jobs cancel trace-20261121-101500-a1b2c3
"""


def list_jobs(
    context: typer.Context,
    state: Annotated[str | None, typer.Option(help="Only this state, for example waiting.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many, the newest.", min=1)] = 50,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List jobs, the newest first.

    Example: tokenpaths jobs list --state waiting
    """
    from tokenpaths.backend.jobs.rows import STATES

    if state is not None and state not in STATES:
        raise UserError(f"There is no state {state[:40]!r}; there are {', '.join(STATES)}.", field="state")
    jobs = _jobs(context, data_dir)
    found, _ = jobs.page([state] if state else [], [], None, limit)  # type: ignore[list-item]
    workers = jobs.table.workers()
    if as_json:
        print(json.dumps({"jobs": found, "workers": workers}, indent=1, ensure_ascii=False))
        return
    if not found:
        print(f"No jobs in {jobs.settings.jobs_file}.")
    else:
        _table([_row(job) for job in found])
    print(f"{workers} worker{'' if workers == 1 else 's'}" + ("" if workers else ": `tokenpaths worker` starts one"))


def show(context: typer.Context, job: Name, data_dir: DataDir = None) -> None:
    """Everything about one job, as JSON.

    Example: tokenpaths jobs show trace-20261121-101500-a1b2c3
    """
    _print(_told(lambda: _jobs(context, data_dir).get(job)))


def cancel(context: typer.Context, job: Name, data_dir: DataDir = None) -> None:
    """Cancel a job; what it has made stays. Does nothing to one that is over.

    Example: tokenpaths jobs cancel trace-20261121-101500-a1b2c3
    """
    jobs = _jobs(context, data_dir)
    found = _told(lambda: jobs.shown(jobs.table.cancel(job)))
    print(f"{job}: {'cancelling' if found['cancelling'] else found['state']}")


def retry(context: typer.Context, job: Name, data_dir: DataDir = None) -> None:
    """Put a failed or cancelled job at the end of the queue; it goes on from what it has kept.

    Example: tokenpaths jobs retry trace-20261121-101500-a1b2c3
    """
    found = _told(lambda: _jobs(context, data_dir).retry(job))
    print(f"{job}: {found['state']}, place {found['place']}")


def remove(context: typer.Context, job: Name, data_dir: DataDir = None) -> None:
    """Forget a job that is over, and delete its files; runs that it made stay.

    Example: tokenpaths jobs remove trace-20261121-101500-a1b2c3
    """
    _told(lambda: _jobs(context, data_dir).remove(job))
    print(f"{job}: removed")


def worker(
    data_dir: DataDir = None,
    settings_file: Annotated[Path | None, typer.Option("--settings", help="Settings file (TOML).")] = None,
) -> None:
    """Start one more worker for the queue of a data folder, until Ctrl-C; it gives its job back when it ends.

    `tokenpaths up` starts one already. On a machine with several GPUs, CUDA_VISIBLE_DEVICES chooses one for it.

    Example: tokenpaths worker --data-dir ./my-runs
    """
    from tokenpaths.backend.serve import main
    from tokenpaths.backend.settings import load_settings

    settings = load_settings(settings_file, data_dir=data_dir)
    # It listens like any worker, but nobody else knows its port or its secret: the API's own answers traces.
    os.environ |= {
        "TOKENPATHS_DATA_DIR": str(settings.data_dir),
        "TOKENPATHS_WORKER_SECRET": secrets.token_hex(32),
        "TOKENPATHS_WORKER_HOST": "127.0.0.1",
        "TOKENPATHS_WORKER_PORT": "0",
        "TOKENPATHS_WORKER_JOBS": "true",
        "TOKENPATHS_WARM_MODELS": "false",
    }
    if settings_file is not None:
        os.environ["TOKENPATHS_SETTINGS_FILE"] = str(settings_file.absolute())
    print(f"A worker for {settings.data_dir}; Ctrl-C stops it.", flush=True)
    raise typer.Exit(main(["worker"]))


def _jobs(context: typer.Context, data_dir: Path | None) -> Jobs:
    from tokenpaths.backend.jobs.service import Jobs
    from tokenpaths.backend.settings import load_settings

    return Jobs(load_settings(data_dir=data_dir or context.obj))


def _told(call: Any) -> Any:
    """The result of ``call``; a problem becomes an error of one line."""
    from tokenpaths.backend.problems import Problem

    try:
        return call()
    except Problem as problem:
        raise UserError(problem.detail, field=problem.field) from None


def _print(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=1, ensure_ascii=False))


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    progress = job["progress"]
    total = f" of {progress['total']:,}" if progress["total"] is not None else ""
    left = progress["seconds_left"]
    why = (job["problem"] or {}).get("detail", "")
    return (
        job["job"],
        "cancelling" if job["cancelling"] else job["state"],
        str(job["place"] or ""),
        f"{progress['done']:,}{total} {progress['unit']}".strip() if progress["unit"] else "",
        f"{left:,.0f} s" if left is not None else "",
        f"{job['title']}: {why}" if why else job["title"],
    )


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in (COLUMNS, *rows)) for i in range(len(COLUMNS))]
    for row in (COLUMNS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
