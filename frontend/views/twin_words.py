"""Why a view shows no untrained twin: the run is one, a job is about to add it, or none was traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.jobs.alive import ALIVE


def without_twin(run: Mapping[str, Any]) -> str:
    """A sentence below a chart in which the twin would be drawn."""
    if common.is_untrained(run):
        return "This run is of an untrained twin itself: compare it with the run of the trained model."
    answer = widgets.client().ask(str(run["run"]), "twin")
    if answer["state"] == "there":
        return ""
    text = common.as_sentence(answer["reason"])
    if answer["state"] in ALIVE:
        return f"{text} Until it is there, it is missing here."
    return text if answer["state"] != "none" else "This run has no untrained twin to compare with."


def twin_reason(run: Mapping[str, Any], reason: str) -> str:
    """``reason``, which an answer gives for having no numbers of the twin, or that they are on their way."""
    if common.is_untrained(run):
        return reason
    answer = widgets.client().ask(str(run["run"]), "twin")
    return str(answer["reason"]) if answer["state"] in (*ALIVE, "failed", "cancelled") else reason
