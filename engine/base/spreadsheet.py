"""Texts that a spreadsheet would run as a formula, and how a CSV file holds them."""

from __future__ import annotations

import re

_BLANKS = r"\s\x00-\x1f\xa0\xad" + "\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff"
FORMULA = f"^[{_BLANKS}]*[=+@\uff1d\uff0b\uff0d\uff20-]|^[\\t\\r\\n]"
"""texts that a spreadsheet would take for a formula; means the same to Python, RE2 and Arrow"""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
"""texts that match ``FORMULA`` and are harmless"""


def spreadsheet_text(text: str) -> str:
    """``text`` as the cell of a CSV file: what a spreadsheet would take for a formula starts with an apostrophe.

    >>> [spreadsheet_text(text) for text in ("=1+1", " @x", "-0.5", "a=b")]
    ["'=1+1", "' @x", '-0.5', 'a=b']
    """
    return f"'{text}" if re.match(FORMULA, text) and not re.match(NUMBER, text) else text
