"""*Change a route*: a sample under edited routes, before and after.

The edits are in the URL (``controls``, see ``edits``), so a link shows the same detour again. One sample runs
interactively: both passes are runs of one sample, and only the last ones are kept, unless they were opened. Detours
over many samples, and those of models too large to be run while somebody waits, are jobs (``detour_job``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import NotFound
from tokenpaths.frontend.charts.drawing.thing_names import one_token
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.detour import before_after, detour_job, result
from tokenpaths.frontend.views.detour.build import builder, chosen_edits
from tokenpaths.frontend.views.detour.edits import KINDS, read_edits, why_not
from tokenpaths.frontend.views.jobs import panel
from tokenpaths.frontend.views.samples import reference, retrace
from tokenpaths.frontend.views.samples.one_sample import sample_picker


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    gone, number = common.without_model(run), None
    if gone:
        common.run_row(run)
    else:
        with common.run_and_label(run, selection):
            number = sample_picker(run, selection)
    widgets.heading(
        "What if a route were changed?",
        "Ban a module, send a token somewhere else, freeze or shuffle a router, and see what that changes.",
    )
    if gone:
        common.say_no_model()
        return
    model = retrace.model_of(run)
    if model is None:
        return
    kinds = list((model.get("controls") or {}).get("edits") or ())
    if not kinds:
        sentence = f"Routes of the model {run['model']} cannot be edited."
        widgets.empty(widgets.escape(sentence), "Choose a run of another model.")
        return
    job = detour_job.job_of_address(selection)
    if number is None:
        widgets.empty("No sample has this label.", "Clear a filter above.")
    else:
        with widgets.error_boundary("the detour"):
            _detour(run, model, kinds, selection, number, job)


def _detour(
    run: Mapping[str, Any],
    model: Mapping[str, Any],
    kinds: Sequence[str],
    selection: Selection,
    number: int,
    job: Mapping[str, Any] | None,
) -> None:
    sample = widgets.client().ask(run["run"], "samples/{sample}", sample=number)
    if sample.get("text") is None and not sample.get("has_image"):
        widgets.empty(
            "This run keeps neither text nor image, so its samples cannot be run again.", "Choose another run."
        )
        return
    edits = _edits(run, model, kinds, selection, sample)
    chosen_edits(run, selection)
    builder(run, model, kinds, selection, sample)
    as_job = bool(model["job_only"])
    if edits:
        size = detour_job.how_many(run, edits, job)
        finished = detour_job.job_of(job, (), model["model"], run["run"], edits, number, size)
        if as_job or size > detour_job.THIS or finished is not None:
            detour_job.draw(run, model, selection, sample, edits, job, size)
            return
    before = run if as_job else retrace.again(run, sample, {}, slot="detour_before")
    if before is None:
        return
    if not edits:
        if as_job:
            panel.refusal()
        st.info(
            f"Nothing is edited yet. Click a circle (a module at a step), a link or {one_token(run)} "
            "below, then say above what shall be different.",
            icon=":material/alt_route:",
        )
        if not as_job:
            sample = widgets.client().ask(before["run"], "samples/{sample}", sample=0)
            reference.say_where_ranks_are_from(reference.ranked(before, sample, source=run))
        result.one_side(run, before, sample, None, selection, "Before")
        before_after.draw(run, selection, sample, None)
        return
    after = retrace.again(run, sample, {"edits": edits}, slot="detour_after")
    if after is None:
        return
    effect = widgets.client().ask(after["run"], "effect", of=before["run"], sample=0, limit=result.MOST_LINKS)

    def opened() -> None:
        retrace.keep(after["run"], slot="detour_after", view="samples")

    result.show(run, selection, effect, before, after, on_open=opened)


def _edits(
    run: Mapping[str, Any],
    model: Mapping[str, Any],
    kinds: Sequence[str],
    selection: Selection,
    sample: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """The edits in the URL, and a sentence for each that is invalid or not supported by this model."""
    controls = model.get("controls") or {}
    edits, problems = read_edits(
        selection.controls, sample, lambda other: _other(run, other), controls.get("properties") or {}
    )
    for problem in problems:
        st.warning(widgets.escape(problem), icon=":material/link_off:")
    why = why_not(run["family"], controls.get("no_edits") or {})
    for edit in edits:
        if edit["edit"] not in kinds:
            reason = why.get(edit["edit"], "it has no such edit")
            st.warning(
                widgets.escape(f"{KINDS[edit['edit']]} is nothing for this model: {reason}."), icon=":material/block:"
            )
    return [edit for edit in edits if edit["edit"] in kinds]


def _other(run: Mapping[str, Any], number: int) -> dict[str, Any] | None:
    try:
        return widgets.client().ask(run["run"], "samples/{sample}", sample=number)
    except NotFound:
        return None
