"""Module importance sweeps as jobs: every module banned in turn, or the most used share of each step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError, NotFound
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.effects import (
    CELL_PICK,
    EVERY,
    MEASURES,
    importance_chart,
    importance_words,
    share_chart,
)
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.jobs import alive, panel

QUESTION = "How important is each module?"
HELP = (
    "Each module is banned in turn, at each step by itself and at every step, and all samples are run again. "
    "± one standard error of the change over samples."
)
EXPERTS_HELP = (
    "Each expert of each layer is banned in turn: the layer's gate chooses among those that are left, and all texts "
    "are run again. ± one standard error of the change over samples."
)
TABLE = "importance.json"
WORDS = {"modules": "each module in turn", "shares": "the busiest share of each step"}
EXPERTS_WORDS = {"modules": "each expert in turn", "shares": "the busiest share of each layer"}
SAMPLES = (32, 64, 128, 256)
FEW_ANSWERS = 30
"""with fewer correct answers, changes in loss are noise: the change of the answers is shown instead"""


def heading(run: Mapping[str, Any]) -> None:
    """The heading of the view, also above what says why nothing can be measured."""
    st.header(QUESTION, anchor=False, help=EXPERTS_HELP if run["family"] == "moe" else HELP)


def draw(run: Mapping[str, Any], selection: Selection, model: Mapping[str, Any]) -> None:
    """The form that starts a sweep of this run, and its heat map; ``model`` is the API's description of its model."""
    of_experts = model["family"] == "moe"
    words = EXPERTS_WORDS if of_experts else WORDS
    name = model["model"]
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="sweep_fields"):
        sweep = st.segmented_control(
            "Ban",
            ["modules", "shares"],
            default="modules",
            key="sweep_kind",
            required=True,
            format_func=lambda kind: words[kind],
        )
        offered = sample_counts(int(run["num_samples"]))
        chosen = min(offered, key=lambda many: abs(many - 64))
        # By run: the choice for a larger one may be none of these.
        limit = st.select_slider(
            "Samples of this run", offered, chosen, key=f"sweep_samples_{run['run']}", disabled=len(offered) < 2
        )
        request = {"model": name, "run": run["run"], "sweep": sweep, "limit": limit}
        panel.start_button("Measure it", "reroute", request, key="sweep_start")
    if of_experts:
        st.caption(widgets.escape(_how_many(model, str(sweep), limit)))
    shown, of = alive.at_hand(sweeps_of(run, model=name), _named(selection), TABLE)
    if shown is not None:
        now = panel.job_panel(shown["job"], key="sweep")
        of = now if TABLE in now["artifacts"] else of
    else:
        panel.refusal()
        if of is None:
            st.caption("Nobody has measured this run yet. It takes minutes; the page may be closed meanwhile.")
    if of is None:
        return
    alive.say_others(shown, of)
    table = json.loads(widgets.client().artifact(of["job"], TABLE))
    alive.say_partial(of, len(table["rows"]), table["rows_in_all"], "edits")
    _sweep_charts(table, selection)


def sample_counts(there: int) -> list[int]:
    """How many samples of a run of so many are offered.

    >>> sample_counts(6), sample_counts(100), sample_counts(5000)
    ([6], [32, 64, 100], [32, 64, 128, 256])
    """
    return [many for many in SAMPLES if many < there] + ([there] if there <= SAMPLES[-1] else [])


def _how_many(model: Mapping[str, Any], sweep: str, limit: int) -> str:
    """Number of measurements of a sweep over experts (layers × experts), shown before it is started."""
    steps, modules = model["num_steps"], model["num_modules"]
    over = f"each measured over at most {numbers.count(limit)} texts of this run"
    if steps is None or modules is None:
        return f"The experts of {model['model']}, {over}."
    what = f"{numbers.plural(steps, 'layer')} with {numbers.plural(modules, 'expert')} each"
    if sweep == "shares":
        return f"{what}: the busiest, the idlest and random shares of each layer banned, {over}."
    return f"{what}: {numbers.count(steps * modules)} bans, {over}."


