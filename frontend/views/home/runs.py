"""Start view: guided examples, cards of all runs, and how to trace one's own model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.theme import unvalidated
from tokenpaths.frontend.charts.flow.flow import flow_thumbnail
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.commands import command, runs_dir, typed_html
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.family.family import view_of
from tokenpaths.frontend.views.home import tour
from tokenpaths.frontend.views.jobs import panel

CARDS = 8
"""cards shown at first, newest first, so that the page fits on one screen"""
MOST_CARDS = 60
REFRESH_SECONDS = 2.0
NAMED = 4
"""maximum number of names listed of runs being taken in"""
MAKE_RUNS = ("trace", "import")
"""kinds of jobs that end in a run"""
MOST_JOBS = 100
PICTURE = 74
"""height of a card's flow chart in pixels"""


def draw(selection: Selection) -> None:
    cards = widgets.client().runs()
    widgets.heading(
        "What can I see here?",
        "A routed network decides for every token – a patch of an image, a piece of a word – which "
        "modules it passes. "
        "Here you see the paths that tokens really took.",
    )
    whole = _sealed(cards)
    tries = [card for card in cards if card["status"] == "sealed" and common.is_try(card)]
    broken = [card for card in cards if card["status"] == "unreadable"]
    reading = common.being_taken_in(cards)
    tour.draw(whole)
    _guides(whole)
    waiting = _jobs_alive()
    if waiting:
        st.fragment(_to_come, run_every=REFRESH_SECONDS, key="runs_to_come")([card["run"] for card in whole])
    if whole:
        _cards(whole, selection.q)
    elif not reading and not waiting:
        widgets.empty(
            f"There is no run{' of a data set' if tries else ''} yet.",
            "Trace a model as below, or open *Try it* with one of the shipped models.",
        )
    if reading:
        st.fragment(_being_taken_in, run_every=REFRESH_SECONDS, key="being_read")(reading)
    if broken:
        _broken(broken)
    detours = [card for card in tries if card["split"] == common.DETOUR]
    if len(tries) > len(detours):
        _tries("Tries", [card for card in tries if card["split"] != common.DETOUR])
    if detours:
        _tries("Detours, without and with an edit", detours)
    _own()


def _jobs_alive() -> list[dict[str, Any]]:
    """Jobs that will become runs and are running, waiting or paused, in the order of their turn.

    Empty if the list of jobs cannot be read now: runs are shown all the same.
    """
    try:
        jobs = widgets.client().jobs(most=MOST_JOBS, state=panel.ALIVE, kind=MAKE_RUNS)["jobs"]
    except ApiError:
        return []
    return sorted(jobs, key=lambda job: (job["state"] == "waiting", job["place"] or 0))


