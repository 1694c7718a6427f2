"""What ``tokenpaths doctor`` reads of the data folder: runs, checkpoints and jobs, to their last byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from backend.cli.finding import Finding
from engine.errors import UserError

if TYPE_CHECKING:
    from backend.jobs.rows import JobRow
    from backend.settings import Settings


def runs(settings: Settings) -> Iterator[Finding]:
    """Every run, read whole; and what killed writers left behind."""
    from backend.runs import NO_NAME
    from backend.strangers import Strangers
    from engine.disk import RUN_SUFFIX, is_name
    from engine.store.verify import verify_run

    good, tokens, strangers = 0, 0, Strangers(settings.check_seconds, settings.check_megabytes)
    for file in sorted(settings.runs_dir.glob(f"*{RUN_SUFFIX}")):
        if not is_name(file.stem):
            yield Finding("broken", "runs", f"{file.stem!r} {NO_NAME}")
            continue
        try:
            problem = strangers.problem(file)  # first, so that a file from elsewhere does not end this process
            if problem is not None:
                yield Finding("broken", "runs", problem)
                continue
            tokens += verify_run(file)["token"]
            good += 1
        except UserError as error:
            yield Finding("broken", "runs", str(error))
        except OSError as error:  # a link to nowhere; deleted meanwhile
            yield Finding("broken", "runs", f"{file.name} cannot be read: {error.strerror or error}")
    for left in sorted(settings.runs_dir.glob(".*.partial")):
        text = f"{left.name} is being written, or was left by a writer that was killed; the next trace removes it then"
        yield Finding("note", "runs", text)
    yield Finding("ok", "runs", f"{good} whole, {tokens:,} tokens read")


def models(settings: Settings) -> Iterator[Finding]:
    """Every checkpoint, its weights loaded, their sum compared and their shapes with the configuration."""
    from engine.checkpoint import CheckpointError, build_model, read_checkpoint
    from engine.tracing import list_models

    good = []
    for row in list_models(settings.all_models_dirs):
        name = row["model"]
        if row.get("problem"):
            yield Finding("broken", "models", f"{name}: {row['problem']}")
            continue
        folder = next(folder / name for folder in settings.all_models_dirs if (folder / name).is_dir())
        try:
            build_model(read_checkpoint(folder))
            good.append(name)
        except CheckpointError as error:
            yield Finding("broken", "models", str(error))
    yield Finding("ok" if good else "note", "models", ", ".join(good) or "none: `tokenpaths train` makes one")


def jobs(settings: Settings) -> Iterator[Finding]:
    """The list of jobs with the sums of its rows, what became of each job, and every file that jobs have made."""
    from backend.jobs.service import job_table
    from backend.problems import Problem

    if not settings.jobs_file.is_file():
        yield Finding("ok", "jobs", "none yet")
        return
    table = job_table(settings)
    try:
        rows = table.page(limit=1_000_000)
        for row in rows:
            table.events(row.job, most=1_000_000)
        abandoned = {row.job for row in rows if table.is_abandoned(row)}
    except (Problem, OSError) as error:
        yield Finding("broken", "jobs", getattr(error, "detail", str(error)))
        return
    finally:
        table.close()
    num_files = 0
    for row in rows:
        yield from _about(row, row.job in abandoned)
        for text in _bad_artifacts(settings.data_dir / "jobs" / row.job):
            yield Finding("broken", "jobs", f"{row.job}: {text}")
    known = {row.job for row in rows}
    for folder in sorted((settings.data_dir / "jobs").glob("*")):
        num_files += sum(file.is_file() for file in folder.rglob("*"))
        if folder.is_dir() and folder.name not in known and not folder.name.startswith("."):
            yield Finding("note", "jobs", f"{folder.name} has files, and is not in the list: it may be deleted")
    yield Finding("ok", "jobs", f"{len(rows)} in the list, {num_files} files of theirs")


def _about(row: JobRow, abandoned: bool) -> Iterator[Finding]:
    if abandoned:
        yield Finding("note", "jobs", f"{row.job}: its worker is gone; the next worker goes on with it")
    elif row.state == "failed":
        why = (row.problem or {}).get("detail", "nobody knows why")
        yield Finding("note", "jobs", f"{row.job} failed: {why}")
    elif row.state == "paused":
        yield Finding("note", "jobs", f"{row.job} is paused: {row.message}")


def _bad_artifacts(folder: Path) -> Iterator[str]:
    """Sentences about files of a job that are not what their name says."""
    from engine.jobs import ARTIFACTS, list_artifacts

    for name in list_artifacts(folder):
        file = folder / ARTIFACTS / name
        try:
            if file.suffix in (".png", ".webp"):
                from PIL import Image

                with Image.open(file, formats=("PNG", "WEBP")) as picture:
                    picture.load()
            elif file.suffix == ".json":
                json.loads(file.read_text(encoding="utf-8"))
            else:
                file.read_bytes()
        except Exception as error:  # decoders raise nearly everything on broken bytes
            yield f"the file {name} is damaged ({type(error).__name__}); try the job again"
