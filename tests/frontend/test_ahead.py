"""What is asked of the API while the browser loads a page, and that the view then asks nothing else first."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from tests.frontend.test_pages import api  # noqa: F401 (fixtures)
from tests.support.coroutines import run_alone
from tokenpaths.frontend.server.ahead import MOST_AT_ONCE, MOST_QUERY, Ahead

PATIENCE_S = 20


async def nothing(*_given: object) -> None:
    """An application that answers nothing."""


def request(ahead: Ahead, path: str = "/", query: bytes = b"view=work&run=a%20b", method: str = "GET") -> None:
    scope = {"type": "http", "method": method, "path": path, "query_string": query}
    run_alone(ahead(scope, nothing, nothing))


def test_a_page_that_is_requested_is_asked_for():
    came, asked = threading.Event(), []

    def ask(query: Mapping[str, str]) -> None:
        asked.append(dict(query))
        came.set()

    ahead = Ahead(nothing, ask)
    request(ahead, "/static/js/index.js")
    request(ahead, method="HEAD")
    request(ahead, query=b"run=" + b"x" * MOST_QUERY)
    request(ahead)
    assert came.wait(PATIENCE_S)
    assert asked == [{"view": "work", "run": "a b"}]


def test_more_visits_at_once_than_that_are_left_to_their_scripts():
    go_on, began = threading.Event(), threading.Semaphore(0)
    asked = []

    def ask(query: Mapping[str, str]) -> None:
        asked.append(query)
        began.release()
        go_on.wait(PATIENCE_S)
        raise ValueError("no such run")  # the place is free again all the same

    ahead = Ahead(nothing, ask)
    for _ in range(MOST_AT_ONCE + 3):
        request(ahead)
    for _ in range(MOST_AT_ONCE):
        assert began.acquire(timeout=PATIENCE_S)
    assert len(asked) == MOST_AT_ONCE
    go_on.set()
    while not ahead._free.acquire(timeout=PATIENCE_S):
        pytest.fail("no place became free")
    ahead._free.release()
    request(ahead)
    assert began.acquire(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    "query",
    [
        {"view": "routes", "run": "pictures"},
        {"view": "routes", "run": "pictures", "label": "circle", "hide": "2"},
        {"view": "samples", "run": "pictures"},
        {"view": "samples", "run": "pictures", "label": "circle"},
        {"view": "samples", "run": "texts"},
        {"view": "paths", "run": "pictures"},
        {"view": "paths", "run": "texts", "label": "code", "order": "compute"},
        {"view": "modules", "run": "pictures", "label": "circle"},
        {"view": "work", "run": "pictures"},
        {"view": "work", "run": "pictures", "measure": "reuse", "per": "token"},
    ],
    ids=str,
)
def test_the_view_asks_again_what_was_asked_ahead(show, monkeypatch, query):
    from tokenpaths.frontend.api.client import Client
    from tokenpaths.frontend.views import ahead

    asked, get = [], Client._get

    def noted(self, path, query=None, **options):
        asked.append((path, tuple(sorted((name, str(value)) for name, value in (query or {}).items() if value))))
        return get(self, path, query, **options)

    monkeypatch.setattr(Client, "_get", noted)
    ahead.ask(query)
    before = list(asked)
    asked.clear()
    show(**query)
    assert len(before) > 3
    assert set(before) <= set(asked), "what is asked ahead is of use to the view"
    of_run = list(dict.fromkeys(one for one in asked if one[0] != "/jobs"))  # never kept, as their states change
    assert set(of_run[: len(set(before))]) == set(before), "and is what the view asks first"


def test_a_run_that_is_not_there_is_left_to_the_view(show):
    from tokenpaths.frontend.api.client import ApiError
    from tokenpaths.frontend.views import ahead

    ahead.ask({"view": "home"})
    ahead.ask({"view": "compare", "run": "pictures"})
    with pytest.raises(ApiError):
        ahead.ask({"view": "routes", "run": "nowhere"})


def test_only_the_first_run_of_the_script_waits_for_the_first_picture(show, monkeypatch):
    from tokenpaths.frontend.page import widgets

    waited = []
    # Only the widgets' own: with none for all, whoever waits for the script (AppTest) spins and takes its time away.
    monkeypatch.setattr(widgets, "time", SimpleNamespace(sleep=waited.append))
    page = show(view="work", run="pictures")
    assert waited.count(widgets.FIRST_PICTURE_S) == 1
    page.run()
    assert waited.count(widgets.FIRST_PICTURE_S) == 1
