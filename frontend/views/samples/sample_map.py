"""Map of the samples in two dimensions: PCA at once and t-SNE as a job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError, NotFound, Refused
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.sample_map import (
    SAMPLE_PICK,
    SHAPES,
    map_rows,
    map_words,
    nearest_words,
    sample_map_chart,
)
from tokenpaths.frontend.page import address, at_click, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.jobs import alive, panel
from tokenpaths.frontend.views.own_names import own_names

MOST = 1000
QUESTION = {"limit": MOST, "thumbnails": True}
PERPLEXITY = 30.0
MAP = "map.json"
HELP = (
    "A sample is a point in the space of its path profile: √p, p the share of its choices that went to each module at "
    "each step, so that a distance is a Hellinger distance. PCA: the plane in which the points differ most. t-SNE: "
    "neighbours stay near each other, whatever that does to distances."
)


def draw(run: Mapping[str, Any], selection: Selection) -> None:
    """The map of all samples of the run."""
    named = _job_of(run, selection)
    job: Mapping[str, Any] | None = named
    of: Mapping[str, Any] | None = named
    if named is None and selection.plane is None and not address.embedded():
        job, of = alive.at_hand(_maps_of(run), None, MAP)
    try:
        answer = widgets.client().ask(run["run"], "map", **QUESTION)
    except Refused as error:
        widgets.heading("Which samples take similar routes?", "")
        common.say_nothing_here(error, "Choose a run of more samples.")
        return
    made = _made(of)
    st.header("Which samples take similar routes?", anchor=False, help=HELP)
    if job is not None and (made is None or job is not of):
        job = panel.job_panel(str(job["job"]), key="map_job")
        made = _made(job) or made  # it may have ended while the map by PCA was asked for
    shown = made or answer
    st.caption(widgets.escape(("t-SNE. " if made else "PCA. ") + map_words(shown)))
    if words := nearest_words(shown):
        widgets.verdict(words)
    inspected = (selection.inspect or "").partition("sample:")[2]
    marked = int(inspected) if inspected else None
    widgets.chart(
        sample_map_chart(
            shown, theme=widgets.theme(), chosen=selection.label, sample=marked, names=own_names(run["run"]), title=None
        ),
        key=f"map_{run['run']}_{shown['method']}_{selection.label}_{marked}_{of and of['job']}",
        on_pick=lambda _name, number: address.go_changed(inspect=f"sample:{int(number)}"),
        pick=(SAMPLE_PICK,),
        about="t-SNE" if made else "PCA",
        filters=("labels",),
    )
    labels = {row["label"] for row in run["labels"] if row["label"] is not None}
    words = "Click a point to look into its sample."
    if len(labels) > len(SHAPES) and selection.label is None:
        words += f" Choose one of the {numbers.count(len(labels))} labels above to see where it lies."
    elif not labels:
        words += " This run has no labels."
    st.caption(words)
    common.note_not_independent(run)
    _buttons(run, selection, job, made)
    widgets.numbers_behind(map_rows(shown), "samples on the map")


def _job_of(run: Mapping[str, Any], selection: Selection) -> dict[str, Any] | None:
    """The map job in the URL, if it belongs to this run."""
    if selection.job is None:
        return None
    try:
        job = widgets.client().job(selection.job)
    except NotFound:
        st.caption(f"The job {selection.job} is gone; shown is PCA.")
        return None
    if job["kind"] != "map" or job["request"].get("run") != run["run"]:
        return None
    return job


def _request(run: Mapping[str, Any]) -> dict[str, Any]:
    """The map by t-SNE that this page would ask for."""
    num = min(int(run["num_samples"]), MOST)
    return {"run": run["run"], "perplexity": round(max(2.0, min(PERPLEXITY, (num - 1) / 3)), 1), "limit": max(4, num)}


def _maps_of(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Jobs that make such a map or have made it, newest first."""
    try:
        jobs = widgets.client().jobs(kind="map", most=alive.MOST)["jobs"]
    except ApiError:
        return []
    wanted = _request(run)
    return [job for job in jobs if alive.asks_the_same(job["request"], wanted)]


def _made(job: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The map made by a job; None until there is one."""
    if job is None or job["state"] != "succeeded":
        return None
    try:
        made: dict[str, Any] = json.loads(widgets.client().artifact(str(job["job"]), MAP))
    except (ApiError, ValueError):
        return None
    return made


@address.unless_embedded
def _buttons(
    run: Mapping[str, Any], selection: Selection, job: Mapping[str, Any] | None, made: Mapping[str, Any] | None
) -> None:
    panel.refusal()
    shown = min(int(run["num_samples"]), MOST)
    with st.container(horizontal=True, gap="small"):
        if made is not None:
            st.button("Show PCA", key="map_pca", on_click=address.go_changed, kwargs={"job": None, "plane": "pca"})
        elif selection.plane == "pca" and alive.with_results(_maps_of(run), MAP):
            st.button("Show t-SNE", key="map_made", on_click=address.go_changed, kwargs={"job": None, "plane": None})
        elif job is None and shown >= 4:
            at_click.button(
                "Draw it by t-SNE",
                lambda: panel.submit("map", _request(run)),
                key="map_tsne",
                icon=":material/scatter_plot:",
                help="Keeps neighbours together and parts clusters. A job of seconds to minutes; this page shows it "
                "when it is done.",
            )
