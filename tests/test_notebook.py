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
    assert "pip install" in cells[0]
    assert sum(bool(line.strip()) for cell in cells for line in cell.splitlines()) <= 12
    space, shown = run_cells(cells[1:])
    chart = shown[-1].to_dict()
    assert chart["title"]["text"] == "Where do tokens go?"
    rec = space["rec"]
    assert rec.file == tmp_path / "runs" / "first-flow.duckdb"
    flow = rec.run.flow()
    tokens = len(space["text"].encode())
    assert flow["num_tokens"] == rec.num_tokens == tokens
    circles = {row["node"]: row["count"] for data in chart["datasets"].values() for row in data if "count" in row}
    assert circles == {f"{node['step']}.{node['module']}": node["count"] for node in flow["nodes"] if node["count"]}
    assert len(circles) > 16
    assert sum(node["count"] for node in flow["nodes"]) == tokens * 4 * 2
    assert [r.name for r in rec.routers] == [f"model.layers.{i}.mlp.gate" for i in range(4)]
    run_cells(cells[1:])  # as a reader does, again


def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict, list]:
    """A tutorial from its second cell (the first installs) to its end, in a folder of its own."""
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", str(folder / "data"))
    monkeypatch.chdir(folder)
    cells = code_cells(name)
    assert "pip install" in cells[0]
    return run_cells(cells[1:])


def test_the_dna_researchers_notebook_leads_from_a_checkpoint_to_figures(tmp_path, monkeypatch, no_network):
    space, shown = executed("dna_researcher.ipynb", tmp_path, monkeypatch)
    run, twin = space["run"], space["twin"]
    assert len(space["paths"]) == run.row["num_paths"] == space["paths"]["rank"].iloc[-1]
    assert space["paths"]["count"].sum() == run.row["num_tokens"] == 24 * 64
    assert twin.row["model"] == "dna-vision-top1-untrained"
    assert set(space["knowledge"]["property"]) >= {"region", "label"}
    compared = {row["measure"] for row in space["answer"]["correlations"]}
    assert {"compute", "reuse"} <= compared
    assert shown[-2]["reuse"] is not None
    assert shown[-1] == ["paths.csv", "paths.svg", "tokens.parquet"]
    assert (tmp_path / "figures" / "paths.svg").read_text(encoding="utf-8").startswith("<svg")
    assert sum("$schema" in one.to_dict() for one in shown if "altair" in str(type(one))) >= 5


def test_the_moe_engineers_notebook_leads_from_a_model_to_what_its_experts_are_good_for(
    tmp_path, monkeypatch, no_network
):
    pytest.importorskip("transformers")
    space, shown = executed("moe_engineer.ipynb", tmp_path, monkeypatch)
    settled = [checkpoint.mean for checkpoint in space["settled"].checkpoints]
    assert settled[-1] == 1.0
    assert settled[0] < 1.0
    busiest, after, served, before = (space[name] for name in ("busiest", "after", "served", "before"))
    usage = after.frames.usage().set_index(["step", "module"])["count"]
    assert usage[1, busiest] == 0
    assert before.frames.usage().set_index(["step", "module"])["count"][1, busiest] > 0
    assert space["effect"]["paths_changed"] > 0
    assert served.frames.load()["max_violation"].tolist() == before.frames.load()["max_violation"].tolist()
    assert sum("altair" in str(type(one)) for one in shown) >= 4


def test_outputs_are_not_kept_in_git():
    for file in NOTEBOOKS.glob("*.ipynb"):
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        assert all(
            not cell["outputs"] and cell["execution_count"] is None for cell in cells if cell["cell_type"] == "code"
        )
