"""The row of pickers that most views begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common


def run_and_label(run: Mapping[str, Any], selection: Selection) -> Any:
    """Run, export and label in a row; a view puts its own pickers beside them: ``with run_and_label(…): …``."""
    row = widgets.controls()
    with row:
        common.run_picker(run)
        common.label_picker(run, selection)
    return row
