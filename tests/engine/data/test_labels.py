"""Labels: one text for each value, every change counted and said, and labels that look alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.data.labels import (
    MOST_CHARACTERS,
    SENTENCES,
    Remarks,
    alike_sentence,
    label_key,
    look_alikes,
    read_label,
)


@pytest.mark.parametrize(
    ("value", "label", "kinds"),
    [
        ("cat", "cat", ()),
        (" Cat ", " Cat ", ()),
        (7, "7", ()),
        (np.int64(7), "7", ()),
        (7.0, "7", ("point",)),
        (-0.0, "0", ("point",)),
        (0.5, "0.5", ("fraction",)),
        (1e300, str(int(1e300))[:190], ("point", "long")),
        (True, "true", ("truth",)),
        (float("nan"), None, ("no number",)),
        (float("-inf"), None, ("no number",)),
        ([1], None, ("list",)),
        ({"a": 1}, None, ("object",)),
        (b"cat", None, ("bytes",)),
        (None, None, ()),
        ("", None, ()),
        (" \u200b\u00a0", None, ("blank",)),
        ("a\tb\0", "a␉b␀", ("control",)),
        ("a\x85b", "a\\x85b", ("control",)),
        ("half \ud800", "half ?", ("surrogate",)),
        ("x" * 1_000_000, "x" * 190, ("long",)),
    ],
)
def test_every_value_is_one_label_or_none(value: Any, label: str | None, kinds: tuple[str, ...]) -> None:
    read, remarks = read_label(value)
    assert remarks == kinds
    assert set(kinds) <= set(SENTENCES)
    if "long" in kinds:
        assert read is not None
        assert len(read) == MOST_CHARACTERS
        assert read.startswith(label)
    else:
        assert read == label
    assert read is None or read_label(read) == (read, ()), "what was read is read again unchanged"


def test_long_labels_stay_apart() -> None:
    assert read_label("x" * 1000 + "a")[0] != read_label("x" * 1000 + "b")[0]


def test_labels_that_look_alike() -> None:
    alike = [
        "cat",
        " cat",
        "cat ",
        "CAT",
        "Cat",
        "c\u200bat",
        "c\u00adat",
        "сat",
        "ｃａｔ",
        "cat\ufe0f",
        "\u202acat\u202c",
    ]
    assert {label_key(label) for label in alike} == {"cat"}
    assert label_key("café") == label_key("cafe\u0301") == label_key("CAFÉ")
    assert label_key("New  York") == label_key("new\u00a0york") == label_key("new␉york")
    assert label_key("top–1") == label_key("TOP-1")
    assert len({label_key(label) for label in ("cat", "cats", "c at", "1", "01", "кот", "кит", "-", "ß")}) == 9
    assert look_alikes({"cat": 3, "dog": 9, " cat": 1, "Dog ": 9, "CAT": 5, "bird": 1}) == [
        ["dog", "Dog "],
        ["CAT", "cat", " cat"],
    ]


def test_the_sentence_about_look_alikes_is_short() -> None:
    many = [[(" " * place + name, 1) for place in range(50)] for name in "abcdefgh"]
    assert len(alike_sentence(many) or "") < 800
    assert "and 45 more" in (alike_sentence(many) or "")
    assert "and 3 more groups" in (alike_sentence(many) or "")
    assert alike_sentence([]) is None


def test_sentences_count_and_name_the_first() -> None:
    remarks = Remarks()
    remarks.add(("list",), "line 3")
    remarks.add(("point",), "line 4")
    remarks.add(("point",), "line 5")
    assert remarks.sentences() == [
        "1 label given as a list is left out (line 3)",
        "2 labels written with a point, such as 1.0, are read as whole numbers (the first: line 4)",
    ]


LABELS = [
    1,
    1.0,
    "1",
    2.5,
    [1],
    {"a": 1},
    None,
    True,
    float("nan"),
    "Cat",
    " cat",
    "c\u200bat",
    "x" * 5000,
    "a\nb",
    "  ",
]


def test_jsonl_says_what_becomes_of_every_label(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    rows = [{"text": "first, without a label"}, *({"text": f"text {i}", "label": v} for i, v in enumerate(LABELS))]
    file.write_text("\n".join(map(json.dumps, [*rows, {"text": "other key", "LABEL ": "bird"}])))
    data = open_dataset(file, "text")
    labels = [sample.label for sample in data]
    assert labels[:12] == [None, "1", "1", "1", "2.5", None, None, None, "true", None, "Cat", " cat"]
    assert labels[-3:] == ["a␊b", None, "bird"]
    notes = "; ".join(data.notes)
    for words in (
        "1 label written with a point",
        "1 label with a fraction",
        "1 label given as a list is left out (line 6)",
        "1 label given as an object",
        "1 label given as true or false",
        "1 label given as NaN",
        "1 label longer than 200 characters",
        "1 label with control characters",
        "1 label of blanks",
        "1 label under a key that is spelled otherwise",
        "6 of 17 samples have no label",
        '1 group of labels looks alike and is kept apart (samples of each): "Cat" (1), " cat" (1), "c\\u200bat" (1)',
    ):
        assert words in notes


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"text": "a", "label": "x", "label": "y"}\n{"text": "b", "label": "x"}\n')
    with pytest.raises(UserError, match="line 1.*'label' is there twice"):
        open_dataset(file, "text")
    data = open_dataset(file, "text", skip_bad=True)
    assert [sample.label for sample in data] == ["x"]
    assert data.walk.notes()[0].startswith("1 sample was left out; the first")


@pytest.mark.parametrize(
    ("column", "labels", "note"),
    [
        (pa.array([1.0, 2.0, 1.5, None]), ["1", "2", "1.5", None], "2 labels written with a point"),
        (pa.array([[1], [2], None, [3]]), [None] * 4, "3 labels given as a list are left out"),
        (pa.array([{"a": 1}] * 4), [None] * 4, "4 labels given as an object are left out"),
        (pa.array([b"x"] * 4), [None] * 4, "4 labels given as bytes are left out"),
        (pa.array([True, False, True, None]), ["true", "false", "true", None], "3 labels given as true or false"),
        (pa.array(["a", " ", "b\n", ""]), ["a", None, "b␊", None], "1 label of blanks"),
    ],
)
def test_parquet_says_what_becomes_of_every_label(
    tmp_path: Path, column: pa.Array, labels: list[str | None], note: str
) -> None:
    pq.write_table(pa.table({"text": ["a", "b", "c", "d"], "label": column}), tmp_path / "t.parquet")
    data = open_dataset(tmp_path / "t.parquet", "text")
    assert [sample.label for sample in data] == labels
    assert note in "; ".join(data.notes)


def test_class_names_that_do_not_fit(tmp_path: Path) -> None:
    features = {"info": {"features": {"label": {"names": ["a", "b", "a"]}}}}
    table = pa.table({"text": ["t"] * 5, "label": [0, 1, 2, -1, 9]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), tmp_path / "t.parquet")
    data = open_dataset(tmp_path / "t.parquet", "text")
    assert [sample.label for sample in data] == ["a", "b", "a", "-1", "9"]
    notes = "; ".join(data.notes)
    assert "2 labels given as a number without a class name" in notes
    assert "2 labels given as a number whose class name another number has too are merged" in notes


def test_a_folder_says_what_it_passes_over(tmp_path: Path) -> None:
    for name in ("Cat", "cat ", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text("a text")
    (tmp_path / "dog" / "notes.docx").write_text("x")
    (tmp_path / "dog" / ".hidden.txt").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "dog", target_is_directory=True)
    data = open_dataset(tmp_path, "text")
    assert [sample.label for sample in data] == ["Cat", "cat ", "dog"]
    notes = "; ".join(data.notes)
    assert "1 file of another kind is passed over" in notes
    assert "1 linked sub-folder is not followed" in notes
    assert "1 hidden file or sub-folder is passed over" in notes
    assert '"Cat" (1), "cat " (1)' in notes


def test_long_names_of_rows_are_cut(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "name": ["x" * 100_000]}), tmp_path / "t.parquet")
    data = open_dataset(tmp_path / "t.parquet", "text")
    (sample,) = data
    assert len(sample.source) == 500
    assert data.walk.notes()[0].startswith("1 name of samples longer than 500 characters is cut")
