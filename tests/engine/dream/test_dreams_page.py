"""docs/dreams.md: its code runs, its commands parse, its tables are the kept results'."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from typer.main import get_command

from backend.cli import make_app

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "dreams.md").read_text(encoding="utf-8")


def test_the_python_of_the_page_runs(capsys) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "dreams.md", "exec"), {})
    assert "torch.Size([2, 3, 64, 64])" in capsys.readouterr().out


def test_the_commands_of_the_page_are_commands() -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    dream = get_command(make_app()).commands["dream"]
    lines = [shlex.split(line, comments=True) for line in block.splitlines() if line.strip()]
    assert len(lines) >= 5
    for line in lines:
        assert line[:2] == ["tokenpaths", "dream"]
        dream.make_context("dream", line[2:])


def test_the_tables_of_the_page_are_what_was_measured() -> None:
    speed = json.loads((ROOT / "benchmarks" / "results" / "dream_speed.json").read_text())["results"]
    for of_size in speed.values():
        for form in of_size["speed-up"].values():
            for name in ("one image", "batch of eight"):
                assert f"{form[name]['median']:.2f}×" in PAGE
    results = json.loads((ROOT / "benchmarks" / "results" / "dreams.json").read_text())["results"]
    for name, model in results["numbers"].items():
        for s, row in model["by S"].items():
            assert f"| {name} | {s} | {row['images']} | {row['matched choices']:.0%}" in PAGE
    for name, model in results["longer"].items():
        (row,) = model["by S"].values()
        assert f"| {name} | {row['images']} | {row['matched choices']:.0%}" in PAGE
