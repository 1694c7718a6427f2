"""The process that takes in one run: ``python -P -m tokenpaths.engine.store.intake.process REQUEST``.

It runs our own code with ordinary rights and a memory limit, reads the original through a confined child, and prints
JSON lines: ``{"progress": share}`` at most every ``TICK_SECONDS``, and last ``{"problem": null | sentence, "passing":
whether nothing is known of the file}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenpaths.engine.base.errors import NotEnoughMemory, UserError
from tokenpaths.engine.base.files import HolderLock, is_disk_full, keep_free, write_atomically

TICK_SECONDS = 0.3


@dataclass(frozen=True)
class Request:
    """What is to be taken in."""

    original: str
    identity: str
    target: str
    seconds: int | float
    """time limit of the confined reader"""
    megabytes: int
    least_free: int | float
    """bytes of the disk that stay free"""

    def to_json(self) -> str:
        """As the argument of the process."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Outcome:
    """Result of an intake."""

    problem: str | None
    passing: bool = False
    """whether it says nothing about the file: want of memory, time or space"""


RECORDS_VERSION = 4
"""of records and of what the intake checks: refusals and copies of another version are made anew"""


def record_of(target: Path) -> dict[str, Any]:
    """The record of the copy ``target``: ``identity`` of the original, ``version``, ``problem``; empty without one."""
    try:
        record = json.loads(target.with_suffix(".json").read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def partial_of(target: Path) -> Path:
    """Name of a taken-in run while it is written."""
    return target.with_name(f".{target.stem}.partial")


def take_in(request: Request) -> Outcome:
    """Rebuild the run of ``request``; nothing is left beside the target."""
    from tokenpaths.engine.store.write.writer import remove_partial

    original, target = Path(request.original), Path(request.target)
    partial = partial_of(target)
    if os.path.lexists(f"{original}.wal"):
        return Outcome(
            f"{original.name} came from elsewhere and is not opened: changes to it are unfinished "
            f"({original.name}.wal lies beside it); close the program that writes it, or delete that file",
            True,
        )
    lock = HolderLock(partial.with_suffix(".lock"))
    try:
        lock.acquire()
    except UserError:
        return Outcome(BUSY, True)
    try:
        remove_partial(partial)
        target.unlink(missing_ok=True)
        outcome = _attempt(original, target, partial, request)
        if not outcome.passing:
            record = {"identity": request.identity, "version": RECORDS_VERSION, "problem": outcome.problem}
            write_atomically(target.with_suffix(".json"), json.dumps(record).encode())
        return outcome
    except OSError as error:
        return Outcome(f"{original.name} cannot be copied ({error.strerror or error}); it is tried again later", True)
    finally:
        with contextlib.suppress(OSError):
            remove_partial(partial)
        lock.release()


def _attempt(original: Path, target: Path, partial: Path, request: Request) -> Outcome:
    from tokenpaths.engine.confined.parent import ReaderEnded
    from tokenpaths.engine.store.intake.rebuild import ReaderLimits, rebuild

    name, last = original.name, 0.0

    def on_progress(share: float) -> None:
        nonlocal last
        if time.monotonic() - last > TICK_SECONDS:
            last = time.monotonic()
            print(json.dumps({"progress": round(float(share), 3)}), flush=True)

    try:
        limits = ReaderLimits(request.seconds, request.megabytes)
        rebuild(original, request.identity, target, partial, limits, on_progress)
        return Outcome(None)
    except ReaderEnded as error:
        return _ended(name, error.reason, str(error), request)
    except (NotEnoughMemory, MemoryError):
        return _ended(name, "memory", "", request)
    except UserError as error:
        return Outcome(f"{name} came from elsewhere and is not opened: {error}"[:1000])
    except Exception as error:
        if is_disk_full(error) or isinstance(error, OSError):
            return Outcome(f"{name} came from elsewhere and cannot be copied: {error}; it is tried again later", True)
        return Outcome(
            f"{name} came from elsewhere and is not opened: its tables do not fit together ({type(error).__name__})"
        )


BUSY = "another process is taking it in"


def _ended(name: str, reason: str, sentence: str, request: Request) -> Outcome:
    """The outcome where the confined reader gave no answer."""
    if reason == "memory":
        return Outcome(
            f"{name} came from elsewhere, and to take it in needs more memory than it may use "
            f"({request.megabytes:,} MB): it need not be damaged, and is tried again later. If it is yours, raise "
            "`check_megabytes`",
            True,
        )
    if reason == "time":
        return Outcome(
            f"{name} came from elsewhere and could not be read to its end within {request.seconds:.0f} s: it was made "
            "to do harm, or takes longer here; it is tried again later. If it is yours, raise `check_seconds`",
            True,
        )
    passing = reason in ("start", "busy") or "SIGKILL" in sentence
    why = "most likely the machine had no memory left; it is tried again later" if passing else "it is not opened"
    return Outcome(f"{name} came from elsewhere and ended the process that read it ({sentence}): {why}"[:1000], passing)


def main(argument: str) -> None:
    """Take in the run of the request ``argument`` (JSON) and print what came of it."""
    from tokenpaths.engine.confined.syscalls import die_with_parent

    die_with_parent()
    request = Request(**json.loads(argument))
    keep_free(request.least_free)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        size = (2 * request.megabytes + 4096) * 2**20  # address space, of which the libraries take some
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    print(json.dumps(asdict(take_in(request))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
