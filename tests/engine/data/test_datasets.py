"""Piles of images and texts as one stream: what comes out, what is refused, and in which words."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import BUNDLED, Dataset, Sample, open_dataset, spread_rows
from tokenpaths.engine.data.images import ImageError
from tokenpaths.engine.data.sources.sample import LabelIndex


def png(colour: tuple[int, int, int] = (9, 8, 7), size: tuple[int, int] = (6, 5)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def write(file: Path, data: bytes | str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data.encode() if isinstance(data, str) else data)
    return file


def parquet(file: Path, columns: dict[str, object], **options: object) -> Path:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, file, **options)
    return file


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Nine pictures of three classes, and what lies about in real folders."""
    folder = tmp_path / "animals_val"
    for number, kind in enumerate(["bee", "cat", "dog"]):
        for i in range(3):
            suffix = ["png", "PNG", "jpeg"][i]
            write(folder / kind / f"{i}.{suffix}", png((40 * number, i, 0)))
    write(folder / "readme.txt", "not a picture")
    write(folder / ".hidden" / "x.png", png())
    write(folder / "bee" / ".DS_Store", b"\0")
    return folder


# ---- image folders -------------------------------------------------------------------------------


def test_image_folder(pictures: Path) -> None:
    data = open_dataset(pictures, "vision")
    assert (data.name, data.split, data.num_samples) == ("animals_val", "val", 9)
    assert data.labels == ("bee", "cat", "dog")
    assert data.regions == ()
    samples = list(data)
    assert [s.source for s in samples][:3] == ["bee/0.png", "bee/1.PNG", "bee/2.jpeg"]
    assert [s.label for s in samples] == ["bee"] * 3 + ["cat"] * 3 + ["dog"] * 3
    assert samples[4].image.getpixel((0, 0)) == (40, 1, 0)
    assert all(s.text is None and s.mask is None for s in samples)
    assert [s.source for s in data] == [s.source for s in samples], "a second walk is the same"


def test_flat_image_folder_has_no_labels(tmp_path: Path) -> None:
    write(tmp_path / "a.png", png())
    data = open_dataset(str(tmp_path), "vision")
    assert data.labels == ()
    assert next(iter(data)).label is None


def test_single_image(tmp_path: Path) -> None:
    file = write(tmp_path / "cat.png", png())
    data = open_dataset(file, "vision")
    assert (data.name, data.num_samples) == ("cat", 1)
    assert next(iter(data)).image.size == (6, 5)


def test_file_names_that_are_no_unicode_stay_readable(tmp_path: Path) -> None:
    try:
        os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")
    except OSError:
        pytest.skip("this file system takes only Unicode names")
    file = os.fsencode(tmp_path) + b"/caf\xe9/b\xffd.png"
    with open(file, "wb") as stream:
        stream.write(png())
    sample = next(iter(open_dataset(tmp_path, "vision")))
    assert sample.source == "caf?/b?d.png"
    assert sample.label == "caf?"


def test_opening_reads_no_picture(pictures: Path) -> None:
    write(pictures / "cat" / "1.PNG", b"broken")
    data = open_dataset(pictures, "vision")
    walk = iter(data)
    for _ in range(4):
        next(walk)
    with pytest.raises(ImageError, match=r"cat/1\.PNG"):
        next(walk)


def test_skip_bad(pictures: Path) -> None:
    write(pictures / "cat" / "1.PNG", b"%PDF-1.4")
    data = open_dataset(pictures, "vision", skip_bad=True)
    assert len(list(data)) == 8
    assert data.walk.left_out == 1
    assert "PDF" in data.walk.problems[0]
    assert "1.PNG" in data.walk.problems[0]
    assert len(list(data)) == 8
    assert data.walk.left_out == 1, "counted anew each walk"


def test_nothing_but_bad(tmp_path: Path) -> None:
    write(tmp_path / "a.png", b"x")
    write(tmp_path / "b.png", b"")
    with pytest.raises(UserError, match="None of the 2 samples"):
        list(open_dataset(tmp_path, "vision", skip_bad=True))


# ---- Parquet -------------------------------------------------------------------------------------


# ---- texts ---------------------------------------------------------------------------------------


def test_text_folder_labels(tmp_path: Path) -> None:
    write(tmp_path / "prose" / "a.txt", "one")
    write(tmp_path / "code" / "deep" / "b.py", "two")
    write(tmp_path / "poem_03.md", "three")
    data = open_dataset(tmp_path, "text")
    assert {s.source: s.label for s in data} == {"code/deep/b.py": "code", "poem_03.md": "poem", "prose/a.txt": "prose"}
    assert data.labels == ("code", "poem", "prose")


def test_many_stems_are_no_labels(tmp_path: Path) -> None:
    for i in range(70):
        write(tmp_path / f"{'abcdefg'[i % 7]}{'xyzuvwrst!'[i // 7]}.txt", "text")
    assert open_dataset(tmp_path, "text").labels == ()


