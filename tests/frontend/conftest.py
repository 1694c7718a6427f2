"""What tests of the page share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from streamlit.testing.v1 import AppTest

from tests.support.pages import showing


@pytest.fixture
def show(api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AppTest]]:
    """Draw the page at an address and give what stands on it; ``api`` is the address of a module's own API."""
    with showing(api, monkeypatch) as draw:
        yield draw
