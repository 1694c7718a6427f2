"""A plugin that ends what a folder, or a file, has made for the whole session with its last test.

`tokenpaths up` that nobody asks any more takes 2 % of a core, and memory. Whoever asks for one again, as where files
come in another order, has it made anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_made: list[tuple[pytest.FixtureDef[Any], pytest.FixtureRequest]] = []
"""fixtures of the whole session, in the order in which they were made"""


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """Called for those of the session where the session is: not in a conftest of a folder."""
    if fixturedef.scope == "session":
        _made.append((fixturedef, request))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path == item.path:
        return
    place = Path(nextitem.nodeid.partition("::")[0]).parts
    for fixture, request in reversed(_made.copy()):
        within = Path(fixture.baseid).parts
        if within != place[: len(within)]:
            _made.remove((fixture, request))
            fixture.finish(request)
