"""Examples of the thing in the inspector: the strongest first, then any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.thing_names import token_nouns
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.views.walls import token_wall

NOTHING = "This run keeps neither pictures nor texts to show."


def strongest(run: Mapping[str, Any], answer: Mapping[str, Any], key: str, by: str) -> None:
    """The strongest examples of an answer of ``modules/{node}`` or ``paths/{rank}``; ``by`` says what makes them so."""
    _, what = token_nouns(run)
    reason, compared = answer["strongest_reason"], answer["compared"]
    among = ""
    if not compared["exact"]:
        among = (
            f" among {numbers.count(compared['num_tokens'])} drawn of its {numbers.count(compared['of_tokens'])} tokens"
        )
    st.subheader(f"Strongest {what}" if reason is None else f"Example {what}", anchor=False)
    st.caption(widgets.escape(reason or f"Those with {by}{among}."))
    if answer["strongest"]:
        token_wall(answer["strongest"], f"{key}_strongest")
    else:
        st.caption(NOTHING)


def drawn(examples: list[dict[str, Any]], key: str, of_tokens: int, seed: int, label: str | None = None) -> None:
    """Examples drawn at random from ``of_tokens``, those with the ``label``, and a button that draws others."""
    if not examples:
        none = f"None of its tokens has the label {label}." if label is not None and not of_tokens else NOTHING
        st.caption(widgets.escape(none))
        return
    token_wall(examples, key)
    st.button(
        "Show other examples",
        key=f"{key}_redraw",
        icon=":material/casino:",
        type="tertiary",
        on_click=address.go_changed,
        kwargs={"seed": seed + 1},
        disabled=of_tokens <= len(examples),
    )
