"""Write the table of docs/reliability.md from what the tests measured: ``python -m tests.faults.table``.

Run ``make test`` and ``make test-faults`` before it: they leave the figures in build/faults.jsonl.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from tests.faults.figures import ROOT, Figure, newest
from tests.faults.rows import ROWS

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def table(figures: list[Figure]) -> str:
    """The Markdown table; ValueError that names the rows without a figure."""
    missing = sorted(ROWS.keys() - {figure.row for figure in figures})
    if missing:
        raise ValueError(f"no figure for rows {missing}: run make test and make test-faults first")
    lines = ["| # | fault | promised | before | measured | how it is tested | when |", "|---|---|---|---|---|---|---|"]
    for number, row in ROWS.items():
        of_row = [figure for figure in figures if figure.row == number]
        measured = "<br>".join(_cell(figure.measured) for figure in of_row)
        how = "<br>".join(f"{_cell(figure.how)} ({_link(figure.test)})" for figure in of_row)
        dates = ", ".join(sorted({figure.date for figure in of_row}))
        lines.append(f"| {number} | {row.fault} | {row.promised} | {row.before} | {measured} | {how} | {dates} |")
    machines = sorted({figure.machine for figure in figures})
    return "\n".join([*lines, "", f"Measured on: {'; '.join(machines)}.", ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _link(test: str) -> str:
    file, name = test.split("::")
    return f"[`{name}`](../{file})"


def existing_tests() -> set[str]:
    """``file::name`` of every test function of this folder."""
    tests = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                tests.add(f"{file.relative_to(ROOT).as_posix()}::{node.name}")
    return tests


def rows_on_page(page: str) -> dict[int, list[str]]:
    """Row number → tests that the page names for it."""
    part = page.partition(BEGIN)[2].partition(END)[0]
    rows = re.findall(r"^\| (\d+) \|(.+)$", part, re.MULTILINE)
    return {
        int(number): [f"{file}::{name}" for name, file in re.findall(r"\[`(test_\w+)`\]\(\.\./([\w/.]+)\)", rest)]
        for number, rest in rows
    }


def main() -> int:
    """Rewrite the page; 1 with a sentence where figures are missing."""
    page = PAGE.read_text(encoding="utf-8")
    there = existing_tests()
    try:
        made = table([figure for figure in newest() if figure.test in there])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    head, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{made}{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
