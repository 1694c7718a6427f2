"""Rename and delete runs on Home; a run's id and its sealed file stay as they are when it is renamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.home.groups import display_name
from tokenpaths.frontend.views.inspector.actions import MOST_NAME, MOST_NOTE

RUN = "run"
"""the whole run, among the things that have names"""


@address.unless_embedded
def button(card: Mapping[str, Any]) -> None:
    """A small button that opens the dialog for one run."""
    if st.button(
        "Edit",
        key=f"manage_{card['run']}",
        type="tertiary",
        help=widgets.escape(f"Rename or delete {display_name(card)}"),
    ):
        dialog([card])


@st.dialog("Rename or delete")
def dialog(cards: Sequence[Mapping[str, Any]]) -> None:
    """Rename or delete one of ``cards``; deleting asks first."""
    by_run = {str(card["run"]): card for card in cards}
    run = next(iter(by_run))
    if len(by_run) > 1:
        run = st.selectbox(
            "Which", list(by_run), format_func=lambda name: display_name(by_run[name]), key="manage_which"
        )
    card = by_run[run]
    st.caption(widgets.escape(f"Id: {run}. It stays, in links, files and commands."))
    name = st.text_input(
        "Name",
        value=str(card.get("name") or ""),
        placeholder=run,
        max_chars=MOST_NAME,
        key=f"manage_name_{run}",
        help="Shown in lists, kept beside the run. Empty: its id.",
    )
    note = st.text_area("Note", value=_own(run).get("note", ""), max_chars=MOST_NOTE, key=f"manage_note_{run}")
    _series(card, run)
    with st.container(horizontal=True, gap="small"):
        if st.button("Save", type="primary", key="manage_save"):
            _do(lambda: _save(run, str(name or "").strip(), str(note or "").strip()))
        if st.button("Delete the run …", key="manage_delete", icon=":material/delete:"):
            st.session_state["manage_sure"] = run
    if st.session_state.get("manage_sure") == run:
        st.warning(
            widgets.escape(f"Delete {display_name(card)} for good? Its file is removed; there is no way back."),
            icon=":material/warning:",
        )
        if st.button("Yes, delete it", key="manage_yes"):
            _delete(run)


def _own(run: str) -> Mapping[str, str]:
    """The user's name and note of a run; empty also where they cannot be read."""
    try:
        return dict(widgets.client().names(run).get(RUN, {}))
    except ApiError:
        return {}


def _save(run: str, name: str, note: str) -> None:
    if name or note:
        widgets.client().save_name(run, RUN, name, note)
    elif _own(run):
        widgets.client().delete_name(run, RUN)


def _series(card: Mapping[str, Any], run: str) -> None:
    """The series of checkpoints that the run stands in, and where."""
    now = card.get("series") or {}
    left, right = st.columns(2)
    series = left.text_input(
        "Series of checkpoints",
        value=str(now.get("name") or ""),
        max_chars=64,
        key=f"manage_series_{run}",
        help="Runs of one name stand over one training in Compare, Training. Kept beside the run. Empty: in none.",
    )
    iteration = right.number_input(
        "Iteration", min_value=0, value=int(now.get("iteration") or 0), step=1, key=f"manage_at_{run}"
    )
    wanted = (series.strip(), int(iteration)) if series and series.strip() else ("", 0)
    if wanted != (str(now.get("name") or ""), int(now.get("iteration") or 0)) and st.button(
        "Save the series", key="manage_series"
    ):
        _do(lambda: widgets.client().put_into_series(run, *wanted))


def _delete(run: str) -> None:
    def act() -> None:
        widgets.client().delete(run)
        if address.current().run == run:
            address.go(Selection(view=address.current().view))

    _do(act)


def _do(act: Any) -> None:
    """Do it, close the dialog and draw the page again; a refusal is shown in the dialog."""
    try:
        act()
    except ApiError as error:
        widgets.show_error(error)
        return
    st.session_state.pop("manage_sure", None)
    st.rerun()
