"""Jobs that end in runs: which there are, and what to say of an address whose run one of them has yet to make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.jobs import alive, panel

MAKE_RUNS = ("trace", "import")
"""kinds of jobs that end in a run"""
REFRESH_SECONDS = 2.0


def making_runs() -> list[dict[str, Any]]:
    """Jobs that will become runs and are running, waiting or paused, in the order of their turn.

    Empty if the list of jobs cannot be read now: runs are shown all the same.
    """
    try:
        jobs = widgets.client().jobs(most=alive.MOST, state=alive.ALIVE, kind=MAKE_RUNS)["jobs"]
    except ApiError:
        return []
    return sorted(jobs, key=lambda job: (job["state"] == "waiting", job["place"] or 0))


def not_here(run: str, otherwise: str = "") -> None:
    """Say of the run of an address that is not here that a job is making it, and draw the page again when it is there.

    Where no job is, it is gone, and ``otherwise`` says what to do.
    """
    if _maker(run) is not None:
        st.fragment(_until_there, run_every=REFRESH_SECONDS, key="until_there")(run)
        return
    gone = f"There is no run “{run}” here. It was deleted, or the address is of another data folder."
    st.warning(widgets.escape(gone) + otherwise, icon=":material/link_off:")


def _maker(run: str) -> Mapping[str, Any] | None:
    return next((job for job in making_runs() if job["request"].get("run") == run), None)


def _until_there(run: str) -> None:
    try:
        is_there = run in {card["run"] for card in widgets.client().runs()}
    except ApiError as error:
        widgets.show_error(error)
        return
    job = _maker(run)
    if job is None or is_there:
        st.rerun()
        return
    widgets.empty(f"The run “{widgets.escape(run)}” is not made yet.", "It opens here when its job has made it.")
    if not address.embedded():
        to = Selection(view="jobs", job=str(job["job"]))
        panel.summary(job, "Its job", lambda: address.go(to), key="maker")
