"""The row of pickers that most views begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frontend import look
from frontend.selection import Selection
from frontend.views import common


def run_and_label(run: Mapping[str, Any], selection: Selection) -> Any:
    """Run, export and label in a row; a view puts its own pickers beside them: ``with run_and_label(…): …``."""
    row = look.controls()
    with row:
        common.run_picker(run)
        common.label_picker(run, selection)
    return row
