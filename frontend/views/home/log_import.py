"""Import of a routing log that was dropped on Home: how far it is, the run that it became, or why it became none."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.page import address, at_click, refusals, repeats, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.home.dropped import file_name
from tokenpaths.frontend.views.jobs import import_options, panel

REFRESH_SECONDS = 1.0
JOB = "drop_import"
"""session state: the job of the log dropped last, until it is dismissed"""
IMPORTED = "drop_imported"
"""session state: what was imported last (``repeats``)"""


def submit(name: str, content: bytes, file_id: str) -> None:
    """Put a log into the inbox and queue its import, once for each upload.

    Raises:
        ApiError: The file or the job is refused; its words name the file and what else could be done.
    """

    def submitted() -> Mapping[str, Any]:
        file = widgets.client().put_into_inbox(file_name(name), content)
        return widgets.client().submit_job("import", {"file": file})

    try:
        job = repeats.once(IMPORTED, file_id, submitted, within=math.inf)
    except ApiError as error:
        sentence = f"“{name[:80]}” was taken for a routing log and cannot be imported: {error}"
        raise ApiError(sentence, error.todo or "If it is a text, paste it into the box.") from error
    st.session_state[JOB] = str(job["job"])


def job_in_hand() -> str | None:
    """The job that ``draw`` shows."""
    job: str | None = st.session_state.get(JOB)
    return job


def draw(refused: str) -> None:
    """How the log dropped last stands; nothing if none was, or after "Dismiss".

    Args:
        refused: Slot of ``refusals`` for another try that is refused.
    """
    name = job_in_hand()
    if name is None:
        return
    try:
        job = widgets.client().job(name)
    except ApiError:
        del st.session_state[JOB]
        return
    if job["state"] in panel.ALIVE:
        st.fragment(_under_way, run_every=REFRESH_SECONDS, key="import_live")(name)
    elif job["state"] == "failed":
        _failed(job, refused)
    else:
        _over(job)


def _under_way(name: str) -> None:
    try:
        job = widgets.client().job(name)
    except ApiError as error:
        widgets.show_error(error)
        return
    if job["state"] not in panel.ALIVE:
        st.rerun()
    panel.summary(job, "Its job", lambda: address.go(Selection(view="jobs", job=name)), key="import_under_way")


def _failed(job: Mapping[str, Any], refused: str) -> None:
    st.error(widgets.escape(f"{panel.job_title(job)} failed. {panel.failure_text(job)}"), icon=":material/error:")
    options = import_options.draw("import_again", (job["problem"] or {}).get("field"))
    with st.container(horizontal=True, gap="small"):
        at_click.button("Import again", lambda: _again(job, options, refused), key="import_again", type="primary")
        _dismiss_button()


def _over(job: Mapping[str, Any]) -> None:
    if job["state"] == "succeeded":
        st.success(widgets.escape(f"{panel.job_title(job)}: done."), icon=":material/check:")
    else:
        st.info(widgets.escape(f"{panel.job_title(job)} was cancelled."), icon=":material/block:")
    with st.container(horizontal=True, gap="small"):
        panel.open_buttons(job, "import_over")
        _dismiss_button()


def _dismiss_button() -> None:
    st.button("Dismiss", key="dismiss_import", on_click=lambda: st.session_state.pop(JOB, None))


def _again(job: Mapping[str, Any], options: Mapping[str, Any], refused: str) -> None:
    """Queue the import of the same file with what was said of it."""
    refusals.forget(refused)
    request = {"file": job["request"]["file"]} | dict(options)
    asked = (job["job"], json.dumps(request, sort_keys=True))
    try:
        again = repeats.once(IMPORTED, asked, lambda: widgets.client().submit_job("import", request))
    except ApiError as error:
        refusals.keep(refused, error)
        return
    st.session_state[JOB] = str(again["job"])
