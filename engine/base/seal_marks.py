"""Marks of the run files that this program sealed in this data folder: small files in ``<data_dir>/.known``.

A mark is named by the identity of its file (inode, size, time of the last change), so it stays true when a run is
renamed and no other file inherits it. It holds the time at which the system last changed anything of the file (ctime,
which no program can set) and the SHA-256 of the content: a file that was written over in place and given its old time
back is compared with that sum. Every other run is untrusted: blocks of a file carry checksums, but whoever wrote the
file wrote those too. Such a run is never opened; ``tokenpaths.engine.store.intake`` copies what it says.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FOLDER = ".known"
FRESH_SECONDS = 60.0
"""marks younger than this may precede their run, which appears a moment later"""


def identity_of(info: os.stat_result) -> str:
    """A string that stays equal while a file is the same and unchanged, whatever its name."""
    return f"{info.st_ino:x}-{info.st_size:x}-{info.st_mtime_ns:x}"


def marks_folder(runs_dir: Path) -> Path:
    """Folder of the marks of the runs in ``runs_dir``."""
    return runs_dir.parent / FOLDER


def mark_sealed(file: Path, info: os.stat_result, digest: str | None = None) -> str | None:
    """Note that the run ``file``, whose identity is that of ``info``, is sealed here.

    Only in a folder named ``runs``, as every data folder has one. A mark that cannot be written is no failure: the run
    is then copied as one from elsewhere.

    Args:
        file: the run.
        info: state of the file.
        digest: SHA-256 of its content; None: it is read.

    Returns:
        The digest, or None where there is no mark.
    """
    mark = marks_folder(file.parent) / identity_of(info)
    if file.parent.name != "runs":
        return None
    with contextlib.suppress(OSError):
        digest = digest or digest_of(file)
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(f"{info.st_ctime_ns} {digest}", encoding="ascii")
        return digest
    return None


def digest_of(file: Path) -> str:
    """SHA-256 of the content of a file, in hex."""
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def is_sealed_here(file: Path, info: os.stat_result | None = None, *, most_bytes: int | None = None) -> bool:
    """Whether the run ``file`` was sealed in this data folder; OSError if there is no such file.

    A file that was touched since (renamed, linked, written over) is read to compare its sum, once.

    Args:
        file: the run.
        info: its state, where it is known.
        most_bytes: larger files are not read, and count as not sealed here; None: all are.
    """
    info = os.stat(file) if info is None else info
    folder = marks_folder(file.parent)
    with contextlib.suppress(OSError, ValueError):
        changed_at, _, digest = (folder / identity_of(info)).read_text(encoding="ascii").partition(" ")
        if changed_at == str(info.st_ctime_ns):
            return True
        if most_bytes is not None and info.st_size > most_bytes:
            return False
        if digest_of(file) == digest and os.stat(file).st_ctime_ns == info.st_ctime_ns:
            mark_sealed(file, info, digest)
            return True
        return False
    try:  # of earlier versions: named by the run, with identity and origin as text
        text = (folder / file.name).read_text(encoding="ascii")
    except (OSError, ValueError):
        return False
    return text == f"{info.st_ino} {info.st_size} {info.st_mtime_ns} sealed"


def forget_mark(file: Path, info: os.stat_result) -> None:
    """Remove the mark of the run ``file`` that is about to be deleted, unless it has other names."""
    with contextlib.suppress(OSError):
        (marks_folder(file.parent) / file.name).unlink()
    forget_replaced(file, info)


def forget_replaced(file: Path, info: os.stat_result) -> None:
    """Remove what knows the former content of the run ``file``, of this ``info``, unless it has other names."""
    if info.st_nlink < 2:
        with contextlib.suppress(OSError):
            (marks_folder(file.parent) / identity_of(info)).unlink()


class Forgotten(NamedTuple):
    """How many marks were removed, by what became of their runs."""

    deleted: int
    """no run has the content any more"""
    copied: int
    """a run has the content, but is another file: the data folder was copied, or the run put back"""


def forget_deleted(runs_dir: Path) -> Forgotten:
    """Remove the marks of files that are no longer in ``runs_dir``.

    Runs without a mark are read if they are as large as such a file was, to tell a copy of it.
    """
    try:
        marks = list(marks_folder(runs_dir).iterdir())
        files = list(os.scandir(runs_dir))
    except OSError:
        return Forgotten(0, 0)
    known = {entry.name for entry in files}
    marked = {mark.name for mark in marks}
    of_size: dict[int, list[Path]] = {}
    for entry in files:
        with contextlib.suppress(OSError):
            info = os.stat(entry.path)
            known.add(identity_of(info))
            if identity_of(info) not in marked and stat.S_ISREG(info.st_mode):
                of_size.setdefault(info.st_size, []).append(Path(entry.path))
    num_deleted = num_copied = 0
    digests: dict[Path, str] = {}
    for mark in marks:
        with contextlib.suppress(OSError):
            if mark.name not in known and time.time() - mark.stat().st_mtime > FRESH_SECONDS:
                copied = _is_copied(mark, of_size, digests)
                mark.unlink()
                num_copied += copied
                num_deleted += not copied
    return Forgotten(num_deleted, num_copied)


def _is_copied(mark: Path, of_size: Mapping[int, Sequence[Path]], digests: dict[Path, str]) -> bool:
    """Whether one of the files has the content that a mark tells; ``digests`` keeps what was read."""
    try:
        size = int(mark.name.split("-")[1], 16)
        digest = mark.read_text(encoding="ascii").partition(" ")[2]
    except (IndexError, ValueError):  # of earlier versions, or nothing of ours
        return False
    for file in of_size.get(size, ()):
        with contextlib.suppress(OSError):
            if file not in digests:
                digests[file] = digest_of(file)
            if digests[file] == digest:
                return True
    return False
