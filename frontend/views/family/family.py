"""Family view: dispatches to the view of the run's model family."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common


def view_of(family: str) -> Any:
    """The view of a family: the module of this folder that has its name, with ``TITLE`` and ``draw(run, selection)``.

    None if the family has none. Imported on first use.
    """
    if not re.fullmatch("[a-z0-9]{1,32}", family) or find_spec(f"{__package__}.{family}") is None:
        return None
    module = import_module(f"{__package__}.{family}")
    return module if hasattr(module, "TITLE") else None


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    if view := view_of(run["family"]):
        view.draw(run, selection)
        return
    common.run_row(run)
    widgets.empty(
        "Models of this family have no picture of their own.",
        "*Routes*, *Paths*, *Samples* and *Modules* show everything that its routers decided.",
    )
