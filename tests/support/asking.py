"""Every question of a run, with arguments that fit it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tokenpaths.engine.store.ask.question import Question
from tokenpaths.engine.store.ask.questions import QUESTIONS
from tokenpaths.engine.store.ask.run import Run

ONE_VALUE = {"rank": 1, "sample": 0, "measure": "compute", "step": 0, "kind": None}


def questions_of(run: Run) -> Iterator[tuple[Question, dict[str, Any]]]:
    """Questions with arguments, by label, path and measure where they take one; some have no answer in this run."""
    labels = [None, *(row[1] for row in run.labels)]
    for question in QUESTIONS:
        options: list[dict[str, Any]] = [{}]
        for name, value in ONE_VALUE.items():
            if name in question.parameters:
                options = [one | {name: value} for one in options]
        if "per" in question.parameters:
            options = [
                {"measure": m, "per": p} for m in ("compute", "loss", "gate_entropy") for p in ("sample", "token")
            ]
        if "kind" in question.parameters:
            kinds = list(run.soft_shapes) if "axes" in str(question.answer) or question.name == "soft" else [None]
            options = [one | {"kind": kind} for one in options for kind in kinds or [None]]
        if "label" in question.parameters:
            options = [one | {"label": label} for one in options for label in labels]
        if "through" in question.parameters:
            options = [one | {"through": through} for one in options for through in ((), ((0, 1),))]
        for arguments in options:
            yield question, {k: v for k, v in arguments.items() if not (v is None and k == "kind")}
