"""CSV and TSV source: rows found by byte offset in one pass, then read one by one; texts, or names of pictures."""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Final

import numpy as np

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.labels import Remarks, read_label
from tokenpaths.engine.data.sources.folders import IMAGE_SUFFIXES, MAX_TEXT_BYTES, check_text, open_regular, read_image
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample, readable
from tokenpaths.engine.data.sources.tables.column_names import IMAGE_COLUMNS, LABEL_COLUMNS, TEXT_COLUMNS, choose_column

FILE_COLUMNS: Final = ("file_name", "filename", "file", "path", "image_path", *IMAGE_COLUMNS)
DELIMITERS: Final = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
SNIFFED_BYTES: Final = 1 << 16
SNIFFED_ROWS: Final = 50
ALIKE_ROWS: Final = 0.9
"""share of the first rows that have as many columns as the header where a delimiter is the right one"""
_BOM: Final = b"\xef\xbb\xbf"
_WIDE_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class _Row:
    """A row, which may take several lines."""

    offset: int
    """byte of its first line"""
    line: int
    """number of its first line, from 1"""
    fields: list[str] | UserError


@dataclass(frozen=True)
class _Layout:
    """How the rows of one file are written."""

    delimiter: str
    header: list[str]


class DelimitedSource:
    """Rows of one or more files of the same columns. The first pass reads every line: labels and errors come early.

    Args:
        files: at least one, UTF-8, the names of the columns in the first line.
        kind: ``image``: a column names files in the folder of its table; ``text``: a column holds the texts.
        skip_bad: a row that cannot be read fails when it is read, and not at once.
    """

    has_masks = False
    split: str | None = None

    def __init__(
        self,
        files: Sequence[Path],
        kind: str,
        *,
        content_column: str | None = None,
        label_column: str | None = None,
        skip_bad: bool = False,
    ) -> None:
        csv.field_size_limit(MAX_TEXT_BYTES)
        self.kind, self._files, self._skip_bad, self.remarks = kind, list(files), skip_bad, Remarks()
        self._layouts = [self._look(file) for file in files]
        header = self._layouts[0].header
        for file, layout in zip(files, self._layouts, strict=True):
            if layout.header != header:
                raise UserError(
                    f"{file}: its columns ({', '.join(layout.header)}) differ from those of '{files[0]}' "
                    f"({', '.join(header)}); give files of one kind.",
                    field="data",
                )
        if len(set(header)) < len(header):
            raise UserError(
                f"{files[0]}: two columns have the same name ({', '.join(header)}); rename one.", field="data"
            )
        self._content = self._choose_content(content_column)
        label = choose_column(header, label_column, LABEL_COLUMNS, "label_column", str(files[0]), optional=True)
        self._label = None if label == self._content and label_column is None else label
        self._numbers, self._offsets, self._lines = array("i"), array("q"), array("q")
        self._pictures: dict[Path, None] = {}
        self.index = self._index()
        self.paths = [*self._files, *self._pictures]

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        start = 0
        while start < len(rows):
            number, stop = self._numbers[rows[start]], start
            with open_regular(self._files[number]) as stream:
                while stop < len(rows) and self._numbers[rows[stop]] == number:
                    row = rows[stop]
                    try:
                        yield self._sample(row, self._row(number, stream, self._offsets[row], self._lines[row]))
                    except UserError as error:
                        yield error
                    stop += 1
            start = stop

    def _sample(self, row: int, fields: dict[str, str]) -> Sample:
        file, line = self._files[self._numbers[row]], self._lines[row]
        where, source = f"{file}, line {line}", f"{file.name} line {line}"
        value = fields[self._content]
        if self.kind == "text":
            return Sample(None, check_text(_unicode(value, where), where), self.index.label(row), source)
        picture = _inside(file.parent, value)
        if picture is None:
            raise UserError(
                f"{where}: {readable(value)[:200] or 'nothing'} is no file in the folder of the table; give names "
                "relative to it, of files that lie in it.",
                field="data",
            )
        return Sample(read_image(picture), None, self.index.label(row), f"{source} ({readable(value)})")

    def _row(self, number: int, stream: BufferedIOBase, offset: int, line: int) -> dict[str, str]:
        """The row at a byte, as column → value; raises what is wrong with it."""
        row = next(_rows(stream, self._layouts[number].delimiter, offset, line), None)
        if row is None:
            raise UserError(f"{self._files[number]}: was changed while it was read; start again.", field="data")
        return self._checked(number, row)

    def _checked(self, number: int, row: _Row) -> dict[str, str]:
        where, header = f"{self._files[number]}, line {row.line}", self._layouts[number].header
        if isinstance(row.fields, UserError):
            raise UserError(f"{where}: {row.fields}", field="data")
        if len(row.fields) != len(header):
            raise UserError(
                f"{where}: has {len(row.fields)} columns and the first line {len(header)}; quote what holds "
                f"{DELIMITERS[self._layouts[number].delimiter]} or line ends.",
                field="data",
            )
        return dict(zip(header, row.fields, strict=True))

    def _index(self) -> LabelIndex:
        """Find every row; labels of all of them."""
        labels: dict[str | None, int] = {None: 0}
        codes = array("i")
        for number, file in enumerate(self._files):
            with open_regular(file) as stream:
                rows = _rows(stream, self._layouts[number].delimiter, 0, 1)
                next(rows)  # the names of the columns
                for row in rows:
                    codes.append(labels.setdefault(self._label_of(number, row), len(labels)))
                    self._numbers.append(number)
                    self._offsets.append(row.offset)
                    self._lines.append(row.line)
        if not codes:
            raise UserError(f"{self._files[0]}: holds no rows below the names of the columns.", field="data")
        names = sorted(label for label in labels if label is not None)
        order = {name: place for place, name in enumerate(names)}
        own = np.array([-1 if label is None else order[label] for label in labels], np.int32)
        return LabelIndex(tuple(names), own[np.frombuffer(codes, np.int32)])

    def _label_of(self, number: int, row: _Row) -> str | None:
        try:
            fields = self._checked(number, row)
        except UserError:
            if not self._skip_bad:
                raise
            return None
        if self.kind == "image" and (picture := _inside(self._files[number].parent, fields[self._content])):
            self._pictures[picture] = None
        if self._label is None:
            return None
        label, kinds = read_label(fields[self._label])
        self.remarks.add(kinds, f"{self._files[number].name} line {row.line}")
        return label

    def _look(self, file: Path) -> _Layout:
        """Delimiter and names of the columns, from the first rows."""
        with open_regular(file) as stream:
            head = stream.read(SNIFFED_BYTES)
            if head.startswith(_WIDE_BOMS):
                raise UserError(f"{file}: is UTF-16; save it as UTF-8.", field="data")
            usual = "\t" if file.suffix.lower() == ".tsv" else ","
            delimiter = _sniff(head, usual)
            header = next(_rows(stream, delimiter, 0, 1), None)
        if header is None or isinstance(header.fields, UserError):
            why = "it is empty" if header is None else str(header.fields)
            raise UserError(f"{file}: its first line should hold the names of the columns: {why}", field="data")
        if delimiter != usual:
            what = f"columns are told apart by {DELIMITERS[delimiter]}, not {DELIMITERS[usual]}"
            self.remarks.add((what,), file.name)
        return _Layout(delimiter, [_unicode(name, f"{file}, line 1") for name in header.fields])

    def _choose_content(self, asked: str | None) -> str:
        file, header = self._files[0], self._layouts[0].header
        usual: Sequence[str] = TEXT_COLUMNS
        fallback = header
        if self.kind == "image":
            with open_regular(file) as stream:
                rows = _rows(stream, self._layouts[0].delimiter, 0, 1)
                first = [row.fields for _, row in zip(range(2), rows, strict=False)][-1]
            values = [] if isinstance(first, UserError) else first
            usual = FILE_COLUMNS
            fallback = [
                name for name, value in zip(header, values, strict=False) if value.lower().endswith(IMAGE_SUFFIXES)
            ]
        where = f"{file}, first line"
        name = choose_column(header, asked, usual, f"{self.kind}_column", where, fallback=fallback)
        assert name is not None, "choose_column raises where nothing fits"
        return name


