"""Save menu of a chart: SVG and PNG for print, its data as CSV, and a link to the view.

Files are made on demand; a closed menu costs one button. Streamlit's own PNG button, which would save the screen's
version, is hidden by ``widgets.STYLE``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import streamlit as st
from streamlit.errors import StreamlitDuplicateElementKey

from tokenpaths.frontend.charts.drawing.printing import TWO_COLUMNS_MM, png_of, points, printed
from tokenpaths.frontend.charts.drawing.redraw import Call, call_of
from tokenpaths.frontend.charts.drawing.tables import csv_files, zip_of
from tokenpaths.frontend.page import address
from tokenpaths.frontend.page.selection import Selection, to_query

log = logging.getLogger("tokenpaths.page")
MENU = "save"
"""prefix of the menus' keys; ``widgets.STYLE`` places them in the lower right corner of their chart"""
MOST_ON_A_PAGE = 40
MOST_RUNS, NAMED_RUNS = 6, 2
"""named in a caption, and in the name of a file"""
MOST_IN_NAME = 120
"""characters of the name of a file; systems take 255 bytes"""
MIXED = ("compare", "jobs")
"""views of which a chart need not be of the run of the address"""
MIME = {"svg": "image/svg+xml", "png": "image/png", "csv": "text/csv", "zip": "application/zip"}
HELP = {
    "svg": "Vectors, 183 mm wide, white ground.",
    "png": "The same at 300 dots per inch.",
    "csv": "The exact numbers behind the picture.",
    "zip": "The exact numbers behind the picture: several tables, a CSV each, in one ZIP file.",
}


@dataclass(frozen=True)
class Scope:
    """What a chart shows of a run: a saved picture stands alone, so its caption says this, and no more than this."""

    filters: Sequence[str] = ()
    """fields of the selection that left something out of this chart; none: it is of the whole run"""
    about: str = ""
    """what it is about beside them: “sample 5”, “mean of German”"""
    runs: Sequence[str] = ()
    """the runs in it, where it is not the one of the address alone"""


def menu(drawing: Any, scope: Scope) -> None:
    """The save menu of ``drawing``; nothing for a chart without the call that made it."""
    call = call_of(drawing)
    if call is None:
        return
    for number in range(MOST_ON_A_PAGE):  # one function may make several charts of a page
        try:
            box = st.container(key=f"{MENU}_{call.name}_{number}", width="content")
        except StreamlitDuplicateElementKey:
            continue
        with box:
            _menu(drawing, call, f"{call.name}_{number}", scope)
        return


@st.fragment
def _menu(drawing: Any, call: Call, place: str, scope: Scope) -> None:
    """A fragment: opening the menu reruns nothing else of the page."""
    opened = st.popover(
        "Save",
        key=f"open_{place}",
        icon=":material/download:",
        type="tertiary",
        on_change="rerun",
        width="content",
        help="This picture for print (SVG, PNG), its data (CSV), or the link to this view.",
    )
    if not opened.open:
        return
    now = address.current()
    name = file_name(now, call, scope)
    with opened:
        with st.container(horizontal=True, gap="small"):
            for form, make in _files(drawing, call, caption(now, scope)).items():
                st.download_button(
                    "CSV (ZIP)" if form == "zip" else form.upper(),
                    data=make,
                    file_name=f"{name}.{form}",
                    mime=MIME[form],
                    on_click="ignore",
                    key=f"{form}_{place}",
                    icon=":material/download:",
                    help=HELP[form],
                )
        st.caption("Link to this view")
        st.code(link(now), language=None, wrap_lines=True)


def _files(drawing: Any, call: Call, words: str) -> dict[str, Callable[[], bytes]]:
    """Format → function that makes the file when clicked. Several tables become one archive of CSV files."""

    def svg() -> str:
        return printed(drawing, points(TWO_COLUMNS_MM), caption=[words])

    def csv() -> bytes:
        return next(iter(csv_files(tables).values()), "").encode()

    tables = call.tables()
    numbers = {"csv": csv} if len(tables) < 2 else {"zip": lambda: zip_of(csv_files(tables))}
    return {"svg": lambda: svg().encode(), "png": lambda: png_of(svg()), **numbers}


def caption(now: Selection, scope: Scope) -> str:
    """Caption of a saved chart: its runs, what it is about, and its own filters in the words of the filter chips."""
    runs = list(scope.runs) or ([now.run] if now.run and now.view not in MIXED else [])
    named = runs[:MOST_RUNS] + ([f"{len(runs) - MOST_RUNS} more"] if len(runs) > MOST_RUNS else [])
    whose = [f"run{'s' if len(runs) > 1 else ''}: {', '.join(named)}"] if runs else []
    words = [*whose, *([scope.about] if scope.about else []), *_filters(now, scope)]
    return ("; ".join(words) + ". " if words else "") + "Tokenpaths."


def _filters(now: Selection, scope: Scope) -> list[str]:
    """The filters of a chart, in the words of their chips."""
    from tokenpaths.frontend.page.filter_chips import chips

    fields = {*scope.filters, *(["labels"] if now.label is not None and "label" in scope.filters else [])}
    return [chip.words for chip in chips(now) if chip.field in fields]


def file_name(now: Selection, call: Call, scope: Scope) -> str:
    """Name of a saved chart, without its ending: its runs, what it is, and what tells it from others of its kind."""
    runs = [*scope.runs][:NAMED_RUNS] or [now.run or ""]
    about = [words for words in call.particulars() if words not in scope.about]
    parts = [*runs, call.name, *about, scope.about, *_filters(now, scope)]
    slugs = (re.sub(r"[^\w.]+", "-", part.replace(",", "")).strip("-_.") for part in parts)
    return "-".join(filter(None, slugs))[:MOST_IN_NAME].rstrip("-_.")


def link(now: Selection) -> str:
    """The current URL of the page."""
    base = (st.context.url or "").partition("?")[0].rstrip("/") + "/"
    query = urlencode(to_query(now))
    return f"{base}?{query}" if query else base
