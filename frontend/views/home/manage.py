"""Rename and delete runs on Home; a run's id and its sealed file stay as they are when it is renamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.inspector.actions import MOST_NAME, MOST_NOTE
from tokenpaths.frontend.views.own_names import save_own
from tokenpaths.frontend.views.run_names import display_name

RUN = "run"
"""the whole run, among the things that have names"""
OPEN = "manage_open"
"""session state: the key of the button whose dialog is open"""
BEFORE = "manage_before"
"""session state: what stood in the fields of each run when the dialog was opened"""
SURE = "manage_sure"
"""session state: the run whose deletion is asked about"""


def button(card: Mapping[str, Any]) -> None:
    """A small button that opens the dialog for one run."""
    opener("Edit", f"manage_{card['run']}", [card], help=f"Rename or delete {display_name(card)}")


@address.unless_embedded
def opener(label: str, key: str, cards: Sequence[Mapping[str, Any]], *, help: str | None = None) -> None:
    """A button that opens the dialog, which stays when a timer draws the page again."""
    if st.button(label, key=key, type="tertiary", help=widgets.escape(help) if help else None):
        _dismissed()
        st.session_state[OPEN] = key
    if st.session_state.get(OPEN) == key:
        dialog(cards)


def _dismissed() -> None:
    for slot in (OPEN, BEFORE, SURE):
        st.session_state.pop(slot, None)


@st.dialog("Rename or delete", on_dismiss=_dismissed)
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
    opened = st.session_state.setdefault(BEFORE, {})
    if run not in opened:
        opened[run] = _fields(card, run)
    before = opened[run]
    name = st.text_input(
        "Name",
        value=before["name"],
        placeholder=run,
        max_chars=MOST_NAME,
        key=f"manage_name_{run}",
        help="Shown in lists, kept beside the run. Empty: its id.",
    )
    note = st.text_area("Note", value=before["note"], max_chars=MOST_NOTE, key=f"manage_note_{run}")
    series, iteration = _series(before, run)
    now = {"name": (name or "").strip(), "note": (note or "").strip(), "series": series, "iteration": iteration}
    with st.container(horizontal=True, gap="small"):
        if st.button("Save", type="primary", key="manage_save"):
            _do(lambda: _save(run, before, now))
        if st.button("Delete the run …", key="manage_delete", icon=":material/delete:"):
            st.session_state[SURE] = run
    if st.session_state.get(SURE) == run:
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


def _fields(card: Mapping[str, Any], run: str) -> dict[str, Any]:
    series = card.get("series") or {}
    return {
        "name": str(card.get("name") or ""),
        "note": _own(run).get("note", ""),
        "series": str(series.get("name") or ""),
        "iteration": int(series.get("iteration") or 0),
    }


def _save(run: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """What was changed; the rest stays as others may have written it meanwhile."""
    changed = {field: value for field, value in now.items() if value != before[field]}
    if {"name", "note"} & changed.keys():
        save_own(run, RUN, changed)
    if {"series", "iteration"} & changed.keys():
        widgets.client().put_into_series(run, now["series"], now["iteration"])


def _series(before: Mapping[str, Any], run: str) -> tuple[str, int]:
    """The series of checkpoints that the run stands in, and where; iteration 0 in none."""
    left, right = st.columns(2)
    series = left.text_input(
        "Series of checkpoints",
        value=before["series"],
        max_chars=64,
        key=f"manage_series_{run}",
        help="Runs of one name stand over one training in Compare, Training. Kept beside the run. Empty: in none.",
    )
    iteration = right.number_input("Iteration", value=before["iteration"], step=1, key=f"manage_at_{run}")
    name = (series or "").strip()
    return name, int(iteration) if name else 0


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
    _dismissed()
    st.rerun()
