"""Display names of the things of a run, for all views: automatic ones and the user's own."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing.thing_names import thing_names
from tokenpaths.frontend.page import widgets


def names_of(run: str, of: Literal["module", "path"]) -> dict[str, str]:
    """Display names by thing (``module:3.4``, ``path:12``); without those that cannot be had, since a chart can do
    without names."""
    client = widgets.client()
    summaries = own = None
    with suppress(ApiError):
        summaries = client.ask(run, "summaries", of=of)
    with suppress(ApiError):
        own = client.names(run)
    return thing_names(summaries, own)


def own_names(run: str) -> dict[str, str]:
    """The user's own names by thing (``sample:5``, ``token:5.17``); none where they cannot be had."""
    try:
        return {thing: entry["name"] for thing, entry in widgets.client().names(run).items() if entry.get("name")}
    except ApiError:
        return {}
