"""Keys of charts over clicks: the same while only the inspector changes, and no click is lost or counted twice."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tokenpaths.frontend.page import chart_keys
from tokenpaths.frontend.page.selection import Selection

PLAIN = Selection(view="routes", run="pictures")
A, B = PLAIN.change(inspect="module:0.1"), PLAIN.change(inspect="module:1.2")


@pytest.fixture(autouse=True)
def session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of its own for each test."""
    monkeypatch.setattr(chart_keys, "st", SimpleNamespace(session_state={}))


def test_a_click_keeps_the_key_and_what_else_changes_the_address_does_not():
    key = chart_keys.steady("flow", PLAIN)
    assert chart_keys.steady("flow", PLAIN) == key, "a script that runs again"
    chart_keys.keep(key, {"node": [{"node": "0.1"}]}, PLAIN, A)
    assert chart_keys.steady("flow", A) == key
    chart_keys.keep(key, {"node": [{"node": "1.2"}]}, A, B)
    assert chart_keys.steady("flow", B) == key
    closed = chart_keys.steady("flow", PLAIN)
    assert closed != key, "closed: the same circle can be clicked again"
    assert chart_keys.steady("flow", B) not in (key, closed), "opened by something else than this chart"


def test_a_ribbon_changes_the_tokens_and_so_the_chart():
    key = chart_keys.steady("flow", PLAIN)
    kept = PLAIN.toggle_through("0.1", "1.2")
    chart_keys.keep(key, {"link": [{"link": "0.1>1.2"}]}, PLAIN, kept)
    assert chart_keys.steady("flow", kept) != key


def test_what_was_clicked_before_is_not_clicked_again():
    key = chart_keys.steady("flow", PLAIN)
    node, link = [{"node": "0.1"}], [{"link": "0.1>1.2"}]
    assert chart_keys.clicked(key, {"node": node, "link": []}) == {"node": node, "link": []}
    chart_keys.keep(key, {"node": node, "link": []}, PLAIN, A)
    assert chart_keys.clicked(key, {"node": node, "link": link}) == {"link": link}


def test_charts_with_keys_of_their_own_are_let_be():
    chart_keys.keep("curve_3", {"rank": [{"rank": 3}]}, PLAIN, A)
    assert chart_keys.clicked("curve_3", {"rank": [{"rank": 3}]}) == {"rank": [{"rank": 3}]}
