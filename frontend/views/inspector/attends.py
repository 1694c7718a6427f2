"""To whom a token attends inside the modules that it visits, and who attends to it: from a job that runs its sample
through the model again."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.families.attention import attention_chart
from tokenpaths.frontend.charts.flow.token_flow import token_label, visible
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.tables import Column, plain_table
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.jobs import panel

FILE = "attention.json"
MOST_NAMED = 3
MOST_STEPS = 12
"""steps whose grids have room in the column"""
HELP = (
    "Inside a module a token attends to those tokens of its sample alone that chose the same module at the same step, "
    "of a text to those before it. Shares are means over the heads."
)


def draw(run: Mapping[str, Any], sample: Mapping[str, Any], token: Mapping[str, Any], key: str) -> None:
    """The attention of one token; a button that has it looked at, where nobody has."""
    if run.get("family") != "dna" or address.embedded():
        return
    request = {"model": common.model_name(run), "run": run["run"], "sample": int(sample["sample"])}
    job = _job(request)
    st.subheader("To whom does it attend?", anchor=False, help=HELP)
    panel.refusal()
    if job is not None and job["state"] != "succeeded":
        job = panel.job_panel(job["job"], key=f"{key}_attention_job")
    if job is not None and job["state"] in panel.ALIVE:
        return
    if job is None or FILE not in job["artifacts"]:
        panel.start_button(
            "Look inside",
            "attention",
            request,
            key=f"{key}_attention",
            icon=":material/visibility:",
            help="Runs this sample through the model again; takes seconds, and holds for all its tokens.",
        )
        return
    found = json.loads(widgets.client().artifact(job["job"], FILE))
    if found["same_choices"] < 1:
        others = numbers.percent(1 - found["same_choices"])
        st.caption(widgets.escape(f"Run again, {others} of the tokens chose otherwise than in this run."))
    _told(sample, token, found)


def _job(request: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The newest job about this sample that has not failed; one that did if it is in the address: it says why."""
    try:
        jobs = widgets.client().jobs(kind="attention", most=200)["jobs"]
    except ApiError:
        return None
    asked = address.current().job
    mine = [job for job in jobs if all(job["request"].get(name) == value for name, value in request.items())]
    return next((job for job in mine if job["job"] == asked or job["state"] not in ("failed", "cancelled")), None)


def _told(sample: Mapping[str, Any], token: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    tokens = {int(one["token"]): one for one in sample["tokens"]}
    own = int(token["token"])
    rows = [row for row in found["rows"] if row["token"] == own]
    if not rows:
        st.caption("It visits no module with attention.")
        return
    if token.get("row") is None or len(token["ribbon"]) > MOST_STEPS:
        _table(found, rows, tokens, own)
        return
    shares = shares_of(rows, len(token["ribbon"]))
    drawing = attention_chart(shares, sample["tokens"], own, theme=widgets.theme(), title=None)
    widgets.chart(drawing, about=f"patch r{token['row']} c{token['col']} of sample {sample['sample']:,}")
    st.caption("One grid a step; the more ink, the larger the share of its attention. Framed: itself.")
    widgets.folded("In numbers, and who attends to it", f"attention_{own}", lambda: _table(found, rows, tokens, own))


def _table(
    found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], tokens: Mapping[int, Mapping[str, Any]], own: int
) -> None:
    table = [
        {
            "step": row["step"],
            "module": f"{row['module']} ({numbers.count(row['met'])})",
            "attends to": named(row["attends_to"], tokens, own),
            "attended by": named(looking_at(found["rows"], row, own), tokens, own),
        }
        for row in rows
    ]
    plain_table(
        table,
        "To whom the token attends, and who attends to it",
        {
            "module": Column("module", help="In brackets: tokens of this sample that it received at the step."),
            "attended by": Column("attended by", help="With the share of their attention that it gets."),
        },
    )


def shares_of(rows: Sequence[Mapping[str, Any]], steps: int) -> list[dict[int, float]]:
    """Token → share of the attention at each step; the modules of a step count alike.

    >>> shares_of([{"step": 1, "attends_to": [[4, 0.5]]}, {"step": 1, "attends_to": [[4, 0.25]]}], 2)
    [{}, {4: 0.375}]
    """
    found: list[dict[int, float]] = [defaultdict(float) for _ in range(steps)]
    for row in rows:
        modules = sum(one["step"] == row["step"] for one in rows)
        for token, share in row["attends_to"]:
            found[row["step"]][token] += share / modules
    return [dict(of_step) for of_step in found]


def looking_at(rows: Sequence[Mapping[str, Any]], at: Mapping[str, Any], own: int) -> list[tuple[int, float]]:
    """(token, share of its attention that goes to ``own``) in the module of the row ``at``, largest first."""
    there = [row for row in rows if (row["step"], row["module"]) == (at["step"], at["module"]) and row["token"] != own]
    found = [(row["token"], share) for row in there for token, share in row["attends_to"] if token == own]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


def named(pairs: Sequence[Sequence[Any]], tokens: Mapping[int, Mapping[str, Any]], own: int) -> str:
    """The first few tokens with their shares; a dash for none.

    >>> named([[3, 0.5], [1, 0.25]], {1: {"token": 1, "text": "the"}, 3: {"token": 3, "text": " cat"}}, 3)
    'itself 50.0 %, “the” 25.0 %'
    """
    parts = [
        f"{'itself' if token == own else _called(tokens[token])} {numbers.percent(share)}"
        for token, share in pairs[:MOST_NAMED]
        if token in tokens
    ]
    return ", ".join(parts) or "–"


def _called(token: Mapping[str, Any]) -> str:
    if token.get("row") is not None:
        return token_label(token)
    text = visible(token.get("text"))
    return f"“{text.strip() or text}”"
