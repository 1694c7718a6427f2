"""RayTracing: one picture run again with the relaxation cut short at every threshold step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.families.light_costs import sharpening_chart
from tokenpaths.frontend.page import widgets

KEPT = "sharpened"
"""session state: {(run, sample): rows}, of the last picture only"""
HELP = (
    "The picture as the run keeps it is run again with the relaxation cut short after 1, 2, 3 … threshold steps: what "
    "has reached the output by then is read."
)


def draw(run: Mapping[str, Any], sample: Mapping[str, Any], names: Sequence[str], last: int, step: int) -> None:
    """A button that asks for it, then the chart."""
    st.subheader("How does the prediction sharpen?", anchor=False, help=HELP)
    of = (run["run"], sample["sample"])
    table = st.session_state.get(KEPT, {}).get(of)
    if table is None:
        asked = st.button(f"Ask at each of {last + 1} thresholds", icon=":material/bolt:", key="sharpen")
        st.caption("A run keeps what the output said when it fired. This reads it earlier: the picture is run again.")
        if not asked or not (table := asked_at_every_step(run, sample, names, last)):
            return
        st.session_state[KEPT] = {of: table}
        st.rerun()
    widgets.chart(sharpening_chart(table, step=step, theme=widgets.theme(), title=None))
    st.caption(widgets.plain(sharpening_words(table, sample)))
    widgets.numbers_behind(table, "prediction by threshold step")


def asked_at_every_step(
    run: Mapping[str, Any], sample: Mapping[str, Any], names: Sequence[str], last: int
) -> list[dict[str, Any]]:
    """One trace a step, deleted again; empty, and a sentence on the page, if the model cannot be run."""
    client, table = widgets.client(), []
    picture = client.image(run["run"], sample["sample"])
    bar = st.progress(0.0, text="Running it again …")
    try:
        for step in range(last + 1):
            made = client.trace(run["model"], image=("sample.png", picture), controls={"theta_steps": step + 1})
            said = client.sample(made["run"], 0)
            with suppress(ApiError):  # somebody else deleted it
                client.delete(made["run"])
            table.append(
                {
                    "step": step,
                    "theta": names[step],
                    "prediction": said.get("prediction") or "–",
                    "confidence": said.get("confidence"),
                    "verdict": _verdict(said.get("prediction"), sample),
                }
            )
            bar.progress((step + 1) / (last + 1), text="Running it again …")
    except ApiError as error:
        widgets.sentence(error)
        return []
    finally:
        bar.empty()
    return table


def _verdict(prediction: str | None, sample: Mapping[str, Any]) -> str:
    if sample.get("label") is None or sample.get("loss") is None:
        return "unknown"
    return "right" if prediction == sample["label"] else "wrong"


def sharpening_words(table: Sequence[Mapping[str, Any]], sample: Mapping[str, Any]) -> str:
    """From when on the prediction stays, and whether the run said the same at its end."""
    final = table[-1]["prediction"]
    since = next(row for i, row in enumerate(table) if all(later["prediction"] == final for later in table[i:]))
    words = f"From {since['theta']} (step {since['step']}) on it says “{final}”. Circle: right; cross: wrong."
    if sample.get("prediction") and final != sample["prediction"]:
        words += f" In the run it said “{sample['prediction']}”; the stored picture is not quite what the model saw."
    return words
