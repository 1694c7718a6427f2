"""No two modules import each other, directly or round about; lazy and TYPE_CHECKING imports count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("tokenpaths", "engine", "backend", "frontend")


def module_files() -> dict[str, Path]:
    """The file of each module, by the name under which it is imported."""
    files = {}
    for file in sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        files[name if parts[0] == "tokenpaths" else f"tokenpaths.{name}"] = file
    return files


def imports_of(file: Path, modules: dict[str, Path]) -> set[str]:
    """Every module of ours that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                child = f"{node.module}.{alias.name}"
                names.add(child if child in modules else node.module)
    return names & modules.keys()


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """What is left when modules that nothing of the rest imports, or that import nothing of it, are taken away."""
    left = {name: set(targets) - {name} for name, targets in graph.items()}
    while True:
        targets = set().union(*left.values()) if left else set()
        free = {name for name, imported in left.items() if not imported & left.keys() or name not in targets}
        if not free:
            return [set(left)] if left else []
        left = {name: imported - free for name, imported in left.items() if name not in free}


def test_no_import_runs_in_a_circle() -> None:
    modules = module_files()
    assert len(modules) > 300
    graph = {name: imports_of(file, modules) for name, file in modules.items()}
    assert circles(graph) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [{"a", "b", "c"}]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_the_engine_names_no_file_twice_and_crowds_no_folder() -> None:
    files = [file for file in (ROOT / "engine").rglob("*.py") if file.name != "__init__.py"]
    names = [file.name for file in files]
    assert sorted({name for name in names if names.count(name) > 1}) == []
    everywhere = [file for room in ROOMS for file in (ROOT / room).rglob("*.py") if file.name != "__init__.py"]
    folders = [file.parent for file in everywhere]
    assert {folder: folders.count(folder) for folder in folders if folders.count(folder) > 15} == {}
    assert [file for file in everywhere if len(file.read_text("utf-8").splitlines()) > 450] == []


def test_who_only_opens_runs_does_not_pay_for_answer_types() -> None:
    script = "import sys, tokenpaths.engine.store.ask.run; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
