"""JSONL source: one object a line, indexed by byte offset in one pass, then read line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.validation import DISTINCT_KEYS
from tokenpaths.engine.data.labels import Remarks, read_label
from tokenpaths.engine.data.sources.folders import MAX_TEXT_BYTES, check_text
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample
from tokenpaths.engine.data.sources.tables.column_names import LABEL_COLUMNS, TEXT_COLUMNS, choose_column


class JsonlSource:
    """Texts of a JSONL file. The index pass reads every line once: labels and errors are known early.

    With ``skip_bad`` a line that is no JSON becomes a row that fails when read; without, it is raised
    by the constructor.
    """

    index: LabelIndex
    has_masks = False
    _offsets: np.ndarray
    _numbers: np.ndarray

    def __init__(
        self, file: Path, text_column: str | None, label_column: str | None, *, skip_bad: bool = False
    ) -> None:
        self.file = file
        self.paths = [file]
        self._text_column: str | None = None
        self._label_column: str | None = None
        self.remarks = Remarks()
        labels: list[str | None] = []
        offsets: list[int] = []
        numbers: list[int] = []
        for number, offset, line in _lines(file):
            try:
                record = _parse(file, number, line)
            except UserError:
                if not skip_bad:
                    raise
                record = None
            if record is not None and (self._text_column is None or self._label_column is None):
                self._choose(list(record), text_column, label_column)
            labels.append(None if record is None else self._label(record, f"line {number}"))
            offsets.append(offset)
            numbers.append(number)
        if self._text_column is None:
            raise UserError(f"{file}: holds no JSON object; give one object a line.", field="data")
        self.index = LabelIndex.of(labels)
        self._offsets = np.array(offsets, np.int64)
        self._numbers = np.array(numbers, np.int64)

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        with self.file.open("rb") as stream:
            for row in rows:
                stream.seek(int(self._offsets[row]))
                number = int(self._numbers[row])
                where = f"{self.file}, line {number}"
                try:
                    record = _parse(self.file, number, stream.readline(MAX_TEXT_BYTES))
                    if self._text_column not in record:
                        keys = ", ".join(record) or "none"
                        raise UserError(
                            f"{where}: no key '{self._text_column}'; there are: {keys}.", field="text_column"
                        )
                    text = check_text(record[self._text_column], where)
                except UserError as error:
                    yield error
                else:
                    yield Sample(None, text, self.index.label(row), f"{self.file.name} line {number}")

    def _choose(self, keys: list[str], text_column: str | None, label_column: str | None) -> None:
        where = f"{self.file}, first object"
        if self._text_column is None:
            self._text_column = choose_column(keys, text_column, TEXT_COLUMNS, "text_column", where)
        self._label_column = choose_column(keys, label_column, LABEL_COLUMNS, "label_column", where, optional=True)

    def _label(self, record: dict[str, Any], where: str) -> str | None:
        """The label under its key, or under one that differs from it in case and blanks only."""
        if self._label_column is None:
            return None
        key = self._label_column
        if key not in record:
            key = next((other for other in record if other.strip().lower() == key.strip().lower()), key)
            self.remarks.add(("key",) if key in record else (), where)
        label, kinds = read_label(record.get(key))
        self.remarks.add(kinds, where)
        return label


def _lines(file: Path) -> Iterator[tuple[int, int, bytes]]:
    """(line number from 1, byte offset, line) of the lines that are not blank."""
    try:
        with file.open("rb") as stream:
            offset = 0
            number = 0
            while line := stream.readline(MAX_TEXT_BYTES + 1):
                number += 1
                if len(line) > MAX_TEXT_BYTES:
                    raise UserError(
                        f"{file}, line {number}: longer than {MAX_TEXT_BYTES >> 20} MB; cut the text.", field="data"
                    )
                if line.strip():
                    yield number, offset, line
                offset += len(line)
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error}).", field="data") from error


def bad_json_reason(error: ValueError | RecursionError) -> str:
    """Why a line is no JSON, in a few words, and at which of its characters, counted from 1.

    >>> bad_json_reason(json.JSONDecodeError("Invalid control character at", '{"a": "b\\n', 8))
    'Invalid control character, at the end of the line, after character 8'
    """
    if isinstance(error, json.JSONDecodeError):
        size = len(error.doc.rstrip("\r\n"))
        at_end = error.pos >= size
        place = (
            f"the end of the line, after character {size:,}" if at_end else f"character {error.pos + 1:,} of {size:,}"
        )
        return f"{error.msg.removesuffix(' at')}, at {place}"
    return str(error) if str(error).startswith("the key") else "nested too deeply or numbers too long"


def _parse(file: Path, number: int, line: bytes) -> dict[str, Any]:
    where = f"{file}, line {number}"
    try:
        record = DISTINCT_KEYS.decode(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8; save the file as UTF-8.", field="data") from error
    except (ValueError, RecursionError) as error:
        reason = bad_json_reason(error)
        raise UserError(f"{where}: is not JSON ({reason}); give one object a line.", field="data") from error
    if not isinstance(record, dict):
        raise UserError(
            f"{where}: is a JSON {type(record).__name__}, not an object; give lines like "
            '{"text": "…", "label": "…"}.',
            field="data",
        )
    return record
