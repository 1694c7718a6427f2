"""Where the traceback of an unforeseen error goes: a log file, not the terminal."""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from pathlib import Path


def write_crash(error: BaseException) -> Path:
    """Append the traceback to ``logs/cli.log`` of the data folder (else a temporary file) and say where."""
    text = f"--- {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {_command()}\n"
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


def _command() -> str:
    """The command line, the value of ``--token`` left out."""
    shown = []
    for before, word in zip(["", *sys.argv], sys.argv, strict=False):
        name, equals, _ = word.partition("=")
        shown.append("…" if before == "--token" else f"{name}=…" if name == "--token" and equals else word)
    return " ".join(shown)


def _logs_dir() -> Path:
    from tokenpaths.engine.base.files import data_dir

    return data_dir() / "logs"
