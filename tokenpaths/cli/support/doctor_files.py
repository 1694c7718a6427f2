"""Checks of ``tokenpaths doctor`` that read the data folder: runs, checkpoints and jobs, to their last byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.jobs.rows import JobRow
    from tokenpaths.backend.settings import Settings
    from tokenpaths.cli.support.progress_bar import Bar
    from tokenpaths.engine.store.intake.gate import RunGate

    Bars = Callable[[str, int | None, str], AbstractContextManager[Bar]]
    """``progress_bar.bar``, or ``no_bar``"""


@dataclass(frozen=True)
class Finding:
    """One thing looked at; ``broken`` makes the exit code 1."""

    state: Literal["ok", "note", "broken"]
    what: str
    text: str


@contextmanager
def no_bar(label: str, total: int | None, unit: str) -> Iterator[Bar]:
    """Says nothing, for programs."""
    from tokenpaths.cli.support.progress_bar import Bar

    yield Bar(label, total, unit)


def runs(settings: Settings, bar: Bars = no_bar) -> Iterator[Finding]:
    """Every run, read whole; what killed writers left behind; marks of runs that somebody deleted by hand."""
    from tokenpaths.backend.runs.open_runs import gate_of
    from tokenpaths.engine.base.files import RUN_SUFFIX, printable_name
    from tokenpaths.engine.base.seal_marks import forget_deleted

    files = sorted(settings.runs_dir.glob(f"*{RUN_SUFFIX}"))
    good, tokens, findings = 0, 0, []
    gate = gate_of(settings)
    with bar("reading runs", len(files), "runs") as shown:
        for number, file in enumerate(files):
            shown.update(number, f"{printable_name(file.stem)[:20]} ({_megabytes(file):,.1f} MB)")
            read = _read_run(file, gate)
            if isinstance(read, Finding):
                findings.append(read)
            else:
                good, tokens = good + 1, tokens + read
        shown.update(len(files))
    gate.sweep({file.name for file in files})
    yield from findings  # after the progress bar, which owns the terminal lines until then
    for left in sorted(settings.runs_dir.glob(".*.partial")):
        text = f"{left.name} is being written, or was left by a writer that was killed; the next trace removes it then"
        yield Finding("note", "runs", text)
    gone = forget_deleted(settings.runs_dir)
    if gone.deleted:
        were = "1 run was" if gone.deleted == 1 else f"{gone.deleted:,} runs were"
        yield Finding("note", "runs", f"{were} deleted by hand: what was noted of them was removed too")
    if gone.copied:
        were = "1 run was" if gone.copied == 1 else f"{gone.copied:,} runs were"
        text = f"{were} copied here, as with a whole data folder, and not sealed here: read as from elsewhere"
        yield Finding("note", "runs", f"{text}; what was noted of the files that they are copies of was removed")
    yield Finding("ok", "runs", f"{good} whole, {tokens:,} tokens read")


def _read_run(file: Path, gate: RunGate) -> Finding | int:
    """The tokens of a run that is whole, or what is wrong with it."""
    from tokenpaths.backend.runs.open_runs import no_name
    from tokenpaths.engine.base.errors import NotEnoughMemory
    from tokenpaths.engine.base.files import is_name
    from tokenpaths.engine.store.file.verification import verify_run

    if not is_name(file.stem):
        return Finding("broken", "runs", no_name(file.stem))
    if file.exists() and not file.is_file():  # not listed as a run; and opening a pipe would block without a writer
        return Finding("note", "runs", f"{file.name} is a folder, a pipe or a device, so it is no run; move it away")
    try:
        return verify_run(gate.passage(file))["token"]  # of a run from elsewhere its copy
    except NotEnoughMemory as error:
        return Finding("note", "runs", f"{error}; nothing is known of it")
    except UserError as error:
        standing = gate.standing(file) if file.exists() else None
        return Finding("note" if standing is not None and standing.passing else "broken", "runs", str(error))
    except OSError as error:  # a dangling link, or deleted meanwhile
        return Finding("broken", "runs", f"{file.name} cannot be read: {error.strerror or error}")


def _megabytes(file: Path) -> float:
    try:
        return file.stat().st_size / 1e6
    except OSError:
        return 0.0


def sandbox(settings: Settings) -> Iterator[Finding]:
    """Whether the processes that read foreign files can do nothing else, tried out in one of them."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-P", "-m", "tokenpaths.engine.confined.syscalls"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    try:
        report = json.loads(done.stdout)
        able = sorted(name for name, could in report["able"].items() if could and name not in ("file read", "thread"))
    except (ValueError, KeyError, TypeError, AttributeError):
        yield Finding("note", "sandbox", f"it could not be tried out (code {done.returncode})")
        return
    if report["reason"] is None and not able:
        text = "what reads files of strangers can open no connection, start no program and write no file"
        yield Finding("ok", "sandbox", text)
        return
    why = report["reason"] or f"these still succeed: {', '.join(able)}"
    yield Finding("note", "sandbox", f"what reads files of strangers has limits on memory and time alone: {why}")


