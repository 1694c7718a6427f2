"""The curve of the training of a run's model, from what its checkpoint keeps; sections ``(run, selection)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts import training_curve
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common


def _model(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """The checkpoint of the run's model, which keeps its training; empty where there is no such model here, and with a
    caption where it cannot be read now."""
    if common.is_untrained(run) or common.of_huggingface(run):
        return {}
    try:
        model: Mapping[str, Any] = widgets.client().model(common.model_name(run))
        return model
    except ApiError as error:
        if error.status != 404:  # else an import, a recording, or a model that lies elsewhere
            st.caption(f"How this model was trained cannot be read now. {widgets.error_text(error)}")
        return {}


def curve(run: Mapping[str, Any], selection: Selection) -> None:
    """Loss over training; nothing for models that keep none."""
    del selection
    model = _model(run)
    kept = training_curve.history_of(model)
    words = training_curve.curve_words(kept)
    if not words:
        return
    st.subheader("How was this model trained?", anchor=False)
    widgets.verdict(words)
    name = training_curve.training_loss_name(model)
    widgets.chart(training_curve.training_curve_chart(kept, training=name, theme=widgets.theme(), title=None))
    altered = name.removeprefix(training_curve.TRAINING)
    st.caption(
        "As it was logged while the model was trained: one training, no interval. The training loss is that of one "
        f"batch{altered}{', which raises it' if altered else ''}."
    )
    widgets.numbers_behind(kept, "training")


def phases(run: Mapping[str, Any], selection: Selection) -> None:
    """Perplexity by phase of a DiPaCo's training; nothing for models that keep none."""
    del selection
    kept = training_curve.history_of(_model(run))
    words = training_curve.phase_words(kept)
    if not words:
        return
    st.subheader("How did perplexity fall, phase by phase?", anchor=False, help=widgets.HELP["phases"])
    widgets.verdict(words)
    widgets.chart(training_curve.phase_chart(kept, theme=widgets.theme(), title=None))
    st.caption(
        "A phase ends with an outer step, which moves what paths share. Measured on documents held back for stopping, "
        "each read by its own path; one training, no interval."
    )
    widgets.numbers_behind(training_curve.phase_rows(kept), "phases")
