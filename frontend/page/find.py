"""The search box of a run: a module, a path or a sample by its number opens in the inspector, a word is searched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing.thing_names import whole_images
from tokenpaths.frontend.page import address, refusals, widgets
from tokenpaths.frontend.page.selection import KINDS, MOST_WRITTEN, PATCH_KINDS, WORD_KINDS

_MODULE = re.compile(r"(?:module|expert|m)?\s*(\d{1,6})\s*(?:@|at step|step|at layer|layer)\s*(\d{1,4})", re.IGNORECASE)
_NUMBERED = re.compile(r"(path|rank|sample|image|text|#)\s*(\d{1,15})", re.IGNORECASE)
STYLE = """<style>
@media (max-width: 640px) { [data-testid="stTextInput"] [data-testid="InputInstructions"] { display: none; } }
</style>"""
"""In a narrow field Streamlit's count of letters would lie on the placeholder; the browser keeps the limit."""
FORGOTTEN = "find_problem"
"""session state: why the last search found nothing to do"""


def meaning(words: str, *, text: bool, whole: bool = False) -> dict[str, Any] | str | None:
    """What a search means: changes of the selection, a sentence if it means nothing here, None if it is empty.

    Args:
        words: What was typed.
        text: Whether the tokens of the run have words.
        whole: Whether each image is one token, so that there are no kinds of patches.

    >>> meaning("module 5 at step 2", text=True)
    {'inspect': 'module:2.5'}
    >>> meaning("5@2", text=False), meaning("path 12", text=True)
    ({'inspect': 'module:2.5'}, {'inspect': 'path:12'})
    >>> meaning("dinner", text=True)
    {'view': 'paths', 'find': 'dinner'}
    >>> meaning("numbers", text=True)
    {'view': 'paths', 'kind': 'number'}
    >>> meaning("edge", text=False), meaning("edge", text=False, whole=True)
    ({'view': 'paths', 'kind': 'edge'}, 'Images have no words. Try “module 5 at step 2”, “path 12” or “sample 3”.')
    """
    words = words.strip()[: MOST_WRITTEN["find"]]
    if not words:
        return None
    if match := _MODULE.fullmatch(words):
        return {"inspect": f"module:{int(match[2])}.{int(match[1])}"}
    if match := _NUMBERED.fullmatch(words):
        number = int(match[2])
        if match[1].lower() in ("sample", "image", "text"):
            return {"inspect": f"sample:{number}"}
        return {"inspect": f"path:{number}"} if number else "Paths are numbered from rank 1."
    for kind in WORD_KINDS if text else () if whole else PATCH_KINDS:
        if words.lower() in (kind, KINDS[kind].split(" (")[0].lower()):
            return {"view": "paths", "kind": kind}
    if text:
        return {"view": "paths", "find": words}
    if whole:
        return "Images have no words. Try “module 5 at step 2”, “path 12” or “sample 3”."
    kinds = ", ".join(name.split(" (")[0] for name in PATCH_KINDS.values())
    return f"Patches have no words. Try “module 5 at step 2”, “path 12”, “sample 3”, or one of: {kinds}."


def box(run: Mapping[str, Any]) -> None:
    """The box; it empties itself once what was typed is done."""
    text, view = run["modality"] == "text", address.current().view

    def search() -> None:
        if address.current().view != view:  # left for another view: what was written stays in the box
            return
        found = meaning(st.session_state["find_box"], text=text, whole=whole_images(run))
        st.session_state["find_box"] = ""
        refusals.forget(FORGOTTEN)
        if isinstance(found, str):
            refusals.keep(FORGOTTEN, found)
        elif found is not None:
            address.go_changed(**found)

    st.html(STYLE)
    st.text_input(
        "Search this run",
        key="find_box",
        on_change=search,
        icon=":material/search:",
        placeholder="word, module 5 at step 2, path 12" if text else "module 5 at step 2, path 12, sample 3",
        label_visibility="collapsed",
        max_chars=MOST_WRITTEN["find"],
    )
    if problem := refusals.kept(FORGOTTEN):
        widgets.empty(widgets.escape(problem))
