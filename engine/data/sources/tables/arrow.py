"""Arrow source: record batches of Arrow streams and files, as the Hugging Face ``datasets`` library keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample
from tokenpaths.engine.data.sources.tables.arrow_file import NO_END, ArrowFile
from tokenpaths.engine.data.sources.tables.table_source import TableSource, record_of

ORDERED_ROWS: Final = 32
"""rows of a selection or shuffle that are read in the order of the files, and in memory, at once"""


class ArrowSource(TableSource):
    """Rows of one or more Arrow files of the same columns, one after the other.

    Args:
        indices: a file with one column, the rows that there are and their order; None: all as they lie.
        features: of ``dataset_info.json``, for files without their own.
    """

    def __init__(
        self,
        files: Sequence[Path],
        kind: str,
        *,
        content_column: str | None = None,
        label_column: str | None = None,
        features: Mapping[str, Any] | None = None,
        indices: Path | None = None,
    ) -> None:
        self._opened = [ArrowFile(file) for file in files]
        schemas, num_rows = [file.schema for file in self._opened], [file.num_rows for file in self._opened]
        own = b"huggingface" in (schemas[0].metadata or {})
        super().__init__(
            files,
            schemas,
            num_rows,
            kind,
            content_column=content_column,
            label_column=label_column,
            features=None if own else features,
        )
        unended = [file.path.name for file in self._opened if not file.has_end]
        if unended:
            self.remarks.add((NO_END,), unended[0], len(unended))
        self._indices: np.ndarray | None = None
        if indices is not None:
            self._indices = _rows_of(indices, int(self._starts[-1]))
            self.paths.append(indices)
            self._index_of_files, chosen = self.index, self.index.codes[self._indices]
            self.index = LabelIndex(self.index.names, chosen)

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        if self._indices is None:
            yield from super().read(rows)
            return
        places = self._indices[np.asarray(rows, np.int64)]
        for start in range(0, len(places), ORDERED_ROWS):
            part = places[start : start + ORDERED_ROWS]
            distinct, order = np.unique(part, return_inverse=True)
            samples = list(super().read(distinct.tolist()))
            yield from (samples[at] for at in order.tolist())

    def _label_of(self, row: int) -> str | None:
        return (self.index if self._indices is None else self._index_of_files).label(row)

    def _chunks(self, column: str) -> Iterator[pa.Array]:
        for file in self._opened:
            for number in range(len(file.starts) - 1):
                yield file.column(number, column)

    def _records(
        self, number: int, rows: np.ndarray, columns: Sequence[str]
    ) -> Iterator[tuple[int, dict[str, Any] | UserError]]:
        file = self._opened[number]
        bounds = np.searchsorted(rows, file.starts)
        for batch_number in np.flatnonzero(np.diff(bounds)).tolist():
            batch = file.columns(batch_number, columns)
            first = int(file.starts[batch_number])
            for row in rows[bounds[batch_number] : bounds[batch_number + 1]].tolist():
                yield row, record_of(batch, row - first, columns, f"{file.path}, row {row}")


def _rows_of(file: Path, num_rows: int) -> np.ndarray:
    """The row numbers in an indices mapping."""
    opened = ArrowFile(file)
    if len(opened.schema) != 1 or not pa.types.is_integer(opened.schema.field(0).type):
        raise UserError(
            f"{file}: holds {', '.join(opened.schema.names) or 'no column'}, it should be one column of row numbers.",
            field="data",
        )
    name = opened.schema.names[0]
    chunks = [opened.column(number, name) for number in range(len(opened.starts) - 1)]
    rows = np.concatenate([chunk.to_numpy(zero_copy_only=False) for chunk in chunks] or [np.empty(0, np.int64)])
    if not len(rows) or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= num_rows:
        raise UserError(f"{file}: its row numbers must be those of {num_rows:,} rows, and at least one.", field="data")
    return rows.astype(np.int64)
