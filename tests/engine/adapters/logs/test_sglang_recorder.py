"""Passes of SGLang's recorder: how long each prompt of a pass is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.adapters.logs import engine_logs as make
from tests.engine.adapters.logs.test_engine_logs import pieces
from tests.engine.adapters.logs.test_log_refusals import refused


def with_lengths(file: Path, lengths: Any) -> Path:
    value = torch.load(make.recorder(file), weights_only=False)
    value["records"][0]["extend_seq_lens"] = lengths
    torch.save(value, file)
    return file


@pytest.mark.parametrize("lengths", [torch.tensor([12, 5]), torch.tensor([[12, 0, 5]]), [12, 5, 0]])
def test_lengths_of_prompts_may_be_a_tensor(lengths: Any, tmp_path: Path) -> None:
    _, found = pieces(with_lengths(tmp_path / "log", lengths))
    assert [piece.num_tokens for piece in found] == [14, 7]


@pytest.mark.parametrize("lengths", [torch.tensor([12.0, 5.0]), ["12"], [-1], 17, {"a": 1}])
def test_lengths_of_prompts_that_are_none_are_refused(lengths: Any, tmp_path: Path) -> None:
    refused(tmp_path, with_lengths(tmp_path / "log", lengths), "record 0: extend_seq_lens should be whole numbers")
