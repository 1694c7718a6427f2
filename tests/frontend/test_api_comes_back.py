"""A page whose API does not answer looks again by itself, and is drawn anew when it does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenpaths.frontend.api.client import ApiError, Down
from tokenpaths.frontend.page import widgets


class Page:
    """What ``widgets`` uses of Streamlit, with fragments that are run by hand."""

    def __init__(self) -> None:
        self.session_state: dict[str, Any] = {}
        self.timers: list[Any] = []
        self.buttons: list[str] = []
        self.captions: list[str] = []
        self.drawn_again = 0

    def fragment(self, draw: Any, *, run_every: float, key: str) -> Any:
        def first(*arguments: Any) -> None:
            draw(*arguments)
            self.timers.append(lambda: draw(*arguments))

        return first

    def button(self, label: str, **_: Any) -> None:
        self.buttons.append(label)

    def caption(self, words: str) -> None:
        self.captions.append(words)

    def error(self, *_: Any, **__: Any) -> None: ...

    def rerun(self) -> None:
        self.drawn_again += 1


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    page = Page()
    monkeypatch.setattr(widgets, "st", page)
    return page


def draw(error: ApiError | None) -> None:
    with widgets.error_boundary("the view"):
        if error is not None:
            raise error


def answers(monkeypatch: pytest.MonkeyPatch, error: ApiError | None) -> None:
    def problems() -> list[str]:
        if error is not None:
            raise error
        return []

    monkeypatch.setattr(widgets, "client", lambda: SimpleNamespace(problems=problems))


def test_it_is_drawn_again_when_the_api_answers_and_not_before(page, monkeypatch):
    answers(monkeypatch, Down("down"))
    draw(Down("down"))
    assert page.buttons == ["Try again"]
    (look,) = page.timers
    look()
    assert not page.drawn_again
    answers(monkeypatch, None)
    look()
    assert page.drawn_again == 1


def test_it_stops_where_each_return_ends_as_before_and_begins_anew_once_it_was_whole(page, monkeypatch):
    answers(monkeypatch, ApiError("no workers", status=503))
    for _ in range(10):
        draw(Down("down"))
        page.timers[-1]()
    assert page.drawn_again == widgets.MOST_RETURNS
    assert page.captions == ["This page comes back by itself when it answers."] * widgets.MOST_RETURNS, "no longer"
    draw(None)
    draw(Down("down"))
    page.timers[-1]()
    assert page.drawn_again == widgets.MOST_RETURNS + 1


def test_other_errors_start_no_timer(page):
    draw(ApiError("busy", status=503))
    assert page.buttons == ["Try again"]
    assert not page.timers
