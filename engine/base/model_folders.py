"""Folders in which models are looked for: of the data folder, of the user's choice, and of installed distributions."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.base.plugins import PluginError, load, where_from
from tokenpaths.settings_file import folders_setting

GROUP = "tokenpaths.models"
"""entry points of distributions that bring models: each is a folder of checkpoint folders (a Path or str)"""
LARGER_MODELS = "tokenpaths-models"
"""distribution of the models that the wheel of this program is too small for"""
SUMS = SHIPPED_MODELS / "SHA256SUMS"
"""sums of all models of this program, wherever they are installed"""


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
