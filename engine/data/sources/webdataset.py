"""WebDataset source: tar archives whose members of one key are a sample: ``0001.jpg``, ``0001.cls``, ``0001.json``.

Nothing is ever extracted: members are read in place, at the offsets that the archive says, and their names are only
shown. Links, devices and sparse members are passed over.
"""

from __future__ import annotations

import os
import re
import tarfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Final

import numpy as np

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.validation import DISTINCT_KEYS
from tokenpaths.engine.data.images import ImageError, decode_upload
from tokenpaths.engine.data.labels import Remarks
from tokenpaths.engine.data.sources.folders import MAX_IMAGE_BYTES, MAX_TEXT_BYTES, check_text, open_regular
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample, readable
from tokenpaths.engine.data.sources.tables.column_names import LABEL_COLUMNS, TEXT_COLUMNS, choose_column

IMAGE_PARTS: Final = ("jpg", "jpeg", "png", "webp", "gif", "bmp")
TEXT_PARTS: Final = ("txt", "text", "md")
LABEL_PART: Final = "cls"
JSON_PART: Final = "json"
MAX_LABEL_BYTES: Final = 4096
MAX_HEADER_BYTES: Final = 1 << 20
"""of an extended header, which names a member of any length"""
BLOCK: Final = tarfile.BLOCKSIZE
LOOKED_BEHIND: Final = 1 << 20
"""bytes behind the end of an archive that are looked at: another archive may have been appended"""

NO_FILE: Final = "{n} member{s} that {are} no plain file (links, devices, sparse) {are} passed over"
NO_PART: Final = "{n} member{s} without a key and an ending {are} passed over"
UNREAD: Final = "{n} member{s} of samples with several pictures or texts {are} not read: a column chooses the ending"
NO_CONTENT: Final = "{n} sample{s} without .{part} {are} passed over"
TWICE: Final = "{n} member{s} whose key and ending another one has before {are} passed over"
BAD_LABEL: Final = "{n} label{s} in members that are too long or no JSON object {are} left out"
UNENDED: Final = "{n} archive{s} without the empty blocks at the end may be cut off"
BEHIND: Final = "{n} archive{s} with bytes behind the end {are} read to that end only"

START: Final = "its start"
_KEY = re.compile(r"((?:.*/)?[^/.]+)\.([^/]+)", re.DOTALL)


@dataclass
class _Members:
    """Where one ending of all samples lies; −1 where a sample has none."""

    archive: array[int] = field(default_factory=lambda: array("i"))
    offset: array[int] = field(default_factory=lambda: array("q"))
    size: array[int] = field(default_factory=lambda: array("q"))


