"""Vocabulary ids beside FLAME-MoE's traces: those of each token, or none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine.adapters.logs.engine_logs import choices
from tests.engine.adapters.logs.test_engine_logs import pieces

TOKENS, FILES = 2750, 11


def trace(folder: Path, tokens: int, ids: int) -> Path:
    inner = folder / "actives" / "iter_100"
    inner.mkdir(parents=True)
    (folder / "samples").mkdir()
    rows = pa.array(choices(tokens)[:, 0].astype(np.int16).tolist(), pa.list_(pa.int16()))
    for layer in range(2):
        pq.write_table(pa.table({"indices": rows}), inner / f"layer_{layer:02d}.parquet", row_group_size=1000)
    for number, part in enumerate(np.array_split(np.arange(ids), FILES)):
        pq.write_table(pa.table({"token_id": part.astype(np.int32)}), folder / "samples" / f"{number}.parquet")
    return folder


def test_files_of_vocabulary_ids_come_by_their_numbers(tmp_path: Path) -> None:
    log, found = pieces(trace(tmp_path / "log", TOKENS, TOKENS))
    known = [piece.token_id for piece in found if piece.token_id is not None]
    assert np.concatenate(known).tolist() == list(range(TOKENS))
    assert "vocabulary ids" not in log.note


@pytest.mark.parametrize("ids", [TOKENS - 1, TOKENS + 250])
def test_as_many_vocabulary_ids_as_tokens_or_none(ids: int, tmp_path: Path) -> None:
    log, found = pieces(trace(tmp_path / "log", TOKENS, ids))
    assert all(piece.token_id is None for piece in found)
    assert f"the samples hold {ids:,} vocabulary ids, the layers 2,750 tokens: which is whose is not known" in log.note
