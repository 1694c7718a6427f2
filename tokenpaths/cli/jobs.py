"""``tokenpaths jobs``: the queue of long jobs, without a server; ``tokenpaths worker``: one more worker for it."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenpaths.cli.ls import print_table
from tokenpaths.cli.support.options import DataDir
from tokenpaths.cli.support.refusals import problems_as_errors
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
    limit: Annotated[int, typer.Option(help="At most so many, the newest.", min=1, max=1_000_000)] = 50,
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
    rows, _ = jobs.page([state] if state else [], [], None, limit)  # type: ignore[list-item]
    workers = jobs.table.workers()
    if as_json:
        print(json.dumps({"jobs": rows, "workers": workers}, indent=1, ensure_ascii=False))
        return
    if not rows:
        print(f"No jobs in {jobs.settings.jobs_file}.")
    else:
        print_table(COLUMNS, [_cells(row) for row in rows])
    print(f"{workers} worker{'' if workers == 1 else 's'}" + ("" if workers else ": `tokenpaths worker` starts one"))


def show(context: typer.Context, job: Name, data_dir: DataDir = None) -> None:
    """Everything about one job, as JSON.

    Example: tokenpaths jobs show trace-20261121-101500-a1b2c3
    """
    with problems_as_errors():
        row = _jobs(context, data_dir).get(job)
    print(json.dumps(row, indent=1, ensure_ascii=False))


def cancel(context: typer.Context, job: Name, data_dir: DataDir = None) -> None:
    """Cancel a job; what it has made stays. One that is over is refused, and stays as it is.

    Example: tokenpaths jobs cancel trace-20261121-101500-a1b2c3
    """
    jobs = _jobs(context, data_dir)
    with problems_as_errors():
        before = jobs.table.get(job)
        row = jobs.shown(jobs.table.cancel(job))
    if before.ended or row["state"] in ("succeeded", "failed"):  # it may have ended in between
        raise UserError(f"{job} is over already: it {_BECAME[row['state']]}.", field="job")
    print(f"{job}: {'cancelling' if row['cancelling'] else row['state']}")


_BECAME = {"succeeded": "succeeded", "failed": "failed", "cancelled": "was cancelled"}


def retry(context: typer.Context, job: Name, data_dir: DataDir = None) -> None:
    """Put a failed or cancelled job at the end of the queue; it goes on from what it has kept.

    Example: tokenpaths jobs retry trace-20261121-101500-a1b2c3
    """
    with problems_as_errors():
        row = _jobs(context, data_dir).retry(job)
    print(f"{job}: {row['state']}, place {row['place']}")


def remove(context: typer.Context, job: Name, data_dir: DataDir = None) -> None:
    """Forget a job that is over, and delete its files; runs that it made stay.

    Example: tokenpaths jobs remove trace-20261121-101500-a1b2c3
    """
    with problems_as_errors():
        _jobs(context, data_dir).remove(job)
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
    from tokenpaths.cli.support.refusals import make_data_folders

    settings = load_settings(settings_file, data_dir=data_dir)
    make_data_folders(settings)
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


def _cells(job: dict[str, Any]) -> tuple[str, ...]:
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