class WebDatasetSource:
    """Samples of tar archives, read in place.

    Args:
        files: the archives, in order.
        kind: ``image`` or ``text``.
        content_column: the ending of the members to read, or the field of ``.json`` that holds the text; None: the
            usual ones.
        label_column: the ending or field of ``.json`` that holds the label; None: ``.cls``, else a usual field.
    """

    has_masks = False
    split: str | None = None

    def __init__(
        self, files: Sequence[Path], kind: str, *, content_column: str | None = None, label_column: str | None = None
    ) -> None:
        self.kind, self.paths, self.remarks = kind, list(files), Remarks()
        self._keys: list[str] = []
        self._parts: dict[str, _Members] = {}
        for number, file in enumerate(files):
            with open_regular(file) as stream:
                self._add(number, file, stream)
        self._pad()
        if not self._keys:
            raise UserError(f"{files[0]}: holds no members like 0001.jpg or 0001.txt.", field="data")
        self._content, self._field = self._choose_content(content_column)
        self._label_part, self._label_field = self._choose_label(label_column)
        there = np.frombuffer(self._parts[self._content].archive, np.int32) >= 0
        self._rows = np.flatnonzero(there)
        if without := len(self._keys) - len(self._rows):
            self.remarks.add((NO_CONTENT.replace("{part}", self._content),), count=without)
        self.index = LabelIndex.of(list(self._labels()), self.remarks, lambda row: self._where(int(self._rows[row])))

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        places = self._rows[np.asarray(rows, np.int64)].tolist()
        members = self._parts[self._content]
        start = 0
        while start < len(places):
            number = members.archive[places[start]]
            stop = start
            with open_regular(self.paths[number]) as stream:
                while stop < len(places) and members.archive[places[stop]] == number:
                    yield self._sample(rows[stop], places[stop], stream)
                    stop += 1
            start = stop

    def _sample(self, row: int, place: int, stream: BufferedIOBase) -> Sample | UserError:
        where, label = self._where(place), self.index.label(row)
        limit = MAX_IMAGE_BYTES if self.kind == "image" else MAX_TEXT_BYTES
        try:
            data = self._bytes(place, self._content, stream, limit)
            if data is None:
                raise UserError(f"{where}: larger than {limit >> 20} MB, the most there may be.", field="data")
            source = readable(f"{self.paths[self._archive_of(place)].name} {self._keys[place]}")
            if self.kind == "image":
                return Sample(decode_upload(data), None, label, source)
            return Sample(None, check_text(self._text(data, where), where), label, source)
        except ImageError as error:
            return ImageError(f"{where}: {error}", status=error.status)
        except UserError as error:
            return error

    def _text(self, data: bytes, where: str) -> Any:
        if self._field is None:
            try:
                return data.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise UserError(f"{where}: is not UTF-8; save it as UTF-8.", field="data") from error
        record = _record(data)
        if record is None:
            raise UserError(f"{where}: is no JSON object.", field="data")
        if self._field not in record:
            there = ", ".join(record) or "none"
            raise UserError(f"{where}: no field '{self._field}'; there are: {there}.", field="text_column")
        return record[self._field]

    def _add(self, number: int, file: Path, stream: BufferedIOBase) -> None:
        """Find the members of one archive."""
        key, parts = None, set[str]()
        for name, offset, size in _members(file, stream, self.remarks):
            match = _KEY.fullmatch(name)
            if match is None:
                self.remarks.add((NO_PART,), f"{file.name}: {readable(name)[:80]}")
                continue
            if match[1] != key:
                key, parts = match[1], set()
                self._keys.append(readable(key))
            part = match[2].lower()
            if part in parts:
                self.remarks.add((TWICE,), f"{file.name}: {readable(name)[:80]}")
                continue
            parts.add(part)
            self._put(part, number, offset, size)

    def _put(self, part: str, number: int, offset: int, size: int) -> None:
        members = self._parts.setdefault(part, _Members())
        missing = len(self._keys) - 1 - len(members.archive)
        for column, value in ((members.archive, number), (members.offset, offset), (members.size, size)):
            column.extend([-1] * missing)
            column.append(value)

    def _pad(self) -> None:
        for members in self._parts.values():
            missing = len(self._keys) - len(members.archive)
            for column in (members.archive, members.offset, members.size):
                column.extend([-1] * missing)

    def _bytes(self, place: int, part: str, stream: BufferedIOBase, limit: int) -> bytes | None:
        """A member of a sample; None if it is longer than ``limit``."""
        members = self._parts[part]
        if members.size[place] > limit:
            return None
        stream.seek(members.offset[place])
        data = stream.read(members.size[place])
        if len(data) < members.size[place]:
            raise UserError(f"{self._where(place)}: the archive was cut while it was read; start again.", field="data")
        return data

    def _where(self, place: int) -> str:
        return f"{self.paths[self._archive_of(place)]}, member {self._keys[place]}.{self._content}"

    def _archive_of(self, place: int) -> int:
        return self._parts[self._content].archive[place]

    def _choose_content(self, asked: str | None) -> tuple[str, str | None]:
        """(ending, field of .json or None) of the pictures or texts."""
        where, option = str(self.paths[0]), f"{self.kind}_column"
        if asked is not None and asked.lower() in self._parts:
            return asked.lower(), None
        usual = IMAGE_PARTS if self.kind == "image" else TEXT_PARTS
        there = sorted(self._parts)
        counts = {part: sum(number >= 0 for number in self._parts[part].archive) for part in there if part in usual}
        if self.kind == "text" and JSON_PART in self._parts and (asked is not None or not counts):
            fields = list(self._first_record())
            return JSON_PART, choose_column(fields, asked, TEXT_COLUMNS, option, f"{where}, first .json")
        if asked is not None or not counts:
            listed = ", ".join(there[:20])
            wanted = f"no members ending in .{asked}" if asked else f"no {self.kind}s ({', '.join(usual)})"
            raise UserError(f"{where}: holds {wanted}; the endings are: {listed}.", field=option)
        return self._merged(sorted(counts, key=lambda part: -counts[part])), None

    def _merged(self, parts: list[str]) -> str:
        """One ending of several, of which a sample mostly has one; of two, the first of ``parts`` is read."""
        if len(parts) == 1:
            return parts[0]
        of_parts = [self._parts[part] for part in parts]
        there = np.stack([np.frombuffer(members.archive, np.int32) >= 0 for members in of_parts])
        first, everywhere = there.argmax(axis=0), np.arange(len(self._keys))
        merged = _Members(
            *(
                array(
                    code,
                    np.stack([np.array(getattr(members, name)) for members in of_parts])[first, everywhere].tolist(),
                )
                for code, name in (("i", "archive"), ("q", "offset"), ("q", "size"))
            )
        )
        name = " or .".join(parts)
        self._parts[name] = merged
        unread = int(there.sum() - there.any(axis=0).sum())
        self.remarks.add((UNREAD,) if unread else (), f"endings in use: .{', .'.join(parts)}", unread)
        return name

    def _choose_label(self, asked: str | None) -> tuple[str | None, str | None]:
        """(ending or None, field of .json or None) of the labels."""
        part = LABEL_PART if asked is None else asked.lower()
        if part in self._parts and part != self._content:
            return part, None
        if JSON_PART in self._parts:
            fields = list(self._first_record())
            where = f"{self.paths[0]}, first .json"
            column = choose_column(fields, asked, LABEL_COLUMNS, "label_column", where, optional=True)
            return (None if column is None else JSON_PART), column
        if asked is None:
            return None, None
        raise UserError(
            f"{self.paths[0]}: no members ending in .{asked}; the endings are: {', '.join(sorted(self._parts)[:20])}.",
            field="label_column",
        )

    def _first_record(self) -> dict[str, Any]:
        """The first .json that is an object; empty if none is."""
        members = self._parts[JSON_PART]
        for place in range(min(len(self._keys), 100)):
            if members.archive[place] >= 0:
                with open_regular(self.paths[members.archive[place]]) as stream:
                    record = _record(self._bytes(place, JSON_PART, stream, MAX_TEXT_BYTES))
                if record is not None:
                    return record
        return {}

    def _labels(self) -> Iterator[Any]:
        """The label of each row; a field of .json is any value."""
        if self._label_part is None:
            yield from [None] * len(self._rows)
            return
        members, limit = self._parts[self._label_part], MAX_TEXT_BYTES if self._label_field else MAX_LABEL_BYTES
        opened, stream, stack = -1, None, ExitStack()
        with stack:
            for place in self._rows.tolist():
                number = members.archive[place]
                if number < 0:
                    yield None
                    continue
                if number != opened:
                    stack.close()
                    opened, stream = number, stack.enter_context(open_regular(self.paths[number]))
                assert stream is not None, "opened with the first archive"
                yield self._label(place, self._bytes(place, self._label_part, stream, limit))

    def _label(self, place: int, data: bytes | None) -> Any:
        if self._label_field is not None:
            record = _record(data)
            if record is None:
                self.remarks.add((BAD_LABEL,), self._where(place))
            return (record or {}).get(self._label_field)
        if data is None:
            self.remarks.add((BAD_LABEL,), self._where(place))
            return None
        return data.decode("utf-8-sig", "surrogateescape").strip()


