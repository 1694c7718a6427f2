"""Cards of runs on Home, one for each model and data set; runs to come, and how to trace one's own model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.theme import unvalidated
from tokenpaths.frontend.charts.flow.flow import flow_thumbnail
from tokenpaths.frontend.charts.load_over_time import is_load_only
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.commands import command, runs_dir, typed_html
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.family.family import view_of
from tokenpaths.frontend.views.home import log_import, manage
from tokenpaths.frontend.views.home.groups import RunGroup, groups, other_words, others_words
from tokenpaths.frontend.views.jobs import making, panel
from tokenpaths.frontend.views.modules import load_only
from tokenpaths.frontend.views.run_names import display_name

CARDS = 8
"""cards shown at first, newest first, so that the page fits on one screen"""
MOST_CARDS = 60
REFRESH_SECONDS = 2.0
NAMED = 4
"""maximum number of names listed of runs being taken in"""
PICTURE = 74
"""height of a card's flow chart in pixels"""
THUMB_LINKS = 600
"""links asked for a card: enough that every step has some"""
MOST_OTHERS = 30
"""other runs of a card that are listed"""
MOST_BROKEN = 50


def draw(cards: Sequence[Mapping[str, Any]], waiting: Sequence[Mapping[str, Any]], wanted: str | None) -> None:
    """Runs to come, runs that are there, those being taken in, and files that cannot be read.

    Args:
        cards: All runs, asked for after ``waiting``.
        waiting: ``making.making_runs()``.
        wanted: Part of a name, model or data set.
    """
    whole = sealed(cards)
    broken = [card for card in cards if card["status"] == "unreadable"]
    reading = common.being_taken_in(cards)
    if waiting:
        st.fragment(_to_come, run_every=REFRESH_SECONDS, key="runs_to_come")([card["run"] for card in whole])
    if whole:
        _cards(whole, wanted)
    elif not reading and not waiting:
        tried = any(card["status"] == "sealed" for card in cards)
        widgets.empty(
            f"There is no run{' of a data set' if tried else ''} yet.",
            "Drop an image, a text or a log above, or trace a model as below.",
        )
    if reading:
        st.fragment(_being_taken_in, run_every=REFRESH_SECONDS, key="being_read")(reading)
    if broken:
        _broken(broken)


def _to_come(known: Sequence[str]) -> None:
    """Runs that jobs are making; redraws the page when one is there or the last job is over."""
    try:
        now = {card["run"] for card in sealed(widgets.client().runs())}
    except ApiError as error:
        widgets.show_error(error)
        return
    jobs = making.making_runs()
    if not jobs or now != set(known):
        st.rerun()
    jobs = [job for job in jobs if job["job"] != log_import.job_in_hand()]  # which the drop zone shows
    if jobs:
        more = f"{numbers.plural(len(jobs) - 1, 'more run')} to come" if len(jobs) > 1 else "Its job"
        panel.summary(jobs[0], more, lambda: _open(view="jobs"), key="to_come")


def sealed(cards: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Whole runs, without those of one sample."""
    return [card for card in cards if card["status"] == "sealed" and not common.is_try(card)]


def _cards(cards: Sequence[Mapping[str, Any]], wanted: str | None) -> None:
    """The newest groups of runs, or all, or those in which a name, model or data set contains ``wanted``."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.subheader(
            numbers.plural(len(cards), "run"),
            anchor=False,
            help="A run is one model traced over one data set; runs of the same two, and the checkpoints of one "
            "training, are one card. Columns of the small picture are steps, circles are modules, ribbons are tokens "
            "on their way.",
        )
        if len(cards) > CARDS:
            address.bound(
                st.text_input,
                "q",
                "Find a run",
                wanted or "",
                placeholder="Find by name, model or data",
                label_visibility="collapsed",
                read=lambda text: text.strip() or None,
            )
    matches = groups([card for card in cards if _matches(card, wanted)])
    if not matches:
        widgets.empty(f"None of the {len(cards)} runs has “{widgets.escape(wanted or '')}” in its name, model or data.")
        return
    every = wanted is not None or st.session_state.get("all_runs", False)
    shown = matches[: MOST_CARDS if every else CARDS]
    with st.container(key="cards", gap="small"):
        for start in range(0, len(shown), 4):
            for column, group in zip(st.columns(4, gap="small"), shown[start : start + 4], strict=False):
                with column:
                    _card(group)
    left = [card for group in matches[len(shown) :] for card in group.runs]
    if left and not every:
        st.button(
            f"Show all {len(cards)} runs",
            key="show_all_runs",
            icon=":material/expand_more:",
            on_click=lambda: st.session_state.update(all_runs=True),
        )
    elif left:
        widgets.numbers_behind(left, f"{len(left)} older runs")


