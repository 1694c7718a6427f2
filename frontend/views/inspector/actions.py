"""What can be done with the thing in the inspector: buttons that change the selection, and its link."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.page import address, downloads, refusals, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.own_names import save_own

MOST_NAME, MOST_NOTE = 80, 4000
"""characters, as many as the API takes"""
REFUSED = "name_refused"
"""session state: why a name was not kept"""


@dataclass(frozen=True)
class Action:
    """A button: its words, icon, and the changes of the selection."""

    words: str
    icon: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    help: str | None = None


def title(words: str, facts: str) -> None:
    """Heading of the thing and one line of facts."""
    st.subheader(widgets.escape(words), anchor=False)
    if facts:
        st.caption(widgets.escape(facts))


def own_name(run: str, thing: str, summary: Mapping[str, Any] | None, key: str) -> None:
    """The user's name and note of a thing, else its automatic name; and where both are written."""
    try:
        own = widgets.client().names(run).get(thing, {})
    except ApiError:
        own = {}
    if own.get("name"):
        st.markdown(f"**{widgets.escape(own['name'])}**")
    elif summary and summary["words"]:
        interval = f"{numbers.number(summary['low'])} to {numbers.number(summary['high'])}"
        st.markdown(
            f"**{widgets.escape(summary['words'])}**",
            help=widgets.escape(f"{numbers.number(summary['lift'])} times as many, 95 % interval {interval}."),
        )
        st.caption(
            widgets.escape(
                f"{numbers.percent(summary['share'])} of its tokens, {numbers.percent(summary['base'])} of all tokens."
            )
        )
    elif summary and summary["reason"]:
        st.caption(widgets.escape(f"No name of its own: {summary['reason']}."))
    if own.get("note"):
        st.caption(widgets.escape(own["note"]))
    if not address.embedded():
        _write_name(run, thing, own, key, automatic=summary is not None)


def _write_name(run: str, thing: str, own: Mapping[str, str], key: str, *, automatic: bool) -> None:
    """Name and note in a popover; an empty name gives back the automatic one, if things of its kind have one."""
    name_key, note_key = f"{key}_name_{thing}", f"{key}_note_{thing}"

    known = st.session_state.setdefault(f"{key}_known_{thing}", {"name": "", "note": ""} | dict(own))

    def save() -> None:
        refusals.forget(REFUSED)
        try:
            written = {
                field: str(st.session_state.get(place) or "").strip()
                for field, place in (("name", name_key), ("note", note_key))
            }
            save_own(run, thing, {field: text for field, text in written.items() if text != known[field]})
            known.update(written)
        except ApiError as error:
            refusals.keep(REFUSED, error)

    with st.popover("Name it", icon=":material/edit:", type="tertiary", key=f"{key}_naming"):
        st.text_input("Your name for it", own.get("name", ""), key=name_key, max_chars=MOST_NAME, on_change=save)
        st.text_area("Note", own.get("note", ""), key=note_key, max_chars=MOST_NOTE, on_change=save)
        empty = "for the automatic name" if automatic else "to have none"
        st.caption(f"Kept beside the run, and shown wherever it is drawn. Leave both empty {empty}.")
    if error := refusals.kept(REFUSED):
        widgets.show_error(error)


@address.unless_embedded
def buttons(actions: Iterable[Action], key: str, selection: Selection) -> None:
    """The actions in a row, and the link to what is seen now."""
    with st.container(horizontal=True, gap="small", key=f"{key}_actions"):
        for action in actions:
            st.button(
                action.words,
                key=f"{key}_{action.words}",
                icon=action.icon,
                help=action.help,
                on_click=address.go_changed,
                kwargs=dict(action.changes),
            )
        with st.popover("Link", icon=":material/link:", key=f"{key}_link"):
            st.caption("Whoever opens this address sees what you see now.")
            st.code(downloads.link(selection), language=None, wrap_lines=True)
