"""Commands that the page prints, as they must be typed to reach the data that the page shows."""

from __future__ import annotations

import os
import shlex

import platformdirs

DATA_DIR = "TOKENPATHS_DATA_DIR"


def data_dir_option() -> str:
    """`` --data-dir FOLDER`` where the page shows another folder than the one that a command takes by itself.

    ``tokenpaths up`` tells the page its folder by the environment; a page that runs elsewhere knows none.
    """
    folder = _other_folder()
    return f" --data-dir {shlex.quote(folder)}" if folder else ""


def runs_dir() -> str:
    """Where ``tokenpaths.record`` must be told to write; empty where it does so by itself."""
    folder = _other_folder()
    return os.path.join(folder, "runs") if folder else ""


def _other_folder() -> str:
    folder = os.environ.get(DATA_DIR, "")
    usual = platformdirs.user_data_dir("tokenpaths", False)
    return "" if os.path.realpath(folder or usual) == os.path.realpath(usual) else folder


def command(line: str) -> str:
    """``tokenpaths …`` with the folder that it must be told."""
    return line + data_dir_option()
