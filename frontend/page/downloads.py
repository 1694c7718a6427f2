"""Save menu of a chart: SVG and PNG for print, its data as CSV, and a link to the view.

Files are made on demand; a closed menu costs one button. Streamlit's own PNG button, which would save the screen's
version, is hidden by ``widgets.STYLE``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import streamlit as st
from streamlit.errors import StreamlitDuplicateElementKey

from tokenpaths.frontend.charts.drawing.printing import TWO_COLUMNS_MM, png_of, points, printed
from tokenpaths.frontend.charts.drawing.redraw import Call, call_of
from tokenpaths.frontend.charts.drawing.tables import csv_files, tables_of, zip_of
from tokenpaths.frontend.page import address
from tokenpaths.frontend.page.selection import Selection, to_query

log = logging.getLogger("tokenpaths.page")
MENU = "save"
"""prefix of the menus' keys; ``widgets.STYLE`` places them in the lower right corner of their chart"""
MOST_ON_A_PAGE = 40
MIME = {"svg": "image/svg+xml", "png": "image/png", "csv": "text/csv", "zip": "application/zip"}
HELP = {
    "svg": "Vectors, 183 mm wide, white ground.",
    "png": "The same at 300 dots per inch.",
    "csv": "The exact numbers behind the picture.",
    "zip": "The exact numbers behind the picture: several tables, a CSV each, in one ZIP file.",
}


def menu(drawing: Any) -> None:
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
            _menu(drawing, call, f"{call.name}_{number}")
        return


@st.fragment
def _menu(drawing: Any, call: Call, place: str) -> None:
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
    name = "-".join(part for part in (now.run, call.name) if part)
    with opened:
        with st.container(horizontal=True, gap="small"):
            for form, make in _files(drawing, call, now).items():
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


def _files(drawing: Any, call: Call, now: Selection) -> dict[str, Callable[[], bytes]]:
    """Format → function that makes the file when clicked. Several tables become one archive of CSV files."""

    def svg() -> str:
        return printed(drawing, points(TWO_COLUMNS_MM), caption=[caption(now)])

    def csv() -> bytes:
        return next(iter(csv_files(tables).values()), "").encode()

    tables = {name: table for name, table in tables_of(call.answers()).items() if table}
    numbers = {"csv": csv} if len(tables) < 2 else {"zip": lambda: zip_of(csv_files(tables))}
    return {"svg": lambda: svg().encode(), "png": lambda: png_of(svg()), **numbers}


def caption(now: Selection) -> str:
    """Caption of a saved chart: run and filters, as on the filter chips."""
    from tokenpaths.frontend.page.filter_chips import chips

    filters = [chip.words for chip in chips(now) if chip.applies and chip.field != "run"]
    filters = ([f"run: {now.run}"] if now.run else []) + filters
    return ("; ".join(filters) + ". " if filters else "") + "Tokenpaths."


def link(now: Selection) -> str:
    """The current URL of the page."""
    base = (st.context.url or "").partition("?")[0].rstrip("/") + "/"
    query = urlencode(to_query(now))
    return f"{base}?{query}" if query else base
