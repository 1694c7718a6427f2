"""The script of the page run in the tests' process, by Streamlit's ``AppTest``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

APP = Path(__file__).resolve().parents[2] / "frontend" / "app.py"
# Every page of AppTest reads what all installed packages say about themselves, 0.3 s; none is installed meanwhile.
manifest_scanner.scan_component_manifests = functools.cache(manifest_scanner.scan_component_manifests)


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


class Saved(NamedTuple):
    """What the Save menu of a chart would write."""

    name: str
    caption: str
    tables: dict[str, list[dict[str, Any]]]


def saved(draw: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch, **query: object) -> list[Saved]:
    """The charts of the page at an address, in its order."""
    from tokenpaths.frontend.charts.drawing.redraw import call_of
    from tokenpaths.frontend.page import address, downloads

    found: list[Saved] = []

    def keep(drawing: Any, scope: downloads.Scope) -> None:
        call = call_of(drawing)
        assert call is not None
        found.append(Saved(call.name, downloads.caption(address.current(), scope), call.tables()))

    with monkeypatch.context() as patched:
        patched.setattr(downloads, "menu", keep)
        draw(**query)
    return found


def check_captions(
    draw: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch, plain: dict[str, object], **filters: object
) -> set[str]:
    """That captions of saved charts change with filters where their numbers do, and only there.

    Args:
        draw: Gives the page at an address.
        plain: The address without the filters.

    Returns:
        The names of the charts whose numbers changed.
    """
    before = saved(draw, monkeypatch, **plain)
    after = saved(draw, monkeypatch, **plain, **filters)
    changed = set()
    for name in {one.name for one in (*before, *after)}:
        pairs = zip(*([one for one in side if one.name == name] for side in (before, after)), strict=False)
        for place, (old, new) in enumerate(pairs):
            same = old.tables == new.tables
            assert (old.caption == new.caption) == same, (name, place, same, old.caption, new.caption)
            changed |= set() if same else {name}
    return changed
