"""Detours as jobs: over many samples, or of models that are too large to run interactively.

The newest job with the edits in the URL is found again by its request, so a link keeps showing the same detour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError, NotFound
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import tamed
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.detour import result
from tokenpaths.frontend.views.detour.edits import in_address
from tokenpaths.frontend.views.jobs import panel

THIS = 1
OVER = (THIS, 32, 64, 128, 256)
"""options for the number of samples of a detour; 1 is the selected one"""


def job_of_address(selection: Selection) -> dict[str, Any] | None:
    """The job in the URL if it is an edit; sweeps are shown separately."""
    if selection.job is None:
        return None
    try:
        job = widgets.client().job(selection.job)
    except ApiError:
        return None
    return job if job["kind"] == "reroute" and job["request"].get("controls") else None


def how_many(run: Mapping[str, Any], edits: Sequence[Mapping[str, Any]], named: Mapping[str, Any] | None) -> int:
    """Draw the choice of the number of samples; returns it. ``named`` is the job in the URL."""
    there, one = int(run["num_samples"]), "text" if run["modality"] == "text" else "image"
    offered = [THIS, *(many for many in OVER[1:] if many < there), *([there] if 1 < there <= OVER[-1] else [])]
    if any(edit.get("tokens") or edit.get("ribbons") for edit in edits):
        offered = [THIS]  # token positions only apply to one sample
    size = THIS
    if named is not None and named["request"].get("run") == run["run"] and named["request"].get("sample") is None:
        size = named["request"].get("limit")
    most = st.segmented_control(
        "Run again",
        offered,
        default=size if size in offered else THIS,
        key="detour_over",
        required=True,
        format_func=lambda many: f"this {one}" if many == THIS else f"{'all ' * (many == there)}{many:,} {one}s",
    )
    return int(most or THIS)


def draw(
    run: Mapping[str, Any],
    model: Mapping[str, Any],
    selection: Selection,
    sample: Mapping[str, Any],
    edits: Sequence[Mapping[str, Any]],
    named: Mapping[str, Any] | None,
    most: int,
) -> None:
    """Draw the button that starts a job over ``most`` samples, its progress, and its result.

    ``named`` is the job in the URL.
    """
    number = int(sample["sample"])
    request = {"model": model["model"], "run": run["run"], "controls": {"edits": list(edits)}}
    request |= {"sample": number} if most == THIS else {"limit": most}
    panel.start_button(
        "Run it",
        "reroute",
        request,
        key="detour_start",
        type="primary",
        help="The samples go through the model without and with the edits. Progress stands below.",
    )
    job = job_of(named, _jobs(), model["model"], run["run"], edits, number, most)
    if job is None:
        panel.refusal()
        st.caption("Nobody has run this yet. It runs as a job: the page may be closed meanwhile, and shows it again.")
        result.one_side(run, run, sample, None, selection, "Before")
        return
    if job["state"] != "succeeded":
        job = panel.job_panel(job["job"], key="detour")
    if job["state"] == "succeeded":
        _result(run, selection, sample, job)


def _jobs() -> list[Mapping[str, Any]]:
    """Candidate jobs, newest first."""
    try:
        return list(widgets.client().jobs(kind="reroute", most=100)["jobs"])
    except ApiError:
        return []


def job_of(
    named: Mapping[str, Any] | None,
    jobs: Sequence[Mapping[str, Any]],
    model: str,
    run: str,
    edits: Sequence[Mapping[str, Any]],
    number: int,
    most: int,
) -> Mapping[str, Any] | None:
    """The job shown for these edits of this run.

    That is the job in the URL if its edits match, else the first of ``jobs`` that has them over this sample
    (``most`` 1) or over ``most`` samples and neither failed nor was cancelled; None if there is none.
    """

    def fits(job: Mapping[str, Any], *, whatever_size: bool) -> bool:
        request = job["request"]
        if request.get("model") != model or not _same(request.get("controls"), edits):
            return False
        if ((job["result"] or {}).get("runs") or [None])[0] == run:  # over other data, or the whole run
            return whatever_size or (most > THIS and request.get("sample") is None)
        if request.get("run") != run:
            return False
        if request.get("sample") is not None:
            return (whatever_size or most == THIS) and request["sample"] == number
        return whatever_size or (most > THIS and request.get("limit") == most)

    if named is not None and fits(named, whatever_size=True):
        return named
    live = (job for job in jobs if job["state"] not in ("failed", "cancelled"))
    return next((job for job in live if fits(job, whatever_size=False)), None)


def _same(controls: Mapping[str, Any] | None, edits: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a request's controls are exactly these edits, however bans are grouped."""
    own = {text for edit in (controls or {}).get("edits") or () for text in _texts(edit)}
    return set(controls or ()) == {"edits"} and bool(own) and own == {text for edit in edits for text in _texts(edit)}


def _texts(edit: Mapping[str, Any]) -> list[str]:
    """An edit in the URL's syntax; its JSON if the syntax cannot express it."""
    values = {name: value for name, value in edit.items() if value is not None}
    return in_address(edit) or [json.dumps(values, sort_keys=True)]


def _result(run: Mapping[str, Any], selection: Selection, sample: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    """Both runs of a finished job, side by side; of many texts, the selected one."""
    client, (first, second) = widgets.client(), job["result"]["runs"]
    try:
        before, after = client.ask(first, ""), client.ask(second, "")
    except NotFound as error:
        widgets.empty(f"A run of this detour is gone. {widgets.error_text(error)}", "Run it again.")
        return
    one = after["num_samples"] == 1
    effect = client.ask(second, "effect", of=first, sample=0 if one else None, limit=result.MOST_LINKS)
    shown = 0
    if not one:
        shown = int(sample["sample"]) if first == run["run"] else _among(after, sample)
    view = "samples" if one else "routes"

    def opened() -> None:
        address.go(Selection(view=view, run=second, sample=0 if one else None))

    result.show(run, selection, effect, before, after, number=shown, on_open=opened)


def _among(after: Mapping[str, Any], sample: Mapping[str, Any]) -> int:
    """Sample number within the texts drawn from a larger run; initially the selected one, if it was drawn."""
    rows = widgets.client().ask(after["run"], "samples", most=int(after["num_samples"]))["samples"]
    same = (
        place
        for place, row in enumerate(rows)
        if all(row.get(part) == sample.get(part) for part in ("source", "label", "snippet"))
    )
    words = {
        row["sample"]: tamed(row.get("snippet") or row.get("source") or "").replace("\n", " ")[:60] for row in rows
    }
    one = "text" if after["modality"] == "text" else "image"
    hint = f"{numbers.plural(len(words), one)} drawn from the run; the numbers below are over all of them."
    return int(
        st.selectbox(
            one.capitalize(),
            list(words),
            index=next(same, 0),
            format_func=lambda number: f"{number:,} · {words[number]}",
            help=hint,
            key=f"detour_text_{after['run']}_{sample['sample']}",
        )
    )
