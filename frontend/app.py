"""Streamlit script of the page: navigation, filter chips, and the view selected by the URL.

Reads TOKENPATHS_API_URL and TOKENPATHS_TOKEN. ``streamlit run frontend/app.py`` serves it for development, without host
check, login and cached files.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from tokenpaths.frontend.components.keys import keys, keys_help
from tokenpaths.frontend.page import address, markdown, widgets
from tokenpaths.frontend.page.filter_chips import chips_row
from tokenpaths.frontend.page.selection import VIEWS, Selection
from tokenpaths.frontend.views import compare, compute, embedded
from tokenpaths.frontend.views.detour import detour
from tokenpaths.frontend.views.dream import dream
from tokenpaths.frontend.views.family import family
from tokenpaths.frontend.views.flow import flow
from tokenpaths.frontend.views.home import runs, tryit
from tokenpaths.frontend.views.jobs import jobs
from tokenpaths.frontend.views.modules import modules
from tokenpaths.frontend.views.paths import paths
from tokenpaths.frontend.views.sample import sample, sample_map

DRAW = {
    "runs": runs.draw,
    "flow": flow.draw,
    "paths": paths.draw,
    "sample": sample.draw,
    "compute": compute.draw,
    "modules": modules.draw,
    "compare": compare.draw,
    "map": sample_map.draw,
    "family": family.draw,
    "detour": detour.draw,
    "dream": dream.draw,
    "try": tryit.draw,
    "jobs": jobs.draw,
}
# In the frame of another site: these views start work. (No docstring: Streamlit would print it on the page.)
DRAW_EMBEDDED = DRAW | {"detour": embedded.draw, "dream": embedded.draw, "jobs": embedded.draw, "try": embedded.draw}


def main() -> None:
    """One script run: header and navigation, chips, then the view selected by the URL."""
    markdown.install()
    st.set_page_config(
        page_title="Tokenpaths",
        page_icon=str(Path(__file__).with_name("icon.png")),
        layout="wide",
        initial_sidebar_state="collapsed",
    )
    st.html(widgets.STYLE)
    address.settle()
    selection = address.current()
    if address.embedded():
        st.html(widgets.EMBEDDED_STYLE)
    else:
        _navigation(selection)
    keys()
    for problem in address.problems():
        st.warning(widgets.escape(problem), icon=":material/link_off:")
    chips_row(selection)
    with widgets.error_boundary(f"the view {VIEWS[selection.view]}"):
        draw = DRAW_EMBEDDED if address.embedded() else DRAW
        draw[selection.view](selection)


def _navigation(selection: Selection) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="views"):
        st.html('<span class="tp-brand">Tokenpaths</span>', width="content")
        address.bound(
            st.segmented_control,
            "view",
            "View",
            selection.view,
            list(VIEWS),
            format_func=VIEWS.get,
            label_visibility="collapsed",
            read=lambda view: view or selection.view,
            width="content",
        )
        # In a window of its own; relative to the page, whatever a proxy puts before it.
        st.link_button("Documentation", "documentation/index.html", icon=":material/menu_book:", type="tertiary")
        keys_help()


main()
