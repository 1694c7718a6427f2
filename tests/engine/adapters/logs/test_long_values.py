"""Lines with long nested lists are read as the JSON parser reads them, or left to it."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from tokenpaths.engine.adapters.logs import long_values
from tokenpaths.engine.adapters.logs.long_values import nested_array, parse_long
from tokenpaths.engine.base.validation import DISTINCT_KEYS


def plain(value: object) -> object:
    """The value with its arrays as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def ids(*shape: int) -> list[object]:
    held: list[object] = np.random.default_rng(3).integers(0, 70_000, shape).tolist()
    return held


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
@pytest.mark.parametrize("shape", [(40, 3, 8), (1, 60, 4), (300, 1, 1), (200, 2)])
def test_ids_are_an_array(shape: tuple[int, ...], separators: tuple[str, str]) -> None:
    record = {"id": 'a "quoted" one', "choices": [{"routed_experts": ids(*shape), "text": "[[1, 2], [3"}], "n": 1}
    line = json.dumps(record, separators=separators).encode()
    read = parse_long(line)
    assert isinstance(read["choices"][0]["routed_experts"], np.ndarray)
    assert plain(read) == record


@pytest.mark.parametrize("text", ["[[01,2]]", "[[1,2],[3]]", "[[1 2,3]]", "[[1,2],3[,4]]", "[[,1]]", "[[1,2]", "[[]]"])
def test_what_is_no_list_of_ids_is_left_to_the_parser(text: str) -> None:
    assert nested_array(text.encode()) is None


@pytest.mark.parametrize(
    "text", ["[[-1]]", "[[1.5]]", "[[true]]", "[[123456]]", "[[[[1]]]]", "[[1e3]]", "[[1],[null]]"]
)
def test_other_values_are_left_to_the_parser(text: str) -> None:
    json.loads(text)
    assert nested_array(text.encode()) is None


def test_changed_lines_read_as_the_parser_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_values, "LEAST_BYTES", 1)
    rng = random.Random(8)
    line = json.dumps({"a": [[[1, 20], [3, 4]], [[5, 60], [7, 8]]], "t": '[[9, 9]] "', "b": [[1], [2]]})
    arrays = 0
    for _ in range(20_000):
        changed = list(line)
        for _ in range(rng.randrange(1, 3)):
            place = rng.randrange(len(changed))
            changed[place : place + rng.randrange(2)] = rng.choice(['"', "[", "]", ",", " ", "0", "7", "\\", ":", "{"])
        text = "".join(changed)
        read = parse_long(text.encode())
        if read is None:
            continue
        arrays += 1
        assert plain(read) == DISTINCT_KEYS.decode(text)
    assert arrays > 500


def test_a_list_inside_of_a_text_stays_text() -> None:
    record = {"text": "see " + json.dumps(ids(100, 4, 2)), "ids": ids(2, 2, 2)}
    line = json.dumps(record).encode()
    read = parse_long(line)
    assert read is None or plain(read) == record


def test_a_key_that_stands_twice_is_left_to_the_parser() -> None:
    held = json.dumps(ids(100, 4, 2))
    assert parse_long(f'{{"a": {held}, "a": 1}}'.encode()) is None
