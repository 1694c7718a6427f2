"""Faults of nested requests: their field as the sender wrote it, the names of its own level, sentences about lists."""

from __future__ import annotations

import pytest

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.jobs.dream import DreamJob
from tokenpaths.engine.jobs.registry import read_request
from tokenpaths.engine.jobs.traces.trace import TraceJob


@pytest.mark.parametrize(
    ("target", "field", "words"),
    [
        (
            {"of": "choices", "untill": [3]},
            "target.untill",
            "did you mean 'until'? There are: context, first, form, group",
        ),
        (
            {"of": "choices", "group": {"patch": [3]}},
            "target.group.patch",
            "did you mean 'patches'? There are: draw, like",
        ),
        (
            {"of": "direction", "direction": 1, "layer": "x", "head": 0},
            "target.layer",
            "given 'x'",
        ),  # a field like its tag
        ({"of": "direction", "direction": 1, "layer": 1}, "target.head", "required"),
        ({"of": "path", "ribbon": [[0], [-1]]}, "target.ribbon.1.0", "greater than or equal to 0"),
        ({"of": "choices", "until": []}, "target.until", "the list is empty; name at least one, or leave it out"),
        ({"of": "choices", "until": list(range(5000))}, "target.until", "the list has 5,000; at most 4,096 are taken"),
        ({"of": "dance"}, "target", "`of` is 'dance'; it may be 'choices', 'path'"),
        ({"kind": "choices"}, "target", "say with `of` which kind it is: 'choices', 'path'"),
        ({"of": "choices", "until": 3}, "target.until", "it should be a list, […]; given '3'"),
        ("choices", "target", "it should be a JSON object, {…}; given 'choices'"),
    ],
)
def test_a_nested_fault_is_named_as_it_was_written(target: object, field: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        read_request(DreamJob, {"model": "tiny", "target": target})
    assert refused.value.field == field
    assert words in str(refused.value)
    assert not any(word in str(refused.value) for word in ("Tuple", "tuple", "dictionary", "discriminator", "tag"))


@pytest.mark.parametrize(
    ("field", "given", "words"),
    [
        ("limit", "5", "it should be a whole number, without quotation marks; given '5'"),
        ("limit", 1.5, "it should be a whole number; given '1.5'"),
        ("limit", True, "it should be a whole number; given 'True'"),
        ("twin", "no", "it should be true or false, without quotation marks; given 'no'"),
        ("twin", 1, "it should be true or false; given '1'"),
    ],
)
def test_a_number_in_quotation_marks_is_told_so(field: str, given: object, words: str) -> None:
    with pytest.raises(UserError) as refused:
        read_request(TraceJob, {"model": "tiny", "data": "bundled:texts", field: given})
    assert str(refused.value) == f"`{field}`: {words}."


def test_a_name_that_is_none_is_told_without_a_pattern() -> None:
    with pytest.raises(UserError) as refused:
        read_request(TraceJob, {"model": "tiny", "data": "bundled:texts", "run": "a b"})
    assert str(refused.value) == (
        "`run`: a name is 1 to 64 letters, digits, - and _, starting with a letter or digit; given 'a b'."
    )