def _matches(card: Mapping[str, Any], wanted: str | None) -> bool:
    text = " ".join(str(card.get(part) or "") for part in ("run", "name", "model", "dataset", "family", "modality"))
    return all(word in text.casefold() for word in (wanted or "").casefold().split())


def _open(**to: Any) -> None:
    address.go(Selection(**to))


def _card(group: RunGroup) -> None:
    card = group.first
    with st.container(border=True, height="stretch", gap="small"):
        with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="top"):
            st.button(
                f"**{widgets.escape(display_name(card))}**",
                key=f"open_flow_{card['run']}",
                type="tertiary",
                help="Where do its tokens go?",
                on_click=_open,
                kwargs={"view": "routes", "run": card["run"]},
            )
            manage.button(card)
        if is_load_only(card):
            _counts_only(card)
            if group.others:
                _others(group)
            return
        try:
            many = (card["num_modules"] or 0) > common.MANY_MODULES and card["family"] == "moe"
            flow = widgets.client().ask(
                card["run"], "flow", limit=THUMB_LINKS, most_modules=common.DRAWN_MODULES if many else None
            )
            st.altair_chart(
                unvalidated(flow_thumbnail(flow, theme=widgets.theme(), height=PICTURE)),
                theme=None,
                width="stretch",
                key=f"thumb_{card['run']}",
            )
        except ApiError as error:
            st.caption(widgets.error_text(error))
        st.caption(widgets.escape(card_words(card)))
        with st.container(horizontal=True, gap="small"):
            views = {"paths": "Paths", "samples": "Samples", "work": "Work"}
            if family := view_of(card["family"]):
                views["family"] = family.TITLE
            for view, words in views.items():
                st.button(
                    words,
                    key=f"open_{view}_{card['run']}",
                    type="tertiary",
                    on_click=_open,
                    kwargs={"view": view, "run": card["run"]},
                    width="content",
                )
        if group.others:
            _others(group)


def _counts_only(card: Mapping[str, Any]) -> None:
    """What a card of counts says in place of a flow."""
    try:
        usage = widgets.client().ask(card["run"], "usage")
        busiest = max(usage["usage"], key=lambda cell: cell["utilisation"] or 0)
        dead = sum(len(step["dead"]) for step in usage["steps"])
        st.caption(
            f"Busiest: expert {busiest['module']} at step {busiest['step']}, "
            f"{numbers.number(busiest['utilisation'])} times its fair share; {numbers.plural(dead, 'dead expert')}."
        )
    except ApiError as error:
        st.caption(widgets.error_text(error))
    st.caption(widgets.escape(load_only.facts(card)))
    st.button(
        "Modules",
        key=f"open_modules_{card['run']}",
        type="tertiary",
        on_click=_open,
        kwargs={"view": "modules", "run": card["run"]},
        width="content",
    )


def _others(group: RunGroup) -> None:
    """The other runs of a group, by name."""
    with st.expander(others_words(group)):
        for card in group.others[:MOST_OTHERS]:
            with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
                st.button(
                    widgets.escape(other_words(group, card)),
                    key=f"open_flow_{card['run']}",
                    type="tertiary",
                    on_click=_open,
                    kwargs={"view": "routes", "run": card["run"]},
                )
                manage.button(card)
        if len(group.others) > MOST_OTHERS:
            widgets.numbers_behind(group.others[MOST_OTHERS:], f"{len(group.others) - MOST_OTHERS} more of {group.key}")


