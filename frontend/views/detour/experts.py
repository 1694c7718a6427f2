"""Detour on the run of a Hugging Face model: experts banned as a job, then before | after as for our own models.

Such a model may be large: nothing is run before somebody asks for it. The edits stand in the address; the newest job
that made them is found again by its request, so a link shows the same detour tomorrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError, NotFound
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import tamed
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.detour import before_after, result, sweep
from tokenpaths.frontend.views.detour.build import builder, chosen_edits
from tokenpaths.frontend.views.detour.edits import KINDS, in_address, read_edits
from tokenpaths.frontend.views.jobs import panel
from tokenpaths.frontend.views.sample.sample import sample_picker

THIS = 1
OVER = (THIS, 32, 64, 128, 256)
"""texts that a detour may be over; 1 is the chosen one"""


def draw(run: Mapping[str, Any], selection: Selection) -> None:
    """The detour of a text, or of many, and the sweep over all experts."""
    with common.run_and_label(run, selection):
        number = sample_picker(run, selection)
    widgets.heading(
        "What if it had gone elsewhere?",
        "Ban an expert of a layer: the layer’s gate chooses among those that are left. See what that changes.",
    )
    model = sweep.checkpoint(run)
    if model is None:
        return
    kinds = list((model.get("controls") or {}).get("edits") or ())
    job = _job_of_address(selection)
    if number is None:
        widgets.empty("No sample has this label.", "Let go of a chip above.")
    else:
        with widgets.guarded("the detour"):
            _detour(run, model, kinds, selection, number, job)
    st.divider()
    with widgets.guarded("the importance of experts"):
        # A job that is one edit has its place above.
        sweep.draw(run, kinds, selection.change(job=None) if job is not None else selection, model)


def _job_of_address(selection: Selection) -> dict[str, Any] | None:
    """The job that the address names, where it is one edit; sweeps have their own place."""
    if selection.job is None:
        return None
    try:
        job = widgets.client().job(selection.job)
    except ApiError:
        return None
    return job if job["kind"] == "reroute" and job["request"].get("controls") else None


def _detour(
    run: Mapping[str, Any],
    model: Mapping[str, Any],
    kinds: Sequence[str],
    selection: Selection,
    number: int,
    named: Mapping[str, Any] | None,
) -> None:
    sample = widgets.client().ask(run["run"], "samples/{sample}", sample=number)
    if sample.get("text") is None:
        widgets.empty("This run keeps no text, so its samples cannot be run again.", "Choose another run.")
        return
    edits = _edits(model, kinds, selection, sample)
    chosen_edits(run, selection)
    builder(run, model, kinds, selection, sample)
    if not edits:
        panel.refusal()
        st.info(
            "Nothing is edited yet. Click a circle (an expert of a layer) or a link below, then say above what shall "
            "be different.",
            icon=":material/alt_route:",
        )
        result.one_side(run, run, sample, None, selection, "Before")
        before_after.draw(run, selection, sample, None)
        return
    most = _start(run, model, number, edits, named)
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


def _edits(
    model: Mapping[str, Any], kinds: Sequence[str], selection: Selection, sample: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The edits of the address that such a model has; a sentence for each of the others."""
    edits, problems = read_edits(selection.controls, sample, lambda number: None)
    for problem in problems:
        st.warning(widgets.plain(problem), icon=":material/link_off:")
    why = (model.get("controls") or {}).get("no_edits") or {}
    for edit in edits:
        if edit["edit"] not in kinds:
            told = f"{KINDS[edit['edit']]} is nothing for this model: {why.get(edit['edit'], 'it has no such edit')}."
        elif edit.get("tokens") is not None:
            told = "A ban here is for every token: the model’s own gate is given one mask for all of them."
        else:
            continue
        st.warning(widgets.plain(told), icon=":material/block:")
    return [edit for edit in edits if edit["edit"] in kinds and edit.get("tokens") is None]


