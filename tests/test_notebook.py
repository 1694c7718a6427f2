"""The notebooks of the documentation run from top to bottom, without network, in as few lines as they promise."""

from __future__ import annotations

import ast
import json
import socket
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parent.parent / "docs" / "notebooks"


def code_cells(name: str) -> list[str]:
    """The sources of the code cells."""
    cells = json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cells(cells: list[str]) -> tuple[dict, list]:
    """Execute the cells as Jupyter does; the namespace, and what each cell shows (the value of its last line)."""
    space: dict = {"__name__": "__main__"}
    shown = []
    for number, source in enumerate(cells):
        body = ast.parse(source).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), space)
        shown.append(eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), space) if last else None)
    return space, shown


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("the notebook opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_first_flow_is_twelve_lines_from_install_to_figure(tmp_path, monkeypatch, no_network):
    pytest.importorskip("transformers")
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", str(tmp_path))
    cells = code_cells("first_flow.ipynb")
    assert cells[0].startswith("%pip install")
    assert sum(bool(line.strip()) for cell in cells for line in cell.splitlines()) <= 12
    space, shown = run_cells(cells[1:])
    chart = shown[-1].to_dict()
    assert chart["title"]["text"] == "Where do tokens go?"
    rec = space["rec"]
    assert rec.file == tmp_path / "runs" / "first-flow.duckdb"
    flow = rec.run.flow()
    tokens = len(space["text"].encode())
    assert flow["num_tokens"] == rec.num_tokens == tokens
    circles = {row["node"]: row["count"] for data in chart["datasets"].values() for row in data if "node" in row}
    assert circles == {f"{node['step']}.{node['module']}": node["count"] for node in flow["nodes"] if node["count"]}
    assert len(circles) > 16
    assert sum(node["count"] for node in flow["nodes"]) == tokens * 4 * 2
    assert [r.name for r in rec.routers] == [f"model.layers.{i}.mlp.gate" for i in range(4)]
    run_cells(cells[1:])  # as a reader does, again


def test_outputs_are_not_kept_in_git():
    for file in NOTEBOOKS.glob("*.ipynb"):
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells
                   if cell["cell_type"] == "code")  # fmt: skip
