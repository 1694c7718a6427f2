"""Words of texts: which word a token belongs to, and the word's kind, from its characters alone.

Shapes: n tokens; W distinct words. A *word* is a run of letters, digits and ``_`` (an apostrophe or a joiner
between letters belongs to it); a token of other characters is a word of its own, without the blanks around it.
"""

from __future__ import annotations

import fnmatch
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int, Integer

from tokenpaths.engine.base.errors import UserError

MOST_CHARACTERS = 200
"""of a pattern"""
FEW_WORDS = 4
"""words whose tokens are found by comparing their codes, which is faster than to look up whether each code's fits"""
KINDS = ("punctuation", "sentence_end", "number", "capitalised", "function_word", "ends_in_s", "whitespace")
CLASSES = ("whitespace", "punctuation", "number", "function_word", "ends_in_s", "capitalised", "other")
"""what ``word_class`` tells apart, each word in the first that fits"""
_FUNCTION_WORDS = """
    a about above after again against all also am among an and another any are as at be because been before being
    below between both but by can could did do does doing down during each either every few for from had has have
    having he her here hers him his how i if in into is it its itself just may me might more most must my neither no
    nor not of off on once only or other our out over own per same shall she should since so some such than that the
    their them then there these they this those through to too under until up upon very was we were what when where
    whether which while who whom whose why will with within without would yet you your
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""articles, pronouns, prepositions, conjunctions and auxiliaries of English"""
_SENTENCE_ENDS = frozenset(".!?…。！？؟۔।")
_JOINERS = "\u200c\u200d"
"""inside words of Persian and of Indian scripts, and between the parts of an emoji"""
_BETWEEN = "'’" + _JOINERS
"""part of a word between two letters"""


@dataclass(frozen=True)
class Words:
    """The words of n tokens: ``names[codes_n[i]]`` is that of token i, its letters as they stand in the text."""

    names: tuple[str, ...]
    codes_n: Int[np.ndarray, " n"]
    glued_n: Bool[np.ndarray, " n"] | None = None
    """a letter, digit or ``_`` follows at once, as after the stop of ``self.msg`` or ``3.14``; None: not known"""

    def of(self, places: np.ndarray) -> Words:
        """The words of some of the tokens."""
        return Words(self.names, self.codes_n[places], None if self.glued_n is None else self.glued_n[places])

    @cached_property
    def _folded(self) -> list[str]:
        return [_folded(name) for name in self.names]

    def fitting(self, pattern: str) -> Bool[np.ndarray, " n"]:
        """Tokens whose word fits ``pattern``, as in ``fitting``."""
        fits = _fitting(self._folded, pattern)
        fitting = np.flatnonzero(fits).tolist()
        fits_n: np.ndarray = np.zeros(len(self.codes_n), dtype=bool)
        if len(fitting) > FEW_WORDS:
            fits_n = fits[self.codes_n]
        else:
            for code in fitting:
                fits_n |= self.codes_n == code
        return fits_n

    def of_kind(self, kind: str) -> Bool[np.ndarray, " n"]:
        """Tokens whose word is of ``kind``. A stop inside a name or a number ends no sentence."""
        mask_n = of_kind(self.names, kind)[self.codes_n] if len(self.names) else np.zeros(len(self.codes_n), dtype=bool)
        return mask_n & ~self.glued_n if kind == "sentence_end" and self.glued_n is not None else mask_n


def is_kind(word: str, kind: str) -> bool:
    """Whether a word is of one of ``KINDS``; a word can be of several.

    >>> [kind for kind in KINDS if is_kind("Cats", kind)]
    ['capitalised', 'ends_in_s']
    """
    bare = word.strip()
    if kind == "whitespace":
        return bool(word) and not bare
    if not bare:
        return False
    has_letters = any(letter.isalnum() for letter in bare)
    if kind == "punctuation":
        return not has_letters
    if kind == "sentence_end":
        return not has_letters and not _SENTENCE_ENDS.isdisjoint(bare)
    if kind == "number":
        return re.fullmatch(r"\d+(?:[.,:/_]\d+)*", bare) is not None
    if kind == "capitalised":
        return bare[0].isupper()
    if kind == "function_word":
        return bare.casefold() in FUNCTION_WORDS
    if kind == "ends_in_s":
        low = bare.casefold()
        plural = low.isalpha() and len(low) > 3 and low.endswith("s") and not low.endswith(("ss", "us", "is"))
        return plural and low not in FUNCTION_WORDS
    raise ValueError(f"kind is {kind!r}, it should be one of {', '.join(KINDS)}")