def _start(
    run: Mapping[str, Any],
    model: Mapping[str, Any],
    number: int,
    edits: Sequence[Mapping[str, Any]],
    named: Mapping[str, Any] | None,
) -> int:
    """The fields that start a job; how many texts it is over. ``named`` is the job of the address."""
    there = int(run["num_samples"])
    offered = [THIS, *(many for many in OVER[1:] if many < there), *([there] if 1 < there <= OVER[-1] else [])]
    asked = THIS
    if named is not None and named["request"].get("run") == run["run"] and named["request"].get("sample") is None:
        asked = named["request"].get("limit")
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="detour_fields"):
        most = st.segmented_control(
            "Run again",
            offered,
            default=asked if asked in offered else THIS,
            key="detour_over",
            required=True,
            format_func=lambda many: "this text" if many == THIS else f"{'all ' * (many == there)}{many:,} texts",
        )
        request = {"model": model["model"], "run": run["run"], "controls": {"edits": list(edits)}}
        request |= {"sample": number} if most == THIS else {"limit": most}
        st.button(
            "Run it",
            key="detour_start",
            type="primary",
            icon=":material/play_arrow:",
            on_click=panel.submit,
            args=("reroute", request),
            help="The texts go through the model without and with the edits. Progress stands below.",
        )
    return int(most or THIS)


def _jobs() -> list[Mapping[str, Any]]:
    """Jobs that may be it, newest first."""
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
    """The job that the address names, where it makes these edits of this run, else the first of ``jobs`` that makes
    them over this text (``most`` 1) or over ``most`` texts, and neither failed nor was cancelled; None: nobody asked.
    """

    def fits(job: Mapping[str, Any], *, whatever_size: bool) -> bool:
        request = job["request"]
        if request.get("model") != model or not _same(request.get("controls"), edits):
            return False
        if ((job["result"] or {}).get("runs") or [None])[0] == run:  # over data of its own, or all of this run
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
    """Whether a request's controls are these edits and nothing else, however bans are put together."""
    given = (controls or {}).get("edits") or ()
    said = [[in_address(edit) for edit in some] for some in (given, edits)]
    if set(controls or ()) != {"edits"} or any(None in some for some in said):
        return False
    mine, theirs = ({text for texts in some for text in texts or ()} for some in said)
    return bool(mine) and mine == theirs


def _result(run: Mapping[str, Any], selection: Selection, sample: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    """Both runs of a finished job, side by side; of many texts, the one that is chosen."""
    client, (first, second) = widgets.client(), job["result"]["runs"]
    try:
        before, after = client.ask(first, ""), client.ask(second, "")
    except NotFound as error:
        widgets.empty(f"A run of this detour is gone. {widgets.told(error)}", "Run it again.")
        return
    one = after["num_samples"] == 1
    effect = client.ask(second, "effect", of=first, sample=0 if one else None, limit=result.MOST_LINKS)
    shown = 0
    if not one:
        shown = int(sample["sample"]) if first == run["run"] else _among(after, sample)
    view = "sample" if one else "flow"

    def opened() -> None:
        address.go(Selection(view=view, run=second, sample=0 if one else None))

    result.show(run, selection, effect, before, after, number=shown, on_open=opened)


def _among(after: Mapping[str, Any], sample: Mapping[str, Any]) -> int:
    """One of the texts that were drawn from a larger run; at first the chosen one, where it is among them."""
    rows = widgets.client().ask(after["run"], "samples", most=int(after["num_samples"]))["samples"]
    same = (
        place
        for place, row in enumerate(rows)
        if all(row.get(part) == sample.get(part) for part in ("source", "label", "snippet"))
    )
    words = {
        row["sample"]: tamed(row.get("snippet") or row.get("source") or "").replace("\n", " ")[:60] for row in rows
    }
    told = f"{numbers.plural(len(words), 'text')} drawn from the run; the numbers below are over all of them."
    return int(
        st.selectbox(
            "Text",
            list(words),
            index=next(same, 0),
            format_func=lambda one: f"{one:,} · {words[one]}",
            help=told,
            key=f"detour_text_{after['run']}_{sample['sample']}",
        )
    )
