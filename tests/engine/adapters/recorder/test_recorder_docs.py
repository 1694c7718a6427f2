"""Every example of the recorder's page runs."""

from __future__ import annotations

import dataclasses
import inspect
import re
import warnings
from pathlib import Path

import torch
from torch import Tensor

from tests.engine.adapters.recorder.test_recorder_texts import KeepsInside, decoder
from tests.support.recorder_models import tokens
from tokenpaths.engine.store.ask.run import Run

PAGE = Path(__file__).resolve().parents[4] / "docs" / "recorder.md"


class Writer(KeepsInside):
    def forward(self, input_ids: Tensor, start_pos: int = 0) -> Tensor:
        return super().forward(input_ids, start_pos=start_pos)

    def generate(self, prompts: Tensor, max_new_tokens: int) -> None:
        token, begin = prompts, 0
        for _ in range(max_new_tokens):
            logits = self(token, begin)
            token, begin = logits[:, -1:].argmax(dim=-1), begin + token.shape[1]


def test_every_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    batch = tokens(4, 6)
    space = {
        "model": decoder(Writer).requires_grad_(True),
        "batch": batch,
        "prompts": batch,
        "pieces": [batch[:, :4], batch[:, 4:]],
        "loader": [batch, batch],
        "mask": torch.ones(4, 6, dtype=torch.bool),
    }
    blocks = re.findall(r"```python\n(.+?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks:
            exec(compile(block, "recorder.md", "exec"), space)
    names = {
        "mine",
        "by-name",
        "by-function",
        "with-texts",
        "written",
        "said",
        "training",
        "mine-000000",
        "mine-000500",
        "mine-001000",
    }
    assert {file.stem for file in (tmp_path / "runs").iterdir()} == names
    assert [file.name for file in (tmp_path / "my-runs").iterdir()] == ["elsewhere.duckdb"]
    lengths = {name: Run.open(tmp_path / "runs" / f"{name}.duckdb").row["num_tokens"] for name in ("written", "said")}
    assert lengths == {"written": 4 * (6 + 199), "said": 24}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("mine.duckdb 48")
    assert lines[-2:] == ["[0, 500, 1000]", "mine-001000 [1.0, 1.0, 1.0] [0.5, 0.5]"]


def test_the_options_of_record_are_spelt_out_and_explained():
    import tokenpaths
    from tokenpaths.engine.adapters.recorder.record_options import RecordOptions

    said = inspect.signature(tokenpaths.record).parameters
    options = {f.name: f.default for f in dataclasses.fields(RecordOptions)}
    assert {name: p.default for name, p in said.items() if name != "model"} == options
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in said.values())
    text = tokenpaths.record.__doc__.partition("Args:")[2].partition("Raises:")[0]
    assert [
        name for name in options if not re.search(rf"^ {{8}}[a-z_, ]*\b{name}\b[a-z_, ]*: ", text, re.MULTILINE)
    ] == []
