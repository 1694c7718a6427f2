"""Words of tokens beside a reading letter by letter, and kinds of words by example."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenpaths.engine.analysis.words import (
    FEW_WORDS,
    KINDS,
    Words,
    check_pattern,
    fitting,
    is_kind,
    surroundings,
    word_class,
    words_of_tokens,
)
from tokenpaths.engine.base.errors import UserError

TEXTS = st.lists(st.text(alphabet="ab 'é\n.,_3’東\u0301\u200c", max_size=14), min_size=1, max_size=3)
WORD = re.compile(r"[\w\u0301]+(?:['’\u200c][\w\u0301]+)*")


def slow_word(text: str, start: int, end: int) -> str:
    """The word of one token, one character after the other."""
    start, end = max(0, min(start, len(text))), max(0, min(end, len(text)))
    seen = next((i for i in range(start, end) if not text[i].isspace()), None)
    if seen is None:
        return text[start:end]
    for match in WORD.finditer(text):
        if match.start() <= seen < match.end():
            return match.group()
    return text[seen:end].rstrip()


@settings(deadline=None)  # the first example loads pandas
@given(TEXTS, st.data())
def test_the_word_of_a_token_is_the_one_that_its_first_visible_character_stands_in(texts, data):
    index = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=8))
    starts = [data.draw(st.integers(-1, 14)) for _ in index]
    ends = [start + data.draw(st.integers(0, 4)) for start in starts]
    words = words_of_tokens(texts, np.array(index), np.array(starts), np.array(ends))
    found = [words.names[code] for code in words.codes_n]
    assert found == [slow_word(texts[i], a, b) for i, a, b in zip(index, starts, ends, strict=True)]
    assert len(set(words.names)) == len(words.names)
    stretches = [surroundings(texts[i], a, b) for i, a, b in zip(index, starts, ends, strict=True)]
    cut = [texts[i][low:high] for i, (low, high) in zip(index, stretches, strict=True)]
    lows = np.array([low for low, _ in stretches])
    again = words_of_tokens(cut, np.arange(len(index)), np.maximum(starts, 0) - lows, np.maximum(ends, 0) - lows)
    assert [again.names[code] for code in again.codes_n] == found


@pytest.mark.parametrize(
    ("word", "kinds"),
    [
        (".", {"punctuation", "sentence_end"}),
        ("),", {"punctuation"}),
        ("…", {"punctuation", "sentence_end"}),
        ("12,500.5", {"number"}),
        ("3rd", set()),
        ("Paris", {"capitalised"}),
        ("dinners", {"ends_in_s"}),
        ("glass", set()),
        ("virus", set()),
        ("basis", set()),
        ("gas", set()),
        ("dinner", set()),
        ("The", {"capitalised", "function_word"}),
        ("was", {"function_word"}),
        ("\n  ", {"whitespace"}),
        ("", set()),
        (" cats", {"ends_in_s"}),
        ("。", {"punctuation", "sentence_end"}),
    ],
)
def test_kinds_of_words(word, kinds):
    assert {kind for kind in KINDS if is_kind(word, kind)} == kinds


def test_a_word_has_one_class():
    assert [word_class(word) for word in (" ", "!", "7", "The", "Cats", "Anna", "tree")] == [
        "whitespace",
        "punctuation",
        "number",
        "function_word",
        "ends_in_s",
        "capitalised",
        "other",
    ]


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("dinner", ["dinner", "Dinner", " dinner"]),
        ("dinn*", ["dinner", "Dinner", " dinner", "dinners"]),
        ("d?nner*", ["dinner", "Dinner", " dinner", "dinners"]),
        ("[a]*", ["[a]b"]),
        (".", ["."]),
        ("STRASSE", ["straße"]),
        ("*inn*s", ["dinners"]),
        ("?", ["."]),
    ],
)
def test_patterns_fit_whole_words_with_case_ignored(pattern, fits):
    names = ["dinner", "Dinner", " dinner", "dinners", "a", "[a]b", ".", "straße"]
    found = [name for name, yes in zip(names, fitting(names, pattern), strict=True) if yes]
    assert found == (fits if pattern != "?" else ["a", "."])
    codes_n = np.random.default_rng(0).integers(0, len(names), 50)
    assert np.array_equal(Words(tuple(names), codes_n).fitting(pattern), fitting(names, pattern)[codes_n])


@pytest.mark.parametrize("pattern", ["café", "CAFÉ", "cafe\u0301", "caf?", "*fe\u0301"])
def test_accents_fit_however_they_are_composed(pattern):
    assert fitting(["café", "cafe\u0301", "cafe"], pattern).tolist() == [True, True, pattern == "caf?"]


@pytest.mark.parametrize("word", ["می\u200cخواهم", "क्\u200dष", "👩\u200d👧"])
def test_words_with_a_joiner_are_words(word):
    assert check_pattern(word) == word
    if word[0].isalpha():
        words = words_of_tokens([word], np.array([0, 0]), np.array([0, 3]), np.array([2, 4]))
        assert words.names == (word,)


def test_tokens_of_many_words_are_found_as_those_of_few():
    names = tuple(f"a{number}" for number in range(3 * FEW_WORDS)) + ("b", "c")
    codes_n = np.random.default_rng(0).integers(0, len(names), 50)
    for pattern in ("a*", "b", "x", "?"):
        assert np.array_equal(Words(names, codes_n).fitting(pattern), fitting(names, pattern)[codes_n])


def test_a_pattern_of_many_stars_is_matched_at_once():
    assert not fitting(["a" * 5000], "*a" * 60 + "b")[0]


@pytest.mark.parametrize("pattern", ["x" * 10_000, "two words", "**", "a\x00b"])
def test_a_pattern_that_cannot_be_meant_is_a_sentence(pattern):
    with pytest.raises(UserError) as caught:
        check_pattern(pattern)
    assert caught.value.field == "q"
    assert len(str(caught.value)) < 200


def test_no_pattern_asks_for_nothing():
    assert check_pattern(None) is None
    assert check_pattern("  ") is None
    assert check_pattern(" cat ") == "cat"


def test_a_stop_inside_a_name_or_a_number_ends_no_sentence():
    text = 'self.msg is 3.14. "Yes." No… x'
    stops = [i for i, letter in enumerate(text) if letter in ".…"]
    places = np.array(stops)
    words = words_of_tokens([text], np.zeros(len(stops), dtype=np.int64), places, places + 1)
    assert words.of_kind("sentence_end").tolist() == [False, False, True, True, True]
    assert words.of_kind("punctuation").all()
