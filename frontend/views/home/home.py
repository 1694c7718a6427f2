"""Home: what is here, and one's own image or text."""

from __future__ import annotations

from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.home import runs, tryit


def draw(selection: Selection) -> None:
    runs.draw(selection)
    tryit.draw(selection)
