"""Folders in which models are looked for: of the data folder, of the user's choice, and of installed distributions.

They and what lies in them may be anything: a folder that cannot be read, a ``config.json`` of a stranger.
"""

from __future__ import annotations

import json
import math
import os
import stat
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from tokenpaths.engine.base.files import SHIPPED_MODELS, is_name
from tokenpaths.engine.base.plugins import PluginError, load, where_from
from tokenpaths.settings_file import folders_setting

GROUP = "tokenpaths.models"
"""entry points of distributions that bring models: each is a folder of checkpoint folders (a Path or str)"""
LARGER_MODELS = "tokenpaths-models"
"""distribution of the models that the wheel of this program is too small for"""
SUMS = SHIPPED_MODELS / "SHA256SUMS"
"""sums of all models of this program, wherever they are installed"""
CONFIG = "config.json"
MOST_CONFIG_BYTES = 16_000_000
MOST_NESTED = 32
"""objects and lists within each other in a configuration; what is answered of it is nested in more"""
TOO_DEEP = f"it is nested more than {MOST_NESTED} deep"


@lru_cache(maxsize=1)
def installed_folders() -> tuple[Path, ...]:
    """Folders of models that came with installed distributions: this program's own, then those of ``GROUP``.

    An entry point that cannot be loaded brings no models and a warning; the others are not affected.
    """
    folders = [SHIPPED_MODELS]
    for point in entry_points(group=GROUP):
        try:
            folders.append(folder_of(point))
        except PluginError as error:
            warnings.warn(str(error), stacklevel=2)
    return tuple(dict.fromkeys(folders))


def folder_of(point: EntryPoint) -> Path:
    """The folder of an entry point of ``GROUP``.

    Raises:
        PluginError: it cannot be imported, or is no folder.
    """
    try:
        folder = Path(load(point))
        if not folder.is_dir():
            raise PluginError(f"there is no folder {folder}")
    except (PluginError, TypeError) as error:
        raise PluginError(f"the models {where_from(point)} cannot be found: {error}") from None
    return folder


def models_folders(data_dir: Path | None = None, more: Iterable[Path] | None = None) -> list[Path]:
    """Folders of models in the order in which they are searched: the first that has a name wins.

    Args:
        data_dir: The data folder, if its ``models`` count.
        more: The setting ``models_dirs``; None reads it from the environment or the settings file.
    """
    own = [data_dir / "models"] if data_dir is not None else []
    chosen = folders_setting("models_dirs") if more is None else more
    return list(dict.fromkeys([*own, *chosen, *installed_folders()]))


def where_to_get(name: str) -> str | None:
    """A sentence on what to install for a model of this program that is not here; None if there is no such model."""
    try:
        sums = SUMS.read_text(encoding="utf-8")
    except OSError:
        return None
    return f"{name} is one of the larger models: `pip install {LARGER_MODELS}`" if f"  {name}/" in sums else None


def model_folder(name: str, folders: Iterable[Path]) -> Path | None:
    """The folder of a model in the first of ``folders`` that has it; None where none has, or it is no name."""
    places = [folder / name for folder in folders] if is_name(name) else []
    return next((place for place in places if os.path.isdir(place)), None)


def subfolders(folder: Path) -> list[Path]:
    """The folders in ``folder``, by name; none where it cannot be read, and none that vanishes meanwhile."""
    found = []
    with suppress(OSError):
        for entry in folder.iterdir():
            with suppress(OSError):
                if entry.is_dir():
                    found.append(entry)
    return sorted(found)


def read_model_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a checkpoint folder. Numbers that JSON lacks (NaN, infinities) become texts, so that the
    configuration can be answered.

    Raises:
        OSError: there is none, or it cannot be read.
        ValueError: it is no JSON object, too large, or nested too deeply; the message says which.
    """
    file = folder / CONFIG
    if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for its writer
        raise ValueError("it is no file")
    with open(file, "rb") as opened:
        data = opened.read(MOST_CONFIG_BYTES + 1)
    if len(data) > MOST_CONFIG_BYTES:
        raise ValueError(f"it is larger than {MOST_CONFIG_BYTES / 1e6:.0f} MB")
    try:
        config = json.loads(data.decode("utf-8"), parse_constant=str, parse_float=_finite)
        _check_nesting(config, MOST_NESTED)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if not isinstance(config, dict):
        raise ValueError("it is no JSON object")
    json.dumps(config, ensure_ascii=False).encode()  # half of a surrogate pair could not be answered
    return config


def _finite(number: str) -> float | str:
    value = float(number)
    return value if math.isfinite(value) else number


def _check_nesting(value: Any, levels: int) -> None:
    if not isinstance(value, dict | list):
        return
    if not levels:
        raise ValueError(TOO_DEEP)
    for inner in value.values() if isinstance(value, dict) else value:
        _check_nesting(inner, levels - 1)
