"""What a dropped file is, by its first bytes, its name and its size; of one that cannot be used, what would fit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tokenpaths.frontend.charts.drawing import numbers

Kind = Literal["image", "text", "log"]
IMAGES = ((b"\x89PNG", 0), (b"\xff\xd8\xff", 0), (b"GIF8", 0), (b"BM", 0), (b"WEBP", 8))
PICTURES = ("png", "jpg", "jpeg", "webp", "gif", "bmp")
LOGS = ((b"\x93NUMPY", 0), (b"PAR1", 0), (b"GGUF", 0), *((bytes((0x80, version)), 0) for version in (2, 3, 4, 5)))
"""numpy, Parquet, GGUF, and pickles of PyTorch"""
PACKED_LOGS = ("npz", "pt", "pth")
PROSE = ("md", "markdown", "rst", "py")
"""texts in which a line that begins with # is a heading or a comment"""
UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""how texts begin that say that they are UTF-16"""
LINES = re.compile(rb"(data:\s*)?(\{\s*\"|\[\s*[{\[])")
"""how lines of JSON begin, also as a server streams them"""
FITS = (
    "Drop a PNG, JPEG, WebP, GIF or BMP image, a plain text, or a routing log (.jsonl, .csv, .npz, .npy, .parquet, "
    ".pt, .safetensors)."
)
AS_UTF8 = "A text should be saved as UTF-8, or pasted into the box."
OTHERS = (
    (rb"%PDF", 0, "a PDF", "Copy its text and paste it, or save one page as a PNG or JPEG image."),
    (rb"II\*\0|MM\0\*", 0, "a TIFF image", "Save it as PNG or JPEG and drop that."),
    (rb"ftyp(hei|hev|mif1|msf1)", 4, "a HEIC image, as many phones make it", "Save it as JPEG or PNG and drop that."),
    (rb"ftypavi[fs]", 4, "an AVIF image", "Save it as JPEG or PNG and drop that."),
    (rb"ftyp", 4, "a video or sound file", "Save one frame of it as PNG or JPEG and drop that."),
    (rb"8BPS", 0, "a Photoshop file", "Save it as PNG or JPEG and drop that."),
    (rb"DUCK", 8, "a DuckDB file, as runs are", "Copy a run into the folder of runs: it appears here by itself."),
    (rb"\x1f\x8b|BZh|7z\xbc\xaf|Rar!|\xfd7zXZ", 0, "a packed file", "Unpack it and drop what is inside."),
    (rb"\{\\rtf", 0, "a rich-text file", "Save it as plain text, or copy its text and paste it."),
    (rb"\xd0\xcf\x11\xe0", 0, "an old Office file", "Copy its text and paste it."),
    (rb"(RIFF.{4}(WAVE|AVI )|ID3|OggS|fLaC)", 0, "a video or sound file", FITS),
)
NAMES = {
    "heic": "a HEIC image, as many phones make it",
    "heif": "a HEIC image, as many phones make it",
    "pdf": "a PDF",
    "svg": "an SVG drawing",
}


@dataclass(frozen=True)
class Dropped:
    """What a file is; without a ``kind`` it is refused, and ``problem`` and ``todo`` say why and what would fit."""

    kind: Kind | None
    problem: str = ""
    todo: str = ""


def what_is(name: str, head: bytes, size: int, most: int) -> Dropped:
    """Judge a file by its name, the beginning of its content and its size in bytes.

    Args:
        name: As it was called where it came from.
        head: The first bytes, 64 or more where there are as many.
        size: Of the whole file, in bytes.
        most: Largest size that is taken, in bytes.
    """
    called = f"“{name[:80]}”"
    for pattern, place, words, todo in OTHERS:
        if re.match(pattern, head[place:], re.DOTALL):
            return Dropped(None, f"{called} is {words}, which cannot be read here.", todo)
    suffix = name.rpartition(".")[2].casefold()
    if suffix in NAMES and not _begins(head, IMAGES):
        return Dropped(None, f"{called} is {NAMES[suffix]}, which cannot be read here.", FITS)
    if size > most:
        has, taken = numbers.apart([size / 1e6, most / 1e6])
        limit = f"{has} MB; at most {taken} MB are taken here."
        return Dropped(None, f"{called} has {limit}", _smaller(head, suffix))
    if size == 0:
        return Dropped(None, f"{called} is empty.", FITS)
    if _begins(head, IMAGES):
        return Dropped("image")
    if _is_log(head, suffix):
        return Dropped("log")
    if head.startswith(b"PK"):
        return Dropped(None, f"{called} is an Office document or a packed file, which cannot be read here.", FITS)
    if _is_binary(head):
        return Dropped(None, f"{called} is neither an image, a text nor a log that is known here.", f"{FITS} {AS_UTF8}")
    if suffix in PICTURES:
        todo = f"Drop the picture itself, or call the file .txt and its text is traced. {FITS}"
        return Dropped(None, f"{called} is called a picture and holds text.", todo)
    return Dropped("text")


def text_of(content: bytes) -> str | None:
    """The text of a file in UTF-8, or in UTF-16 with its mark; None of any other, whose letters would be guesses.

    >>> text_of("Straße".encode("utf-16")), text_of("Straße".encode("latin-1"))
    ('Straße', None)
    """
    try:
        return content.decode("utf-16" if content.startswith(UTF16) else "utf-8-sig")
    except UnicodeDecodeError:
        return None


def _is_binary(head: bytes) -> bool:
    return b"\0" in head and not head.startswith(UTF16)


def _is_log(head: bytes, suffix: str) -> bool:
    if _begins(head, LOGS) or (head.startswith(b"PK") and (suffix in PACKED_LOGS or b"data.pkl" in head[:200])):
        return True
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") < 1 << 30:  # safetensors
        return True
    if _is_binary(head):
        return suffix == "bin"  # records of numbers; the import says if they are none
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return suffix in ("jsonl", "ndjson", "log") or bool(LINES.match(text)) or _is_table(text, suffix)


def _is_table(text: bytes, suffix: str) -> bool:
    """Whether lines hold numbers between commas or tabs, under a head where the file is called a table.

    A head may be remarks, and then a file has a line of names whatever it is called.
    """
    every = [line.strip() for line in text.splitlines()]
    lines = [line for line in every if not line.startswith(b"#")][:3]
    remarks = len(every) > 3 and every[0].startswith(b"#") and suffix not in PROSE
    cells = [re.split(rb"[,\t;]", line) for line in lines if line]
    numbers_of = [sum(cell.strip().lstrip(b"-").isdigit() for cell in row) for row in cells]
    if suffix in ("csv", "tsv") or remarks:
        return len(cells) > 1 and len(cells[1]) > 1 and numbers_of[1] > 1
    return len(cells) > 2 and all(
        len(row) > 1 and count == len(row) for row, count in zip(cells, numbers_of, strict=True)
    )


def _begins(head: bytes, marks: tuple[tuple[bytes, int], ...]) -> bool:
    return any(head[place:].startswith(mark) for mark, place in marks)


def _smaller(head: bytes, suffix: str) -> str:
    if _begins(head, IMAGES):
        return "Make the image smaller: models see 64 pixels a side or a few hundred."
    if _begins(head, LOGS) or suffix in ("npz", "jsonl", "log", "csv", "pt", "safetensors"):
        return "Import it with `tokenpaths import`, which takes files of any size."
    return "Trace a large file with `tokenpaths trace --data`, or paste a part of it."


def file_name(name: str) -> str:
    """A name for the inbox: letters, digits, dots, ``_`` and ``-``.

    >>> file_name("my routing (2).jsonl")
    'my-routing-2-.jsonl'
    >>> file_name("…")
    'log'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:80] or "log"
