"""What is each module good for? A sweep as a job: every module banned in turn, or the busiest share of each step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from frontend import address, look
from frontend.charts import numbers
from frontend.charts.effects import CELL_PICK, MEASURES, importance_chart, share_chart
from frontend.client import ApiError, NotFound
from frontend.selection import Selection
from frontend.views import job_panel
from frontend.views.detour_edits import added

HELP = (
    "Each module is banned in turn, at each step by itself and at every step, and all samples are run again. "
    "± one standard error of the change, outputs taken as independent."
)
WORDS = {"modules": "each module in turn", "shares": "the busiest share of each step"}
SAMPLES = (32, 64, 128, 256)
FEW_ANSWERS = 30
"""right answers below which a change of loss is noise: the change of the answers is shown in its place"""


def draw(run: Mapping[str, Any], kinds: Sequence[str], selection: Selection) -> None:
    st.header("What is each module good for?", anchor=False, help=HELP)
    if "ban" not in kinds:
        return
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="sweep_fields"):
        sweep = st.segmented_control(
            "Ban", ["modules", "shares"], default="modules", key="sweep_kind", required=True,
            format_func=lambda kind: WORDS[kind],
        )  # fmt: skip
        limit = st.select_slider("Samples of this run", SAMPLES, 64, key="sweep_samples")
        request = {"model": run["model"], "run": run["run"], "sweep": sweep, "limit": limit}
        st.button(
            "Measure it", key="sweep_start", icon=":material/play_arrow:",
            on_click=job_panel.submit, args=("reroute", request),
        )  # fmt: skip
    job = _sweep_of(run, selection)
    if job is None:
        job_panel.refusal()
        st.caption("Nobody has measured this run yet. It takes minutes; the page may be closed meanwhile.")
        return
    if selection.job == job["job"]:
        job = job_panel.job_panel(job["job"], key="sweep")
    if "importance.json" not in job["artifacts"]:
        return
    found = json.loads(look.client().artifact(job["job"], "importance.json"))
    _sweep_charts(found, selection)


def _sweep_of(run: Mapping[str, Any], selection: Selection) -> dict[str, Any] | None:
    """The sweep of the address, else the newest one of this model and run."""
    if selection.job is not None:
        try:
            job = look.client().job(selection.job)
        except NotFound as error:
            look.sentence(error)
            return None
        if job["kind"] == "reroute" and job["request"].get("sweep"):
            return job
        _not_a_sweep(job)
    try:
        jobs = look.client().jobs(kind="reroute", most=50)["jobs"]
    except ApiError:
        return None
    mine = [
        job for job in jobs
        if job["request"].get("sweep") and job["request"]["model"] == run["model"]
        and (job["request"].get("run") == run["run"]) and "importance.json" in job["artifacts"]
    ]  # fmt: skip
    return mine[0] if mine else None


def _not_a_sweep(job: Mapping[str, Any]) -> None:
    """A job that this view has no place for is left alone, and said to be."""
    st.info(
        look.plain(f"The job of this address ({job_panel.job_title(job)}) is no sweep over modules, so it is not shown "
                   "here."), icon=":material/link_off:",
    )  # fmt: skip
    st.button("Look at it in Jobs", key="sweep_other_job", on_click=address.go_changed,
              kwargs={"view": "jobs", "job": job["job"]})  # fmt: skip


def _sweep_charts(found: Mapping[str, Any], selection: Selection) -> None:
    table = found["rows"]
    told = f"{numbers.plural(found['num_samples'], 'sample')} of {found.get('data', 'the run')}"
    if found.get("num_targets") is not None and found["num_targets"] < found["num_samples"]:
        told += f", {numbers.count(found['num_targets'])} of them with a label that the model knows"
    if len(table) < found["rows_in_all"]:
        told += f"; {len(table)} of {found['rows_in_all']} rows so far"
    known = found["num_targets"] if found.get("num_targets") is not None else found["num_samples"]
    losses = known >= FEW_ANSWERS and any(row.get("loss_change") is not None for row in table)
    if found["sweep"] == "shares":
        st.caption(look.plain(told + "."))
        measure = "loss_change" if losses else "kl"
        look.chart(share_chart(table, measure=measure, theme=look.theme(), title=None))
    else:
        measure = st.segmented_control(
            "Show", [name for name in MEASURES if losses or name != "loss_change"],
            default="loss_change" if losses else "kl", format_func=lambda name: MEASURES[name][0], key="sweep_measure",
            required=True,
        )  # fmt: skip
        st.caption(look.plain(f"{told}. {MEASURES[str(measure)][1]} Click a cell to ban that module above."))
        look.chart(
            importance_chart(table, measure=str(measure), theme=look.theme(), title=None),
            key=f"importance_{found['model']}_{len(table)}_{measure}",
            on_pick=lambda _name, node: address.go_changed(controls=added(address.current().controls, f"ban:{node}")),
            pick=(CELL_PICK,),
        )
    look.numbers_behind(table, "every row of the sweep")
