"""Labels are read alike in every format of logs: as ``read_label`` reads the values that are in the file."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine.adapters.logs.test_log_formats import IDS, SAMPLE, SAMPLES
from tests.engine.adapters.logs.test_log_refusals import refused
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.data.labels import read_label

NAN = float("nan")
DAY, TIME = datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
LABELS: dict[str, list[Any]] = {
    "words": ["a", " ", ""],
    "whole": [1, 2, 1],
    "fractions": [1.0, NAN, 2.5],
    "infinite": [float("inf"), 0.0, -0.0],
    "truth": [True, False, True],
    "bytes": [b"a", b"", b"b"],
    "days": [DAY, DAY, DAY],
    "times": [TIME, TIME, TIME],
}
OF_TABLES: dict[str, list[Any]] = {
    "null": [None, 1.5, None],
    "decimals": [Decimal("1.50"), None, Decimal("2.50")],
    "lists": [[1], [1, 2], []],
    "objects": [{"a": 1}, {"a": 2}, None],
}


def labels(file: Path) -> list[tuple[str | None, tuple[str, ...]]]:
    return [(piece.label, piece.remarks) for piece in open_log(file).counted().pieces()]


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_an_archive(tmp_path: Path, kind: str) -> None:
    values = np.array(LABELS[kind])
    values = (
        values.astype("datetime64[us]") if kind == "times" else values.astype("M8[D]") if kind == "days" else values
    )
    np.savez(tmp_path / "log.npz", ids=IDS, sample=SAMPLE, label=values)
    assert labels(tmp_path / "log.npz") == [read_label(value) for value in LABELS[kind]]


@pytest.mark.parametrize("kind", [*LABELS, *OF_TABLES])
@pytest.mark.parametrize("rows", [7, 1000])
def test_labels_of_parquet(tmp_path: Path, kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenpaths.engine.adapters.logs.tables.neutral_parquet.CUT_TOKENS", rows)
    values = (LABELS | OF_TABLES)[kind]
    spread = [value for value, count in zip(values, SAMPLES, strict=True) for _ in range(count)]
    table = pa.table({"ids": IDS.tolist(), "sample": SAMPLE, "label": spread})
    pq.write_table(table, tmp_path / "log.parquet")
    assert labels(tmp_path / "log.parquet") == [read_label(value) for value in values]


def test_one_value_is_one_label_in_every_format(tmp_path: Path) -> None:
    given = [1.0, 2.5, NAN]
    parts = np.split(IDS, np.cumsum(SAMPLES)[:-1])
    answers = [{"label": one, "choices": [{"routed_experts": p.tolist()}]} for one, p in zip(given, parts, strict=True)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    np.savez(tmp_path / "log.npz", ids=IDS, sample=SAMPLE, label=np.array(given))
    table = pa.table({"ids": IDS.tolist(), "sample": SAMPLE, "label": np.repeat(given, SAMPLES)})
    pq.write_table(table, tmp_path / "log.parquet")
    for name in ("log.jsonl", "log.npz", "log.parquet"):
        assert [label for label, _ in labels(tmp_path / name)] == ["1", "2.5", None], name


def test_times_that_python_does_not_know_are_their_text(tmp_path: Path) -> None:
    times = np.array(["2026-01-02T03:04:05.000000001", "NaT", "2026-01-02T03:04:05"], "M8[ns]")
    np.savez(tmp_path / "log.npz", ids=IDS, sample=SAMPLE, label=times)
    table = pa.table({"ids": IDS.tolist(), "sample": SAMPLE, "label": pa.array(np.repeat(times, SAMPLES))})
    pq.write_table(table, tmp_path / "log.parquet")
    for name in ("log.npz", "log.parquet"):
        read = [label for label, _ in labels(tmp_path / name)]
        assert read == ["2026-01-02 03:04:05.000000001", None, "2026-01-02 03:04:05"], name
    np.savez(tmp_path / "log.npz", ids=IDS, sample=SAMPLE, label=np.array(["12026-01-02T03", "1", "2"], "M8[s]"))
    assert labels(tmp_path / "log.npz")[0][0] == "12026-01-02 03:00:00"


@pytest.mark.parametrize("values", [[1.0, NAN], [[1], [2]], [True, False]])
@pytest.mark.parametrize("rows", [7, 1000])
def test_a_label_that_varies_within_a_sample_names_the_first_row_that_differs(
    tmp_path: Path, values: list[Any], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenpaths.engine.adapters.logs.tables.neutral_parquet.CUT_TOKENS", rows)
    table = pa.table({"ids": IDS.tolist(), "sample": SAMPLE, "label": [values[0]] * 25 + [values[1]] * 15})
    pq.write_table(table, tmp_path / "log.parquet")
    refused(tmp_path, tmp_path / "log.parquet", "row 25: the tokens of sample 9 should have one label, which was")
