"""Row of filter chips: one per field of the selection that is set; a click clears it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing.running_text import cut_short
from tokenpaths.frontend.page import address
from tokenpaths.frontend.page.markdown import escape
from tokenpaths.frontend.page.selection import KINDS, Selection, without

_RUN = ("run", "label", "labels")
USES = {
    "home": ("q",),
    "routes": (*_RUN, "through", "paths", "other", "steps"),
    "paths": (*_RUN, "through", "find", "kind", "ranks", "compute", "reuse"),
    "samples": (*_RUN, "q", "job"),
    "sample": (*_RUN, "through", "paths", "q", "sample", "token"),
    "work": _RUN,
    "modules": _RUN,
    "compare": ("run",),
    "compare samples": ("run", "labels"),
    "family": (*_RUN, "other", "sample", "job"),
    "dream": (*_RUN, "q", "sample", "token", "job"),
    "change": (*_RUN, "q", "sample", "token", "through", "job"),
    "importance": ("run", "job"),
    "jobs": ("job",),
}
"""what is shown → fields of the selection that decide what of the run is in it"""
MARKS = {"paths": ("paths",), "compare samples": ("label",)}
"""what is shown → fields that are only marked in it: nothing is left out"""


@dataclass(frozen=True)
class Chip:
    """One chip: a field, its text, and the changes that clear it."""

    field: str
    words: str
    without: Mapping[str, Any]
    applies: bool
    marks: bool = False

    @property
    def where(self) -> str:
        """What its text adds where the view does not filter by it."""
        return "" if self.applies else " · only marked here" if self.marks else " · not used here"

    @property
    def help(self) -> str:
        """What the view does with it, and what a click does."""
        if self.applies:
            return "Click to clear it."
        does = "marks it and leaves nothing out" if self.marks else "does not depend on it"
        return f"This view {does}. Click to clear it."


def shown(selection: Selection) -> str:
    """What the view shows, a key of ``USES``: the view, or the part of it that uses other fields."""
    if selection.view == "samples" and selection.sample is not None:
        return "sample"
    if selection.view == "compare" and selection.part == "samples":
        return "compare samples"
    return selection.view


def chips(selection: Selection) -> list[Chip]:
    """The chips of a selection, in display order."""
    what = shown(selection)
    uses, marks = USES[what], MARKS.get(what, ())
    result = []

    def add(field: str, words: str, **without: Any) -> None:
        result.append(Chip(field, words, without, field in uses, field in marks))

    if selection.run and selection.view in ("home", "jobs"):  # elsewhere its picker stands below
        add("run", f"run: {selection.run}", run=None)
    if selection.against and selection.view != "compare":  # there its runs stand in the picker
        add("against", f"beside: {selection.against}", against=None)
    if selection.label is not None:
        add("label", f"label: {selection.label}", label=None)
    if selection.labels is not None:
        add("labels", "look-alike labels as one", labels=None)
    if selection.other is not None:
        add("other", "beside all labels" if selection.other == "*" else f"beside: {selection.other}", other=None)
    if selection.q is not None:
        add("q", f"contains “{selection.q}”", q=None)
    if selection.find is not None:
        add("find", f"tokens like “{selection.find}”", find=None)
    if selection.kind is not None:
        add("kind", KINDS[selection.kind], kind=None)
    if selection.ranks is not None:
        add("ranks", f"ranks {selection.ranks[0]:,}–{selection.ranks[1]:,}", ranks=None)
    for name in ("compute", "reuse"):
        if (bounds := getattr(selection, name)) is not None:
            add(name, f"{name} {bounds[0]:g}–{bounds[1]:g}", **{name: None})
    if selection.steps:
        add("steps", f"steps {selection.steps[0]}–{selection.steps[1] - 1}", steps=None)
    for node in selection.through:
        step, module = node.split(".")
        add("through", f"passes module {module} at step {step}", through=without("through", node))
    for rank in selection.paths:
        add("paths", f"path of rank {rank:,}", paths=without("paths", rank))
    if selection.sample is not None:
        add("sample", f"sample {selection.sample:,}", sample=None)
    if selection.token is not None:
        add("token", f"token {selection.token:,}", token=None)
    if selection.job is not None:
        add("job", f"job: {selection.job}", job=None)
    return result


def chips_row(selection: Selection) -> None:
    """Draw the chips; a click on one clears its field."""
    row = [chip for chip in chips(selection) if not (chip.field in ("run", "job") and address.embedded())]
    if selection.view == "home":  # the upload that it shows says itself which it is
        row = [chip for chip in row if chip.field not in ("run", "sample", "token")]
    if not row:
        return
    with st.container(horizontal=True, gap="small", key="chips"):
        for index, chip in enumerate(row):
            st.button(
                f"{escape(cut_short(chip.words, 44))}{chip.where} ×",
                key=f"chip_{index}_{chip.field}",
                type="secondary" if chip.applies else "tertiary",
                help=chip.help,
                on_click=address.go_changed,
                kwargs=dict(chip.without),
            )
