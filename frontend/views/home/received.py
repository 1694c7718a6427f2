"""Logs that running engines are sending, on Home: what has come, and the button that makes a run of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.views.home import runs

MOST_SHOWN = 8


def draw() -> None:
    """A line for each log; nothing where none is being received, or the API does not say."""
    try:
        logs = widgets.client().received()
    except ApiError:
        return
    if not logs:
        return
    st.subheader(
        "Being received",
        anchor=False,
        help="Responses that running engines send, kept until they become a run. Reload the page to count again.",
    )
    for log in logs[:MOST_SHOWN]:
        with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"received_{log['run']}"):
            st.markdown(f"**{widgets.escape(str(log['run']))}**", width="content")
            st.caption(widgets.escape(received_words(log)), width="content")
            if log["job"] or log["problem"]:
                continue
            if st.button("Make a run", key=f"seal_{log['run']}", type="tertiary"):
                _seal(str(log["run"]))
    if len(logs) > MOST_SHOWN:
        st.caption(f"… and {len(logs) - MOST_SHOWN} more.")
    if sealing := _sealing(logs):
        st.fragment(_watch, run_every=runs.REFRESH_SECONDS, key="received_watch")(sealing)


def _sealing(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(log["run"]) for log in logs if log["job"]]


def _watch(sealing: list[str]) -> None:
    """Draw the page again when one of these logs has become a run: it is there a moment before its log is gone."""
    try:
        now = _sealing(widgets.client().received())
    except ApiError:
        return
    if now != sealing:
        st.rerun()


def received_words(log: Mapping[str, Any]) -> str:
    """What has come of one log.

    >>> received_words({"responses": 2, "tokens": 40, "bytes": 3_100_000, "model": None, "job": None, "load": [],
    ...     "last_at": "2026-11-23T17:03:40+00:00"})
    '2 responses with 40 tokens (3.1 MB), the last at 17:03:40 UTC'
    """
    if log.get("problem"):
        return str(log["problem"])
    of = f" of {log['model']}" if log["model"] else ""
    size = f"{log['bytes'] / 1e6:.1f} MB" if log["bytes"] >= 1e5 else f"{log['bytes'] / 1e3:.1f} kB"
    words = (
        f"{numbers.plural(log['responses'], 'response')}{of} with {numbers.plural(log['tokens'], 'token')} "
        f"({size}), the last at {log['last_at'][11:19]} UTC"
    )
    if log["load"]:
        worst = max(log["load"], key=lambda row: row["max_violation"])
        words += (
            f"; busiest expert: layer {worst['layer']}, {numbers.number(worst['max_violation'] + 1)} times a fair share"
        )
    return words + ("; it is being sealed" if log["job"] else "")


def _seal(run: str) -> None:
    """Submit the job and draw the page again; a refusal is shown."""
    try:
        widgets.client().seal_received(run)
    except ApiError as error:
        widgets.show_error(error)
        return
    st.rerun()