def word_class(word: str) -> str:
    """The first of ``CLASSES`` that fits."""
    return next((kind for kind in CLASSES[:-1] if is_kind(word, kind)), CLASSES[-1])


def check_pattern(text: str | None, field: str = "q") -> str | None:
    """The pattern as it is looked for, None for none.

    Raises:
        UserError: it is too long, holds blanks, or would match everything.
    """
    if text is None or not text.strip():
        return None
    if len(text) > MOST_CHARACTERS:
        raise UserError(
            f"{field} has {len(text):,} characters, a word or pattern has at most {MOST_CHARACTERS}", field=field
        )
    pattern = text.strip()
    if any(letter.isspace() or not (letter.isprintable() or letter in _JOINERS) for letter in pattern):
        raise UserError(
            f"{field} is {pattern[:40]!r}: give one word at a time, or a pattern like dinn* (* any letters, ? one)",
            field=field,
        )
    if not pattern.strip("*"):
        raise UserError(f"{field} is {pattern[:40]!r}, which every word fits: add a letter", field=field)
    return pattern


def fitting(names: Sequence[str], pattern: str) -> Bool[np.ndarray, " W"]:
    """Which words fit: letter for letter with case and composition (é as one character or as two) ignored, ``*`` any
    letters and ``?`` one of them.
    """
    return _fitting([_folded(name) for name in names], pattern)


def _folded(name: str) -> str:
    """Without case and blanks, and composed: an accent may be a letter of its own (NFD), which nobody sees or types."""
    return unicodedata.normalize("NFC", name.strip().casefold())


def _fitting(names: Sequence[str], pattern: str) -> Bool[np.ndarray, " W"]:
    """``fitting`` of names that are folded already."""
    folded = _folded(pattern)
    if "*" not in folded and "?" not in folded:
        return np.array([name == folded for name in names], dtype=bool)
    # Brackets mean themselves; runs of stars mean one, which keeps the expression linear to match.
    matches = re.compile(fnmatch.translate(re.sub(r"\*+", "*", folded).replace("[", "[[]"))).match
    return np.array([matches(name) is not None for name in names], dtype=bool)


def of_kind(names: Sequence[str], kind: str) -> Bool[np.ndarray, " W"]:
    """Which words are of ``kind``."""
    return np.array([is_kind(name, kind) for name in names], dtype=bool)


