"""The page. Start with ``streamlit run frontend/app.py``; it reads TOKENPATHS_API_URL and TOKENPATHS_TOKEN."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:  # Streamlit puts this file's folder on the path, not the project's
    sys.path.insert(0, _ROOT)

import streamlit as st  # noqa: E402

from frontend import address, look  # noqa: E402
from frontend.chips import chips_row  # noqa: E402
from frontend.components.keys import keys, keys_help  # noqa: E402
from frontend.selection import VIEWS, Selection  # noqa: E402
from frontend.views import (  # noqa: E402
    compare,
    compute,
    detour,
    dream,
    family,
    flow,
    jobs,
    modules,
    paths,
    runs,
    sample,
    sample_map,
    tryit,
)

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


def main() -> None:
    """One pass over the page: brand and views, chips, then the view that the address names."""
    st.set_page_config(
        page_title="Tokenpaths",
        page_icon=str(Path(__file__).with_name("icon.png")),
        layout="wide",
        initial_sidebar_state="collapsed",
    )
    st.html(look.STYLE)
    selection = address.current()
    _navigation(selection)
    keys()
    for problem in address.problems():
        st.warning(look.plain(problem), icon=":material/link_off:")
    chips_row(selection)
    with look.guarded(f"the view {VIEWS[selection.view]}"):
        DRAW[selection.view](selection)


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
        keys_help()


main()
