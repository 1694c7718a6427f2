"""Widgets that all views share: headings, charts, tables behind charts, error and empty messages."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitDuplicateElementKey

from tokenpaths.frontend.api.client import ApiError, Client, Down
from tokenpaths.frontend.charts.drawing.palette import DARK, LIGHT, Theme
from tokenpaths.frontend.charts.drawing.theme import unvalidated
from tokenpaths.frontend.formulas import COLUMNS, HELP
from tokenpaths.frontend.page import address, chart_choices, chart_keys, downloads
from tokenpaths.frontend.page.markdown import escape

__all__ = ["HELP", "escape"]

log = logging.getLogger("tokenpaths.page")

STYLE = """<style>
.block-container { padding: 1.1rem 2rem 4rem !important; max-width: 2400px; }
header[data-testid="stHeader"], header[data-testid="stHeader"] * { pointer-events: none; }
header[data-testid="stHeader"] { background: transparent; height: 2.2rem; }
header[data-testid="stHeader"] button, header[data-testid="stHeader"] button * { pointer-events: auto; }
h1 { font-size: 1.6rem !important; padding: .35rem 0 0 !important; }
h2 { font-size: 1.2rem !important; }
h2:not([slot="title"]) { padding: .5rem 0 0 !important; }
h3 { font-size: 1.02rem !important; padding: .2rem 0 0 !important; }
.tp-brand { font-weight: 700; font-size: 1.12rem; letter-spacing: .01em; white-space: nowrap; }
.st-key-chips button, .st-key-views button { min-height: 1.9rem; }
.st-key-chips button { border-radius: 999px; padding: 0 .7rem; }
.st-key-views [role="radiogroup"] { flex-wrap: wrap !important; row-gap: 2px; }
.st-key-cards [data-testid="stColumn"] > div > [data-testid="stLayoutWrapper"] > div {
  padding: .35rem .8rem !important; gap: .1rem !important; }
.st-key-cards button { min-height: 1.6rem; padding-block: 0; }
[class*="st-key-open_"] button { height: auto; text-align: left; }
[class*="st-key-open_"] button :is([data-testid="stMarkdownContainer"], p) {
  white-space: normal !important; text-overflow: clip !important; }
[class*="st-key-manage_"] { position: relative; z-index: 5; }
[data-testid="stElementToolbarButton"]:has([aria-label^="Download as PNG"]) { display: none; }
[class*="st-key-save_"], [class*="st-key-under_"] { margin-top: -1.15rem; z-index: 1; }
[class*="st-key-under_"] [class*="st-key-save_"] { margin-top: 0; }
[class*="st-key-save_"] button, [class*="st-key-under_"] button { min-height: 1.4rem; padding: 0 .25rem; }
[class*="st-key-save_"] button p, [class*="st-key-under_"] button p { font-size: .78rem; }
.st-key-keys, .st-key-to_top { position: absolute; left: 0; width: 0 !important; }
.st-key-controls > div:has(> .st-key-controls_of_view), .st-key-controls_of_view { display: contents !important; }
:is(.st-key-controls, .st-key-controls_of_view) > div { min-width: 150px; flex: 1 1 160px; }
:is(.st-key-controls, .st-key-controls_of_view) > div:is(:has([data-testid="stPopover"]), .st-key-swap_pair) {
  flex: 0 0 auto; min-width: 0; }
:is(.st-key-controls, .st-key-controls_of_view) > div:has(.st-key-sample_picker) {
  min-width: min(100%, 330px) !important; }