def test_text_files_round_trip(tmp_path: Path) -> None:
    text = "Grüße\r\n\u202eabc\u202c <script>alert(1)</script> nul:\0 😀\n"
    file = write(tmp_path / "a.txt", text)
    assert next(iter(open_dataset(file, "text"))).text == text
    write(file, b"\xef\xbb\xbfhello")
    assert next(iter(open_dataset(file, "text"))).text == "hello"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b" \n\t ", "empty"),
        (b"fine\nthen \xff\xfe", "byte 0xff in line 2 is not UTF-8"),
        (b"\xed\xa0\x80", "not UTF-8"),
        (b"\x89PNG\r\n\x1a\n", "not UTF-8"),
    ],
)
def test_bad_text_files(tmp_path: Path, content: bytes, words: str) -> None:
    file = write(tmp_path / "a.txt", content)
    with pytest.raises(UserError, match=words) as caught:
        list(open_dataset(file, "text"))
    assert "a.txt" in str(caught.value)


def test_huge_text_files(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with file.open("wb") as stream:
        stream.truncate(17 << 20)
    with pytest.raises(UserError, match="larger than 16 MB"):
        list(open_dataset(file, "text"))


def test_long_texts_in_passages(tmp_path: Path) -> None:
    paragraphs = [f"Paragraph {i}. " + "Some words more. " * 12 for i in range(30)]
    text = "\n\n".join(paragraphs)
    file = write(tmp_path / "book.txt", text)
    data = open_dataset(file, "text", passage_chars=900)
    samples = list(data)
    assert data.num_samples is None
    assert len(samples) > 5
    assert all(0 < len(s.text) <= 900 and s.text in text for s in samples)
    assert sum(s.text.count("Paragraph") for s in samples) == 30
    assert samples[1].source.startswith("book.txt, characters ")
    assert len(list(open_dataset(file, "text", passage_chars=900, limit=3))) == 3


# ---- JSONL ---------------------------------------------------------------------------------------


def jsonl(file: Path, *records: object) -> Path:
    return write(file, "\n".join(json.dumps(record) for record in records) + "\n")


def test_jsonl(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a_test.jsonl", {"text": "ä", "label": "x"}, {"label": 3, "text": "b"}, {"text": "c"})
    file.write_text(file.read_text().replace("\n", "\n\n  \n", 1))
    data = open_dataset(file, "text")
    assert (data.split, data.num_samples, data.labels) == ("test", 3, ("3", "x"))
    assert [(s.text, s.label, s.source) for s in data] == [
        ("ä", "x", "a_test.jsonl line 1"),
        ("b", "3", "a_test.jsonl line 4"),
        ("c", None, "a_test.jsonl line 5"),
    ]
    assert [s.text for s in open_dataset(file, "text", limit=1, seed=1)] == [
        s.text for s in open_dataset(file, "text", limit=1, seed=1)
    ]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ('{"text": ', "line 2: is not JSON"),
        ("[1]", "line 2: is a JSON list, not an object"),
        ('{"text": "\\ud800"}', "line 2: character 0 is half of a surrogate pair"),
        ('{"text": ""}', "line 2: the text is empty"),
        ('{"text": 5}', "line 2: the text is of type int"),
        ('{"text": null}', "line 2: the text is missing"),
        ('{"words": "x"}', "line 2: no key 'text'; there are: words"),
        ("[" * 100_000, "line 2: is not JSON"),
        ("9" * 5_000, "line 2: is not JSON"),
    ],
)
def test_bad_jsonl_lines(tmp_path: Path, second: str, words: str) -> None:
    file = write(tmp_path / "a.jsonl", '{"text": "fine"}\n' + second + '\n{"text": "too"}\n')
    with pytest.raises(UserError) as caught:
        list(open_dataset(file, "text"))
    assert words in str(caught.value)
    assert "a.jsonl" in str(caught.value)
    data = open_dataset(file, "text", skip_bad=True)
    assert [s.text for s in data] == ["fine", "too"]
    assert data.walk.left_out == 1


