"""The script of the page run in the tests' process, by Streamlit's ``AppTest``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

APP = Path(__file__).resolve().parents[2] / "frontend" / "app.py"


@contextmanager
def showing(
    url: str, monkeypatch: pytest.MonkeyPatch, *, timeout: float = 120, **always: object
) -> Iterator[Callable[..., AppTest]]:
    """A function that draws the page of the API at ``url`` at an address (``always`` in it) and gives what is on it."""
    from tokenpaths.frontend.page import widgets

    monkeypatch.setenv("TOKENPATHS_API_URL", url)
    widgets.client.clear()

    def draw(**query: object) -> AppTest:
        page = AppTest.from_file(str(APP), default_timeout=timeout)
        for key, value in (always | query).items():
            page.query_params[key] = str(value)
        page.run()
        assert not page.exception, [error.message for error in page.exception]
        return page

    yield draw
    widgets.client.clear()
