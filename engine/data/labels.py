"""Labels of samples: one text for every value, a count of all that is changed or left out, and labels that look alike.

Every reader of samples turns its values into labels here, so that one value is one label in every format.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np

MOST_CHARACTERS: Final = 200
"""of a label, and of a name that is kept as one; a longer one is cut"""
MOST_NAMED: Final = 5
"""groups of labels, and labels of a group, that a sentence names"""
MOST_SOURCE: Final = 500
"""characters of the name of a sample's file or row"""

SENTENCES: Final = {
    "point": "{n} written with a point, such as 1.0, {are} read as whole numbers",
    "fraction": "{n} with a fraction {are} read as text",
    "truth": "{n} given as true or false {are} read as these words",
    "other": "{n} given as dates, times or decimal numbers {are} read as text",
    "control": "{n} with control characters {are} shown with visible signs for them",
    "surrogate": "{n} with bytes that are no Unicode {are} shown with question marks for them",
    "long": f"{{n}} longer than {MOST_CHARACTERS} characters {{are}} cut, with a sum of the whole at the end",
    "key": "{n} under a key that is spelled otherwise than in the first object {are} read all the same",
    "list": "{n} given as a list {are} left out",
    "object": "{n} given as an object {are} left out",
    "no number": "{n} given as NaN or infinity {are} left out",
    "bytes": "{n} given as bytes {are} left out",
    "blank": "{n} of blanks and invisible characters alone {are} left out",
    "class": "{n} given as a number without a class name {are} kept as that number",
    "source": f"{{n}} of samples longer than {MOST_SOURCE} characters {{are}} cut",
}
"""what is said of each kind of change"""

_HOMOGLYPHS: Final = str.maketrans("аеосрхіѕјуοı", "aeocpxisjyoi")
"""Cyrillic and Greek letters, and the dotless i, that look like Latin ones"""
_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0") | {chr(c) for c in range(0xFE00, 0xFE10)}
"""characters that show nothing, besides those of the category Cf: joiners, fillers, variation selectors"""


class Remarks:
    """Counts of what was changed or left out while samples were read, by kind, with the place of the first."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, kinds: Iterable[str], where: str = "", count: int = 1) -> None:
        """Count ``kinds``: keys of ``SENTENCES``, or whole phrases with ``{n}``, ``{s}`` and ``{are}``."""
        for kind in kinds:
            self._counts[kind] += count
            self._first.setdefault(kind, where)

    def to_rows(self) -> list[tuple[str, int, str]]:
        """(kind, count, first place) of each kind, for another process."""
        return [(kind, count, self._first[kind]) for kind, count in self._counts.items()]

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[Any]]) -> Remarks:
        """The inverse of ``to_rows``."""
        remarks = cls()
        for kind, count, first in rows:
            remarks.add((kind,), first, count)
        return remarks

    def sentences(self) -> list[str]:
        """One sentence for each kind, the first place at its end."""
        sentences = []
        for kind, count in self._counts.items():
            what = "name" if kind == "source" else "label"
            s, are = ("", "is") if count == 1 else ("s", "are")
            number = f"{count:,} {what}{s}" if kind in SENTENCES else f"{count:,}"
            text = SENTENCES.get(kind, kind).format(n=number, s=s, are=are)
            first = self._first[kind]
            sentences.append(text + (f" ({'' if count == 1 else 'the first: '}{first})" if first else ""))
        return sentences


def read_label(value: Any) -> tuple[str | None, tuple[str, ...]]:
    """The label that ``value`` stands for, and the kinds of ``SENTENCES`` of what that changed or left out.

    A whole number has one text, whether written 1, 1.0 or "1". Lists, objects, bytes, NaN and infinity are no labels.
    None and the empty text say that there is none; they are not counted.
    """
    if type(value) is str and 0 < len(value) <= MOST_CHARACTERS:
        return _read_short(value)
    kinds: tuple[str, ...] = ()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        value, kinds = ("true" if value else "false"), ("truth",)
    elif isinstance(value, float):
        if not math.isfinite(value):
            return None, ("no number",)
        whole = value.is_integer()
        value, kinds = (str(int(value)) if whole else repr(value)), ("point" if whole else "fraction",)
    elif isinstance(value, int):
        value = str(value)
    elif isinstance(value, Decimal | date | datetime | time):
        value, kinds = str(value), ("other",)
    if value is None or value == "":
        return None, kinds
    if not isinstance(value, str):
        return None, ("object" if isinstance(value, Mapping) else "bytes" if isinstance(value, bytes) else "list",)
    return _read_text(value, kinds)


def _read_text(value: str, kinds: tuple[str, ...] = ()) -> tuple[str | None, tuple[str, ...]]:
    """``read_label`` of a text that is not empty."""
    text = value
    if not (text.isascii() and text.isprintable()):
        text = text.encode("utf-8", "replace").decode("utf-8")
        kinds += ("surrogate",) if text != value else ()
        shown = "".join(_visible(c) for c in text)
        kinds += ("control",) if shown != text else ()
        text = shown
    if not label_key(text):
        return None, ("blank",)
    if len(text) > MOST_CHARACTERS:
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        text, kinds = f"{text[: MOST_CHARACTERS - 10]}… {digest}", (*kinds, "long")
    return text, kinds


_read_short = lru_cache(4096)(_read_text)
"""the same few labels come again and again"""


def read_source(name: str) -> tuple[str, tuple[str, ...]]:
    """The name of a sample's file or row at a length that can be shown."""
    return (name, ()) if len(name) <= MOST_SOURCE else (name[: MOST_SOURCE - 1] + "…", ("source",))


