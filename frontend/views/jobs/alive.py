"""Which job to show: one that already does what is asked for, or what has been measured about a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.page import widgets

ALIVE = ("waiting", "running", "paused")
DEFAULTED = (
    *("batch_size", "context", "first", "frame_every", "image", "iterations"),
    *("limit", "method", "seed", "shares", "text", "twin"),
)
"""what a request of the page leaves out where the default is meant, which the API writes into the job"""
MOST = 100


def same(kind: str, request: Mapping[str, Any]) -> str | None:
    """The name of a job that does what this request asks for and is not over; None if there is none, or the API does
    not say so.
    """
    wanted = json.loads(json.dumps(dict(request), default=str))
    try:
        jobs = widgets.client().jobs(kind=kind, state=ALIVE, most=MOST)["jobs"]
    except ApiError:
        return None
    fits = (job for job in jobs if not job["cancelling"] and asks_the_same(job["request"], wanted))
    return next((str(job["job"]) for job in fits), None)


def at_hand(
    jobs: Sequence[Mapping[str, Any]], named: Mapping[str, Any] | None, artifact: str
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Of measurements, newest first: the job to be shown, and the job whose results are.

    Shown is the one ``named`` by the address, else the newest that is not over. Results are its own, and those of
    ``with_results`` while it has none.
    """
    shown = named or next((job for job in jobs if job["state"] in ALIVE), None)
    if shown is not None and artifact in shown["artifacts"]:
        return shown, shown
    return shown, with_results(jobs, artifact)


def with_results(jobs: Sequence[Mapping[str, Any]], artifact: str) -> Mapping[str, Any] | None:
    """Of jobs, newest first, the newest that ended well and has results, else the newest that has any."""
    have = [job for job in jobs if artifact in job["artifacts"]]
    return next((job for job in have if job["state"] == "succeeded"), next(iter(have), None))


def say_others(shown: Mapping[str, Any] | None, of: Mapping[str, Any]) -> None:
    """Say so where the results are not those of the job that is shown above them."""
    if shown is not None and shown["job"] != of["job"]:
        yet = " yet" if shown["state"] in ALIVE else ""
        st.caption(f"It has no results{yet}: those below are of another measurement.")


def say_partial(job: Mapping[str, Any], done: int, total: int, unit: str) -> None:
    """Say so above results that are not all there yet, or never will be: their sentences sound final."""
    if done >= total:
        return
    far = f"{numbers.count(done)} of {numbers.count(total)} {unit}"
    if job["state"] in ALIVE:
        words = f"Partial results: {far} so far. What is said and drawn below is of these, and may change."
    else:
        words = f"Partial results: the job ended after {far}. What is said and drawn below is of these alone."
    st.info(words, icon=":material/hourglass_empty:")


def asks_the_same(asked: Any, wanted: Any, *, settings: bool = False) -> bool:
    """Whether the request of a job, which has all defaults written out, is the one that is ``wanted``.

    Args:
        settings: Whether these are settings, of which any may be left out.

    >>> asks_the_same({"run": "texts", "limit": 64, "position": None}, {"run": "texts"})
    True
    >>> asks_the_same({"run": "texts", "limit": 64, "position": 0}, {"run": "texts", "limit": 64})
    False
    """
    if isinstance(asked, Mapping) and isinstance(wanted, Mapping):
        given = all(
            name in asked and asks_the_same(asked[name], value, settings=name in DEFAULTED)
            for name, value in wanted.items()
        )
        left_out = (value for name, value in asked.items() if name not in wanted and name not in DEFAULTED)
        return given and (settings or all(_empty(value) for value in left_out))
    if isinstance(asked, list) and isinstance(wanted, list):
        return len(asked) == len(wanted) and all(map(asks_the_same, asked, wanted))
    return bool(asked == wanted)


def _empty(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_empty, value.values()))
    return value is None or value is False or value in ("", [])
