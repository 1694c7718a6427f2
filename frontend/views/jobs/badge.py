"""Badge of the jobs in the bar: how many are waiting, running or paused, and a drawer with the newest."""

from __future__ import annotations

from functools import partial

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.page import address, at_click, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.jobs import panel

NEWEST = 8
"""jobs listed in the drawer"""
REFRESH_SECONDS = 3
DRAWER, LABEL = "jobs_badge", "jobs_badge_label"
"""session state: whether the drawer is open, and what stands on it"""


def draw(selection: Selection) -> None:
    """The badge, with the number of jobs that are not over, counted again while there are any.

    Always a fragment of the same name: a click on a button of a fragment that is none in the next drawing does nothing.
    """
    counted = [_alive()]
    st.fragment(_badge, run_every=REFRESH_SECONDS if counted[0] else None, key="badge_live")(selection, counted)


def _alive() -> int:
    try:
        return len(widgets.client().jobs(most=100, state=panel.ALIVE)["jobs"])
    except ApiError:
        return 0  # the view itself says that the API does not answer


def _label(alive: int) -> str:
    """It stays while the drawer is open: with another label Streamlit takes it for another one, which is closed."""
    if LABEL not in st.session_state or not st.session_state.get(DRAWER):
        st.session_state[LABEL] = f"Jobs · {alive}" if alive else "Jobs"
    return str(st.session_state[LABEL])


def _badge(selection: Selection, counted: list[int]) -> None:
    """``counted``: jobs alive, where they were counted just now; taken by the first drawing."""
    drawer = st.popover(
        _label(counted.pop() if counted else _alive()),
        icon=":material/pending_actions:",
        type="tertiary",
        width="content",
        key=DRAWER,
        on_change="rerun",
        help="Traces, imports, dreams and measurements that take longer than a click",
    )
    if not drawer.open:  # its list is asked for when it is opened
        return
    with drawer, widgets.error_boundary("the list of jobs"):
        jobs = widgets.client().jobs(most=NEWEST)["jobs"]
        if not jobs:
            st.caption("No job was started yet.")
        for job in jobs:
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                panel.state_badge(job)
                to = Selection(view="jobs", run=selection.run, job=job["job"])
                title = widgets.escape(panel.job_title(job))
                at_click.button(title, partial(address.go, to), key=f"badge_{job['job']}", type="tertiary")
            panel.progress_bar(job)
        at_click.button(
            "All jobs, and new ones",
            lambda: address.go(Selection(view="jobs", run=selection.run)),
            key="badge_all",
            icon=":material/list:",
        )
