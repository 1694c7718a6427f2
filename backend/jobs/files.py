"""The folder of a job: its artifacts, temporary files and removal."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from tokenpaths.backend.problems import Problem
from tokenpaths.engine.base.files import is_name
from tokenpaths.engine.jobs.registry import ARTIFACTS, is_artifact_name, list_artifacts

ABANDONED_SECONDS = 86_400.0
REMOVED = ".removed"


def job_dir(data_dir: Path, job: str) -> Path:
    """The folder of a job; Problem 404 if ``job`` is not a valid job name."""
    if not is_name(job):
        message = f"There is no job {job[:80]!r}; it was removed, or has another name."
        raise Problem(404, "no-such-job", message, field="job")
    return data_dir / "jobs" / job


def sweep(folder: Path) -> None:
    """Delete temporary files left behind by a killed writer."""
    for place in (folder, folder / ARTIFACTS):
        for file in place.glob(".*.tmp") if place.is_dir() else ():
            file.unlink(missing_ok=True)


def sweep_data_folder(data_dir: Path) -> None:
    """Delete what killed processes left: temporary files that nobody writes any more, and removed jobs' folders.

    A folder whose job is not in the list stays: the list may have been lost, the files of its jobs not.
    """
    old = time.time() - ABANDONED_SECONDS
    for file in (*data_dir.glob(".*.tmp"), *data_dir.glob("*/.*.tmp")):
        with contextlib.suppress(OSError):
            if file.is_file() and not file.is_symlink() and file.stat().st_mtime < old:
                file.unlink()
    for folder in (data_dir / "jobs").glob(f".*{REMOVED}"):
        shutil.rmtree(folder, ignore_errors=True)


def changed_artifacts(folder: Path, known: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Artifacts that are new or changed: name → (time, size)."""
    changes = {}
    for name in list_artifacts(folder):
        try:
            status = (folder / ARTIFACTS / name).stat()
        except OSError:
            continue
        stamp = (status.st_mtime_ns, status.st_size)
        if known.get(name) != stamp:
            changes[name] = stamp
    return changes


def read_artifact(folder: Path, name: str) -> tuple[bytes, str]:
    """(content, ETag) of one artifact; Problem 404 if there is none of this name."""
    if not is_artifact_name(name):
        raise _no_artifact(folder, name)
    try:
        descriptor = os.open(folder / ARTIFACTS / name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        raise _no_artifact(folder, name) from None
    # if the file is replaced during the read, the open descriptor still has the old content
    with open(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        return file.read(), f"{status.st_mtime_ns:x}-{status.st_size:x}"


def _no_artifact(folder: Path, name: str) -> Problem:
    names = list_artifacts(folder)
    listed = "it has " + (", ".join(names[:20]) + (", …" if len(names) > 20 else "") if names else "none yet")
    return Problem(404, "no-such-artifact", f"The job has no artifact {name[:80]!r}; {listed}.", field="name")


def set_aside(folder: Path) -> Path:
    """Rename a job's folder to what is never taken for one; returns it. Whoever calls deletes it, or the next start."""
    gone = folder.with_name(f".{folder.name}.{secrets.token_hex(3)}{REMOVED}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
    return gone
