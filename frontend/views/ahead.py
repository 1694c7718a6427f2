"""The first questions of a view, asked when its address is requested (``server.ahead``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection, from_query
from tokenpaths.frontend.views import compute
from tokenpaths.frontend.views.own_names import names_of, own_names
from tokenpaths.frontend.views.paths import paths
from tokenpaths.frontend.views.routes import routes
from tokenpaths.frontend.views.samples import sample_map, samples


def ask(query: Mapping[str, str]) -> None:
    """Ask what the view at an address will ask; the client keeps the answers.

    Raises:
        ApiError: as the view itself will.
    """
    selection, _ = from_query(query)
    widgets.client().runs()
    if selection.run is None:
        return
    run = widgets.client().ask(selection.run, "")
    # Questions of merged labels have other addresses, and a session; the run is open now all the same.
    if selection.labels is None and selection.view in QUESTIONS:
        QUESTIONS[selection.view](run, selection)


def _routes(run: Mapping[str, Any], selection: Selection) -> None:
    if selection.other is None:
        widgets.client().ask(run["run"], "flow", **routes.question(run, selection))
        names_of(run["run"], "module")


def _paths(run: Mapping[str, Any], selection: Selection) -> None:
    widgets.client().searches()
    names_of(run["run"], "path")
    widgets.client().ask(run["run"], "paths/fit")
    widgets.client().ask(run["run"], "paths/law", draws=0)
    widgets.client().ask(run["run"], "paths", **paths.question(selection))


def _modules(run: Mapping[str, Any], selection: Selection) -> None:
    widgets.client().ask(run["run"], "usage", label=selection.label)
    names_of(run["run"], "module")


def _samples(run: Mapping[str, Any], selection: Selection) -> None:
    if selection.sample is None:
        answer = widgets.client().ask(run["run"], "samples", **samples.question(selection))
        own_names(run["run"])
        for row in answer["samples"]:
            if row["has_image"]:
                widgets.client().image(run["run"], row["sample"])
        widgets.client().ask(run["run"], "map", **sample_map.QUESTION)


def _work(run: Mapping[str, Any], selection: Selection) -> None:
    measure = compute.chosen_measure(run, selection)
    widgets.client().ask(run["run"], "distributions/{measure}", **compute.question(selection, measure))
    compute.listed_samples(run, selection, measure)


QUESTIONS: Mapping[str, Callable[[Mapping[str, Any], Selection], None]] = {
    "routes": _routes,
    "paths": _paths,
    "modules": _modules,
    "samples": _samples,
    "work": _work,
}
"""view → what it asks of its run before anything else"""