class _Lines:
    """The lines of a file from a byte on, and where the next one begins."""

    def __init__(self, stream: BufferedIOBase, offset: int, line: int) -> None:
        stream.seek(offset)
        self._stream, self.offset, self.line = stream, offset, line

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._stream.readline(MAX_TEXT_BYTES + 1)
        if not line:
            raise StopIteration
        if len(line) > MAX_TEXT_BYTES:
            raise UserError(f"line {self.line}: longer than {MAX_TEXT_BYTES >> 20} MB; cut the text.", field="data")
        self.line += 1
        self.offset += len(line)
        text = line[len(_BOM) :] if self.offset == len(line) and line.startswith(_BOM) else line
        return text.decode("utf-8", "surrogateescape")  # bytes that are no UTF-8 are an error of their row alone


def _rows(stream: BufferedIOBase, delimiter: str, offset: int, line: int) -> Iterator[_Row]:
    """The rows from a byte on, blank lines left out."""
    lines = _Lines(stream, offset, line)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        at, number = lines.offset, lines.line
        try:
            fields = next(reader, None)
        except csv.Error as error:
            last = f" (up to line {lines.line - 1})" if lines.line - 1 > number else ""
            yield _Row(at, number, UserError(f"cannot be split into columns{last}: {error}.", field="data"))
            continue
        if fields is None:
            return
        if fields:
            yield _Row(at, number, fields)


def _sniff(head: bytes, usual: str) -> str:
    """The delimiter by which most of the first rows have as many columns as the header, two or more; else ``usual``."""
    best, most = usual, (ALIKE_ROWS, 1, False)
    for delimiter in DELIMITERS:
        rows = [
            row.fields for _, row in zip(range(SNIFFED_ROWS), _rows(io.BytesIO(head), delimiter, 0, 1), strict=False)
        ]
        if len(head) == SNIFFED_BYTES and len(rows) > 1:
            rows.pop()  # may be cut
        if not rows or isinstance(rows[0], UserError):
            continue
        alike = sum(not isinstance(row, UserError) and len(row) == len(rows[0]) for row in rows) / len(rows)
        score = (alike, len(rows[0]), delimiter == usual)
        if len(rows[0]) > 1 and score > most:
            best, most = delimiter, score
    return best


def _unicode(text: str, where: str) -> str:
    """``text`` itself, unless some of its bytes were no UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{where}: holds bytes that are not UTF-8; save the file as UTF-8.", field="data") from None
    return text


def _inside(folder: Path, name: str) -> Path | None:
    """The file of that name in or below a folder; None if there is none, or it leads out of the folder."""
    if not name or "\0" in name:
        return None
    try:
        file = (folder / name).resolve()
        return file if file.is_relative_to(folder.resolve()) and file.is_file() else None
    except (OSError, RuntimeError, ValueError):  # a name too long, links in a circle
        return None
