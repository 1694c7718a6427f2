"""Where the traceback of an unforeseen error goes: a log file, not the terminal."""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from pathlib import Path


def write_crash(error: BaseException) -> Path:
    """Append the traceback to ``logs/cli.log`` of the data folder (else a temporary file) and say where."""
    text = f"--- {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {' '.join(sys.argv)}\n"
    text += "".join(traceback.format_exception(error)) + "\n"
    for folder in (_logs_dir(), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "cli.log"
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            continue
        return path
    return Path("nowhere (no folder is writable)")


def _logs_dir() -> Path:
    from engine.disk import data_dir

    return data_dir() / "logs"
