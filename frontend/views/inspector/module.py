"""Inspector of one module at one step: its name, strongest examples, labels, words, neighbours, importance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError, NotFound
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.load_over_time import is_load_only
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.page.tables import Column, plain_table
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.detour.build import modules_at
from tokenpaths.frontend.views.detour.sweep import newest_sweep, samples_told
from tokenpaths.frontend.views.inspector import actions, examples
from tokenpaths.frontend.views.inspector.actions import Action

MOST_WORDS = 24
MOST_LISTED = 24
"""modules that a step offers, listed for who asked for another one"""
RANDOM = 24
"""examples drawn from all tokens of the module"""


def draw(run: Mapping[str, Any], selection: Selection, value: str, key: str) -> None:
    """One module at one step, ``value`` = ``step.module``."""
    step, module = (int(part) for part in value.split("."))
    if is_load_only(run):
        _counted(run, selection, step, module, key)
        return
    # What is known at once comes first: looking for examples takes most of the time of a click.
    try:
        answer = widgets.client().ask(run["run"], "modules/{node}", node=value, limit=0)
    except NotFound as error:
        if step < run["num_steps"] and (offered := modules_at(run, step)):
            error.todo = f"It offers {_listed(offered)}."
        raise
    about: Mapping[str, Any] = next(
        (m for m in run["modules"] if m["module"] == module and m["step"] in (None, step)), {}
    )
    actions.title(f"Module {module} at step {step}", _facts(answer, about))
    actions.own_name(run["run"], f"module:{value}", answer["summary"], key)
    actions.buttons(_actions(run, selection, step, module), key, selection)
    if not answer["count"]:
        widgets.empty("No token came here.", "Choose another module.")
        return
    full = widgets.client().ask(run["run"], "modules/{node}", node=value)
    examples.strongest(run, full, key, "the largest weight for it")
    _random(run, selection, step, module, key)
    _labels(answer["labels"])
    _words(run, step, module)
    _neighbours(answer, int(run["top_k"]))
    _importance(run, step, module)


def _listed(modules: Sequence[int]) -> str:
    """Modules by number.

    >>> _listed([0, 1, 2]), _listed([4, 6]), _listed([3])
    ('modules 0 to 2', 'modules 4, 6', 'module 3')
    """
    if len(modules) > 1 and modules[-1] - modules[0] == len(modules) - 1:
        return f"modules {modules[0]} to {modules[-1]}"
    more = f" and {len(modules) - MOST_LISTED} more" if len(modules) > MOST_LISTED else ""
    return f"module{'s' * (len(modules) > 1)} {', '.join(map(str, modules[:MOST_LISTED]))}{more}"


def _counted(run: Mapping[str, Any], selection: Selection, step: int, module: int, key: str) -> None:
    """A module of a run of counts: its load, in all and of each domain."""
    usage = widgets.client().ask(run["run"], "usage", label=selection.label)
    cells = [cell for cell in usage["usage"] if cell["step"] == step]
    cell = next((cell for cell in cells if cell["module"] == module), None)
    if cell is None:
        widgets.empty("There is no such module.", "Choose another one.")
        return
    place = sorted((other["count"] for other in cells), reverse=True).index(cell["count"]) + 1
    total = sum(other["count"] for other in cells)
    text = (
        f"{cell['name']}: {numbers.percent(cell['count'] / max(1, total))} of the choices, "
        f"{numbers.number(cell['utilisation'])} × a fair share; number {place} of {len(cells)} by load."
    )
    actions.title(f"Module {module} at step {step}", text)
    actions.own_name(run["run"], f"module:{step}.{module}", None, key)
    labels = widgets.client().ask(run["run"], "load/labels", step=step)
    if module in labels["modules"] and labels["labels"]:
        at = labels["modules"].index(module)
        rows = [
            {"domain": row["label"], "share of choices": row["counts"][at] / max(1, row["choices"])}
            for row in labels["labels"]
        ]
        rows.sort(key=lambda row: -row["share of choices"])
        plain_table(rows, "Load by domain", {"share of choices": Column("share of choices", numbers.percent)})


def _facts(answer: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    text = (
        f"{answer['name']}: {numbers.plural(answer['count'], 'token')}, {numbers.percent(answer['share'])} of all, "
        f"{numbers.number(answer['utilisation'])} × a fair share; number {answer['place']} of "
        f"{answer['num_modules']} by load."
    )
    if about.get("kind") == "identity":
        return text + " It does nothing: a token that chooses it skips the step."
    if about.get("num_params"):
        text += f" {numbers.count(about['num_params'])} parameters"
        if about.get("flops_per_token"):
            text += f", {numbers.count(about['flops_per_token'])} FLOPs a token without attention"
        text += "."
    return text


def _actions(run: Mapping[str, Any], selection: Selection, step: int, module: int) -> list[Action]:
    node, sample = f"{step}.{module}", selection.sample or 0
    found = [
        Action(
            "Filter" if node not in selection.through else "Clear filter",
            ":material/filter_alt:",
            {"through": lambda now: now.toggle_through(node).through},
            "Only tokens that pass this module, in *Routes*, *Paths* and the tokens of one sample.",
        ),
        Action("Its paths", ":material/route:", {"view": "paths", "through": (node,)}),
    ]
    ours = run.get("family") == "dna"
    if ours or common.of_huggingface(run):
        found.append(
            Action("Ban", ":material/block:", {"view": "change", "sample": sample, "controls": (f"ban:{node}",)})
        )
    if ours:
        dream = ("of:module", f"module:{module}", f"step:{step}")
        found.append(Action("Dream", ":material/bedtime:", {"view": "dream", "sample": sample, "dream": dream}))
        found.append(
            Action("Importance", ":material/leaderboard:", {"view": "importance"}, "What the loss says without it.")
        )
    return found


def _labels(rows: Sequence[Mapping[str, Any]]) -> None:
    """The labels that most of its tokens have, beside their share of all tokens."""
    st.subheader(
        "Which labels use it?", anchor=False, help="Lift: share here / share of all tokens; 1 = as everywhere."
    )
    if not rows:
        st.caption("This run has no labels that could say.")
        return
    plain_table(
        [{"label": r["label"], "here": r["share"], "of all": r["base"], "lift": r["lift"]} for r in rows],
        "Labels of the tokens of this module",
        {
            "here": Column("share here", numbers.percent, right=True),
            "of all": Column("of all tokens", numbers.percent, right=True),
            "lift": Column("lift", lambda lift: f"{numbers.number(lift)} ×", right=True),
        },
    )


def _words(run: Mapping[str, Any], step: int, module: int) -> None:
    if run["modality"] != "text":
        return
    try:
        answer = widgets.client().ask(run["run"], "specialisation", of="input", step=step, limit=256, each=MOST_WORDS)
    except ApiError:
        return
    mine = next((m for m in answer["modules"] if m["module"] == module), None)
    st.subheader(
        "Which words come here?",
        anchor=False,
        help=f"N of the token id at the module / N of the token id, of ids seen at least {answer['least']} times.",
    )
    if not mine or not mine["prefers"]:
        st.caption("No word was seen often enough to say.")
        return
    shown = [
        {
            "word": json.dumps(w["text"], ensure_ascii=False)[1:-1] if w.get("text") else f"#{w['token_id']}",
            "here": w["share"],
            "tokens": w["of"],
        }
        for w in mine["prefers"]
    ]
    words = " ".join(f"`{row['word'].replace('`', '‵')}`" for row in shown[:16])
    st.markdown(words)
    low, high = min(r["here"] for r in shown[:16]), max(r["here"] for r in shown[:16])
    span = numbers.percent(high) if low == high else f"{numbers.percent(low)} to {numbers.percent(high)}"
    st.caption(f"{span} of the tokens of each come here." if len(shown) > 1 else f"{span} of its tokens come here.")
    widgets.numbers_behind(shown, "words", here=st.column_config.NumberColumn(format="percent"))


def _neighbours(answer: Mapping[str, Any], top_k: int) -> None:
    """The modules that most of its tokens come from and go to."""
    rows = [
        {"": words, "module": f"{row['module']} at step {row['step']}", "share": row["share"]}
        for words, name in (("from", "comes_from"), ("to", "goes_to"))
        for row in answer[name]
    ]
    if not rows:
        return
    st.subheader("Where do its tokens come from, and where do they go?", anchor=False, help=widgets.HELP["flow"])
    plain_table(
        rows,
        "Modules before and after this one",
        {"share": Column("of its tokens" if top_k == 1 else "of its moves", numbers.percent, right=True)},
    )
    if top_k > 1:
        st.caption(
            f"A token that chooses {top_k} modules a step makes {top_k} × {top_k} moves; each counts for a part."
        )


def _random(run: Mapping[str, Any], selection: Selection, step: int, module: int, key: str) -> None:
    """Any of its tokens, drawn when somebody asks: of a large run that takes a second."""

    def drawn() -> None:
        found = widgets.client().ask(
            run["run"],
            "tokens/search",
            through=(f"{step}.{module}",),
            label=selection.label,
            examples=RANDOM,
            limit=1,
            seed=selection.seed,
        )
        of_tokens = found["found"]["num_tokens"]
        examples.drawn(found["examples"], f"{key}_{step}_{module}", of_tokens, selection.seed, selection.label)

    widgets.folded("Any of its tokens", f"{key}_random_{step}_{module}", drawn)


def _importance(run: Mapping[str, Any], step: int, module: int) -> None:
    """Results for the module from the newest sweep of this run."""
    sweep = _sweep(run)
    st.subheader(
        "How important is it?",
        anchor=False,
        help="What changes when nobody may choose it, from a sweep (*Importance*): KL between the answers with and "
        "without it, and the change of the loss ± one standard error.",
    )
    rows = [r for r in (sweep or {}).get("rows", []) if r["module"] == module and r["step"] in (step, None)]
    if sweep is None or not rows:
        st.caption("Not measured yet: *Experiment*, *Importance*.")
        return
    for row in rows:
        where = "Banned at every step" if row["step"] is None else f"Banned at step {step}"
        effect = f"KL of the answers {numbers.number(row.get('kl'))} nats"
        if row.get("loss_change") is not None:
            error = f" ± {numbers.number(row['loss_error'])}" if row.get("loss_error") is not None else ""
            sign = "+" if row["loss_change"] > 0 else ""
            effect += f", loss {sign}{numbers.number(row['loss_change'])}{error} nats{_of_targets(run, sweep)}"
        st.write(widgets.escape(f"{where}: {effect} ({samples_told(sweep)})."))


def _of_targets(run: Mapping[str, Any], sweep: Mapping[str, Any]) -> str:
    """What the loss is of, where not every sample has one: images of classes that the model does not know have none."""
    known = sweep.get("num_targets")
    if run["modality"] == "text" or known in (None, sweep["num_samples"]):
        return ""
    return f" over the {numbers.plural(known, 'image')} whose class the model knows"


def _sweep(run: Mapping[str, Any]) -> dict[str, Any] | None:
    job = newest_sweep(run, sweep="modules")
    try:
        return None if job is None else json.loads(widgets.client().artifact(job["job"], "importance.json"))
    except (ApiError, ValueError):
        return None
