"""Run files from elsewhere are first read by a process that may die of them.

See ``engine.own`` for what is known. The process has no secrets in its environment, writes nothing, and has limits on
memory and time; what it survives is noted as known, and opened from then on like every other run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from backend.decoder import KEPT_ENVIRONMENT
from engine.own import is_known, know

if TYPE_CHECKING:
    from backend.settings import Settings

MEMORY_MEGABYTES = 4096
BYTES_PER_SECOND = 20e6
"""read at least; on top of the limit for small files"""


class Strangers:
    """Reads what is not known, once each; safe to use from many threads."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._refused: dict[tuple[str, int, int, int], str] = {}

    def problem(self, file: Path) -> str | None:
        """What is wrong with the run ``file``, in a sentence; None where it may be opened.

        Raises OSError where there is no such file.
        """
        if is_known(file):
            return None
        info = os.stat(file)
        key = (str(file), info.st_ino, info.st_size, info.st_mtime_ns)
        if key not in self._refused:
            problem = read_apart(file, self.limit_s + info.st_size / BYTES_PER_SECOND)
            if problem is None:
                know(file, info)
                return None
            self._refused[key] = problem
        return self._refused[key]


def strangers_of(settings: Settings) -> Strangers | None:
    """The reader of runs from elsewhere that ``settings`` ask for; None where they ask for none."""
    return Strangers(settings.check_seconds) if settings.check_runs else None


def read_apart(file: Path, limit_s: float) -> str | None:
    """What a process of its own says of the run ``file``, or that it died of it."""
    advice = "it is damaged or was made to do harm, and is not opened; trace the run again"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "backend.stranger_child", str(file), str(MEMORY_MEGABYTES)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=limit_s,
            cwd=Path(__file__).resolve().parent.parent,
            env={name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ},
            start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return (
            f"{file.name} came from elsewhere and could not be read to its end within {limit_s:.0f} s: it was made to "
            "do harm, or takes longer here; if it is yours, raise `check_seconds` and start again"
        )
    try:
        said = json.loads(done.stdout.splitlines()[-1])["problem"]
    except (IndexError, ValueError, KeyError, TypeError):
        code = done.returncode
        how = signal.Signals(-code).name if -code in signal.valid_signals() else f"code {code}"
        return f"{file.name} came from elsewhere and ended the process that read it first ({how}): {advice}"
    return None if said is None else str(said)
