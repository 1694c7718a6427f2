"""Hostile texts for the page: how they get into every answer of the API, and what Markdown makes of them."""

from __future__ import annotations

import re
from typing import Any

from markdown_it import MarkdownIt

EVIL = (
    "![m](http://evil.test/x.png) http://evil.test/y [a](http://evil.test/z) www.evil.test a@evil.test "
    "<img src=http://evil.test/i onerror=window.bad=1> <b>b</b> :red[r] :smile: $x^2$ &#58;smile: [d]: http://evil.test"
)
KEPT = re.compile(
    r"^$|^\d{4}-\d\d-\d\dT|^[0-9a-f]{16,}$|^[\d.:,+-]+$"  # times, sums, numbers
)
NAMES = """
run job kind status state modality family split measure next order weight_semantics score_function created_at
schema_version engine_version num bin per mode side unit format type key view of at property shuffled
"""
IDENTIFIERS = frozenset(NAMES.split())
"""keys whose values the page compares, or sends back as a part of an address"""


def poisoned(value: Any, key: str = "") -> Any:
    """An answer of the API in which every text ends in ``EVIL``; identifiers stay."""
    if isinstance(value, dict):
        return {name: inner if name in IDENTIFIERS else poisoned(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner, key) for inner in value]
    if isinstance(value, str) and not value.startswith("data:") and not KEPT.match(value):
        return f"{value} {EVIL}"
    return value


ADDRESS = re.compile(r"(?:https?://|www(?=\.))[-.\w]", re.IGNORECASE)
MAIL = re.compile(r"[-.\w+]+@[-\w]+(?:\.[-\w]+)+")
CODE = re.compile(r":(?!material/)(?:[\w+-]+):")
FORMULA = re.compile(r"\$")
DIRECTIVE = re.compile(r":(?!small\[|gray\[|primary\[|\w+-badge\[)[a-z-]+\[")

PARSER = MarkdownIt("commonmark", {"html": True}).disable("text_join")


def active(markdown: str) -> list[str]:
    """What Streamlit would make of Markdown beyond text: pictures, links, HTML, formulas, directives, codes.

    Addresses, mail addresses and codes are looked for in the text that is left when Markdown was read, as its browser
    code does; formulas and directives in what was not escaped.
    """
    found = []
    for token in PARSER.parse(markdown):
        parts = token.children or [token]
        found += [part.type for part in parts if part.type in ("image", "link_open", "html_inline", "html_block")]
        text = "".join(part.content if part.type in ("text", "text_special") else "\n" for part in parts)
        found += [match[0] for pattern in (ADDRESS, MAIL, CODE) for match in pattern.finditer(text)]
        bare = "".join(part.content if part.type == "text" else "\n" for part in parts)
        found += [match[0] for pattern in (DIRECTIVE, FORMULA) for match in pattern.finditer(bare)]
    return found
