"""Every example of the recorder's page runs."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from tests.engine.adapters.recorder_models import language, tokens

PAGE = Path(__file__).resolve().parents[3] / "docs" / "recorder.md"


def test_every_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", str(tmp_path))
    batch = tokens(4, 6)
    space = {"model": language(layers=2), "batch": batch, "loader": [batch, batch],
             "mask": torch.ones(4, 6, dtype=torch.bool)}  # fmt: skip
    blocks = re.findall(r"```python\n(.+?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 8
    for block in blocks:
        exec(compile(block, "recorder.md", "exec"), space)
    names = {"mine", "by-name", "by-function", "with-texts", "training", "mine-000000", "mine-000500", "mine-001000"}
    assert {file.stem for file in (tmp_path / "runs").iterdir()} == names
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("mine.duckdb 48")
    assert lines[-2:] == ["[0, 500, 1000]", "mine-001000 [1.0, 1.0, 1.0] [0.5, 0.5]"]
