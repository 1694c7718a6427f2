"""Every example in a docstring runs and gives what it says (`make check` runs this file alone)."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def modules_with_examples() -> list[str]:
    """Names below ``tokenpaths`` of the modules whose text has an example."""
    names = []
    for folder, package in (
        ("engine", ".engine"),
        ("backend", ".backend"),
        ("frontend", ".frontend"),
        ("tokenpaths", ""),
    ):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if ">>> " in file.read_text(encoding="utf-8"):
                parts = file.relative_to(ROOT / folder).with_suffix("").parts
                names.append(".".join((f"tokenpaths{package}", *(part for part in parts if part != "__init__"))))
    return names


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module(name: str) -> None:
    module = importlib.import_module(name)
    # A wrapped function keeps its docstring but is no plain function: it is found by the name of what it wraps.
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0
    assert result.attempted > 0, "has examples, but doctest finds none of them"
