"""CSV and TSV: delimiters, quotes, bytes that are no text, pictures beside the table, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.data.test_datasets import png, write
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import open_dataset


def test_quotes_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    content = '\ufefftext,label\r\n"one, ""two""\r\nthree",x\r\n\r\nplain,y\r\n'
    data = open_dataset(write(tmp_path / "a_val.csv", content), "text")
    assert (data.name, data.split, data.num_samples, data.notes) == ("a_val", "val", 2, [])
    assert [(s.text, s.label, s.source) for s in data] == [
        ('one, "two"\r\nthree', "x", "a_val.csv line 2"),
        ("plain", "y", "a_val.csv line 5"),
    ]


@pytest.mark.parametrize(
    ("name", "delimiter", "words"),
    [
        ("a.csv", ";", "columns are told apart by semicolons, not commas (a.csv)"),
        ("a.csv", "\t", "columns are told apart by tabs, not commas (a.csv)"),
        ("a.tsv", "|", "columns are told apart by vertical bars, not tabs (a.csv)"),
        ("a.tsv", "\t", None),
        ("a.csv", ",", None),
    ],
)
def test_delimiters_are_noticed_and_named(tmp_path: Path, name: str, delimiter: str, words: str | None) -> None:
    rows = [["n", "body", "topic"], ["1", "some words here", "x"], ["2", "and others", "y"]]
    data = open_dataset(write(tmp_path / name, "\n".join(map(delimiter.join, rows))), "text")
    assert [(s.text, s.label) for s in data] == [("some words here", "x"), ("and others", "y")]
    assert data.notes == ([] if words is None else [words.replace("a.csv", name)])


def test_one_column_of_texts_with_marks_in_them(tmp_path: Path) -> None:
    data = open_dataset(write(tmp_path / "a.csv", "words\na; b; c\nd\n"), "text")
    assert [s.text for s in data] == ["a; b; c", "d"]


def test_rows_that_cannot_be_read(tmp_path: Path) -> None:
    content = b'text,label\nfine,x\na,b,c\n"open, x\n"shut" no,y\n\xff\xfe,z\n,z\ngood,z\n'
    file = write(tmp_path / "a.csv", content)
    with pytest.raises(UserError, match=r"a\.csv, line 3: has 3 columns and the first line 2; quote what holds commas"):
        open_dataset(file, "text")
    data = open_dataset(file, "text", skip_bad=True)
    assert [s.text for s in data] == ["fine", "good"]
    assert data.walk.left_out == 4
    said = "; ".join(data.walk.problems)
    for words in (
        "line 4: cannot be split into columns (up to line 5)",
        "line 6: holds bytes that are not UTF-8",
        "line 7: the text is empty",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "should hold the names of the columns: it is empty"),
        (b"text,label\n", "holds no rows below the names"),
        (b"text,text\na,b\n", "two columns have the same name"),
        ("text,label\na,b\n".encode("utf-16"), "is UTF-16; save it as UTF-8"),
        (b"q,a\nx,y\n", "none of the columns (q, a) is called text"),
        (b'"text', "should hold the names of the columns"),
    ],
)
def test_tables_that_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(UserError) as caught:
        open_dataset(write(tmp_path / "a.csv", content), "text")
    assert words in str(caught.value)


def test_columns_are_named_or_refused_by_name(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "q,a\nx,y\n")
    assert next(iter(open_dataset(file, "text", text_column="a", label_column="q"))).label == "x"
    with pytest.raises(UserError, match="no column 'z'; the columns are: q, a"):
        open_dataset(file, "text", text_column="z")


def test_pictures_beside_their_table(tmp_path: Path) -> None:
    write(tmp_path / "secret.png", png())
    folder = tmp_path / "set"
    for name in ("a.png", "deep/b.png"):
        write(folder / name, png((len(name), 0, 0)))
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    names = ["a.png", "deep/b.png", "../secret.png", str(tmp_path / "secret.png"), "link.png", "none.png", "x" * 5000]
    file = write(
        folder / "metadata.csv", "file_name,label\n" + "".join(f"{name},c{i}\n" for i, name in enumerate(names))
    )
    with pytest.raises(UserError, match=r"line 4: \.\./secret\.png is no file in the folder of the table"):
        list(open_dataset(file, "vision"))
    data = open_dataset(file, "vision", skip_bad=True)
    assert [(s.label, s.image.getpixel((0, 0))[0]) for s in data] == [("c0", 5), ("c1", 10)]
    assert data.walk.left_out == 5
    before = data.identity()
    write(folder / "a.png", png((77, 0, 0)))
    assert open_dataset(file, "vision", skip_bad=True).identity() != before, "pictures are part of the data set"
    other = write(folder / "other.csv", "n,what\n1,a.png\n")
    assert next(iter(open_dataset(other, "vision"))).source == "other.csv line 2 (a.png)"


def test_a_folder_of_tables_is_one_data_set(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.csv", f"text,label\na{number},x\nb{number},y\n")
    data = open_dataset(tmp_path, "text")
    assert [s.text for s in data] == ["a0", "b0", "a1", "b1", "a2", "b2"]
    write(tmp_path / "1.csv", "words,label\na,x\n")
    with pytest.raises(UserError, match=r"1\.csv: its columns \(words, label\) differ"):
        open_dataset(tmp_path, "text")
    write(tmp_path / "readme.txt", "a text")
    assert open_dataset(tmp_path, "text").num_samples == 4, "beside texts, tables are texts as before"
