"""Wherever a view shows an error of the API, the id by which the API's log has it stands behind it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.frontend.test_pages import api, words  # noqa: F401 (fixtures)

VIEWS = sorted((Path(__file__).resolve().parents[2] / "frontend" / "views").rglob("*.py"))


@pytest.mark.parametrize("view", ["routes", "samples", "modules"])
def test_a_refusal_that_leaves_a_view_empty_has_it(show, view):
    """The run's file was cut."""
    page = show(view=view, run="cut")
    assert words(page)
    assert any(re.fullmatch(r"[0-9a-f]{12}", block.value) for block in page.code)


@pytest.mark.parametrize("file", VIEWS, ids=lambda file: file.stem)
def test_no_view_writes_the_sentence_of_an_error_itself(file: Path) -> None:
    """The functions of ``page.widgets`` write it, with the id."""
    found = [
        node.lineno
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "sentence" and not _is_widgets(node.value)
    ]
    assert found == []


def _is_widgets(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "widgets"
