"""The page talks HTTP only; charts know neither HTTP nor Streamlit; only the client knows httpx."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FRONTEND = Path(__file__).resolve().parents[2] / "frontend"
FILES = sorted(FRONTEND.rglob("*.py"))


def imported(file: Path) -> set[str]:
    """Full names of all modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_there_is_a_page_to_look_at():
    assert len(FILES) > 20


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FRONTEND)))
def test_imports_go_one_way(file):
    roots = {name.split(".")[0] for name in imported(file)}
    assert not roots & {"engine", "backend", "torch", "duckdb", "requests", "urllib3"}
    if file.name != "client.py":
        assert "httpx" not in roots
    if file.parent.name == "charts":
        assert "streamlit" not in roots
        assert all(
            name.startswith("tokenpaths.frontend.charts") for name in imported(file) if name.split(".")[0] == "frontend"
        )


@pytest.mark.parametrize("file", sorted(FRONTEND.rglob("*.js")), ids=lambda file: file.name)
def test_data_never_becomes_markup(file):
    source = file.read_text("utf-8")
    for danger in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
        "http://",
        "https://",
        "import(",
    ):
        assert danger not in source.replace("http://www.w3.org/2000/svg", ""), danger


def test_the_style_sheets_fetch_nothing():
    for file in FRONTEND.rglob("*.css"):
        assert "url(" not in file.read_text("utf-8")
        assert "@import" not in file.read_text("utf-8")
