"""Inspector of one token or patch: its modules and weights step by step, its path, and tokens that go nearly alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.slots import known, offered_ids, taken
from tokenpaths.frontend.charts.drawing.thing_names import whole_images
from tokenpaths.frontend.charts.flow.token_flow import token_label, visible
from tokenpaths.frontend.components.explorer_data import taken_words
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.page.tables import Column, plain_table
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.inspector import actions, attends
from tokenpaths.frontend.views.inspector.actions import Action
from tokenpaths.frontend.views.modules.margins import closeness
from tokenpaths.frontend.views.samples import one_sample, reference, similar

MOST_STEPS = 32
"""steps listed with their weights; the rest are in the table"""


def draw(run: Mapping[str, Any], selection: Selection, value: str, key: str) -> None:
    """A token, ``value`` = ``sample.token``."""
    number, place = (int(part) for part in value.split("."))
    ranked = reference.ranked(run, widgets.client().ask(run["run"], "samples/{sample}", sample=number))
    sample = ranked.sample
    token = next((t for t in sample["tokens"] if t["token"] == place), None)
    if token is None:
        widgets.empty(
            f"Sample {number:,} has no token {place:,}.",
            f"It has {numbers.count(len(sample['tokens']))}, counted from 0.",
        )
        return
    patch = token.get("row") is not None
    what = f"Patch {token_label(token)}" if patch else f"Token {place:,}"
    if whole_images(run):
        what = "The whole image"
    if token.get("text"):
        what += f" “{visible(token['text'])}”"
    actions.title(what, _facts(run, ranked, token, patch))
    actions.own_name(run["run"], f"token:{number}.{place}", None, key)
    actions.buttons(_actions(run, number, token, ranked), key, selection)
    _steps(run, token)
    attends.draw(run, sample, token, key)
    if ranked.answer is None:  # an upload is compared with its reference run, in the answer to it
        similar.like_this_token(run, number, place, key)


def _facts(run: Mapping[str, Any], ranked: reference.Ranked, token: Mapping[str, Any], patch: bool) -> str:
    sample, path = ranked.sample, one_sample.path_of(token)
    same = sum(one_sample.path_of(t) == path for t in sample["tokens"])
    parts = [
        f"Sample {sample['sample']:,}" + (f", {sample['label']}" if sample.get("label") else "") + ".",
        taken_words(token, ranked.num_paths(run), reference=ranked.name),
        ""
        if whole_images(run)
        else f"{numbers.plural(same, *(('patch', 'patches') if patch else ('token',)))} of this sample "
        f"{'is' if same == 1 else 'are'} on it.",
        f"Compute {numbers.percent(token['compute'])}, reuse {numbers.percent(token['reuse'])}.",
    ]
    if token.get("region"):
        parts.append(f"Region: {token['region']}.")
    if token.get("loss") is not None:
        parts.append(f"Loss {numbers.number(token['loss'])} nats.")
    if token.get("gate_entropy") is not None:
        parts.append(f"Gate entropy {numbers.number(token['gate_entropy'])} nats.")
    return " ".join(filter(None, parts))


def _actions(run: Mapping[str, Any], number: int, token: Mapping[str, Any], ranked: reference.Ranked) -> list[Action]:
    found = [
        Action(
            "Open its sample", ":material/open_in_full:", {"view": "samples", "sample": number, "token": token["token"]}
        )
    ]
    if token["rank"] is not None:
        change: dict[str, Any] = {"inspect": f"path:{token['rank']}"}
        if ranked.name is not None:
            change = {"view": "paths", "run": ranked.name, "paths": (token["rank"],), "inspect": None}
        found.append(Action("Its path", ":material/route:", change, "All tokens on the same path."))
    if common.editable(run):
        found.append(
            Action(
                "Change its route",
                ":material/alt_route:",
                {"view": "change", "sample": number, "token": token["token"]},
            )
        )
    if run.get("family") == "dna":
        found.append(
            Action("Dream", ":material/bedtime:", {"view": "dream", "sample": number, "token": token["token"]})
        )
    return found


def _steps(run: Mapping[str, Any], token: Mapping[str, Any]) -> None:
    """The modules that it took, with their weights where they were recorded."""
    weighted, identities, offered = common.weights_known(run), common.identities(run), offered_ids(run)
    ribbon = known(token["ribbon"], offered)
    rows = [
        {
            "step": step,
            "modules": taken(modules, identities, int(run["top_k"]), offered),
            "weights": "not in the log"
            if not weighted
            else " + ".join(numbers.number(w) for w in token["weights"][step])
            if ribbon[step]
            else "–",
        }
        for step, modules in enumerate(token["ribbon"])
    ]
    names = ["modules", "weights"]
    if token.get("margins") is not None:
        names.append("how close")
        for row, margin, modules in zip(rows, token["margins"], ribbon, strict=True):
            row["how close"] = closeness(margin, modules)
    st.subheader("Its way, step by step", anchor=False)
    if len(rows) <= MOST_STEPS:
        plain_table(rows, "Modules and weights of the token", {name: Column(name) for name in names})
    else:
        widgets.numbers_behind(rows, "its modules and weights, step by step")
    if token.get("margins") is None:
        # At once, without a look at tokens: there are no margins to count.
        reason = widgets.client().ask(run["run"], "margins")["reason"]
        if reason:
            st.caption(widgets.escape(common.as_sentence(reason)))
