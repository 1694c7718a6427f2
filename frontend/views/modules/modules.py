"""Modules view: load by step and module, dead and overloaded modules, effective top-k, label specificity."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import DARKER
from tokenpaths.frontend.charts.load_over_time import is_load_only
from tokenpaths.frontend.charts.usage import (
    MOST_MARKED,
    OVERLOADED,
    concentration_words,
    dead_modules,
    load_chart,
    load_words,
    overloaded,
    stand_in_words,
    top_k_chart,
)
from tokenpaths.frontend.formulas import OF_TOKENS
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.page.tables import Column, plain_table
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.modules import load_only, margins
from tokenpaths.frontend.views.own_names import names_of
from tokenpaths.frontend.views.paths import knowledge
from tokenpaths.frontend.views.twin_words import without_twin
from tokenpaths.frontend.views.work import sections


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    counts_only = is_load_only(run)
    if counts_only:
        with common.run_row(run):
            common.label_picker(run, selection)
        common.notes(run)
    else:
        common.run_and_label(run, selection)
    usage = widgets.client().ask(run["run"], "usage", label=selection.label)
    chosen = common.inspected_module(selection)
    twin = any(row.get("untrained_effective_top_k") is not None for row in usage["steps"])
    left, right = st.columns([3, 2], gap="large")
    with left:
        widgets.heading(
            "How busy is each module?",
            f"One cell: one module at one step. {DARKER}: more tokens than its fair share. "
            + ("Page colour" if int(run["num_modules"]) > MOST_MARKED else "×")
            + ": no token came.",
            "load",
        )
        widgets.verdict(load_words(usage))
        widgets.chart(
            load_chart(usage, theme=widgets.theme(), title=None, chosen=chosen, names=names_of(run["run"], "module")),
            key=f"load_{run['run']}_{selection.label}_{chosen}",
            on_pick=_picked,
            pick=("node",),
            filters=("label",),
        )
        st.caption("Click a cell to see what this module is for.")
        widgets.numbers_behind(usage["usage"], "cells", **OF_TOKENS)
        _balance(usage)
    with right:
        widgets.heading(
            "How concentrated is each step?",
            f"Effective top-k of each step, from 1 (one module takes all) to √{numbers.count(run['num_modules'])} = "
            f"{numbers.number(int(run['num_modules']) ** 0.5)} (all modules alike)"
            + (", beside the same architecture untrained." if selection.label is None and twin else "."),
            "topk",
        )
        widgets.verdict(concentration_words(usage))
        widgets.chart(top_k_chart(usage, theme=widgets.theme(), title=None), filters=("label",))
        if selection.label is not None:
            st.caption("The untrained twin was counted over all tokens: clear the label to see it beside them.")
        elif not twin:
            st.caption(widgets.escape(without_twin(run)))
        widgets.numbers_behind([{**row, "dead": ", ".join(map(str, row["dead"]))} for row in usage["steps"]], "steps")
        st.subheader("Dead and overloaded", anchor=False)
        _extremes(run, usage, common.own_modules(run), selection.label)
    if counts_only:
        with widgets.error_boundary("load over time and by domain"):
            load_only.draw(run, selection)
        return
    with widgets.error_boundary("how close decisions were"):
        margins.draw(run, selection)
    with widgets.error_boundary("which kinds of modules each step chooses"):
        sections.module_kinds(run, selection)
    with widgets.error_boundary("what is specific to a label"):
        _specific(run, selection)
    widgets.numbers_behind(
        [{**module, "step": "any" if module["step"] is None else module["step"]} for module in run["modules"]],
        "modules of the model",
    )


def _picked(_name: str, node: str) -> None:
    """Open the module in the inspector; a second click closes it."""
    thing = f"module:{node}"
    address.go_changed(inspect=None if address.current().inspect == thing else thing)


def balance_words(usage: Mapping[str, Any]) -> str:
    """The step with the least even load, by all modules' tokens and weights: the busiest one stands above."""
    known = [row for row in usage["steps"] if row["load_entropy"] is not None]
    by_tokens = min(known, key=lambda row: row["load_entropy"], default=None)
    if by_tokens is None:
        return "No load is known."
    entropy = by_tokens["load_entropy"]
    text = (
        f"Least evenly at step {by_tokens['step']}: load entropy {numbers.number(entropy)} (1 = even)."
        if entropy < 0.9995
        else "At every step the load is nearly even: load entropy above 0.999 (1 = even)."
    )
    weighted = [row for row in usage["steps"] if row.get("importance_cv2") is not None]
    if not weighted:
        return text
    row = max(weighted, key=lambda row: row["importance_cv2"])
    return text + (
        f" By weight at step {row['step']}: importance CV² {numbers.number(row['importance_cv2'])} (0 = even)."
    )


