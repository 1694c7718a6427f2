"""Plugins: names without imports, refusals as sentences, and nothing of one plugin in the way of another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.plugins import installed, write_plugin
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.plugins import PluginError, PluginRegistry

GROUP = "tokenpaths.tests"


def check(name: str, value: Any) -> int:
    if not isinstance(value, int):
        raise UserError(f"it is {value!r}, not a number")
    return value


def registry() -> PluginRegistry[int]:
    return PluginRegistry(GROUP, "number", {"one": 1}, check)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_plugin(tmp_path, "good_plugin", "two = 2\nword = 'x'", {GROUP: {"two": "good_plugin:two"}})
    write_plugin(tmp_path, "exits", "raise SystemExit('I was\\nleft')", {GROUP: {"three": "exits:x", "one": "exits:x"}})
    write_plugin(tmp_path, "later", "", {GROUP: {"two": "later:x", "four": "good_plugin:word", "a b": "later:x"}})
    return tmp_path


def test_names_are_listed_and_own_things_given_without_an_import(folder: Path) -> None:
    numbers = registry()
    with installed(folder, numbers):
        assert list(numbers) == ["one", "four", "three", "two"]
        assert len(numbers) == 4
        assert "two" in numbers
        assert "nobody" not in numbers
        assert numbers["one"] == 1
        assert numbers.get("nobody") is None
        assert not {"good_plugin", "exits", "later"} & set(sys.modules)
        assert numbers["two"] == 2
        assert "good_plugin" in sys.modules
        assert "exits" not in sys.modules


def test_each_that_cannot_be_used_is_a_sentence(folder: Path) -> None:
    numbers = registry()
    with installed(folder, numbers):
        with pytest.raises(PluginError) as error:
            numbers["three"]
        assert str(error.value) == (
            "the number 'three' of exits cannot be used: it cannot be imported (SystemExit: I was left)"
        )
        assert numbers.usable() == {"one": 1, "two": 2}
        assert sorted(str(thing) for _, thing in numbers.plugins() if isinstance(thing, PluginError)) == [
            "the number 'a b' of later cannot be used: a name has letters, digits, '.', '_' and '-'",
            "the number 'four' of later cannot be used: it is 'x', not a number",
            "the number 'one' of exits cannot be used: Tokenpaths has its own number of this name",
            "the number 'three' of exits cannot be used: it cannot be imported (SystemExit: I was left)",
            "the number 'two' of later cannot be used: the name is taken by 'two' of good_plugin",
        ]


def test_ctrl_c_is_no_fault_of_it(tmp_path: Path) -> None:
    write_plugin(tmp_path, "stopped", "raise KeyboardInterrupt", {GROUP: {"two": "stopped:x"}})
    write_plugin(tmp_path, "wrong", "x = 1 / 0", {GROUP: {"three": "wrong:x"}})
    numbers = registry()
    with installed(tmp_path, numbers):
        with pytest.raises(KeyboardInterrupt):
            numbers["two"]
        for _ in range(2):
            with pytest.raises(PluginError, match="ZeroDivisionError: division by zero"):
                numbers["three"]
