"""Inspector of one token or patch: its modules and weights step by step, its path, and tokens that go nearly alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.flow.token_flow import token_label, visible
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.page.tables import Column, plain_table
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.inspector import actions
from tokenpaths.frontend.views.inspector.actions import Action
from tokenpaths.frontend.views.samples import similar

MOST_STEPS = 32
"""steps listed with their weights; the rest are in the table"""


def draw(run: Mapping[str, Any], selection: Selection, value: str, key: str) -> None:
    """A token, ``value`` = ``sample.token``."""
    number, place = (int(part) for part in value.split("."))
    sample = widgets.client().ask(run["run"], "samples/{sample}", sample=number)
    token = next((t for t in sample["tokens"] if t["token"] == place), None)
    if token is None:
        widgets.empty(
            f"Sample {number:,} has no token {place:,}.",
            f"It has {numbers.count(len(sample['tokens']))}, counted from 0.",
        )
        return
    patch = token.get("row") is not None
    what = f"Patch {token_label(token)}" if patch else f"Token {place:,}"
    if token.get("text"):
        what += f" “{visible(token['text'])}”"
    actions.title(what, _facts(run, sample, token, patch))
    actions.buttons(_actions(run, number, token), key, selection)
    _steps(run, token)
    similar.like_this_token(run, number, place, key)


def _facts(run: Mapping[str, Any], sample: Mapping[str, Any], token: Mapping[str, Any], patch: bool) -> str:
    same = sum(t["rank"] == token["rank"] for t in sample["tokens"])
    parts = [
        f"Sample {sample['sample']:,}" + (f", {sample['label']}" if sample.get("label") else "") + ".",
        f"Path of rank {numbers.count(token['rank'])} of {numbers.count(run['num_paths'])}, taken by "
        f"{numbers.plural(same, *(('patch', 'patches') if patch else ('token',)))} of this sample.",
        f"Compute {numbers.percent(token['compute'])}, reuse {numbers.percent(token['reuse'])}.",
    ]
    if token.get("region"):
        parts.append(f"Region: {token['region']}.")
    if token.get("loss") is not None:
        parts.append(f"Loss {numbers.number(token['loss'])} nats.")
    if token.get("gate_entropy") is not None:
        parts.append(f"Gate entropy {numbers.number(token['gate_entropy'])} nats.")
    return " ".join(parts)


def _actions(run: Mapping[str, Any], number: int, token: Mapping[str, Any]) -> list[Action]:
    found = [
        Action(
            "Open its sample", ":material/open_in_full:", {"view": "samples", "sample": number, "token": token["token"]}
        ),
        Action("Its path", ":material/route:", {"inspect": f"path:{token['rank']}"}, "All tokens on the same path."),
    ]
    if common.editable(run):
        found.append(
            Action(
                "Change its route",
                ":material/alt_route:",
                {"view": "change", "sample": number, "token": token["token"]},
            )
        )
    return found


def _steps(run: Mapping[str, Any], token: Mapping[str, Any]) -> None:
    """The modules that it took, with their weights where they were recorded."""
    weighted, identities = common.weights_known(run), common.identities(run)
    rows = [
        {
            "step": step,
            "modules": "skipped" if set(modules) <= identities else " + ".join(map(str, modules)),
            "weights": " + ".join(numbers.number(w) for w in weights) if weighted else "not in the log",
        }
        for step, (modules, weights) in enumerate(zip(token["ribbon"], token["weights"], strict=True))
    ]
    st.subheader("Its way, step by step", anchor=False)
    if len(rows) <= MOST_STEPS:
        plain_table(rows, "Modules and weights of the token", {name: Column(name) for name in ("modules", "weights")})
    else:
        widgets.numbers_behind(rows, "its modules and weights, step by step")
