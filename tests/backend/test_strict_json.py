"""JSON that somebody sent: one meaning or a sentence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenpaths.backend.http.strict_json import json_body, strict_json
from tokenpaths.backend.problems import Problem

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(value=PLAIN)
def test_what_has_one_meaning_is_read_as_any_reader_would(value: object) -> None:
    text = json.dumps(value)
    assert strict_json(text) == strict_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"kind": 1, "kind": 1}', "the key 'kind' is there twice"),
        (b'[{"a": {"b": 1, "c": 2, "b": 3}}]', "the key 'b' is there twice"),
        (b'{"a": 1, "\\u0061": 2}', "the key 'a' is there twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"1" * 5000, "5,000 digits"),
        (b"1e999", "too large"),
        (b"-Infinity", "no number of JSON"),
        (b'"\xff"', "is no UTF-8"),
        (b'"\\udc00"', "half a character"),
        (b"", "Expecting value"),
    ],
)
def test_what_has_none_or_two_is_refused_in_words_for_people(data: bytes, words: str) -> None:
    with pytest.raises(Problem, match=words) as caught:
        json_body(data)
    assert (caught.value.status, caught.value.field) == (422, "body")
    assert "recursion" not in caught.value.detail
    assert "sys." not in caught.value.detail
