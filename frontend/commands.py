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
    folder = os.environ.get(DATA_DIR, "")
    if not folder or os.path.realpath(folder) == os.path.realpath(platformdirs.user_data_dir("tokenpaths", False)):
        return ""
    return f" --data-dir {shlex.quote(folder)}"


def command(line: str) -> str:
    """``tokenpaths …`` with the folder that it must be told."""
    return line + data_dir_option()
