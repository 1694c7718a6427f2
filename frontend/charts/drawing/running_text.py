"""Text of samples: splitting at token offsets, names of tokens without text, bidirectional controls made visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import bidirectional

_SHOWN = {code: f"⟦{bidirectional(chr(code))}⟧" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Unicode's invisible bidirectional controls (UAX 9) → visible marks with their names"""


def tamed(text: str) -> str:
    """``text`` with bidirectional controls replaced by marks such as ⟦RLO⟧; they would reorder the surrounding text.

    Letters keep their own direction, so Arabic and Hebrew text is unchanged.
    """
    return text if text.isascii() else text.translate(_SHOWN)


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
