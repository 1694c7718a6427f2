"""Output without control characters: a text from a file must not move the cursor, rename the window or hide itself.

Also whether this terminal has a browser beside it.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_KEPT = "\n\r\t"
_REORDERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_SIGNS = {
    code: f"\\u{code:04x}"
    for code in range(0x2070)
    if (unicodedata.category(chr(code)) == "Cc" and chr(code) not in _KEPT)
    or unicodedata.bidirectional(chr(code)) in _REORDERING
}
"""control characters and those that reorder text, as JSON writes them: they stay the same text in ``--json``"""


def visible(text: str) -> str:
    """``text`` with signs for control characters; line ends and tabs stay.

    >>> visible("a\\x1b[2Jb")
    'a\\\\u001b[2Jb'
    """
    return text.translate(_SIGNS)


def cell(text: str) -> str:
    """``text`` as a cell of a table: on one line."""
    return visible(" ".join(text.splitlines()))


class PlainStream:
    """A text stream that writes only visible characters; everything else is that of ``raw``."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Write ``visible(text)``."""
        self.raw.write(visible(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw_stream(stream: TextIO) -> TextIO:
    """The stream behind ``stream``, for what draws with control characters of its own."""
    return stream.raw if isinstance(stream, PlainStream) else stream


def open_browser(address: str) -> bool:
    """Open ``address`` in the browser; False where there is none to open it in.

    Without a display Python would start a text browser inside this terminal.
    """
    import webbrowser

    has_display = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    return has_display and webbrowser.open(address)


@contextmanager
def plain_output() -> Iterator[None]:
    """Let all that is printed pass through ``visible``."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, PlainStream(raw_stream(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