def card_words(card: Mapping[str, Any]) -> str:
    """One run in a line or two."""
    what = "image" if card.get("modality") == "vision" else "text"
    split = f" ({card['split']})" if card.get("split") not in (None, "", "all") else ""
    split += f" ({card['samples_are']})" if card.get("samples_are") else ""
    steps, modules = card.get("num_steps"), card.get("num_modules")
    first = (
        f"{numbers.plural(card.get('num_samples'), what)} from “{card.get('dataset')}”{split}, "
        f"{numbers.plural(card.get('num_tokens'), 'token')} on {numbers.plural(card.get('num_paths'), 'path')}: "
        f"{numbers.plural(steps, 'step')} × {numbers.plural(modules, 'module')}, top-{card.get('top_k')}."
    )
    if card.get("model") and card["model"] not in str(card.get("run")):
        first = f"{card['model']}: {first}"
    if card.get("accuracy") is not None:
        return first + f" Accuracy {numbers.percent(card['accuracy'])}."
    if what == "image":  # a loss over the few labels that the model knows would misrepresent the whole set
        return first + " Accuracy not available: no labels, or the model knows those of fewer than half."
    return first + (f" Loss {numbers.number(card['loss'])} nats." if card.get("loss") is not None else "")


def _being_taken_in(known: Sequence[Mapping[str, Any]]) -> None:
    """Runs that are being taken in; redraws the page when one becomes available or is refused."""
    try:
        now = widgets.client().runs()
    except ApiError as error:
        widgets.show_error(error)
        return
    waiting = common.being_taken_in(now)
    if {card["run"] for card in waiting} != {card["run"] for card in known}:
        st.rerun()
    widgets.empty(intake_words(waiting))


def intake_words(cards: Sequence[Mapping[str, Any]]) -> str:
    """Message about runs that cannot be opened yet, with how far the one in hand is."""
    names = [str(card["run"]) for card in cards]
    shares = [card["progress"] for card in cards if card.get("progress") is not None]
    share = f" ({numbers.percent(max(shares))} of {'it' if len(names) == 1 else 'the one in hand'})" if shares else ""
    named = ", ".join(f"**{widgets.escape(name)}**" for name in names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    if len(names) == 1:
        return (
            f"The run {named} is being read{share}. What a run says that was copied here, or is of an older version, "
            "is checked first and written into a file of this program. It appears here by itself."
        )
    return (
        f"{len(names)} runs are being read, some seconds each: {named}{more}{share}. What those say that were copied "
        "here, or are of an older version, is checked first and written into files of this program. Each appears here "
        "by itself."
    )


def _broken(cards: Sequence[Mapping[str, Any]]) -> None:
    """Files that cannot be read, folded."""
    with st.expander(
        f"{numbers.plural(len(cards), 'file')} cannot be read; the other runs go on working",
        icon=":material/broken_image:",
    ):
        for card in cards[:MOST_BROKEN]:
            problem = widgets.escape(widgets.with_full_stop(str(card.get("problem") or "")))
            st.markdown(f"**{widgets.escape(str(card['run']))}** – {problem}")
        if len(cards) > MOST_BROKEN:
            st.caption(f"… and {len(cards) - MOST_BROKEN:,} more.")


def own() -> None:
    """How to trace a model of one's own."""
    st.subheader("Trace your own model", anchor=False)
    trace = command("tokenpaths trace --model hf:./my-mixtral --data my-texts.jsonl")
    where = f", runs_dir={runs_dir()!r}" if runs_dir() else ""
    record = f'with tokenpaths.record(model, run="mine"{where}): model(batch)'
    st.html(typed_html({trace: "also a shipped model over your images", record: "or any PyTorch model with routers"}))