def words_of_tokens(
    texts: Sequence[str],
    text_n: Integer[np.ndarray, " n"],
    start_n: Integer[np.ndarray, " n"],
    end_n: Integer[np.ndarray, " n"],
) -> Words:
    """The word that the first visible character of each token stands in.

    Token i is ``texts[text_n[i]][start_n[i]:end_n[i]]``; one without characters has the word ``""``.
    """
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    firsts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]]) if len(texts) else np.zeros(0, np.int64)
    whole = "\n".join(texts) + "\n"  # a line break between texts ends every word
    letters = np.frombuffer(whole.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    is_word, is_blank = _character_classes(letters)
    between = np.zeros(len(letters), dtype=bool)
    between[1:-1] = np.isin(letters[1:-1], [ord(letter) for letter in _BETWEEN]) & is_word[:-2] & is_word[2:]
    is_word = is_word | between
    low = firsts[text_n] + np.clip(start_n, 0, lengths[text_n])
    high = firsts[text_n] + np.clip(end_n, 0, lengths[text_n])
    seen = np.minimum(_next_where(~is_blank)[low], high)
    blank = seen >= high
    inside = is_word[np.minimum(seen, len(letters) - 1)] & ~blank
    begins = _last_where(np.diff(is_word, prepend=False))
    ends = _next_where(~is_word)
    # Of other characters: the token itself up to its last visible one; a blank token: all of it.
    last = _last_where(~is_blank)[np.maximum(high - 1, 0)] + 1
    low = np.where(inside, begins[np.minimum(seen, len(letters) - 1)], np.where(blank, low, seen))
    high = np.where(inside, ends[np.minimum(seen, len(letters) - 1)], np.where(blank, high, np.maximum(last, seen)))
    keys = _piece_hashes(letters, low, high)
    import pandas as pd  # half a second, only for who asks

    codes, kinds = pd.factorize(keys)
    one_of = np.empty(len(kinds), dtype=np.int64)
    one_of[codes] = np.arange(len(codes))
    glued = is_word[np.minimum(high, len(letters) - 1)] & ~inside & ~blank
    return Words(tuple(whole[low[i] : high[i]] for i in one_of.tolist()), codes.astype(np.int64), glued)


def surroundings(text: str, start: int, end: int) -> tuple[int, int]:
    """Both ends of a stretch around ``text[start:end]`` that holds all of the words it touches: enough to find them
    without reading the whole text."""
    low, high = max(0, min(start, len(text))), max(0, min(end, len(text)))
    while low and _may_be_inside(text[low - 1]):
        low -= 1
    while high < len(text) and _may_be_inside(text[high]):
        high += 1
    return low, high


def _may_be_inside(letter: str) -> bool:
    return letter.isalnum() or letter == "_" or letter in _BETWEEN or unicodedata.category(letter)[0] == "M"


def coded(words: Sequence[str]) -> Words:
    """Equal words get equal codes, numbered as they come."""
    if not len(words):
        return Words((), np.zeros(0, dtype=np.int64))
    import pandas as pd

    codes, names = pd.factorize(np.array(words, dtype=object))
    return Words(tuple(names), codes.astype(np.int64))


def _next_where(mask: Bool[np.ndarray, " c"]) -> Int[np.ndarray, " c"]:
    """For each position the first one at or after it where ``mask`` holds; the length where none does."""
    places = np.where(mask, np.arange(len(mask)), len(mask))
    return np.minimum.accumulate(places[::-1])[::-1]


def _last_where(mask: Bool[np.ndarray, " c"]) -> Int[np.ndarray, " c"]:
    """For each position the last one at or before it where ``mask`` holds; −1 where none does."""
    return np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))


def _character_classes(letters: Integer[np.ndarray, " c"]) -> tuple[Bool[np.ndarray, " c"], Bool[np.ndarray, " c"]]:
    """Part of a word, and blank. Combining marks belong to words: many scripts write their vowels so."""
    present = np.flatnonzero(np.bincount(letters))
    is_word, is_blank = (np.zeros(int(present[-1]) + 1, dtype=bool) for _ in range(2))
    for code in present.tolist():
        letter = chr(code)
        is_word[code] = letter.isalnum() or letter == "_" or unicodedata.category(letter)[0] == "M"
        is_blank[code] = letter.isspace()
    return is_word[letters], is_blank[letters]


def _piece_hashes(
    letters: Integer[np.ndarray, " c"], low_n: Int[np.ndarray, " n"], high_n: Int[np.ndarray, " n"]
) -> Integer[np.ndarray, " n"]:
    """A 64-bit number of the letters low … high − 1; pieces with equal letters have equal ones, others hardly ever.

    Powers of an odd number can be divided by modulo 2⁶⁴, so sums from the start of the text give every piece.
    """
    base = np.uint64(0x9E3779B97F4A7C15)
    back = np.uint64(pow(int(base), -1, 2**64))
    ups, downs = (np.full(len(letters) + 1, number, dtype=np.uint64) for number in (base, back))
    ups[0] = downs[0] = 1
    ups, downs = np.cumprod(ups), np.cumprod(downs)
    mixed = letters.astype(np.uint64) + np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(27)
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mixed * ups[:-1])])
    sums_n: np.ndarray = (sums[high_n] - sums[low_n]) * downs[low_n]
    return sums_n
