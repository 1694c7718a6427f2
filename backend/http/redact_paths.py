"""Replaces folders of this machine by placeholders in all text of the API.

Messages of the engine name files, which is useful on the command line but must not reach API clients.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenpaths.engine.base.files import PROGRAM_DIR

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings

_names: dict[str, str] = {}
_pattern: list[re.Pattern[str]] = []


def redact_folders_of(settings: Settings) -> None:
    """Make ``redact`` replace the folders of ``settings`` and of the program, for the whole process."""
    folders: list[tuple[Path | str | None, str]] = [
        (settings.data_dir, "<data folder>"),
        *((folder, "<models folder>") for folder in settings.models_dirs),
        (settings.huggingface_dir, "<Hugging Face folder>"),
        (PROGRAM_DIR, "<program>"),
        (sys.prefix, "<Python>"),
        (sys.base_prefix, "<Python>"),
        (tempfile.gettempdir(), "<temporary folder>"),
        (Path.home(), "<home>"),
    ]
    for folder, name in folders:
        if folder is None:
            continue
        for written in (os.path.abspath(folder), os.path.realpath(folder)):
            if len(Path(written).parts) > 1:  # a home folder of `/` has nothing to redact
                _names.setdefault(written, name)
    longest_first = sorted(_names, key=len, reverse=True)
    # Match whole path components only: `/data` is not a prefix of `/database`.
    _pattern[:] = [re.compile(r"(?<![\w.~/\\-])(" + "|".join(map(re.escape, longest_first)) + r")(?![\w.-]*[\w-])")]


def redact(text: str) -> str:
    """``text`` with absolute folders replaced by names such as ``<data folder>``."""
    return _pattern[0].sub(lambda match: _names[match[1]], text) if _pattern else text


def redact_data(data: Any) -> Any:
    """JSON data with ``redact`` applied to every string."""
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, dict):
        return {name: redact_data(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [redact_data(value) for value in data]
    return data


def redact_problem(problem: dict[str, Any] | None) -> dict[str, Any] | None:
    """A problem as JSON with ``redact`` applied to its ``detail``."""
    if problem is None or not isinstance(problem.get("detail"), str):
        return problem
    return problem | {"detail": redact(problem["detail"])}
