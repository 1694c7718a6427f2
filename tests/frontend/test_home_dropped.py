"""What a dropped file is, and what is said of one that cannot be used."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tokenpaths.frontend.views.home.dropped import Dropped, file_name, text_of, what_is

MOST = 25_000_000


def judged(name: str, content: bytes, size: int | None = None) -> Dropped:
    return what_is(name, content[:4096], len(content) if size is None else size, MOST)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_images_are_known_by_their_content_whatever_they_are_called(form):
    buffer = io.BytesIO()
    Image.new("RGB", (5, 5)).save(buffer, form)
    for name in ("a.png", "no-suffix", "a.txt", "a.heic"):
        assert judged(name, buffer.getvalue()).kind == "image"


def test_logs_of_arrays_are_known():
    npz, npy = io.BytesIO(), io.BytesIO()
    np.savez(npz, a=np.zeros(3))
    np.save(npy, np.zeros(3))
    assert judged("a.npz", npz.getvalue()).kind == "log"
    assert judged("a", npy.getvalue()).kind == "log"
    assert judged("a.parquet", b"PAR1" + b"\0" * 40).kind == "log"


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.jsonl", b'{"request": 1, "experts": [[1, 2]]}\n', "log"),
        ("trace.json", b'[{"layer": 0}]', "log"),
        ("trace.jsonl", b'{ "layer": 0}', "log"),
        ("stream.txt", b'data: {"choices": []}\n\n', "log"),
        ("bare.txt", b"0,15\n0,11\n0,9\n", "log"),
        ("trace.csv", b"phase,token,layer,rank,expert\nprefill,0,0,0,15\n", "log"),
        ("friends.csv", b"name,town\nAda,London\n", "text"),
        *((name, b"# route_trace v1\n# layer=0\nturn,step,layer\n0,1,2\n", "log") for name in ("t.csv", "t.txt", "t")),
        ("notes.txt", b"# A head\nwords, words\n", "text"),
        *((name, b"# Results\n\n1, 2\n3, 4\n5, 6\n", "text") for name in ("notes.md", "NOTES.MD", "plot.py")),
        ("windows.txt", "Stra\u00dfe".encode("utf-16"), "text"),
        ("rollout.pt", b"PK\x03\x04" + b"\0" * 26 + b"rollout/data.pkl", "log"),
        ("a.pkl", b"\x80\x04\x95" + b"\0" * 8, "log"),
        ("a.safetensors", (120).to_bytes(8, "little") + b'{"a": {"dtype"', "log"),
        ("imatrix.gguf", b"GGUF\x03\0\0\0", "log"),
        ("trace.bin", (1).to_bytes(4, "little") * 9, "log"),
        ("dates.txt", b"1, 2 and 3\n4, 5\n", "text"),
        ("mine.txt", "Grüße, שלום\n".encode(), "text"),
        ("notes", b"just words", "text"),
        ("poem.md", b"[not json] a link", "text"),
        ("code.py", b"{x for x in y}", "text"),
    ],
)
def test_texts_and_logs(name, content, kind):
    assert judged(name, content).kind == kind


def test_texts_are_read_where_their_letters_are_certain():
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert text_of("Straße".encode(encoding)) == "Straße"
    for encoding in ("latin-1", "cp1252"):
        assert text_of("Straße".encode(encoding)) is None
    assert text_of("Привет".encode("cp1251")) is None
    assert "UTF-8" in judged("unmarked.txt", "words".encode("utf-16-le")).todo


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("IMG_1.HEIC", b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC image"),
        ("IMG_1.jpg", b"\0\0\0\x18ftypmif1\0\0\0\0", "a HEIC image"),
        ("paper.pdf", b"%PDF-1.7\n", "a PDF"),
        ("picture.png", b"%PDF-1.7\n", "a PDF"),
        ("a.avif", b"\0\0\0\x1cftypavif", "an AVIF image"),
        ("a.mp4", b"\0\0\0\x1cftypisom", "a video"),
        ("a.docx", b"PK\x03\x04rest", "an Office document"),
        ("a.tif", b"II*\0abc", "a TIFF image"),
        ("run.duckdb", b"\0" * 8 + b"DUCK", "folder of runs"),
        ("a.gz", b"\x1f\x8b\x08", "Unpack it"),
        ("a.dat", b"\x01\0\x02\0", "neither an image"),
        ("nothing.txt", b"", "is empty"),
        ("cut.pdf", b"", "a PDF"),
        ("photo.PNG", b"words and more words\n", "called a picture and holds text"),
    ],
)
def test_what_is_refused_is_named_and_what_would_fit_is_said(name, content, words):
    result = judged(name, content)
    assert result.kind is None
    assert words in f"{result.problem} {result.todo}"
    assert name in result.problem
    assert len(result.todo) > 15


def test_a_file_that_is_too_large_has_a_size_and_a_way():
    result = judged("big.png", b"\x89PNG", 26_000_000)
    assert result.problem == "“big.png” has 26.0 MB; at most 25.0 MB are taken here."
    assert "smaller" in result.todo
    little = judged("big.png", b"\x89PNG", MOST + 40_000)
    assert little.problem == "“big.png” has 25.04 MB; at most 25.00 MB are taken here."
    assert "tokenpaths import" in judged("big.npz", b"PK\x03\x04", 10**9).todo
    assert "a HEIC image" in judged("big.heic", b"\0\0\0\x18ftypheic", 10**9).problem
    assert judged("just.png", b"\x89PNG", MOST).kind == "image"


@pytest.mark.parametrize("name", ["../../etc/passwd", ".hidden", "a b/c\\d", "日本.jsonl", "x" * 500, ""])
def test_names_for_the_inbox_are_plain(name):
    made = file_name(name)
    assert 0 < len(made) <= 80
    assert made[0].isalnum()
    assert "/" not in made
