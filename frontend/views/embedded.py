"""What stands in the frame of another site instead of a view that starts work: the result of its job, or a link."""

from __future__ import annotations

import streamlit as st

from tokenpaths.frontend.page import downloads, widgets
from tokenpaths.frontend.page.selection import VIEWS, Selection
from tokenpaths.frontend.views.dream.result import draw_result
from tokenpaths.frontend.views.jobs import panel


def draw(selection: Selection) -> None:
    """The finished dream of the address; else a sentence. Nothing here can be clicked but the link."""
    job = widgets.client().job(selection.job) if selection.job is not None else None
    if job is not None and job["state"] == "succeeded" and (job["result"] or {}).get("dreams"):
        widgets.heading(panel.job_title(job), "")
        draw_result(job)
        return
    widgets.empty(f"*{VIEWS[selection.view]}* starts work, so it is not shown in the frame of another site.")
    st.link_button("Open it in a window of its own", downloads.link(selection), icon=":material/open_in_new:")
