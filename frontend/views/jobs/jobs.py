"""Jobs view: all jobs, details of one, and forms to start a trace or an import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError, NotFound
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.page import address, refusals, widgets
from tokenpaths.frontend.page.commands import command
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.dream.result import draw_result
from tokenpaths.frontend.views.jobs import import_options, panel

MOST = 100
REFRESH_SECONDS = 2.0
SETS = {
    "vision": {
        "bundled:scenes": "drawn scenes",
        "bundled:photos": "crops of two photographs",
        "bundled:pictures": "six pictures",
        "bundled:digits": "digits",
    },
    "text": {"bundled:texts": "texts", "bundled:languages": "six languages"},
}
OWN = "own"
REFUSED = "start_refusal"
"""session state: why the form above the list was refused (``refusals``), which stays open then"""


def draw(selection: Selection) -> None:
    widgets.heading(
        "Jobs", "Long jobs wait in one queue and go on after a crash or a restart. The address of a job finds it again."
    )
    if selection.job is not None:
        _chosen(selection.job)
    else:
        panel.refusal()
    # Above the list, which grows and shrinks: a button below it would move away from under the pointer. Filled later,
    # because a worker that is just starting says late which models there are.
    refused = refusals.kept(REFUSED) is not None
    form = st.expander("Trace a data set, or import a log", icon=":material/add:", expanded=refused)
    listed = widgets.client().jobs(most=MOST)
    if any(job["state"] in panel.ALIVE for job in listed["jobs"]):
        st.fragment(_list_again, run_every=REFRESH_SECONDS, key="jobs_live")(selection)
    else:
        _list(listed, selection.job)
    with form:
        _start(selection)


def _chosen(job: str) -> None:
    try:
        draw_result(panel.job_panel(job))
    except NotFound as error:
        st.warning(widgets.error_text(error), icon=":material/link_off:")


def _list_again(selection: Selection) -> None:
    if address.current() != selection:  # a button inside this fragment changed the view
        st.rerun()
    try:
        listed = widgets.client().jobs(most=MOST)
    except ApiError as error:
        widgets.show_error(error)
        return
    if not any(job["state"] in panel.ALIVE for job in listed["jobs"]):
        st.rerun()
    _list(listed, selection.job)


def _list(listed: Mapping[str, Any], chosen: str | None) -> None:
    jobs = listed["jobs"]
    alive = [job for job in jobs if job["state"] in panel.ALIVE]
    over = [job for job in jobs if job["state"] not in panel.ALIVE]
    if alive and not listed["workers"]:
        for problem in widgets.client().problems():
            st.warning(widgets.escape(problem), icon=":material/error:")
        st.warning(
            f"No worker is alive, so nothing begins. `{command('tokenpaths up')}` starts one, "
            f"`{command('tokenpaths worker')}` a further one.",
            icon=":material/person_off:",
        )
    if not jobs:
        widgets.empty("There is no job yet.", "Start one above, or in a view that offers it.")
    if alive:
        workers = numbers.plural(listed["workers"], "worker")
        st.subheader(f"{numbers.plural(len(alive), 'job')} running or waiting, {workers}", anchor=False)
        order = {"running": 0, "paused": 1, "waiting": 2}
        _rows(sorted(alive, key=lambda job: (order[job["state"]], job["place"] or 0)), chosen)
    if over:
        st.subheader(f"{len(over):,} finished", anchor=False)
        _rows(over, chosen)
    if listed["next"]:
        st.caption(f"Older jobs than these {len(jobs):,} are not listed; `{command('tokenpaths jobs')}` has them all.")


def _rows(jobs: Sequence[Mapping[str, Any]], chosen: str | None) -> None:
    for job in jobs:
        name = job["job"]
        with st.container(border=True, gap="xsmall", key=f"row_{name}"):
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                panel.state_badge(job)
                # In the colour of links: plain text does not look clickable.
                title = widgets.escape(panel.job_title(job))
                st.button(
                    title if name == chosen else f":primary[{title}]",
                    key=f"open_{name}",
                    type="tertiary",
                    disabled=name == chosen,
                    on_click=address.go_changed,
                    kwargs={"view": "jobs", "job": name},
                    help=widgets.escape(name),
                )
                st.caption(widgets.escape(_words(job)), width="content")
                if job["state"] in panel.ALIVE and name != chosen:
                    panel.buttons(job, "list")
                if name != chosen:
                    panel.open_buttons(job, "list", most=1)
            if name != chosen:
                panel.progress_bar(job)


def _words(job: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (panel.state_words(job), panel.failure_text(job))))


def _start(selection: Selection) -> None:
    """A form for a trace over a data set; dreams and detours start in their own views."""
    try:
        models = sorted(
            (model for model in widgets.client().models() if not model.get("problem")),
            key=lambda model: (model["modality"] != "vision", not model.get("shipped")),
        )
    except ApiError as error:
        widgets.show_error(error)
        return
    what = st.segmented_control("What", ["Trace", "Import"], default="Trace", key="start_what", required=True)
    if what == "Import":
        _start_import()
    elif models:
        _start_trace(models, selection)
    else:
        widgets.empty("There is no model to trace.", "Train one with `tokenpaths train`.")
    if refused := refusals.kept(REFUSED):
        widgets.show_error(refused)


def _start_trace(models: Sequence[Mapping[str, Any]], selection: Selection) -> None:
    by_name = {model["model"]: model for model in models}
    model = selection.model if selection.model in by_name else models[0]["model"]
    address.bound(st.selectbox, "model", "Model", model, list(by_name))
    sets = SETS[by_name[model]["modality"]]
    with widgets.controls():
        data = st.selectbox(
            "Data set",
            [*sets, OWN],
            key=f"start_data_{by_name[model]['modality']}",
            format_func=lambda value: "a file of mine" if value == OWN else f"{sets[value]} (bundled)",
        )
        limit = st.number_input("Maximum number of samples", value=200, step=1, key="start_limit")
    split = ""
    if data == OWN:
        data = _inbox_name("Name of the file or folder", "start_file")
        help = "Of a data set that has several, such as test. Otherwise leave it empty."
        split = str(st.text_input("Split", key="start_split", help=help) or "")

    request = {"model": model, "data": data or "", "limit": int(limit)} | ({"split": split} if split else {})
    panel.start_button("Trace it", "trace", request, key="start_trace", refused=REFUSED, type="primary")


def _start_import() -> None:
    file = _inbox_name("Name of the log", "start_log")
    request = {"file": file or ""} | import_options.draw("start_import")
    panel.start_button("Import it", "import", request, key="start_import", refused=REFUSED, type="primary")


def _inbox_name(label: str, key: str) -> str:
    return str(st.text_input(label, key=key, help="Put it into the folder `inbox` of the data folder first.") or "")