.st-key-light_now > div:has(> .st-key-light_words) { flex: 1 1 11rem; min-width: min(100%, 11rem); }
[data-testid="stElementToolbar"]:focus-within { opacity: 1 !important; visibility: visible !important; z-index: 3; }
:is(button, a, summary, canvas, [tabindex]:not(input, textarea)):focus-visible {
  outline: 2px solid var(--st-primary-color, #c2410c) !important; outline-offset: 1px; }
[data-testid="stMain"]:focus-visible { outline-offset: -2px; }
.st-key-inspector { position: fixed; right: 0; top: 0; bottom: 0; width: 25rem; z-index: 20; overflow-y: auto;
  padding: 2.4rem 1rem 2rem; border-left: 1px solid color-mix(in srgb, currentColor 18%, transparent); }
[data-testid="stMain"]:has(.st-key-inspector :is(h3, [data-testid="stAlert"])) .block-container {
  padding-right: 27rem !important; transition: padding-right 0s .15s !important; }
@media (max-width: 1000px) {
  .st-key-inspector { left: 0; top: auto; width: auto; height: 58vh; padding-top: .6rem; border-left: 0;
    border-top: 2px solid color-mix(in srgb, currentColor 30%, transparent); border-radius: .8rem .8rem 0 0; }
  [data-testid="stMain"]:has(.st-key-inspector :is(h3, [data-testid="stAlert"])) .block-container {
    padding: .9rem .8rem 62vh !important; }
}
@media (max-width: 640px) {
  [data-testid="stHorizontalBlock"]:not(.st-key-views):not(.st-key-chips) { row-gap: 1rem !important; }
  .st-key-views { row-gap: .3rem !important; }
  .block-container { padding: .9rem .8rem 3rem !important; }
  h1 { font-size: 1.3rem !important; }
}
@media (max-width: 640px) and (pointer: coarse) { .st-key-keys_help { display: none; } }
@media (forced-colors: active) {
  button[role="radio"][aria-checked="true"] {
    forced-color-adjust: none; background: Highlight !important; color: HighlightText !important; }
  [data-testid="stSlider"] [role="group"] > [data-rac] > div:first-child { background: GrayText !important; }
  [data-testid="stSlider"] [role="group"] > [data-rac] > [data-rac] { background: Highlight !important; }
  label:has(input[role="switch"]) > span + div { outline: 1px solid; }
  label:has(input[role="switch"]) > span + div > div { background: CanvasText !important; }
  label:has(input[role="switch"]:checked) > span + div { background: Highlight !important; }
}
@media print {
  .st-key-inspector { position: static; width: auto; height: auto; overflow: visible; padding: 1rem 0; border: 0; }
  [data-testid="stMain"]:has(.st-key-inspector :is(h3, [data-testid="stAlert"])) .block-container {
    padding: 0 !important; }
}
@media (prefers-reduced-motion: reduce) { * { animation: none !important; transition: none !important; } }
</style>"""


EMBEDDED_STYLE = """<style>
header[data-testid="stHeader"], footer { display: none !important; }
.block-container { padding: .8rem 1rem 1.2rem !important; max-width: none; }
</style>"""
"""in a frame, after ``STYLE``"""


def theme() -> Theme:
    """The theme of the page."""
    return DARK if (st.context.theme.type or "light") == "dark" else LIGHT


@st.cache_resource(show_spinner=False)
def client() -> Client:
    """The API client shared by all sessions of the page server; it merges labels where the address says so."""
    return Client(labels=address.labels, reads_only=address.embedded)


def controls() -> Any:
    """A row for input widgets; on narrow screens it becomes two columns, then one."""
    return st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="controls")


def heading(question: str, words: str, help_key: str | None = None) -> None:
    """Heading of a view: its question, a caption, and the help text ``HELP[help_key]``."""
    st.header(question, anchor=False, help=HELP.get(help_key or ""))
    if words:
        st.caption(words)


def chart(
    drawing: Any,
    *,
    key: str | None = None,
    on_pick: Any = None,
    pick: Sequence[str] = (),
    filters: Sequence[str] = (),
    about: str = "",
    runs: Sequence[str] = (),
) -> None:
    """Show a chart with its menus.

    Args:
        drawing: The chart.
        key: Streamlit key; needed with ``on_pick``. One of ``chart_keys.steady`` stays over a click that only opens the
            inspector.
        on_pick: Called as ``on_pick(name, value)`` for clicks on the selections ``pick``, and for choices from the
            list of their values (``chart_choices``).
        pick: Names of point selections of the chart.
        filters: Fields of the selection that left something out of the chart, for the caption of a saved picture, as
            are ``about`` and ``runs`` (``downloads.Scope``).
    """
    unvalidated(drawing)
    scope = downloads.Scope(filters, about, runs)
    if on_pick is None:
        st.altair_chart(drawing, theme=None, width="stretch")
        downloads.menu(drawing, scope)
        return

    def picked() -> None:
        selected = st.session_state[str(key)].get("selection") or {}
        before = address.current()
        for name, values in chart_keys.clicked(str(key), selected).items():
            for value in values if isinstance(values, list) else []:
                if name in pick and name in value:
                    on_pick(name, value[name])
                elif name in pick and {"step", "module"} <= value.keys():
                    on_pick(name, f"{value['step']}.{value['module']}")
                else:
                    continue
                chart_keys.keep(str(key), selected, before, address.current())
                return

    st.altair_chart(drawing, theme=None, width="stretch", key=key, on_select=picked, selection_mode=list(pick))
    with st.container(horizontal=True, gap="small", key=f"under_{key}"):
        chart_choices.menu(drawing, pick, on_pick)
        downloads.menu(drawing, scope)


FIRST_PICTURE_S = 0.15
SEEN = "first_picture_seen"
"""session state: the view whose first picture has had its time"""


def first_picture(view: str) -> None:
    """Let the browser paint what a view has drawn so far, before its many other charts come.

    All charts that have arrived by the time the browser draws are drawn together, and the first is seen with the last.
    Once a session, unless another view does so in between: who clicks waits for nothing.
    """
    if st.session_state.get(SEEN) != view:
        st.session_state[SEEN] = view
        time.sleep(FIRST_PICTURE_S)


MOST_TABLES = 100


def numbers_behind(rows: Sequence[Mapping[str, Any]], what: str, /, **columns: Any) -> None:
    """Expander with the table behind a chart, for screen readers and for exact values.

    The table is sent only when the expander is opened: its scripts (1.4 MB) would load before the first chart, and
    16,000 rows keep a browser busy for seconds.

    Args:
        rows: Rows of the table.
        what: Caption, and part of the Streamlit key.
        columns: Column configuration by name, beside the help texts of ``COLUMNS``.
    """
    for number in range(MOST_TABLES):  # two charts of a page may have tables of the same name
        try:
            box = st.container(key=f"numbers_{what}_{number}")
        except StreamlitDuplicateElementKey:
            continue
        with box:
            _numbers(rows, what, columns, f"opened_{what}_{number}")
        return


@st.fragment
def _numbers(rows: Sequence[Mapping[str, Any]], what: str, columns: Mapping[str, Any], key: str) -> None:
    """A fragment: opening the table reruns nothing else of the page."""
    table = st.expander(f"The numbers behind this: {escape(what)}", on_change="rerun", key=key)
    if not table.open:
        return
    with table:
        if rows:
            st.dataframe(list(rows), hide_index=True, width="stretch", column_config=_explained(rows[0], columns))
        else:
            st.write("Nothing to list.")


def how_sure(key: str, draw: Callable[[], None]) -> None:
    """The statistics behind a chart, folded."""
    folded("How sure is this?", f"how_sure_{key}", draw)


@st.fragment
def folded(title: str, key: str, draw: Callable[[], None]) -> None:
    """What is drawn only when somebody opens it. A fragment: opening it reruns nothing else of the page."""
    box = st.expander(title, on_change="rerun", key=key)
    if box.open:
        with box, error_boundary(title):
            draw()


def _explained(row: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """Column configuration with the formula of each metric as help."""
    formulas = {name: dict(st.column_config.Column(help=COLUMNS[name])) for name in row if name in COLUMNS}
    return formulas | {
        name: {**formulas.get(name, {}), **{k: v for k, v in dict(settings).items() if v is not None}}
        for name, settings in columns.items()
    }


def verdict(words: str, **options: Any) -> None:
    """What a chart shows, as a sentence above it; ``options`` are those of ``st.markdown``."""
    st.markdown(f"**{escape(words)}**", **options)


def empty(sentence: str, todo: str = "") -> None:
    """Show that there is nothing to show, and what to do."""
    st.info(f"{sentence} {todo}".strip(), icon=":material/info:")


def show_error(error: ApiError) -> None:
    """Show an error: what happened and what to do; the request's id in the API's log is folded below it."""
    st.error(f"{error_text(error)} {error.todo}".strip(), icon=":material/error:")
    if error.request and error.request not in error.sentence:
        with st.popover("For a report", type="tertiary", icon=":material/bug_report:"):
            st.caption("The API's log has this error under the id of its request:")
            st.code(error.request, language=None)


def error_text(error: ApiError) -> str:
    """The sentence of an error as Markdown, with a capital; a name that it begins with keeps its case."""
    words = with_full_stop(error.sentence)
    return escape(words[:1].upper() + words[1:] if re.match(r"[a-z]+[ ,]", words) else words)


def may_change(error: ApiError) -> bool:
    """Whether the same question may have another answer soon; what was refused as it stands is refused again."""
    return error.status is None or error.status in (408, 429) or not 400 <= error.status < 500


@contextmanager
def error_boundary(what: str) -> Iterator[None]:
    """Show exceptions raised inside as a message, with a retry button unless trying again changes nothing; the rest of
    the page is drawn.

    Args:
        what: Name of the part of the page, for the message and the log.
    """
    try:
        yield
        st.session_state.pop(RETURNED + what, None)
    except ApiError as error:
        show_error(error)
        if may_change(error):
            st.button("Try again", key=f"again_{what}", icon=":material/refresh:")
        if isinstance(error, Down):
            if st.session_state.get(RETURNED + what, 0) < MOST_RETURNS:
                st.caption("This page comes back by itself when it answers.")
            st.fragment(_until_it_answers, run_every=LOOK_AGAIN_S, key=f"until_{what}")(what, [True])
    except Exception:
        log.exception("drawing %s failed", what)
        st.error(
            f"This page failed while drawing {what}. That is a fault of the page, not of your data; "
            "its log says more. The other views go on working.",
            icon=":material/error:",
        )
        st.button("Try again", key=f"again_{what}", icon=":material/refresh:")


LOOK_AGAIN_S = 3
MOST_RETURNS = 3
RETURNED = "returned_"
"""prefix in the session state: how often a part was drawn again by itself since it was last whole"""


def _until_it_answers(what: str, drawn: list[bool]) -> None:
    """Draw the page again as soon as the API answers; not for ever, as where the question itself ends the API.

    ``drawn``: not empty in the drawing that met the error, which asks nothing more.
    """
    if drawn:
        drawn.clear()
        return
    times = st.session_state.get(RETURNED + what, 0)
    if times >= MOST_RETURNS:
        return
    try:
        client().problems()
    except Down:
        return
    except ApiError:
        pass  # whatever it says, it answers
    st.session_state[RETURNED + what] = times + 1
    st.rerun()


def with_full_stop(text: str) -> str:
    """``text`` with a full stop, unless it ends in punctuation."""
    text = text.strip()
    return text if not text or text[-1] in ".!?…" else text + "."
