"""What several views need of a run: choosing one, its details, its filters as a question to the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from frontend import address, look
from frontend.selection import Selection

TRIED = 1
"""a run of one sample is somebody's try; lists show those apart"""


def readable_runs() -> list[dict[str, Any]]:
    """Cards of all runs that can be opened, whole data sets before single tries."""
    cards = [card for card in look.client().runs() if card["status"] == "sealed"]
    return sorted(cards, key=lambda card: (card.get("num_samples") or 0) <= TRIED)


def chosen_run(selection: Selection) -> dict[str, Any] | None:
    """Details of the run in the address; without one, a picker and a sentence. None: nothing to draw."""
    cards = readable_runs()
    if not cards and selection.run is None:
        look.empty(
            "There is no run yet.",
            "Trace a model with `tokenpaths trace --model … --data …`, or open *Try it*.",
        )
        return None
    names = [card["run"] for card in cards]
    if selection.run is not None and selection.run not in names:
        names = [selection.run, *names]
    if selection.run is None:
        address.redirect(run=names[0])
    return look.client().run(str(selection.run))


def run_picker(run: Mapping[str, Any]) -> None:
    """Another run, in the same view."""
    names = [card["run"] for card in readable_runs()]
    if run["run"] not in names:
        names.insert(0, run["run"])
    address.bound(st.selectbox, "run", "Run", run["run"], names, help="One model traced over one data set.")


def label_picker(run: Mapping[str, Any], selection: Selection) -> None:
    """One label of the data set, or all; a run without labels says so."""
    labels = [row["label"] for row in run["labels"] if row["label"] is not None]
    if not labels:
        st.selectbox("Label", ["this run has no labels"], disabled=True)
        return
    options = ["", *labels] + ([selection.label] if selection.label not in (None, *labels) else [])
    address.bound(
        st.selectbox,
        "label",
        "Label",
        selection.label or "",
        options,
        format_func=lambda label: label or "all labels",
        read=lambda label: label or None,
        help="Only tokens of samples with this label.",
    )


def identities(run: Mapping[str, Any]) -> frozenset[int]:
    """Ids of the modules that do nothing: visiting one is skipping the step."""
    return frozenset(int(module["module"]) for module in run["modules"] if module["kind"] == "identity")


def step_range(run: Mapping[str, Any], selection: Selection) -> tuple[int, int]:
    """The chosen steps (half-open) inside those that the run has."""
    last = int(run["num_steps"])
    if selection.steps is None or selection.steps[0] >= last:
        return 0, last
    return selection.steps[0], min(selection.steps[1], last)


def flow_question(run: Mapping[str, Any], selection: Selection, *, limit: int) -> dict[str, Any]:
    """The filters of the selection as a query of ``/flow``."""
    first, end = step_range(run, selection)
    whole = (first, end) == (0, int(run["num_steps"]))
    return {
        "steps": None if whole else f"{first}:{end}",
        "label": selection.label,
        "through": selection.through,
        "paths": selection.paths,
        "limit": limit,
        "min_share": selection.hide / 100 or None,
    }


def passes(token: Mapping[str, Any], selection: Selection) -> bool:
    """Does a token pass the circles of the filter?"""
    ribbon = token["ribbon"]
    for node in selection.through:
        step, module = (int(part) for part in node.split("."))
        if step >= len(ribbon) or module not in ribbon[step]:
            return False
    return True