def unused_words(usage: Mapping[str, Any]) -> str:
    """How many slots hold no module, and where most; empty if every token uses all of its slots."""
    shares = {row["step"]: row["unused"] for row in usage["steps"] if row.get("unused") is not None}
    if not any(shares.values()):
        return ""
    most, every = max(shares, key=lambda step: shares[step]), numbers.percent(sum(shares.values()) / len(shares))
    top = numbers.percent(shares[most])
    where = f", most at step {most} ({top})" if top != every else ""
    return (
        f"k varies: {every} of all slots are unused{where}. An unused slot (a dropped token, a full module, a router "
        "that chose fewer, a chain that has ended) is no module and no work."
    )


def _balance(usage: Mapping[str, Any]) -> None:
    st.subheader("How evenly is the work shared?", anchor=False, help=widgets.HELP["load"])
    st.caption(widgets.escape(balance_words(usage)))
    if words := unused_words(usage):
        st.caption(widgets.escape(words))
    named = {"load_entropy": "load entropy", "max_violation": "MaxVio"}
    if any(row.get("importance_cv2") is not None for row in usage["steps"]):  # none where no weights were recorded
        named["importance_cv2"] = "importance CV²"
    plain_table(
        [{"step": row["step"], **{name: row.get(name) for name in named}} for row in usage["steps"]],
        "Balance of the steps",
        {name: Column(words, "{:.3f}".format, widgets.COLUMNS[name]) for name, words in named.items()},
    )


def _extremes(run: Mapping[str, Any], usage: Mapping[str, Any], own: bool, label: str | None) -> None:
    dead = dead_modules(usage)
    if own:
        # The twin of an always-active block is never chosen: it has no function, so it is not dead either.
        idle = {(one["step"], one["module"]) for one in run["modules"] if one["kind"] == "identity"}
        words = dead_words(usage, idle, label)
        # Marked in the heat map like dead modules, so what they are is said.
        st.write(widgets.escape(" ".join(filter(None, [words, stand_in_words(usage)]))))
    elif dead:
        names = ", ".join(f"{module} ({name})" for module, name, _steps in dead[:12]) + (" …" if len(dead) > 12 else "")
        st.write(widgets.escape(f"{numbers.plural(len(dead), 'module')} {_no_token(label)}: {names}."))
    else:
        st.write(widgets.escape(f"{_none_dead(label)} at some step."))
    st.write(widgets.escape(overloaded_words(usage)))


def overloaded_words(usage: Mapping[str, Any], most: int = 5) -> str:
    """How many (step, module) pairs get far more than their fair share; the ``most`` busiest of them by name."""
    high = overloaded(usage)
    if not high:
        return f"No module has {OVERLOADED:g} times its fair share at any step."
    names = "; ".join(
        f"module {row['module']} at step {row['step']} ({numbers.number(row['utilisation'])} × its share)"
        for row in high[:most]
    )
    text = f"Overloaded, {OVERLOADED:g} times a fair share or more: "
    if len(high) <= most:
        return f"{text}{names}."
    return f"{text}{numbers.count(len(high))} of {numbers.plural(len(usage['usage']), 'cell')}. Most: {names}; …"


def _no_token(label: str | None) -> str:
    """What a module without tokens got: with a label it may have got tokens of others."""
    return "never got a token" if label is None else f"got no token of label “{label}”"


def _none_dead(label: str | None) -> str:
    if label is None:
        return "No module is dead: each one got at least one token"
    return f"Each module got at least one token of label “{label}”"


def dead_words(usage: Mapping[str, Any], idle: Collection[tuple[int, int]] = (), label: str | None = None) -> str:
    """Number and steps of dead modules if each step has its own, without the ``idle`` (step, module) pairs.

    With a ``label``, of those that got none of its tokens.
    """
    by_step = {row["step"]: [m for m in row["dead"] if (row["step"], m) not in idle] for row in usage["steps"]}
    dead = {step: modules for step, modules in by_step.items() if modules}
    total = sum(len(modules) for modules in dead.values())
    unknown = sum(row["load_entropy"] is None for row in usage["steps"])
    if unknown == len(usage["steps"]):
        return "No choice is known."
    if not total:
        return f"{_none_dead(label)}{' at each step whose choices are known' if unknown else ''}."
    most = sorted(dead, key=lambda step: (-len(dead[step]), step))[:6]
    steps = "; ".join(
        f"step {step}: {', '.join(map(str, dead[step][:8]))}{' …' if len(dead[step]) > 8 else ''}" for step in most
    )
    return (
        f"{numbers.count(total)} of {numbers.plural(len(usage['usage']) - len(idle), 'module')} {_no_token(label)}, at "
        f"{len(dead)} of {numbers.plural(len(usage['steps']), 'step')}. Most: {steps}{'; …' if len(dead) > 6 else '.'}"
    )


def _specific(run: Mapping[str, Any], selection: Selection) -> None:
    st.subheader("Which modules are specific to a label?", anchor=False, help=knowledge.SPECIFIC)
    knowledge.specific(run, selection, "module")
    common.note_not_independent(run)
    st.button(
        "What do paths know?",
        key="to_knowledge",
        icon=":material/route:",
        on_click=address.go_changed,
        kwargs={"view": "paths"},
        help="How much paths tell of labels, words and places, beside chance; on Paths.",
    )
