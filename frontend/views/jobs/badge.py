"""Badge of the jobs in the bar: how many are waiting, running or paused, and a drawer with the newest."""

from __future__ import annotations

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.jobs import panel

NEWEST = 8
"""jobs listed in the drawer"""


def draw(selection: Selection) -> None:
    """The badge, with the number of jobs that are not over; its list is asked for when it is opened."""
    try:
        alive = len(widgets.client().jobs(most=100, state=panel.ALIVE)["jobs"])
    except ApiError:
        alive = 0  # the view itself says that the API does not answer
    drawer = st.popover(
        f"Jobs · {alive}" if alive else "Jobs",
        icon=":material/pending_actions:",
        type="tertiary",
        width="content",
        key="jobs_badge",
        on_change="rerun",
        help="Traces, imports, dreams and measurements that take longer than a click",
    )
    if not drawer.open:
        return
    with drawer, widgets.error_boundary("the list of jobs"):
        jobs = widgets.client().jobs(most=NEWEST)["jobs"]
        if not jobs:
            st.caption("No job was started yet.")
        for job in jobs:
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                panel.state_badge(job)
                st.button(
                    widgets.escape(panel.job_title(job)),
                    key=f"badge_{job['job']}",
                    type="tertiary",
                    on_click=address.go,
                    args=(Selection(view="jobs", run=selection.run, job=job["job"]),),
                )
            panel.progress_bar(job)
        st.button(
            "All jobs, and new ones",
            key="badge_all",
            icon=":material/list:",
            on_click=address.go,
            args=(Selection(view="jobs", run=selection.run),),
        )
