"""Inspector of one module at one step: examples, labels, words, neighbours, parameters, importance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.flow.flow import flow_chart
from tokenpaths.frontend.charts.usage import served_chart
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.detour.sweep import newest_sweep, samples_told
from tokenpaths.frontend.views.inspector import actions
from tokenpaths.frontend.views.inspector.actions import Action
from tokenpaths.frontend.views.walls import token_wall

MOST_WORDS = 24
EXAMPLES = 24


def draw(run: Mapping[str, Any], selection: Selection, value: str, key: str) -> None:
    """One module at one step, ``value`` = ``step.module``."""
    step, module = (int(part) for part in value.split("."))
    usage = widgets.client().ask(run["run"], "usage", label=selection.label)
    row = next((r for r in usage["usage"] if (r["step"], r["module"]) == (step, module)), None)
    if row is None:
        widgets.empty(
            f"There is no module {module} at step {step}.", f"This run has the steps 0 to {run['num_steps'] - 1}."
        )
        return
    about: Mapping[str, Any] = next(
        (m for m in run["modules"] if m["module"] == module and m["step"] in (None, step)), {}
    )
    name = about.get("name") or f"module {module}"
    actions.title(f"Module {module} at step {step}", _facts(row, about, name))
    actions.buttons(_actions(run, selection, step, module), key, selection)
    if not row["count"]:
        widgets.empty("No token came here.", "Choose another module, or clear the label.")
        return
    _examples(run, selection, step, module, key)
    _labels(run, selection, usage, step, module)
    _words(run, step, module)
    _neighbours(run, selection, step, module)
    _other_steps(run, usage, step, module)
    _importance(run, step, module)


def _facts(row: Mapping[str, Any], about: Mapping[str, Any], name: str) -> str:
    times = "" if row.get("utilisation") is None else f", {numbers.number(row['utilisation'])} × a fair share"
    text = f"{name}: {numbers.plural(row['count'], 'token')}{times}."
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
    through = selection.toggle_through(node).through
    found = [
        Action(
            "Filter" if node not in selection.through else "Clear filter",
            ":material/filter_alt:",
            {"through": through},
            "Only tokens that pass this module, in every view.",
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
    return found


def _labels(run: Mapping[str, Any], selection: Selection, usage: Mapping[str, Any], step: int, module: int) -> None:
    """All labels regardless of the filter, to show which of them prefer this module."""
    st.subheader(
        "Which labels use it?",
        anchor=False,
        help="N of a label at the module / N of the label. Dashed: the share of all tokens that visit it.",
    )
    if not any(row["label"] is not None for row in run["labels"]):
        st.caption("This run has no labels that could say.")
        return
    answer = widgets.client().ask(run["run"], "specialisation", of="label", step=step, limit=256)
    mine = next((m for m in answer["modules"] if m["module"] == module), None)
    if not mine or not mine["prefers"]:
        st.caption(f"It is not among the {len(answer['modules'])} modules of this step that labels tell most of.")
        return
    everybody = usage if selection.label is None else widgets.client().ask(run["run"], "usage")
    visits = next(r["count"] for r in everybody["usage"] if (r["step"], r["module"]) == (step, module))
    widgets.chart(
        served_chart(mine["prefers"], visits / max(1, int(run["num_tokens"])), theme=widgets.theme(), title=None)
    )
    if answer.get("more_labels"):
        more = numbers.count(answer["more_labels"])
        st.caption(f"The {len(answer['domains'])} largest labels; {more} more are left out.")
    widgets.numbers_behind(mine["prefers"], "labels", share=st.column_config.NumberColumn(format="percent"))


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
    st.caption(f"{span} of the tokens of each come here.")
    widgets.numbers_behind(shown, "words", here=st.column_config.NumberColumn(format="percent"))


def _neighbours(run: Mapping[str, Any], selection: Selection, step: int, module: int) -> None:
    st.subheader("Where do its tokens come from, and where do they go?", anchor=False, help=widgets.HELP["flow"])
    first, stop = max(0, step - 1), min(int(run["num_steps"]), step + 2)
    if stop - first < 2:
        st.caption("This run has a single step.")
        return
    node = f"{step}.{module}"
    flow = widgets.client().ask(
        run["run"],
        "flow",
        steps=f"{first}:{stop}",
        through=(node,),
        label=selection.label,
        limit=300,
        **common.merging(run, selection),
    )
    widgets.chart(flow_chart(flow, theme=widgets.theme(), title=None, through=(node,), interactive=False))


def _examples(run: Mapping[str, Any], selection: Selection, step: int, module: int, key: str) -> None:
    """A random draw of its patches, or of its tokens in context."""
    answer = widgets.client().ask(
        run["run"],
        "tokens/search",
        through=(f"{step}.{module}",),
        label=selection.label,
        examples=EXAMPLES,
        limit=1,
        seed=selection.seed,
    )
    st.subheader("Example patches" if run["modality"] == "vision" else "Example tokens", anchor=False)
    if not answer["examples"]:
        st.caption("This run keeps neither pictures nor texts to show.")
        return
    token_wall(answer["examples"], f"{key}_{step}_{module}")
    st.button(
        "Show other examples",
        key=f"{key}_redraw",
        icon=":material/casino:",
        type="tertiary",
        on_click=address.go_changed,
        kwargs={"seed": selection.seed + 1},
        disabled=answer["found"]["num_tokens"] <= len(answer["examples"]),
    )


def _other_steps(run: Mapping[str, Any], usage: Mapping[str, Any], step: int, module: int) -> None:
    if all(m["step"] is not None for m in run["modules"]):
        return  # its own module at each step
    rows = [r for r in usage["usage"] if r["module"] == module and r["step"] != step]
    if rows:
        counts = ", ".join(f"step {r['step']}: {numbers.count(r['count'])}" for r in rows[:24])
        st.caption(f"The same module at other steps, in tokens: {counts}{' …' if len(rows) > 24 else ''}.")


def _importance(run: Mapping[str, Any], step: int, module: int) -> None:
    """Results for the module from the newest sweep of this run."""
    sweep = _sweep(run)
    st.subheader(
        "How important is it?",
        anchor=False,
        help="Change of the loss when nobody may choose it, ± one standard error, from a sweep (*Importance*).",
    )
    rows = [r for r in (sweep or {}).get("rows", []) if r["module"] == module and r["step"] in (step, None)]
    if sweep is None or not rows:
        st.caption("Not measured yet: *Experiment*, *Importance*.")
        return
    for row in rows:
        where = "Banned at every step" if row["step"] is None else f"Banned at step {step}"
        if row.get("loss_change") is not None:
            error = f" ± {numbers.number(row['loss_error'])}" if row.get("loss_error") is not None else ""
            sign = "+" if row["loss_change"] > 0 else ""
            effect = f"loss {sign}{numbers.number(row['loss_change'])}{error} nats"
        else:
            effect = f"KL of the answers {numbers.number(row.get('kl'))} nats"
        st.write(widgets.escape(f"{where}: {effect} ({samples_told(sweep)})."))


def _sweep(run: Mapping[str, Any]) -> dict[str, Any] | None:
    job = newest_sweep(run, sweep="modules")
    try:
        return None if job is None else json.loads(widgets.client().artifact(job["job"], "importance.json"))
    except (ApiError, ValueError):
        return None
