"""Text of samples: splitting at token offsets, names of tokens without text, bidirectional controls made visible."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import bidirectional, category

_SHOWN = {code: f"⟦{bidirectional(chr(code))}⟧" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Unicode's invisible bidirectional controls (UAX 9) → visible marks with their names"""
_RIGHT_TO_LEFT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
_STRETCH = re.compile(f"[{_RIGHT_TO_LEFT}](?:[^→·“”:;,()\\n]*[{_RIGHT_TO_LEFT}])?")
"""from the first letter written from right to left to the last, without the signs that the page sets between names"""
_JOINERS = "\u200c\u200d"


def tamed(text: str) -> str:
    """``text`` with bidirectional controls replaced by marks such as ⟦RLO⟧; they would reorder the surrounding text.

    Letters keep their own direction, so Arabic and Hebrew text is unchanged.
    """
    return text if text.isascii() else text.translate(_SHOWN)


def isolated(text: str) -> str:
    """A sentence or caption of the page in which names written from right to left leave everything else in its place:
    “א → ב” is read as “ב ← א” by a browser, and a number behind such a name is drawn before it.
    """
    return text if text.isascii() else _STRETCH.sub("\u2067\\g<0>\u2069", text)


def has_ink(text: str) -> bool:
    """Whether something of ``text`` is seen by itself: a letter, a digit or a sign; no blank, control or accent."""
    return any(category(letter)[0] in "LNPS" for letter in text)


def with_signs(text: str) -> str:
    """``text`` with a sign for every character that cannot be seen: ␛ for a control character, ⟦U+200B⟧ for any other.
    An accent alone stands on a circle. Joiners inside words and emojis stay.

    >>> with_signs("a\\x1b[0m"), with_signs("\\u200b"), with_signs("\\u0301")
    ('a␛[0m', '⟦U+200B⟧', '◌́')
    """
    if text and category(text[0])[0] == "M":
        text = "◌" + text
    text = tamed(text)
    if text.isprintable():
        return text

    def sign(place: int, letter: str) -> str:
        beside = text[place - 1 : place], text[place + 1 : place + 2]
        if letter.isprintable() or letter in _JOINERS and all(one and one.isprintable() for one in beside):
            return letter
        return chr(0x2400 + ord(letter)) if letter < " " else f"⟦U+{ord(letter):04X}⟧"

    return "".join(sign(place, letter) for place, letter in enumerate(text))


def cut_short(text: str, most: int) -> str:
    """``text`` in at most so many letters, the last an ellipsis if any were left out."""
    return text if len(text) <= most else text[: most - 1] + "…"


@dataclass(frozen=True)
class Piece:
    """A segment of the text and the tokens (by ``token``) that cover it; empty if no token does."""

    text: str
    tokens: tuple[int, ...]


def text_pieces(text: str, tokens: Sequence[Mapping[str, Any]]) -> list[Piece]:
    """Split ``text`` at the tokens' ``char_start`` and ``char_end`` (Python characters).

    The pieces joined give ``text`` again, whatever the offsets are. Tokens that share a character (the bytes of “é” or
    of an emoji) become one piece. A zero-width token joins the piece before it.
    """
    pieces: list[list[Any]] = []  # [start, end, token ids]
    for token in tokens:
        start, end = token.get("char_start"), token.get("char_end")
        if start is None or end is None:
            continue
        start, end = max(0, min(int(start), len(text))), max(0, min(int(end), len(text)))
        if pieces and (start < pieces[-1][1] or start >= end):
            pieces[-1][1] = max(pieces[-1][1], end)
            pieces[-1][2].append(int(token["token"]))
        elif start < end:
            pieces.append([start, end, [int(token["token"])]])
    parts, place = [], 0
    for start, end, members in pieces:
        if start > place:
            parts.append(Piece(text[place:start], ()))
        parts.append(Piece(text[start:end], tuple(members)))
        place = end
    if place < len(text):
        parts.append(Piece(text[place:], ()))
    return parts


def with_text(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A text sample whose text was not recorded, with tokens in place of words: their vocabulary entries, else ids,
    else positions. Any other sample is returned unchanged.
    """
    if sample.get("text") is not None or sample.get("grid") or sample.get("has_image"):
        return dict(sample)
    tokens, words, place = [], [], 0
    for token in sample["tokens"]:
        has_word = token.get("text") or token.get("token_id") is not None
        word = token_name(token) if has_word else str(token["token"])
        text = word if has_word else None
        tokens.append({**token, "text": text, "char_start": place, "char_end": place + len(word)})
        words.append(word)
        place += len(word) + 1
    return {**sample, "text": " ".join(words), "tokens": tokens, "made_up": True}


def token_name(token: Mapping[str, Any]) -> str:
    """Label of a token: its text, ``#`` and its vocabulary id, or its position."""
    if token.get("text"):
        return str(token["text"])
    return f"#{token['token_id']}" if token.get("token_id") is not None else f"token {token['token']}"
