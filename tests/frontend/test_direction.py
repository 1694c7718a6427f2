"""Import directions: the page talks HTTP only, through one room; charts and figures know neither HTTP nor Streamlit."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FRONTEND = Path(__file__).resolve().parents[2] / "frontend"
FILES = sorted(FRONTEND.rglob("*.py"))
PACKAGE = "tokenpaths.frontend"
DRAWING = (f"{PACKAGE}.charts", f"{PACKAGE}.figures", f"{PACKAGE}.formulas")
"""rooms that notebooks, the command line and the API's report use without the page"""

SHARED = ("tokenpaths.web_origins", "tokenpaths.web_origins.read_origins")
"""how a setting is read that the API's server and the page's both have"""


def imported(file: Path) -> set[str]:
    """Full names of all modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file} imports by a relative name"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_there_is_a_page_to_look_at():
    assert len(FILES) > 20
    assert any(inside(name, PACKAGE) for name in imported(FRONTEND / "app.py")), "imports are found by their full names"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FRONTEND)))
def test_imports_go_one_way(file):
    names, room = imported(file), file.relative_to(FRONTEND).parts[0]
    roots = {name.split(".")[0] for name in names}
    assert not roots & {"torch", "duckdb", "requests", "urllib3", "engine", "backend", "frontend"}
    own = {name for name in names if inside(name, "tokenpaths")} - {"tokenpaths", PACKAGE}
    if file == FRONTEND / "asgi.py":
        own -= set(SHARED)
    assert all(inside(name, PACKAGE) for name in own), own
    if room != "api":
        assert "httpx" not in roots
    if room in ("charts", "figures", "formulas.py"):
        assert "streamlit" not in roots
        rooms = DRAWING if room == "figures" else (f"{PACKAGE}.{Path(room).stem}",)
        assert all(any(inside(name, allowed) for allowed in rooms) for name in own), own


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
