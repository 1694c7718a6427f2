"""What the user says of a log that it does not say itself: the options of `tokenpaths import`, folded."""

from __future__ import annotations

import re
from typing import Any

import streamlit as st

SIZES = {
    "layers": ("Layers", "Routed layers, where the log holds flat ids."),
    "top_k": ("Experts a token (top-k)", "num_experts_per_tok of the model, at each layer, where the log is flat."),
    "experts": ("Experts a layer", "All that a router chooses from. Otherwise the largest id in the log counts."),
    "sequences": ("Sequences in a forward pass", "Where the tokens of several alternate in one pass."),
}
NAMES = {
    "model": ("Name of the model", "Otherwise as the log says."),
    "tokenizer": ("Tokenizer", "Name of a folder with tokenizer.json in `inbox`; shows tokens as text."),
    "map": ("Column map", "Name of a TOML file in `inbox`, for a table that no format fits."),
    "series": ("Training", "Name of the training that the log is a checkpoint of."),
}
SWITCHES = {
    "skip_bad": ("Leave out what cannot be read", "It is counted, and the reasons are noted."),
    "although": ("Import even if an artefact makes numbers false", "The artefact stands on every view of the run."),
}

OPTION = re.compile(r"--([a-z][a-z-]*)")
WIDTH = 210
"""of a field, in pixels: one beside the other as there is room"""


def draw(key: str, field: str | None = None) -> dict[str, Any]:
    """Draw the options; returns those that were given, as a request of an import job has them. No field has bounds: the
    browser would keep what is beyond them to itself, and the job would not have it.

    Args:
        key: Beginning of the Streamlit keys.
        field: What an import that failed asked for; the options stand open for it.
    """
    given: dict[str, Any] = {}
    asked = field in (*SIZES, *NAMES, "at", *SWITCHES)
    with st.expander("What the log does not say", expanded=asked):
        with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
            for name, (label, words) in SIZES.items():
                given[name] = st.number_input(label, value=None, step=1, key=f"{key}_{name}", help=words, width=WIDTH)
            for name, (label, words) in NAMES.items():
                text = st.text_input(label, key=f"{key}_{name}", help=words, width=WIDTH)
                given[name] = (text or "").strip() or None
            help = "Of that training."
            given["at"] = st.number_input("Iteration", value=None, step=1, key=f"{key}_at", help=help, width=WIDTH)
        for name, (label, words) in SWITCHES.items():
            given[name] = st.checkbox(label, key=f"{key}_{name}", help=words) or None
    return {name: value for name, value in given.items() if value is not None}


def with_labels(text: str) -> str:
    """A sentence of the engine with the fields of this form instead of options of the command line."""
    fields = SIZES | NAMES | SWITCHES

    def label(option: re.Match[str]) -> str:
        name = option[1].replace("-", "_")
        return f"“{fields[name][0]}”" if name in fields else option[0]

    return OPTION.sub(label, text)
