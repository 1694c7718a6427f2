"""Images and texts in a folder, whose sub-folders are labels, and single files."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Final, Literal

from PIL import Image

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.images import ImageError, decode_upload
from tokenpaths.engine.data.labels import Remarks
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample, readable

IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".jpe", ".webp", ".gif", ".bmp")
TEXT_SUFFIXES: Final = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".html", ".css", ".xml", ".csv", ".tsv", ".toml", ".yaml", ".yml"),
    *(".ini", ".log", ".py", ".pyi", ".js", ".ts", ".c", ".h", ".cc", ".cpp", ".hpp", ".java", ".go", ".rs"),
    *(".rb", ".sh", ".sql"),
)
MAX_IMAGE_BYTES: Final = 64 << 20
MAX_TEXT_BYTES: Final = 16 << 20
MAX_STEM_LABELS: Final = 64
"""file names are taken for labels only while there are no more of them than this"""

OTHER_KIND: Final = "{n} file{s} of another kind {are} passed over"
LINKED: Final = "{n} linked sub-folder{s} {are} not followed"
HIDDEN: Final = "{n} hidden file{s} or sub-folder{s} {are} passed over"
STEMS: Final = f"{{n}} text{{s}} without a label: their file names are more than {MAX_STEM_LABELS} different ones"
UNREADABLE: Final = "{n} sub-folder{s} that cannot be read {are} passed over"

_NUMBER_AT_END = re.compile(r"[-_. ]*\d+$")


class FileSource:
    """Files of one modality, sorted by path; the label is known without opening a file."""

    has_masks = False

    def __init__(self, root: Path, files: Sequence[Path], labels: Sequence[str | None], kind: str) -> None:
        self.root, self.files, self.kind = root, list(files), kind
        self.paths = self.files
        self.remarks = Remarks()
        self.index = LabelIndex.of(labels, self.remarks, lambda row: readable(self.files[row].name))

    @classmethod
    def folder(cls, root: Path, kind: Literal["image", "text"]) -> FileSource:
        """Every file of that kind below ``root``; hidden files and folders are passed over."""
        suffixes = IMAGE_SUFFIXES if kind == "image" else TEXT_SUFFIXES
        files: list[Path] = []
        passed_over: Counter[str] = Counter()
        for folder, names, file_names in os.walk(root, onerror=lambda error: passed_over.update([UNREADABLE])):
            passed_over[HIDDEN] += sum(name.startswith(".") for name in names)
            names[:] = sorted(name for name in names if not name.startswith("."))
            passed_over[LINKED] += sum(os.path.islink(os.path.join(folder, name)) for name in names)
            for name in sorted(file_names):
                fits = os.path.splitext(name)[1].lower() in suffixes
                if name.startswith("."):
                    passed_over[HIDDEN] += fits
                elif fits:
                    files.append(Path(folder, name))
                else:
                    passed_over[OTHER_KIND] += 1
        if not files:
            others = passed_over[OTHER_KIND]
            held = f"no {kind} files, but {others} of other kinds" if others else "no files"
            raise UserError(
                f"The folder '{root}' holds {held}; "
                f"give a folder with {kind}s ({' '.join(suffixes[:7])}), sub-folders as labels.",
                field="data",
            )
        files.sort(key=lambda file: file.relative_to(root).parts)
        labels = _labels(root, files, kind)
        if kind == "text":
            passed_over[STEMS] = labels.count(None)
        source = cls(root, files, labels, kind)
        for what, count in passed_over.items():
            source.remarks.add((what,) if count else (), count=count)
        return source

    @classmethod
    def single(cls, file: Path, kind: Literal["image", "text"]) -> FileSource:
        return cls(file.parent, [file], [None], kind)

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        for row in rows:
            file = self.files[row]
            try:
                if self.kind == "image":
                    image, text = read_image(file), None
                else:
                    image, text = None, read_text(file)
            except UserError as error:
                yield error
            else:
                source = readable(file.relative_to(self.root).as_posix())
                yield Sample(image, text, self.index.label(row), source)


def read_image(file: Path) -> Image.Image:
    """The picture in a file; ``ImageError`` names the file."""
    data = _read_bytes(file, MAX_IMAGE_BYTES, "picture")
    try:
        return decode_upload(data)
    except ImageError as error:
        raise ImageError(f"{file}: {error}", status=error.status) from error


def read_text(file: Path) -> str:
    """The text in a UTF-8 file, line ends as they are, a byte order mark left out."""
    data = _read_bytes(file, MAX_TEXT_BYTES, "text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(
            f"{file}: byte 0x{data[error.start]:02x} in line {line} is not UTF-8; save the text as UTF-8.", field="data"
        ) from error
    return check_text(text, str(file))


def check_text(text: object, where: str) -> str:
    """``text`` itself if a model can read it: a string, not blank, no lone surrogates."""
    if not isinstance(text, str):
        raise UserError(f"{where}: the text is {_kind_of(text)}; it must be a string.", field="text")
    if not text.strip():
        raise UserError(f"{where}: the text is empty; give at least one character.", field="text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: character {error.start} is half of a surrogate pair (U+{ord(text[error.start]):04X}), "
            "which is no Unicode text; give the whole character.",
            field="text",
        ) from error
    return text


def _kind_of(value: object) -> str:
    return "missing (null)" if value is None else f"of type {type(value).__name__}"


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to would be waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


@contextmanager
def open_regular(file: Path) -> Iterator[BufferedIOBase]:
    """A file to read from; ``UserError`` that names it if it is a pipe or device, or cannot be read."""
    try:
        with open(file, "rb", opener=_without_waiting) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise UserError(f"{file}: is a pipe or device, it should be a file.", field="data")
            yield stream
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error}).", field="data") from error


def _read_bytes(file: Path, limit: int, kind: str) -> bytes:
    with open_regular(file) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise UserError(
            f"{file}: larger than {limit >> 20} MB, the most for one {kind}; cut it into smaller ones.", field="data"
        )
    return data


def _labels(root: Path, files: Sequence[Path], kind: str) -> list[str | None]:
    """The first sub-folder; for texts without one the file's stem, numbers at its end left out."""
    labels: list[str | None] = []
    for file in files:
        parts = file.relative_to(root).parts
        stem = _NUMBER_AT_END.sub("", file.stem) or file.stem
        labels.append(parts[0] if len(parts) > 1 else stem if kind == "text" else None)
    if kind == "text" and len(set(labels)) > MAX_STEM_LABELS:
        return [file.relative_to(root).parts[0] if file.parent != root else None for file in files]
    return labels
