"""Where things lie on this machine is no business of whoever asks the API: folders leave it under a name alone.

Sentences of the engine name files, which helps at the command line. Whatever the API says passes here first.
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


def hide_places(settings: Settings) -> None:
    """From now on, ``without_places`` of this process knows the folders of ``settings``, and those of the program."""
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
            if len(Path(written).parts) > 1:  # a home of `/` hides nothing
                _names.setdefault(written, name)
    longest_first = sorted(_names, key=len, reverse=True)
    # A folder ends at its separator or where its name could not go on: `/data` is no part of `/database`.
    _pattern[:] = [re.compile(r"(?<![\w.~/\\-])(" + "|".join(map(re.escape, longest_first)) + r")(?![\w.-]*[\w-])")]


def without_places(text: str) -> str:
    """``text`` with the folders of this machine under their names."""
    return _pattern[0].sub(lambda found: _names[found[1]], text) if _pattern else text


def data_without_places(data: Any) -> Any:
    """What is to become JSON, with each of its texts ``without_places``."""
    if isinstance(data, str):
        return without_places(data)
    if isinstance(data, dict):
        return {name: data_without_places(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [data_without_places(value) for value in data]
    return data


def problem_without_places(problem: dict[str, Any] | None) -> dict[str, Any] | None:
    """A problem as JSON with its sentence ``without_places``."""
    if problem is None or not isinstance(problem.get("detail"), str):
        return problem
    return problem | {"detail": without_places(problem["detail"])}
