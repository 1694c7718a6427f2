"""Streamlit script of the page: navigation, filter chips, and the view selected by the URL.

Reads TOKENPATHS_API_URL and TOKENPATHS_TOKEN. ``streamlit run frontend/app.py`` serves it for development, without host
check, login and cached files.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from tokenpaths.frontend.components.keys import keys
from tokenpaths.frontend.page import address, at_click, contrast, markdown, widgets
from tokenpaths.frontend.page.filter_chips import chips_row
from tokenpaths.frontend.page.selection import VIEWS
from tokenpaths.frontend.views import compute, embedded, navigation
from tokenpaths.frontend.views.compare import compare
from tokenpaths.frontend.views.detour import detour, importance
from tokenpaths.frontend.views.dream import dream
from tokenpaths.frontend.views.family import family
from tokenpaths.frontend.views.home import home
from tokenpaths.frontend.views.inspector import inspector
from tokenpaths.frontend.views.jobs import badge, jobs
from tokenpaths.frontend.views.modules import modules
from tokenpaths.frontend.views.paths import paths
from tokenpaths.frontend.views.routes import routes
from tokenpaths.frontend.views.samples import samples

DRAW = {
    "home": home.draw,
    "routes": routes.draw,
    "paths": paths.draw,
    "samples": samples.draw,
    "modules": modules.draw,
    "work": compute.draw,
    "family": family.draw,
    "compare": compare.draw,
    "change": detour.draw,
    "importance": importance.draw,
    "dream": dream.draw,
    "jobs": jobs.draw,
}
# In the frame of another site: these views start work. (No docstring: Streamlit would print it on the page.)
DRAW_EMBEDDED = DRAW | dict.fromkeys(("home", "change", "importance", "dream", "jobs"), embedded.draw)


def main() -> None:
    """One script run: navigation, filters, the inspector, then the view selected by the URL."""
    markdown.install()
    selection = address.current()
    st.set_page_config(
        page_title=navigation.window_title(selection),
        page_icon=str(Path(__file__).with_name("icon.png")),
        layout="wide",
        initial_sidebar_state="collapsed",
    )
    st.html(widgets.STYLE + contrast.style(widgets.theme()))
    address.settle()
    selection = address.current()
    embed = address.embedded()
    # Containers that are always there: the browser knows elements by their place, and would make every chart anew if
    # a filter or the inspector came before it. The inspector is filled first: it answers a click.
    bar, filters, inspected, view = st.container(), st.container(), st.container(), st.container()
    with inspected:
        inspector.draw(selection)
    badge_place = None
    with bar:
        if embed:
            st.html(widgets.EMBEDDED_STYLE)
        else:
            badge_place = navigation.bar(selection)
        keys()
    with filters:
        for problem in address.problems():
            st.warning(widgets.escape(problem), icon=":material/link_off:")
        chips_row(selection)
    with view, widgets.error_boundary(f"the view {VIEWS[selection.view]}"):
        draw = DRAW_EMBEDDED if embed else DRAW
        draw[selection.view](selection)
    if badge_place is not None:
        with badge_place:
            badge.draw(selection)
    at_click.over()


main()