def _named(selection: Selection) -> dict[str, Any] | None:
    """The sweep in the URL; None, with a message unless the URL names none, if it is gone or no sweep."""
    if selection.job is None:
        return None
    try:
        job = widgets.client().job(selection.job)
    except NotFound as error:
        st.warning(widgets.error_text(error), icon=":material/link_off:")
        return None
    if job["kind"] == "reroute" and job["request"].get("sweep"):
        return job
    _not_a_sweep(job)
    return None


def sweeps_of(run: Mapping[str, Any], **wanted: str) -> list[dict[str, Any]]:
    """The sweeps of a run that were requested with these values, newest first."""
    try:
        jobs = widgets.client().jobs(kind="reroute", most=50)["jobs"]
    except ApiError:
        return []
    wanted["run"] = run["run"]
    return [
        job
        for job in jobs
        if job["request"].get("sweep") and all(job["request"].get(name) == value for name, value in wanted.items())
    ]


def newest_sweep(run: Mapping[str, Any], **wanted: str) -> Mapping[str, Any] | None:
    """The newest sweep of a run that was requested with these values and has results."""
    return alive.with_results(sweeps_of(run, **wanted), TABLE)


def _not_a_sweep(job: Mapping[str, Any]) -> None:
    """Show a message for a job of another kind and leave it alone."""
    st.info(
        widgets.escape(
            f"The job of this address ({panel.job_title(job)}) is no sweep over modules, so it is not shown here."
        ),
        icon=":material/link_off:",
    )
    st.button(
        "Look at it in Jobs",
        key="sweep_other_job",
        on_click=address.go_changed,
        kwargs={"view": "jobs", "job": job["job"]},
    )


def samples_told(found: Mapping[str, Any]) -> str:
    """Number of samples of a sweep: “5 samples”, or “64 of 300 samples” if they are drawn from a run."""
    num, of = found["num_samples"], found.get("of_samples")
    return numbers.plural(num, "sample") if of in (None, num) else f"{num:,} of {numbers.plural(of, 'sample')}"


def opened_by(node: str, table: Sequence[Mapping[str, Any]], measure: str) -> str:
    """``step.module`` that a cell of the heat map opens; of “every step”, the step where ``measure`` is highest."""
    step, module = node.split(".")
    if step != EVERY:
        return node
    alone = [row for row in table if str(row.get("module")) == module and row["step"] is not None]
    known = [row for row in alone if row.get(measure) is not None]
    return f"{max(known, key=lambda row: row[measure])['step'] if known else 0}.{module}"


def _sweep_charts(found: Mapping[str, Any], selection: Selection) -> None:
    table = found["rows"]
    caption = f"{samples_told(found)} of {found.get('data', 'the run')}"
    if found.get("num_targets") is not None and found["num_targets"] < found["num_samples"]:
        caption += f", {numbers.count(found['num_targets'])} of them with a label that the model knows"
    answers = found["num_targets"] if found.get("num_targets") is not None else found["num_samples"]
    losses = answers >= FEW_ANSWERS and any(row.get("loss_change") is not None for row in table)
    if found["sweep"] == "shares":
        st.caption(widgets.escape(caption + "."))
        measure = "loss_change" if losses else "kl"
        widgets.chart(share_chart(table, measure=measure, theme=widgets.theme(), title=None), about=samples_told(found))
    else:
        offered = [name for name in MEASURES if losses or name != "loss_change"]
        measure = selection.effect if selection.effect in offered else offered[0]
        address.bound(
            st.segmented_control, "effect", "Show", measure, offered, format_func=lambda name: MEASURES[name][0]
        )
        click = "Click a cell to look into that module"
        if any(row.get("module") is not None and row["step"] is None for row in table):
            click += "; of the last column, at the step where the chosen number is highest"
        st.caption(widgets.escape(f"{caption}. {MEASURES[measure][1]} {click}."))
        if words := importance_words(table, measure):
            widgets.verdict(words)
        widgets.chart(
            importance_chart(table, measure=measure, theme=widgets.theme(), title=None),
            key=f"importance_{found['model']}_{len(table)}_{measure}",
            on_pick=lambda _name, node: address.go_changed(inspect=f"module:{opened_by(node, table, measure)}"),
            pick=(CELL_PICK,),
            about=samples_told(found),
        )
    widgets.numbers_behind(table, "every row of the sweep")