class _Header(tarfile.TarInfo):
    """A header whose declared size is believed only where it can be true."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        extended = header.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        extended |= header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        if header.size < 0 or extended and header.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header that declares {header.size:,} bytes")
        return header


def _members(file: Path, stream: BufferedIOBase, remarks: Remarks) -> Iterator[tuple[str, int, int]]:
    """(name, offset, bytes) of the plain files of an archive.

    Raises:
        UserError: it is no archive, damaged, or cut off; it names the member.
    """
    size, last = os.fstat(stream.fileno()).st_size, START
    try:
        # Not thread-safe and without end for hostile sizes, hence the checks of each step; nothing is extracted.
        archive = tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header, encoding="utf-8")  # noqa: SIM115
        before = -1
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # kept for looking up names, which nobody does
            if member.size < 0 or archive.offset <= before:
                raise tarfile.ReadError("a size below zero")
            before, last = archive.offset, f"member '{readable(member.name)[:200]}'"
            if member.isreg() and member.offset_data + member.size > size:
                raise UserError(
                    f"{file}: is cut off in {last} ({size - member.offset_data:,} of its {member.size:,} bytes are "
                    "there); copy it again.",
                    field="data",
                )
            if member.isreg() and not member.issparse():
                yield member.name, member.offset_data, member.size
            elif not member.isdir():
                remarks.add((NO_FILE,), f"{file.name}: {readable(member.name)[:80]}")
        _check_end(file, stream, archive.offset, last, remarks)
    except (tarfile.TarError, ValueError, OverflowError, EOFError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        cut = last != START and stream.tell() >= size
        what = "is cut off" if cut else "is damaged" if last != START else "is no tar archive, or damaged or cut off"
        reason = str(error)[:80] or type(error).__name__
        raise UserError(f"{file}: {what} after {last} ({reason}); copy it again.", field="data") from None


def _check_end(file: Path, stream: BufferedIOBase, offset: int, last: str, remarks: Remarks) -> None:
    """An archive ends with empty blocks: what is there instead is damage, or was appended."""
    stream.seek(offset)
    block = stream.read(BLOCK)
    if not block:
        remarks.add((UNENDED,), file.name)
    elif len(block) < BLOCK:
        raise UserError(f"{file}: is cut off after {last}; copy it again.", field="data")
    elif block.strip(b"\0"):
        raise tarfile.ReadError("a header that is none")
    elif stream.read(LOOKED_BEHIND).strip(b"\0"):
        remarks.add((BEHIND,), file.name)


def _record(data: bytes | None) -> dict[str, Any] | None:
    """The JSON object in ``data``; None if there is none."""
    try:
        record = DISTINCT_KEYS.decode((data or b"").decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
