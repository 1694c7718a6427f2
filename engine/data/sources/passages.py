"""Splits long texts into passages that fit a model's context, at paragraph and sentence ends where possible."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PARAGRAPH = re.compile(r"\n[ \t]*\n+")
_LINE = re.compile(r"\n")
_SENTENCE = re.compile(r"(?<=[.!?…。！？])\s*")
_WORD = re.compile(r"\s+")


def passage_spans(text: str, longest: int, shortest: int = 0) -> Iterator[tuple[int, int]]:
    """(start, end) of consecutive passages of at most ``longest`` characters.

    Each ends at the last paragraph break that leaves it at least half of ``longest``, else at the last
    line, sentence or word break there, else in the middle of a word. A last piece under ``shortest`` is
    left out; white space at the edges is too. The spans are ascending and never overlap.
    """
    if longest < 1 or shortest > longest:
        raise ValueError(f"longest {longest}, shortest {shortest}: need 1 ≤ longest and shortest ≤ longest")
    start = 0
    while start < len(text):
        end = len(text) if len(text) - start <= longest else _break(text, start, longest)
        first, last = _strip(text, start, end)
        if last > first and last - first >= shortest:
            yield first, last
        start = end


def cut_passages(text: str, longest: int, shortest: int = 0) -> Iterator[str]:
    """The passages of ``passage_spans`` themselves."""
    for start, end in passage_spans(text, longest, shortest):
        yield text[start:end]


def _break(text: str, start: int, longest: int) -> int:
    low, high = start + max(1, longest // 2), start + longest
    for kind in (_PARAGRAPH, _LINE, _SENTENCE, _WORD):
        ends = [match.end() for match in kind.finditer(text, low, high) if low < match.end() <= high]
        if ends:
            return ends[-1]
    return high


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start] in "\r\n":  # indentation is part of code: only blank lines go
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