def test_jsonl_wrong_columns(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", {"q": "x", "a": "y"})
    with pytest.raises(UserError, match=r"none of the columns \(q, a\)"):
        open_dataset(file, "text")
    with pytest.raises(UserError, match=r"no column 'z'; the columns are: q, a"):
        open_dataset(file, "text", text_column="z")
    assert next(iter(open_dataset(file, "text", text_column="a", label_column="q"))).label == "x"


def test_jsonl_not_utf8_and_empty(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 1: not UTF-8"):
        open_dataset(write(tmp_path / "a.jsonl", b'{"text": "\xff"}'), "text")
    with pytest.raises(UserError, match="holds no JSON object"):
        open_dataset(write(tmp_path / "b.jsonl", b"\n\n"), "text")
    with pytest.raises(UserError, match="holds no JSON object"):
        open_dataset(write(tmp_path / "c.jsonl", b"nonsense"), "text", skip_bad=True)


def test_surrogates_in_labels_become_readable(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"text": "t", "label": "x\\ud800"}')
    assert next(iter(open_dataset(file, "text"))).label == "x?"


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes_as_jsonl(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = write(tmp_path_factory.mktemp("j") / "a.jsonl", content)
    try:
        samples = list(open_dataset(file, "text"))
    except UserError:
        return
    assert all(isinstance(s.text, str) for s in samples)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("https://example.org/a.parquet", "is a URL"),
        ("s3://bucket/key", "is a URL"),
        ("hf://datasets/x", "is a URL"),
        ("file:///etc/passwd", "is a URL"),
        ("bundled:cats", "there are bundled:scenes"),
        ("bundled:texts", "try bundled:scenes, bundled:photos"),
        ("", "is no path"),
        ("a\0b", "is no path"),
        ("x" * 5000, "no file or folder"),
        ("~nobody-of-that-name/x", "no file or folder"),
    ],
)
def test_names_that_are_refused(name: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        open_dataset(name, "vision")
    assert words in str(caught.value)
    assert caught.value.field == "data"


def test_missing_path_names_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "english_val.jsonl", "{}")
    with pytest.raises(UserError, match=r"near it: english_val\.jsonl"):
        open_dataset(tmp_path / "english_vall.jsonl", "text")


@pytest.mark.parametrize("suffix", ["pkl", "pickle", "pt", "pth", "npy", "zip", "tar.gz", "duckdb"])
@pytest.mark.parametrize("modality", ["vision", "text"])
def test_dangerous_files_are_never_opened(tmp_path: Path, suffix: str, modality: str) -> None:
    file = write(tmp_path / f"data.{suffix}", b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(UserError, match=r"may run code|archive|database"):
        open_dataset(file, modality)


def test_empty_and_wrong_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no files; give"):
        open_dataset(tmp_path, "vision")
    write(tmp_path / "a.txt", "x")
    with pytest.raises(UserError, match="holds no image files, but 1 of other kinds; give"):
        open_dataset(tmp_path, "vision")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": -5}, "limit"),
        ({"image_column": "image"}, "image_column"),
        ({"label_column": "label"}, "label_column"),
    ],
)
def test_options_that_mean_nothing(pictures: Path, options: dict[str, object], field: str) -> None:
    with pytest.raises(UserError) as caught:
        open_dataset(pictures, "vision", **options)
    assert caught.value.field == field


def test_other_modality(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds texts"):
        open_dataset(jsonl(tmp_path / "a.jsonl", {"text": "x"}), "vision")
    with pytest.raises(ImageError, match=r"a\.txt: The file is not a picture"):
        list(open_dataset(write(tmp_path / "a.txt", "hello"), "vision"))


# ---- the limited subset --------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    labels=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=60),
    limit=st.integers(1, 70),
    seed=st.integers(0, 99),
)
def test_spread_rows(labels: list[str | None], limit: int, seed: int) -> None:
    rows = spread_rows(LabelIndex.of(labels), limit, seed)
    assert len(rows) == min(limit, len(labels))
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(rows, spread_rows(LabelIndex.of(labels), limit, seed))
    taken, there = Counter(labels[row] for row in rows), Counter(labels)
    most = max(taken.values())
    for label, count in there.items():
        assert taken[label] >= min(count, most - 1), "no label waits while another is served twice"


def test_spread_rows_follow_the_seed() -> None:
    index = LabelIndex.of(["a"] * 100)
    assert not np.array_equal(spread_rows(index, 5, 0), spread_rows(index, 5, 1))
    assert np.array_equal(spread_rows(index, None, 0), np.arange(100))
    many = LabelIndex.of([f"label {i}" for i in range(50)])
    assert set(spread_rows(many, 10, 0).tolist()) != set(spread_rows(many, 10, 1).tolist())


def test_limit_spreads_over_folders(pictures: Path) -> None:
    samples = list(open_dataset(pictures, "vision", limit=3, seed=5))
    assert sorted(s.label for s in samples) == ["bee", "cat", "dog"]
    assert open_dataset(pictures, "vision", limit=2).num_samples == 2


def test_everything_bundled_opens() -> None:
    for name, modality in BUNDLED.items():
        data = open_dataset(name, modality, limit=2)
        assert isinstance(data, Dataset)
        assert data.name == name.split(":")[1]
        assert all(isinstance(sample, Sample) for sample in data)


def test_pictures_that_are_not_square_are_noted(tmp_path):
    for name, size in {"a": (6, 6), "b": (50, 7), "c": (7, 50)}.items():
        write(tmp_path / f"{name}.png", png(size=size))
    data = open_dataset(str(tmp_path), "vision")
    list(data)
    assert data.walk.notes() == [
        "2 pictures not square are cut: the square in the middle is all that is seen (the first: b.png)"
    ]
    write(tmp_path / "c.png", png(size=(6, 6)))
    data = open_dataset(str(tmp_path), "vision")
    list(data)
    assert data.walk.notes() == ["1 picture not square is cut: the square in the middle is all that is seen (b.png)"]