def _visible(character: str) -> str:
    """A sign for a control character: no two labels become one by that."""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\\x{code:02x}" if 0x80 <= code < 0xA0 else character


def label_key(label: str) -> str:
    """What labels that look alike have in common.

    Case, width and composition of characters (NFKC), blanks at the ends or several in a row, kinds of dashes and
    quotes, characters that show nothing (zero-width, soft hyphen, direction marks) and a dozen letters of other
    alphabets that look Latin do not count.
    """
    if label.isascii() and label.isprintable():
        return " ".join(label.casefold().split())
    characters = []
    for character in unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold()):
        kind = unicodedata.category(character)
        if kind == "Cc" or "\u2400" <= character <= "\u2421" or character == "\u2800":
            characters.append(" ")
        elif kind != "Cf" and character not in _INVISIBLE:
            characters.append("-" if kind == "Pd" else "'" if character in "‘’ʼ" else character)
    return " ".join("".join(characters).translate(_HOMOGLYPHS).split())


def look_alikes(sizes: Mapping[str, int]) -> list[list[str]]:
    """Groups of two or more labels with one ``label_key``, the largest label of each first, groups in its order.

    Args:
        sizes: number of samples of each label.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for label in sorted(sizes, key=lambda name: (-sizes[name], len(name), name)):
        groups[label_key(label)].append(label)
    return [group for group in groups.values() if len(group) > 1]


def alike_sentence(groups: Iterable[Iterable[tuple[str, int]]]) -> str | None:
    """One sentence that names groups of labels with their numbers of samples; None without a group."""
    named = []
    for group in groups:
        words = [f"{json.dumps(label)} ({count:,})" for label, count in group]
        more = f" and {len(words) - MOST_NAMED:,} more" if len(words) > MOST_NAMED else ""
        named.append(", ".join(words[:MOST_NAMED]) + more)
    if not named:
        return None
    more = f"; and {len(named) - MOST_NAMED:,} more groups" if len(named) > MOST_NAMED else ""
    shown = "; ".join(named[:MOST_NAMED]) + more
    them = "1 group of labels looks" if len(named) == 1 else f"{len(named):,} groups of labels look"
    return f"{them} alike and {'is' if len(named) == 1 else 'are'} kept apart (samples of each): {shown}"
