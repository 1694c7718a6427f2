"""What if it had gone elsewhere? One sample under edited routes, before and after; every module banned in turn.

The edits stand in the address (``controls``, see ``detour_edits``), so a link shows the same detour again. Both passes
are runs of one sample; the page keeps the last ones only, unless they were opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import NotFound
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.detour import before_after, experts, result, sweep
from tokenpaths.frontend.views.detour.build import builder, chosen_edits
from tokenpaths.frontend.views.detour.edits import read_edits
from tokenpaths.frontend.views.sample import retrace
from tokenpaths.frontend.views.sample.sample import sample_picker


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    if sweep.of_huggingface(run):
        experts.draw(run, selection)
        return
    with common.run_and_label(run, selection):
        number = sample_picker(run, selection)
    widgets.heading(
        "What if it had gone elsewhere?",
        "Ban a module, send a token somewhere else, freeze or shuffle a router, and see what that changes.",
    )
    model = retrace.model_of(run)
    if model is None:
        return
    kinds = list((model.get("controls") or {}).get("edits") or ())
    if not kinds:
        widgets.empty(f"Routes of the model {run['model']} cannot be edited.", "Choose a run of another model.")
        return
    if number is None:
        widgets.empty("No sample has this label.", "Let go of a chip above.")
    else:
        with widgets.guarded("the detour"):
            _detour(run, model, kinds, selection, number)
    st.divider()
    with widgets.guarded("the importance of modules"):
        sweep.draw(run, kinds, selection)


def _detour(
    run: Mapping[str, Any], model: Mapping[str, Any], kinds: Sequence[str], selection: Selection, number: int
) -> None:
    sample = widgets.client().ask(run["run"], "samples/{sample}", sample=number)
    if sample.get("text") is None and not sample.get("has_image"):
        widgets.empty(
            "This run keeps neither text nor image, so its samples cannot be run again.", "Choose another run."
        )
        return
    others = (model.get("controls") or {}).get("properties") or {}
    edits, problems = read_edits(selection.controls, sample, lambda other: _other(run, other), others)
    for problem in problems:
        st.warning(widgets.plain(problem), icon=":material/link_off:")
    chosen_edits(run, selection)
    builder(run, model, kinds, selection, sample)
    before = retrace.again(run, sample, {}, slot="detour_before")
    if before is None:
        return
    if not edits:
        st.info(
            "Nothing is edited yet. Click a circle (a module at a step), a link or a "
            + ("token" if run["modality"] == "text" else "patch")
            + " below, then say above what shall be different.",
            icon=":material/alt_route:",
        )
        st.caption(result.RANKS)
        unchanged = widgets.client().ask(before["run"], "samples/{sample}", sample=0)
        result.one_side(run, before, unchanged, None, selection, "Before")
        before_after.draw(run, selection, unchanged, None)
        return
    after = retrace.again(run, sample, {"edits": edits}, slot="detour_after")
    if after is None:
        return
    effect = widgets.client().ask(after["run"], "effect", of=before["run"], sample=0, limit=result.MOST_LINKS)

    def opened() -> None:
        retrace.keep(after["run"], slot="detour_after", view="sample")

    result.show(run, selection, effect, before, after, on_open=opened)


def _other(run: Mapping[str, Any], number: int) -> dict[str, Any] | None:
    try:
        return widgets.client().ask(run["run"], "samples/{sample}", sample=number)
    except NotFound:
        return None
