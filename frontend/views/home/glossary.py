"""Glossary of Home: the words of the page, each with a sentence, and the formulas of its numbers."""

from __future__ import annotations

import streamlit as st

from tokenpaths.frontend.formulas import HELP

WORDS = {
    "Token, patch": "One position of a sample: a piece of a text, or a square of an image; what is routed.",
    "Step": "One routing decision in the life of a token, counted from 0.",
    "Module": "What a router chooses from; papers also say expert, block or layer.",
    "Router": "The small part of a network that scores the modules and picks those that a token visits.",
    "Top-k": "How many modules a token visits at each step.",
    "Path": "The modules that a token visited, step by step. With several modules a step it is also called a ribbon.",
    "Rank": "Place of a path by frequency: 1 is the path that most tokens take.",
    "Flow": "How many tokens move from each module of a step to each module of the next.",
    "Run": "One model traced over one data set: one file that holds every path.",
    "Sample": "One image, text or sequence.",
    "Label": "What a sample is, as its data set says: a class, a domain, a language.",
    "Skip, identity": "A module that does nothing: a token that visits it skips the step.",
    "Untrained twin": "The same architecture with fresh weights, traced on the same data: what routing looks like "
    "without training.",
    "Null": "What a number would be if nothing were going on, for example after shuffling; beside it a number means "
    "something.",
    "Detour": "A run of a sample with a changed route: a module banned, forced, swapped or preferred.",
    "Dream": "An input that was optimised until the routers make wished-for choices.",
    "Nat": "Unit of information and of loss, 1.44 bits.",
    "KL divergence": "How far one distribution of answers is from another, in nats; 0 = the same.",
    "Lift": "Share among the chosen tokens divided by the share among all: 1 = no preference.",
    "p-value": "Share of shuffles that came out at least as high as what was observed.",
}
FORMULAS = {
    "compute": "Compute",
    "reuse": "Reuse",
    "cdf": "CDF of a path",
    "topk": "Effective top-k",
    "load": "Load, utilisation, MaxVio",
    "nmi": "What paths know (NMI)",
    "loss": "Loss",
    "gate_entropy": "Gate entropy",
}
"""of ``HELP`` → its title here"""


def draw() -> None:
    """Folded, with a link to the documentation."""
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.subheader("Words and numbers", anchor=False, width="content")
        # Relative to the page, whatever a proxy puts before it.
        st.link_button(
            "Read the documentation", "documentation/index.html", icon=":material/menu_book:", type="tertiary"
        )
    with st.expander("Glossary"):
        columns = st.columns(2, gap="large")
        rows = list(WORDS.items())
        rows += [(title, HELP[name]) for name, title in FORMULAS.items()]
        half = -(-len(rows) // 2)
        for column, part in zip(columns, (rows[:half], rows[half:]), strict=True):
            with column:
                for word, meaning in part:
                    st.markdown(f"**{word}** – {meaning}")
