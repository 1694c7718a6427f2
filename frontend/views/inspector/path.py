"""Inspector of one path: its modules, who takes it, examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import MOST_PATHS, Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.inspector import actions
from tokenpaths.frontend.views.inspector.actions import Action
from tokenpaths.frontend.views.walls import token_wall

EXAMPLES = 24


def draw(run: Mapping[str, Any], selection: Selection, value: str, key: str) -> None:
    """The path of rank ``value``."""
    rank = int(value)
    answer = widgets.client().ask(run["run"], "paths/{rank}/examples", rank=rank, limit=EXAMPLES, seed=selection.seed)
    actions.title(f"Path of rank {rank:,}", _facts(run, answer))
    actions.buttons(_actions(run, selection, rank), key, selection)
    st.markdown(widgets.escape(way(answer["ribbon"], common.identities(run))))
    examples = answer["examples"]
    st.subheader("Example patches" if run["modality"] == "vision" else "Example tokens", anchor=False)
    if not examples:
        st.caption("This run keeps neither pictures nor texts to show.")
        return
    token_wall(examples, f"{key}_{rank}")
    st.button(
        "Show other examples",
        key=f"{key}_redraw",
        icon=":material/casino:",
        type="tertiary",
        on_click=address.go_changed,
        kwargs={"seed": selection.seed + 1},
        disabled=answer["count"] <= len(examples),
    )
    rows = [{name: value for name, value in example.items() if name != "patch"} for example in examples]
    widgets.numbers_behind(rows, f"examples of path {rank:,}")


def _facts(run: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    what = ("patch", "patches") if run["modality"] == "vision" else ("token",)
    return (
        f"{numbers.plural(answer['count'], *what)} ({numbers.percent(answer['share'])} of all) take this path, rank "
        f"{numbers.count(answer['rank'])} of {numbers.count(run['num_paths'])}."
    )


def way(ribbon: list[list[int]], identities: frozenset[int]) -> str:
    """The modules of a path step by step.

    >>> way([[3], [7], [9]], frozenset({9}))
    'step 0: 3 → step 1: 7 → step 2: skipped'
    """
    return " → ".join(
        f"step {step}: " + ("skipped" if set(modules) <= identities else " + ".join(map(str, modules)))
        for step, modules in enumerate(ribbon)
    )


def _actions(run: Mapping[str, Any], selection: Selection, rank: int) -> list[Action]:
    chosen = rank in selection.paths
    paths = tuple(other for other in selection.paths if other != rank) if chosen else (*selection.paths, rank)
    found = [
        Action(
            "Clear filter" if chosen else "Filter",
            ":material/filter_alt:",
            {"paths": paths[:MOST_PATHS]},
            "Only tokens on this path, in *Routes* and *Samples*; several paths add up.",
        ),
        Action("Show its route", ":material/account_tree:", {"view": "routes", "paths": (rank,)}),
    ]
    if run.get("family") == "dna":
        found.append(
            Action(
                "Dream",
                ":material/bedtime:",
                {"view": "dream", "sample": selection.sample or 0, "dream": ("of:path", f"rank:{rank}")},
            )
        )
    return found
