"""Samples of the neutral formats that have names instead of numbers, as rows of a data frame have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine.adapters.logs.test_log_refusals import refused
from tokenpaths.engine.adapters.logs import sample_rows
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.pieces import piece
from tokenpaths.engine.adapters.logs.tables import neutral_parquet
from tokenpaths.engine.adapters.logs.tensors import numpy_arrays

IDS = np.random.default_rng(0).random((12, 3, 8)).argsort(2)[:, :, :2]
NAMES = ["zoo"] * 5 + ["caf\u00e9"] * 1 + ["ape"] * 6
LABELS = ["x", "y", "x"]


def npz(folder: Path, names: object) -> Path:
    np.savez(folder / "log.npz", ids=IDS, sample=np.array(names), label=np.array(LABELS))
    return folder / "log.npz"


def npz_of_bytes(folder: Path, names: list[str]) -> Path:
    return npz(folder, [name.encode() for name in names])


def parquet(folder: Path, names: object) -> Path:
    column = names if isinstance(names, pa.Array) else pa.array(names)
    label = [dict(zip(["zoo", "caf\u00e9", "ape"], LABELS, strict=True)).get(name) for name in column.to_pylist()]
    pq.write_table(pa.table({"ids": IDS.tolist(), "sample": column, "label": label}), folder / "log.parquet")
    return folder / "log.parquet"


def parquet_of_categories(folder: Path, names: list[str]) -> Path:
    return parquet(folder, pa.array(names).dictionary_encode())


@pytest.mark.parametrize("rows_at_once", [2048, 5, 2])
@pytest.mark.parametrize("write", [npz, npz_of_bytes, parquet, parquet_of_categories])
def test_names_come_in_any_order_and_are_the_names_of_the_samples(
    write, rows_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sample_rows, numpy_arrays, neutral_parquet, piece):
        monkeypatch.setattr(module, "CUT_TOKENS", rows_at_once)
    read = list(open_log(write(tmp_path, NAMES)).read())
    assert np.array_equal(np.concatenate([piece.ids for piece in read]), IDS)
    named = [(piece.source.split(",")[0], piece.label) for piece in read]
    assert list(dict.fromkeys(named)) == [("zoo", "x"), ("caf\u00e9", "y"), ("ape", "x")]
    if rows_at_once == 2048:
        assert [piece.source for piece in read] == ["zoo", "caf\u00e9", "ape"]


@pytest.mark.parametrize("rows_at_once", [2048, 5])
@pytest.mark.parametrize("write", [npz, parquet])
@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a"] * 4 + ["b"] * 4 + ["a"] * 4, "row 8: sample 'a' comes again after others"),
        (["a"] * 7 + [" "] * 5, "row 7: the name in 'sample' is empty"),
    ],
)
def test_a_name_that_tells_no_sample_is_refused(
    names: list[str], words: str, write, rows_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (numpy_arrays, neutral_parquet):
        monkeypatch.setattr(module, "CUT_TOKENS", rows_at_once)
    refused(tmp_path, write(tmp_path, names), words)


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, npz(tmp_path, [b"caf\xe9"] * 12), "row 0: 'sample' holds bytes that are not UTF-8")
    refused(tmp_path, parquet(tmp_path, pa.array(["a"] * 11 + [None])), "row 11: 'sample' is missing")
