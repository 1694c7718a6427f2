"""What can I see here? The runs as cards, *Try it*, three guided examples, and how to trace one's own model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from frontend import address, look
from frontend.charts import numbers
from frontend.charts.flow import flow_thumbnail
from frontend.client import ApiError
from frontend.selection import Selection
from frontend.views import common
from frontend.views.family import NAMES

CARDS = 12


def draw(selection: Selection) -> None:
    cards = look.client().runs()
    look.heading(
        "What can I see here?",
        "A routed network decides for every token – a patch of an image, a piece of a word – which "
        "modules it passes. "
        "Here you see the paths that tokens really took.",
    )
    whole = [card for card in cards if card["status"] == "sealed" and not common.is_try(card)]
    tries = [card for card in cards if card["status"] == "sealed" and common.is_try(card)]
    broken = [card for card in cards if card["status"] != "sealed"]
    _guides(whole)
    if whole:
        st.subheader(
            f"{numbers.plural(len(whole), 'run')}: what is there to look at",
            anchor=False,
            help="A run is one model traced over one data set. Columns of the small picture are steps, circles are "
            "modules, ribbons are tokens on their way.",
        )
        for start in range(0, min(len(whole), CARDS), 3):
            for column, card in zip(st.columns(3, gap="medium"), whole[start : start + 3], strict=False):
                with column:
                    _card(card)
        if len(whole) > CARDS:
            look.numbers_behind(whole[CARDS:], f"{len(whole) - CARDS} older runs")
    else:
        look.empty("There is no run yet.", "Trace a model as below, or open *Try it* with one of the shipped models.")
    if broken:
        _broken(broken)
    if tries:
        _tries(tries)
    _own()


def _guides(cards: Sequence[Mapping[str, Any]]) -> None:
    """Three questions with an answer one click away; those that no run can answer are left out."""
    vision = next((c for c in cards if c["modality"] == "vision"), None)
    text = next((c for c in cards if c["modality"] == "text"), None)
    skipping = next((c for c in cards if "skip" in (c.get("model") or "")), vision or text)
    found = [
        (
            "Try it with my own",
            "Drop an image or paste a text; its paths appear at once.",
            {"view": "try"},
            ":material/upload:",
        )
    ]
    if vision:
        found.append(
            (
                "Do patches of one object travel together?",
                "An image, tinted by how frequent each patch’s path is.",
                {"view": "sample", "run": vision["run"], "sample": 0},
                ":material/image:",
            )
        )
    if text:
        found.append(
            (
                "Which words take unusual paths?",
                "A text, coloured by path, and every token’s trajectory.",
                {"view": "sample", "run": text["run"], "sample": 0},
                ":material/notes:",
            )
        )
    if skipping:
        found.append(
            (
                "Which samples get away with less work?",
                "Compute per sample, and those at both ends.",
                {"view": "compute", "run": skipping["run"]},
                ":material/bolt:",
            )
        )
    for index, (column, (title, words, to, icon)) in enumerate(
        zip(st.columns(len(found), gap="medium"), found, strict=True)
    ):
        with column, st.container(border=True, height="stretch"):
            st.button(
                title,
                key=f"guide_{index}",
                icon=icon,
                type="primary" if index == 0 else "secondary",
                width="stretch",
                on_click=_open,
                kwargs=to,
            )
            st.caption(words)


def _open(**to: Any) -> None:
    address.go(Selection(**to))


def _card(card: Mapping[str, Any]) -> None:
    with st.container(border=True):
        st.markdown(f"**{look.plain(card['run'])}**")
        try:
            many = (card["num_modules"] or 0) > common.MANY_MODULES and card["family"] == "moe"
            flow = look.client().flow(card["run"], limit=150, most_modules=common.DRAWN_MODULES if many else None)
            st.altair_chart(
                flow_thumbnail(flow, theme=look.theme()),
                theme=None,
                width="stretch",
                key=f"thumb_{card['run']}",
            )
        except ApiError as error:
            st.caption(look.plain(error.sentence))
        st.caption(look.plain(card_words(card)))
        with st.container(horizontal=True, gap="small"):
            views = {"flow": "Flow", "paths": "Paths", "sample": "Samples", "compute": "Compute"}
            if name := NAMES.get(card["family"]):
                views["family"] = name
            for view, words in views.items():
                st.button(
                    words,
                    key=f"open_{view}_{card['run']}",
                    on_click=_open,
                    kwargs={"view": view, "run": card["run"]},
                    width="content",
                )


def card_words(card: Mapping[str, Any]) -> str:
    """One run in two sentences."""
    what = "image" if card.get("modality") == "vision" else "text"
    split = f", split {card['split']}" if card.get("split") not in (None, "", "all") else ""
    first = (
        f"{card.get('model')} over {numbers.plural(card.get('num_samples'), what)} "
        f"(data set {card.get('dataset')}{split}): "
        f"{numbers.plural(card.get('num_tokens'), 'token')}, "
        f"{numbers.plural(card.get('num_paths'), 'path')} through {card.get('num_steps')} steps of "
        f"{card.get('num_modules')} modules, top-{card.get('top_k')}."
    )
    if card.get("accuracy") is not None:
        return first + f" Accuracy {numbers.percent(card['accuracy'])}."
    if what == "image":  # a loss over the few labels that the model knows would stand for all
        return first + " No accuracy: the model knows few or none of the labels."
    return first + (f" Loss {numbers.number(card['loss'])} nats." if card.get("loss") is not None else "")


def _broken(cards: Sequence[Mapping[str, Any]]) -> None:
    for card in cards:
        st.warning(
            f"The run **{look.plain(str(card['run']))}** cannot be read. "
            f"{look.plain(look.ended(str(card.get('problem') or '')))} The other runs go on working.",
            icon=":material/broken_image:",
        )


def _tries(cards: Sequence[Mapping[str, Any]]) -> None:
    with st.expander(f"Tries: {numbers.plural(len(cards), 'run')} of one sample"):
        for card in cards[:50]:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.button(
                    look.plain(card["run"]),
                    key=f"try_{card['run']}",
                    on_click=_open,
                    kwargs={"view": "sample", "run": card["run"], "sample": 0},
                )
                st.caption(
                    look.plain(
                        f"{card.get('model')}, {numbers.plural(card.get('num_tokens'), 'token')}, "
                        f"{str(card.get('created_at') or '')[:16].replace('T', ' ')}"
                    )
                )


def _own() -> None:
    st.subheader("Trace your own model", anchor=False)
    st.code("tokenpaths trace --model dna-vision-top1 --data my_images/\ntokenpaths up", language="bash")
