"""docs/metrics.md: every number has a formula and a test that exists, every independent test stands there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"`([A-Z])` is `(tests/[^`]+)`", PAGE))
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| number")
]


def names_in(letter: str) -> set[str]:
    tree = ast.parse((ROOT / FILES[letter]).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def named() -> set[tuple[str, str]]:
    return {found for row in ROWS for found in re.findall(r"`([A-Z])::(test_\w+)`", row[2])}


def test_every_number_has_a_formula_and_a_test_that_exists():
    assert len(ROWS) > 35
    for name, formula, where in ROWS:
        assert name
        assert len(formula) > 5, name
        assert re.findall(r"`[A-Z]::test_\w+`", where), name
    there = {(letter, test) for letter in FILES for test in names_in(letter)}
    assert named() <= there
    assert there == named(), "an independent check that the page does not name"


def test_independent_checks_do_not_lean_on_the_naive_twins_of_other_tests():
    for letter in FILES:
        text = (ROOT / FILES[letter]).read_text(encoding="utf-8")
        assert "naive" not in text
        assert re.search(r"^\s*(from|import) (sklearn|scipy)\b", text, flags=re.MULTILINE)


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    from tests.support.runs import make_run

    make_run(tmp_path, "my-run", samples=6)
    monkeypatch.chdir(tmp_path)
    exec(compile(re.search(r"```python\n(.+?)```", PAGE, flags=re.DOTALL).group(1), "metrics.md", "exec"), {})
    assert "effective_top_k" in capsys.readouterr().out
