"""Untrusted text in Streamlit's Markdown: no pictures, links, addresses, HTML, formulas, directives or emoji codes.

There are two defences. ``escape`` writes a text such that Markdown shows its characters; views use it for whatever
comes from a run, a job or a person. ``make_inert`` acts on every message that Streamlit sends to a browser, so a text
that a view forgot to escape still loads and links nothing; ``install`` puts it there.

Backslashes are not enough: Streamlit's browser code looks for addresses, emoji codes and icons once more after it has
read Markdown, when escapes are gone. Only a character in between keeps ``http://…`` from becoming a link; U+2060 (word
joiner) is one that is never seen.
"""

from __future__ import annotations

import re
from typing import Any

from streamlit import delta_generator
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tokenpaths.frontend.charts.drawing.running_text import isolated, tamed

JOINER = "\u2060"
_PLACES = r"""
    (?<=http)(?=\\?:) | (?<=https)(?=\\?:) | (?<=www)(?=\\?\.)   # addresses; \: and \. are the same to the browser
    | (?<=@)(?=\\?[-\w.])                                        # mail addresses
    | (?<=:)%s(?=[\w+\-/\\]+:)                                   # :emoji_codes: and :material/icons:
    """
PLACES = re.compile(_PLACES % "", re.IGNORECASE | re.VERBOSE)
"""where a joiner keeps a text, escaped or not, from becoming more than a text after Markdown was read"""
OWN_PLACES = re.compile(_PLACES % "(?!material/)", re.IGNORECASE | re.VERBOSE)
"""the same in Markdown of the page, which has icons of its own"""
MARKUP = re.compile(r"(?<=\])(?=[(\[:])|(?<=<)(?=[a-z/!?])|(?<=&)(?=[#\w])", re.IGNORECASE)
"""where a joiner breaks links, pictures, definitions, HTML and character references; the page's own texts have none"""
PERCENT = re.compile(r"(?<=\d) (?=%)")
"""the space of a percentage: a line does not break there"""
CODE = re.compile(r"(`[^`]+`)")
FORMULA = re.compile(r"(?<!\\)((?:\\\\)*)\$")
RAW = frozenset({"html", "code", "json", "iframe", "bidi_component", "component_instance", "arrow_vega_lite_chart"})
"""elements whose text is not Markdown; ``st.html`` gets HTML that the page escapes itself"""
FIELDS = frozenset({"label", "body", "help", "text", "caption", "content", "delta", "title", "placeholder", "message"})
OPTIONS = frozenset({"slider", "radio"})
"""elements whose ``options`` are Markdown; a selectbox shows plain text and sends it back"""


def escape(text: str) -> str:
    """Escape untrusted text for Markdown; `code` spans stay code."""
    parts = isolated(tamed(text)).replace("\r", " ").replace("\n", " ").split("`")
    # With an odd number of backticks, a double one or one behind a backslash, Markdown may pair them differently from
    # us, so escape everything.
    if len(parts) % 2 == 0 or "``" in text or "\\`" in text:
        parts = ["‵".join(parts)]
    return "`".join(part if place % 2 else _escape_characters(part) for place, part in enumerate(parts))


def _escape_characters(text: str) -> str:
    safe = PLACES.sub(JOINER, text)
    return "".join("\\" + letter if letter in "\\*_{}[]()<>#+-.!|~$:&" else letter for letter in safe)


def inert(markdown: str) -> str:
    """``markdown`` without anything that loads, links or runs; emphasis, lists, code and colours stay.

    Percentages stay on one line.

    >>> inert("8.8 % and `7.6 %`")
    '8.8\\xa0% and `7.6 %`'
    """
    if markdown.isalnum():
        return markdown
    parts = CODE.split(MARKUP.sub(JOINER, OWN_PLACES.sub(JOINER, markdown)))
    return "".join(
        part if place % 2 else FORMULA.sub(r"\1\\$", PERCENT.sub("\u00a0", part)) for place, part in enumerate(parts)
    )


def make_inert(message: ForwardMsg) -> None:
    """Apply ``inert`` to all Markdown of an element or block."""
    delta = message.delta
    kind = delta.WhichOneof("type")
    if kind in ("new_element", "add_block"):
        _make_inert(getattr(delta, kind))


def _make_inert(part: Any, kind: str = "") -> None:
    """Apply ``inert`` to the Markdown of a protobuf message and of the messages in it."""
    for field, value in part.ListFields():
        if field.message_type is not None:
            for member in value if field.is_repeated else (value,):
                if field.name not in RAW and hasattr(member, "ListFields"):
                    _make_inert(member, field.name)
        elif field.name in FIELDS and isinstance(value, str):
            setattr(part, field.name, inert(value))
        elif field.name == "options" and kind in OPTIONS:
            value[:] = [inert(option) for option in value]


def install() -> None:
    """Let every message of this process pass through ``make_inert``.

    Streamlit has no public place for this; all of its elements, containers and replayed caches call one function.
    """
    streamlit: Any = delta_generator
    send = streamlit._enqueue_message
    if getattr(send, "sends_inert", False):
        return

    def send_inert(message: ForwardMsg) -> None:
        make_inert(message)
        send(message)

    send_inert.sends_inert = True  # type: ignore[attr-defined]
    streamlit._enqueue_message = send_inert
