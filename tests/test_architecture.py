"""What docs/architecture.md and CONTRIBUTING.md name exists, and a walk enters each room once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STEP = re.compile(r"^\d+\. `([\w/]+\.py)` · `([\w.]+)`", flags=re.MULTILINE)
WALKS = {
    title: STEP.findall(text) for title, text in re.findall(r"^## Walk: (.+)\n((?:.|\n)*?)(?=^## |\Z)", PAGE, re.M)
}


def defined(file: Path) -> set[str]:
    """Functions and classes of a file, and methods as ``Class.method``."""
    names = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
            names |= {f"{node.name}.{item.name}" for item in inner}
    return names


def room(path: str) -> str:
    """``engine/store`` of ``engine/store/write/writer.py``."""
    return "/".join(path.split("/")[:-1][:2])


def test_there_are_five_walks() -> None:
    assert len(WALKS) == 5
    assert min(len(steps) for steps in WALKS.values()) >= 7


@pytest.mark.parametrize("walk", WALKS)
def test_every_file_and_function_of_a_walk_exists(walk: str) -> None:
    missing = [(path, name) for path, name in WALKS[walk] if not (ROOT / path).is_file()]
    assert missing == []
    assert [(path, name) for path, name in WALKS[walk] if name not in defined(ROOT / path)] == []


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_enters_each_room_once(walk: str) -> None:
    rooms = [room(path) for path, _ in WALKS[walk]]
    entered = [name for name, before in zip(rooms, [None, *rooms], strict=False) if name != before]
    assert len(entered) == len(set(entered)), entered


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_path_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = re.findall(r"`((?:tokenpaths|engine|backend|frontend|tests|docs|data|benchmarks)/[\w/.-]*)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
