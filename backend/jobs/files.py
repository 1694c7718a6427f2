"""The folder of a job: its artifacts, temporary files and removal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tokenpaths.backend.problems import Problem
from tokenpaths.engine.base.files import is_name
from tokenpaths.engine.jobs.registry import ARTIFACTS, is_artifact_name, list_artifacts


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
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "") if names else "it has none yet"
    return Problem(404, "no-such-artifact", f"The job has no artifact {name[:80]!r}; {listed}.", field="name")


def remove_folder(folder: Path) -> None:
    """Delete a job's folder; renamed first, so that a partly deleted folder is never taken for a job's."""
    gone = folder.with_name(f".{folder.name}.removed")
    try:
        folder.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)
