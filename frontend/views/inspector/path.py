"""Inspector of one path: its modules, who takes it, examples."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.slots import offered_ids, taken
from tokenpaths.frontend.charts.drawing.thing_names import token_nouns
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import MOST_PATHS, Selection, without
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.inspector import actions, examples
from tokenpaths.frontend.views.inspector.actions import Action


def draw(run: Mapping[str, Any], selection: Selection, value: str, key: str) -> None:
    """The path of rank ``value``."""
    rank = int(value)
    # What is known at once comes first: looking for examples takes most of the time of a click.
    known = widgets.client().ask(run["run"], "paths/{rank}", rank=rank, limit=0)
    actions.title(f"Path of rank {rank:,}", _facts(run, known))
    actions.own_name(run["run"], f"path:{rank}", known["summary"], key)
    answer = widgets.client().ask(run["run"], "paths/{rank}", rank=rank, seed=selection.seed)
    actions.buttons(_actions(run, selection, answer), key, selection)
    st.markdown(widgets.escape(way(answer["ribbon"], common.identities(run), offered_ids(run))))
    examples.strongest(run, answer, key, "the largest weights on it, multiplied step by step")
    widgets.folded(
        "Any of its tokens",
        f"{key}_random_{rank}",
        lambda: examples.drawn(answer["examples"], f"{key}_{rank}", answer["count"], selection.seed),
    )
    _nearest(run, answer)


def _nearest(run: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """Paths that differ at the fewest steps; a click opens one."""
    if not answer["nearest"]:
        return
    st.subheader("Nearest paths", anchor=False)
    if answer["compared_paths"] < run["num_paths"]:
        drawn, every = (numbers.count(num) for num in (answer["compared_paths"], run["num_paths"]))
        st.caption(f"Among {drawn} paths drawn of {every}.")
    what = token_nouns(run)
    for near in answer["nearest"]:
        steps = ", ".join(map(str, near["differs"]))
        st.button(
            widgets.escape(
                f"Rank {near['rank']:,}, {numbers.plural(near['count'], *what)}: other at "
                f"step{'s' if len(near['differs']) > 1 else ''} {steps}"
            ),
            key=f"near_{answer['rank']}_{near['rank']}",
            type="tertiary",
            on_click=address.go_changed,
            kwargs={"inspect": f"path:{near['rank']}"},
        )


def _facts(run: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    what = token_nouns(run)
    take = "takes" if answer["count"] == 1 else "take"
    return (
        f"{numbers.plural(answer['count'], *what)} ({numbers.percent(answer['share'])} of all) {take} this path, "
        f"rank {numbers.count(answer['rank'])} of {numbers.count(run['num_paths'])}. Compute "
        f"{numbers.percent(answer['compute'])}, reuse {numbers.percent(answer['reuse'])}."
    )


def way(ribbon: list[list[int]], identities: frozenset[int], offered: Collection[int] | None = None) -> str:
    """The modules of a path step by step.

    >>> way([[3], [7], [9]], frozenset({9}))
    'step 0: 3 → step 1: 7 → step 2: skipped'
    """
    said = (taken(modules, identities, offered=offered) for modules in ribbon)
    return " → ".join(f"step {step}: {words}" for step, words in enumerate(said))


def _actions(run: Mapping[str, Any], selection: Selection, answer: Mapping[str, Any]) -> list[Action]:
    rank = int(answer["rank"])
    chosen = rank in selection.paths

    def with_it(now: Selection) -> tuple[int, ...]:
        return tuple(dict.fromkeys([*now.paths, rank]))[:MOST_PATHS]

    found = [
        Action(
            "Clear filter" if chosen else "Filter",
            ":material/filter_alt:",
            {"paths": without("paths", rank) if chosen else with_it},
            "Only tokens on this path, in *Routes* and one sample; several paths add up.",
        ),
        Action("Show its route", ":material/account_tree:", {"view": "routes", "paths": (rank,)}),
    ]
    if common.editable(run) and answer["examples"]:
        one = answer["examples"][0]
        change = {"view": "change", "sample": one["sample"], "token": one["token"]}
        found.append(Action("Change its route", ":material/alt_route:", change, "Of one of its tokens."))
    if run.get("family") == "dna":
        found.append(
            Action(
                "Dream",
                ":material/bedtime:",
                {"view": "dream", "sample": selection.sample or 0, "dream": ("of:path", f"rank:{rank}")},
            )
        )
    return found
