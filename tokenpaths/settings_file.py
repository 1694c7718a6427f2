"""Where settings come from, and those that name folders: light enough for notebooks and training scripts.

``tokenpaths.backend.settings`` is the table of all settings, for programs that run for long. Of its own, because the
engine, which knows no program, has to find the same folders as the command line.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import platformdirs

from tokenpaths.engine.base.errors import UserError

ENV_PREFIX = "TOKENPATHS_"
FILE_VARIABLE = f"{ENV_PREFIX}SETTINGS_FILE"


def default_data_dir() -> Path:
    """The user's data folder, for example ``~/.local/share/tokenpaths`` on Linux."""
    return Path(platformdirs.user_data_dir("tokenpaths", appauthor=False))


def default_settings_file() -> Path:
    """The settings file that is read when it exists, ``~/.config/tokenpaths/settings.toml`` on Linux."""
    return Path(platformdirs.user_config_dir("tokenpaths", appauthor=False)) / "settings.toml"


def find_settings_file(named: Path | None = None) -> Path | None:
    """``named``, else the file that TOKENPATHS_SETTINGS_FILE names, else the user's; None where there is none.

    Raises:
        UserError: The file that was named does not exist.
    """
    if named is None and (value := os.environ.get(FILE_VARIABLE)):
        named = Path(value)
    if named is not None and not named.is_file():
        raise UserError(f"The settings file {named} does not exist.", field="settings_file")
    usual = default_settings_file()
    return named or (usual if usual.is_file() else None)


def cannot_be_read(file: Path | None, error: ValueError) -> UserError:
    """What is said of a settings file that is no TOML."""
    return UserError(f"The settings file {file} cannot be read: {error}.", field="settings_file")


def folder_setting(name: str) -> Path | None:
    """The folder that the environment or the settings file gives as setting ``name``; None where neither does.

    Raises:
        UserError: The settings file cannot be read, or gives something else than a folder.
    """
    value, source = _value(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"Setting `{name}`: should name a folder; given {value!r} ({source}).", field=name)
    return Path(value).expanduser()


def folders_setting(name: str) -> tuple[Path, ...]:
    """As ``folder_setting``, of several folders: a list in the file, or separated as in PATH."""
    value, source = _value(name)
    values = value.split(os.pathsep) if isinstance(value, str) else value or ()
    if not isinstance(values, list | tuple) or not all(isinstance(folder, str) for folder in values):
        raise UserError(f"Setting `{name}`: should be a list of folders; given {value!r} ({source}).", field=name)
    return tuple(Path(folder).expanduser() for folder in values if folder)


def _value(name: str) -> tuple[Any, str]:
    """The value as it is written, and where; an empty environment variable counts as not set."""
    variable = f"{ENV_PREFIX}{name.upper()}"
    if value := os.environ.get(variable):
        return value, variable
    file = find_settings_file()
    if file is None:
        return None, ""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")).get(name), str(file)
    except ValueError as error:  # no TOML, or no UTF-8
        raise cannot_be_read(file, error) from None
