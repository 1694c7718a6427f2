"""How good is the model beside others of the same recipe? From the validation numbers that a run carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.page.tables import Column, plain_table

COLUMNS = {"params": "parameters", "loss": "loss (nats)", "perplexity": "perplexity", "accuracy": "accuracy"}


def twin_rows(beside: Mapping[str, Mapping[str, Any]], own: str) -> list[dict[str, Any]]:
    """One row a model, this one first; only numbers that are known."""
    names = sorted(beside, key=lambda name: name != own)
    return [
        {"model": name + (" (this one)" if name == own else "")}
        | {key: beside[name][key] for key in COLUMNS if beside[name].get(key) is not None}
        for name in names
    ]


def draw(run: Mapping[str, Any]) -> None:
    """The table with its question; nothing where nothing was measured."""
    beside = (run["findings"].get("validation") or {}).get("beside")
    if not beside:
        return
    st.header(
        "How good is it beside its twins?",
        anchor=False,
        help="Models trained by the same recipe on the same batches, measured on the same held-out texts. Loss: mean "
        "cross-entropy of the next token. Perplexity = exp(loss). Accuracy: share of next tokens guessed right.",
    )
    written = {
        "params": numbers.count,
        "loss": "{:.3f}".format,
        "perplexity": "{:.1f}".format,
        "accuracy": numbers.percent,
    }
    plain_table(
        twin_rows(beside, str(run["model"])),
        "The model beside its twins",
        {name: Column(COLUMNS[name], write) for name, write in written.items()},
    )
