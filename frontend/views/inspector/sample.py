"""Inspector of one sample: its picture or first words, what the model says of it, and what can be done with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.inspector import actions
from tokenpaths.frontend.views.inspector.actions import Action
from tokenpaths.frontend.views.samples import similar
from tokenpaths.frontend.views.samples.one_sample import facts

FIRST_CHARACTERS = 600
PICTURE_WIDTH = 220


def draw(run: Mapping[str, Any], selection: Selection, value: str, key: str) -> None:
    """The sample of number ``value``."""
    number = int(value)
    sample = widgets.client().ask(run["run"], "samples/{sample}", sample=number)
    actions.title(f"Sample {number:,}", facts(sample))
    actions.own_name(run["run"], f"sample:{number}", None, key)
    actions.buttons(_actions(run, selection, number, sample.get("label")), key, selection)
    if sample.get("has_image"):
        st.image(widgets.client().image(run["run"], number), width=PICTURE_WIDTH, alt=f"sample {number:,}")
    elif sample.get("text"):
        text = sample["text"]
        st.markdown(widgets.escape(text[:FIRST_CHARACTERS]) + (" …" if len(text) > FIRST_CHARACTERS else ""))
    similar.like_this_sample(run, number, key)


def _actions(run: Mapping[str, Any], selection: Selection, number: int, label: str | None) -> list[Action]:
    found = [Action("Open", ":material/open_in_full:", {"view": "samples", "sample": number}, "All of its tokens.")]
    if label is not None and selection.label != label:
        found.append(
            Action("Filter by label", ":material/filter_alt:", {"label": label}, "Only its label, in *Explore*.")
        )
    if common.editable(run):
        found.append(Action("Change its route", ":material/alt_route:", {"view": "change", "sample": number}))
    if run.get("family") == "dna":
        found.append(Action("Dream", ":material/bedtime:", {"view": "dream", "sample": number}))
    return found