def models(settings: Settings, bar: Bars = no_bar) -> Iterator[Finding]:
    """Every checkpoint: of ours the weights loaded, their sum compared and their shapes with the configuration, and of
    texts the tokenizer; those of Hugging Face, which may be large, as far as their configuration goes.
    """
    from tokenpaths.engine.adapters.find_traceable import find_traceable, list_traceable
    from tokenpaths.engine.adapters.huggingface.config import PREFIX, is_huggingface
    from tokenpaths.engine.families.checkpoint_config import read_checkpoint
    from tokenpaths.engine.models.checkpoint import build_model
    from tokenpaths.engine.tracing.loaded_model import read_tokenizer

    rows, good, findings = list_traceable(settings.all_models_dirs, settings.checkpoints_dir), [], []
    with bar("loading models", len(rows), "models") as shown:
        for number, row in enumerate(rows):
            name = row["model"]
            shown.update(number, name)
            state: Literal["note", "broken"] = (
                "note" if is_huggingface(name) else "broken"
            )  # a dense model is no broken one
            if row.get("problem"):
                findings.append(Finding(state, "models", f"{name}: {row['problem']}"))
                continue
            try:
                if is_huggingface(name):
                    find_traceable(f"{PREFIX}{settings.checkpoints_dir / name.removeprefix(PREFIX)}", ())
                else:
                    folder = next(folder / name for folder in settings.all_models_dirs if (folder / name).is_dir())
                    checkpoint = read_checkpoint(folder)
                    read_tokenizer(checkpoint)
                    build_model(checkpoint)
                good.append(name)
            except UserError as error:
                findings.append(Finding(state, "models", str(error)))
        shown.update(len(rows))
    yield from findings
    yield Finding("ok" if good else "note", "models", ", ".join(good) or "none: `tokenpaths train` makes one")


def jobs(settings: Settings, bar: Bars = no_bar) -> Iterator[Finding]:
    """The list of jobs with the sums of its rows, what became of each job, and every file that jobs have made."""
    from tokenpaths.backend.jobs.service import job_table
    from tokenpaths.backend.problems import Problem

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
    findings: list[Finding] = []
    with bar("reading files of jobs", len(rows), "jobs") as shown:
        for number, row in enumerate(rows):
            shown.update(number, row.job)
            findings += abandoned_or_failed(row, row.job in abandoned)
            bad = _bad_artifacts(settings.data_dir / "jobs" / row.job)
            findings += [Finding("broken", "jobs", f"{row.job}: {text}") for text in bad]
        shown.update(len(rows))
    yield from findings
    known = {row.job for row in rows}
    for folder in sorted((settings.data_dir / "jobs").glob("*")):
        num_files += sum(file.is_file() for file in folder.rglob("*"))
        if folder.is_dir() and folder.name not in known and not folder.name.startswith("."):
            yield Finding("note", "jobs", f"{folder.name} has files, and is not in the list: it may be deleted")
    yield Finding("ok", "jobs", f"{len(rows)} in the list, {num_files} files of theirs")


def abandoned_or_failed(row: JobRow, abandoned: bool) -> Iterator[Finding]:
    """What is worth knowing of a job in the list."""
    if abandoned:
        yield Finding("note", "jobs", f"{row.job}: its worker is gone; the next worker goes on with it")
    elif row.state == "failed":
        why = (row.problem or {}).get("detail", "nobody knows why")
        yield Finding("note", "jobs", f"{row.job} failed: {why}")
    elif row.state == "paused":
        yield Finding("note", "jobs", f"{row.job} is paused: {row.message}")


def _bad_artifacts(folder: Path) -> Iterator[str]:
    """Sentences about files of a job that are not what their name says."""
    from tokenpaths.engine.jobs.registry import ARTIFACTS, list_artifacts

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
        except Exception as error:  # decoders raise almost any exception on corrupt data
            yield f"the file {name} is damaged ({type(error).__name__}); try the job again"
