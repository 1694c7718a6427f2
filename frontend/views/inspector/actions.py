"""What can be done with the thing in the inspector: buttons that change the selection, and its link."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from tokenpaths.frontend.page import address, downloads, widgets
from tokenpaths.frontend.page.selection import Selection


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