def _to_come(known: Sequence[str]) -> None:
    """Runs that jobs are making; redraws the page when one is there or the last job is over."""
    try:
        sealed = {card["run"] for card in _sealed(widgets.client().runs())}
    except ApiError as error:
        widgets.show_error(error)
        return
    jobs = _jobs_alive()
    if not jobs or sealed != set(known):
        st.rerun()
    first = jobs[0]
    with st.container(border=True, gap="xsmall", key="to_come"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            panel.state_badge(first)
            st.markdown(f"**{widgets.escape(panel.job_title(first))}**", width="content")
            st.caption(widgets.escape(panel.state_words(first)), width="content")
            more = f"{numbers.plural(len(jobs) - 1, 'more run')} to come" if len(jobs) > 1 else "Its job"
            st.button(f":primary[{more}]", key="open_jobs", type="tertiary", on_click=_open, kwargs={"view": "jobs"})
        panel.progress_bar(first)


def _sealed(cards: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Whole runs, without those of one sample."""
    return [card for card in cards if card["status"] == "sealed" and not common.is_try(card)]


def _cards(cards: Sequence[Mapping[str, Any]], wanted: str | None) -> None:
    """The newest runs, or all, or those whose name, model or data contain ``wanted``."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.subheader(
            numbers.plural(len(cards), "run"),
            anchor=False,
            help="A run is one model traced over one data set. Columns of the small picture are steps, circles are "
            "modules, ribbons are tokens on their way.",
        )
        if len(cards) > CARDS:
            address.bound(
                st.text_input,
                "q",
                "Find a run",
                wanted or "",
                placeholder="Find a run by name, model or data",
                label_visibility="collapsed",
                read=lambda text: text.strip() or None,
            )
    matches = [card for card in cards if _matches(card, wanted)]
    if not matches:
        widgets.empty(f"None of the {len(cards)} runs has “{widgets.escape(wanted or '')}” in its name, model or data.")
        return
    every = wanted is not None or st.session_state.get("all_runs", False)
    shown = matches[: MOST_CARDS if every else CARDS]
    with st.container(key="cards", gap="small"):
        for start in range(0, len(shown), 4):
            for column, card in zip(st.columns(4, gap="small"), shown[start : start + 4], strict=False):
                with column:
                    _card(card)
    if len(matches) > len(shown) and not every:
        st.button(
            f"Show all {len(matches)} runs",
            key="show_all_runs",
            icon=":material/expand_more:",
            on_click=lambda: st.session_state.update(all_runs=True),
        )
    elif len(matches) > len(shown):
        widgets.numbers_behind(matches[len(shown) :], f"{len(matches) - len(shown)} older runs")


def _matches(card: Mapping[str, Any], wanted: str | None) -> bool:
    text = " ".join(str(card.get(part) or "") for part in ("run", "model", "dataset", "family", "modality"))
    return all(word in text.casefold() for word in (wanted or "").casefold().split())


def _guides(cards: Sequence[Mapping[str, Any]]) -> None:
    """Three questions linked to their views; those that no run can answer are left out."""
    vision, text = (_clearest(cards, modality) for modality in ("vision", "text"))
    skipping = next((c for c in cards if "skip" in (c.get("model") or "")), vision or text)
    guides = [
        (
            "Try it with my own",
            "Drop an image or paste a text; its paths appear at once.",
            {"view": "try"},
            ":material/upload:",
        )
    ]
    if vision:
        guides.append(
            (
                "See what edges take",
                "Which modules take the busiest patches, those that an edge runs through, and which paths?",
                {"view": "paths", "run": vision["run"], "kind": "edge"},
                ":material/image:",
            )
        )
    if text:
        guides.append(
            (
                "Find the sentence-end path",
                "Which paths and modules do the tokens that end a sentence take?",
                {"view": "paths", "run": text["run"], "kind": "sentence_end"},
                ":material/notes:",
            )
        )
    if skipping:
        guides.append(
            (
                "Which samples get away with less work?",
                "Compute per sample, and those at both ends.",
                {"view": "compute", "run": skipping["run"]},
                ":material/bolt:",
            )
        )
    for index, (column, (title, words, to, icon)) in enumerate(
        zip(st.columns(len(guides), gap="medium"), guides, strict=True)
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


def _clearest(cards: Sequence[Mapping[str, Any]], modality: str) -> Mapping[str, Any] | None:
    """Preferably a run with top-1 routing per token: its paths are the easiest to read."""
    mine = [card for card in cards if card["modality"] == modality]
    hard = [card for card in mine if card["family"] in ("dna", "moe")]
    single = [card for card in hard if card["top_k"] == 1]
    return next(iter(single or hard or mine), None)


def _open(**to: Any) -> None:
    address.go(Selection(**to))


def _card(card: Mapping[str, Any]) -> None:
    with st.container(border=True, height="stretch", gap="small"):
        st.button(
            f"**{widgets.escape(card['run'])}**",
            key=f"open_flow_{card['run']}",
            type="tertiary",
            help="Where do its tokens go?",
            on_click=_open,
            kwargs={"view": "flow", "run": card["run"]},
        )
        try:
            many = (card["num_modules"] or 0) > common.MANY_MODULES and card["family"] == "moe"
            flow = widgets.client().ask(
                card["run"], "flow", limit=100, most_modules=common.DRAWN_MODULES if many else None
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
            views = {"flow": "Flow", "paths": "Paths", "sample": "Samples", "compute": "Compute"}
            if family := view_of(card["family"]):
                views["family"] = family.TITLE
            for view, words in list(views.items())[1:]:
                st.button(
                    words,
                    key=f"open_{view}_{card['run']}",
                    type="tertiary",
                    on_click=_open,
                    kwargs={"view": view, "run": card["run"]},
                    width="content",
                )


def card_words(card: Mapping[str, Any]) -> str:
    """One run in a line or two."""
    what = "image" if card.get("modality") == "vision" else "text"
    split = f" ({card['split']})" if card.get("split") not in (None, "", "all") else ""
    split += f" ({card['samples_are']})" if card.get("samples_are") else ""
    steps, modules = card.get("num_steps"), card.get("num_modules")
    first = (
        f"{numbers.plural(card.get('num_samples'), what)} of {card.get('dataset')}{split}, "
        f"{numbers.plural(card.get('num_tokens'), 'token')} on {numbers.plural(card.get('num_paths'), 'path')}: "
        f"{numbers.plural(steps, 'step')} × {numbers.plural(modules, 'module')}, top-{card.get('top_k')}."
    )
    if card.get("model") and card["model"] not in str(card.get("run")):
        first = f"{card['model']}: {first}"
    if card.get("accuracy") is not None:
        return first + f" Accuracy {numbers.percent(card['accuracy'])}."
    if what == "image":  # a loss over the few labels that the model knows would misrepresent the whole set
        return first + " No accuracy: labels unknown to the model."
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
            f"The run {named} was copied here or is of an older version, and is being taken in{share}: what it says "
            "is checked and written into a file of this program. It appears here by itself."
        )
    return (
        f"{len(names)} runs were copied here or are of an older version, and are being taken in, some seconds each: "
        f"what they say is checked and written into files of this program: {named}{more}{share}. Each appears here by "
        "itself."
    )


def _broken(cards: Sequence[Mapping[str, Any]]) -> None:
    for card in cards:
        st.warning(
            f"The run **{widgets.escape(str(card['run']))}** cannot be read. "
            f"{widgets.escape(widgets.with_full_stop(str(card.get('problem') or '')))} The other runs go on working.",
            icon=":material/broken_image:",
        )


def _tries(words: str, cards: Sequence[Mapping[str, Any]]) -> None:
    with st.expander(f"{words}: {numbers.plural(len(cards), 'run')} of one sample"):
        for card in cards[:50]:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.button(
                    widgets.escape(card["run"]),
                    key=f"try_{card['run']}",
                    on_click=_open,
                    kwargs={"view": "sample", "run": card["run"], "sample": 0},
                )
                st.caption(
                    widgets.escape(
                        f"{card.get('model')}, {numbers.plural(card.get('num_tokens'), 'token')}, "
                        f"{str(card.get('created_at') or '')[:16].replace('T', ' ')}"
                    )
                )


def _own() -> None:
    st.subheader("Trace your own model", anchor=False)
    trace = command("tokenpaths trace --model hf:./my-mixtral --data my-texts.jsonl")
    where = f", runs_dir={runs_dir()!r}" if runs_dir() else ""
    record = f'with tokenpaths.record(model, run="mine"{where}): model(batch)'
    st.html(typed_html({trace: "also a shipped model over your images", record: "or any PyTorch model with routers"}))
