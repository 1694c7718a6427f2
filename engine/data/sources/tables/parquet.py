"""Parquet source: a column of encoded images or of texts, streamed a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.declared_sizes import check_rows
from tokenpaths.engine.data.sources.tables.table_source import TableSource, damage_said, record_of

BATCH_ROWS: Final = 16
"""rows in memory at once; an encoded photograph may well be 5 MB"""


class ParquetSource(TableSource):
    """Rows of one or more Parquet files of the same columns, one after the other."""

    def __init__(
        self, files: Sequence[Path], kind: str, *, content_column: str | None = None, label_column: str | None = None
    ) -> None:
        self._opened = [_open(file) for file in files]
        num_rows = [file.metadata.num_rows for file in self._opened]
        for path, rows in zip(files, num_rows, strict=True):
            check_rows(rows, path.stat().st_size, str(path), "data")
        schemas = [file.schema_arrow for file in self._opened]
        super().__init__(files, schemas, num_rows, kind, content_column=content_column, label_column=label_column)

    def _chunks(self, column: str) -> Iterator[pa.Array]:
        for file in self._opened:
            yield from file.read(columns=[column])[0].chunks

    def _records(
        self, number: int, rows: np.ndarray, columns: Sequence[str]
    ) -> Iterator[tuple[int, dict[str, Any] | UserError]]:
        path, file, first_row = self._files[number], self._opened[number], 0
        for group in range(file.num_row_groups):
            num_rows = file.metadata.row_group(group).num_rows
            low, high = np.searchsorted(rows, [first_row, first_row + num_rows])
            if low == high:
                first_row += num_rows
                continue
            with damage_said(path, f"row group {group} cannot be read"):
                for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=list(columns)):
                    low, high = np.searchsorted(rows, [first_row, first_row + batch.num_rows])
                    for row in rows[low:high].tolist():
                        yield row, record_of(batch, row - first_row, columns, f"{path}, row {row}")
                    first_row += batch.num_rows


def _open(file: Path) -> pq.ParquetFile:
    with damage_said(file, "is no Parquet file, or one that is cut off"):
        opened = pq.ParquetFile(file)
        opened.schema_arrow.names, opened.metadata.num_rows  # noqa: B018 - damaged ones fail here, not later
        return opened
