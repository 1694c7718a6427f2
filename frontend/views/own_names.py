"""Display names of the things of a run, for all views: automatic ones and the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

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


def save_own(run: str, thing: str, changed: Mapping[str, Any]) -> None:
    """Write the user's ``name`` and ``note`` of a thing; what is not in ``changed`` stays, as another tab may have
    written it. Both empty: it has none.

    Raises:
        ApiError: It was refused.
    """
    client = widgets.client()
    own = client.names(run).get(thing, {})
    name, note = (changed.get(field, own.get(field, "")) for field in ("name", "note"))
    if name or note:
        client.save_name(run, thing, name, note)
    elif own:
        client.delete_name(run, thing)
