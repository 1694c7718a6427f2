"""Family view: dispatches to the view of the run's model family."""

from __future__ import annotations

from importlib import import_module

from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common

VIEWS = {
    "hmodel": "tokenpaths.frontend.views.family.hmodel",
    "dipaco": "tokenpaths.frontend.views.family.dipaco",
    "directional": "tokenpaths.frontend.views.family.directional",
    "raytracing": "tokenpaths.frontend.views.family.raytracing",
    "moe": "tokenpaths.frontend.views.family.experts",
}
"""module of each family's view, with ``draw(run, selection)``; imported on first use"""
NAMES = {
    "hmodel": "Connections",
    "dipaco": "Documents",
    "directional": "Gates",
    "raytracing": "Lights",
    "moe": "Experts",
}
"""short title of each family's view"""


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    if run["family"] in VIEWS:
        import_module(VIEWS[run["family"]]).draw(run, selection)
        return
    with widgets.controls():
        common.run_picker(run)
    widgets.heading(
        "What is special about this family?",
        "Nothing that the other views do not show: in this model every token is sent to the modules of its ribbon.",
    )
    widgets.empty(
        "Flow, Paths, Sample and Modules show everything that this run's routers decided.",
        "Choose a run of an H-Model, DiPaCo, Directional Routing, RayTracing or a mixture of experts to see its own "
        "picture here.",
    )
