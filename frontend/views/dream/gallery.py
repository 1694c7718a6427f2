"""Earlier dreams of a model: each opens beside its own original and wishes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.dream.result import title_of
from tokenpaths.frontend.views.dream.wishes import selection_of

GALLERY = 12
PICTURE = re.compile(r"dream-(\d+)\.png")


def draw_gallery(run: Mapping[str, Any], selection: Selection, jobs: Sequence[Mapping[str, Any]]) -> None:
    """``jobs``: finished dreams of the run's model, newest first. A click on a picture or its title opens one."""
    own = [job for job in jobs if job["job"] != selection.job][:GALLERY]
    if not own:
        return
    st.subheader("Earlier dreams of this model", anchor=False)
    st.caption("A click opens one, beside the original that it was dreamt of.")
    items = [gallery_item(place, job) for place, job in enumerate(own)]

    def opened(value: Mapping[str, Any]) -> None:
        address.go(selection_of(own[int(value["sample"])], run["run"]))

    with st.container(key="dream_gallery"):
        wall(
            items,
            key=f"dream_wall_{run['model']}",
            on_open=opened,
            kind="sample" if run["modality"] == "vision" else "text",
        )


def gallery_item(place: int, job: Mapping[str, Any]) -> dict[str, Any]:
    """One dream for the wall: its last picture or its best text, and its title."""
    words = title_of(job)
    item: dict[str, Any] = {"sample": place, "title": f"Open: {words}", "caption": words}
    pictures = [name for name in job["artifacts"] if PICTURE.fullmatch(name)]
    if pictures:
        last = max(pictures, key=lambda name: int(name[6:-4]))
        return item | {"image": data_url(widgets.client().artifact(job["job"], last))}
    dreams = (job["result"] or {}).get("dreams") or [{}]
    return item | {"snippet": str(dreams[0].get("text", "")).strip()}
