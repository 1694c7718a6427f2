"""Data sets in Parquet files: pictures and texts by their columns, and what is refused of them."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.data.test_datasets import parquet, png, write
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.data.images import REGIONS, ImageError
from tokenpaths.engine.data.sources.tables.table_source import box_mask


def image_table(num_rows: int = 10) -> dict[str, object]:
    return {
        "image": [png((i, 0, 0)) for i in range(num_rows)],
        "label": pa.array([["bee", "cat"][i % 2] for i in range(num_rows)]).dictionary_encode(),
        "name": [f"n{i}.png" for i in range(num_rows)],
        "box": pa.array([[1, 2, 3, 3] if i % 3 else None for i in range(num_rows)], pa.list_(pa.uint8(), 4)),
    }


def test_image_parquet(tmp_path: Path) -> None:
    file = parquet(tmp_path / "things_train.parquet", image_table(), row_group_size=3)
    data = open_dataset(file, "vision")
    assert (data.name, data.split, data.num_samples) == ("things_train", "train", 10)
    assert data.labels == ("bee", "cat")
    assert data.regions == REGIONS
    samples = list(data)
    assert [s.image.getpixel((0, 0))[0] for s in samples] == list(range(10))
    assert [s.label for s in samples] == ["bee", "cat"] * 5
    assert samples[7].source == "things_train.parquet row 7 (n7.png)"
    assert samples[0].mask is None
    expected = np.zeros((5, 6), np.uint8)
    expected[2:4, 1:4] = 1
    assert np.array_equal(samples[1].mask, expected)


def test_parquet_rows_in_many_groups_and_files(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for shard in range(3):
        table = {"text": [f"text {shard}-{i}" for i in range(50)], "domain": [f"d{(shard + i) % 4}" for i in range(50)]}
        parquet(folder / f"{shard}.parquet", table, row_group_size=7)
    everything = list(open_dataset(folder, "text"))
    assert [s.text for s in everything] == [f"text {shard}-{i}" for shard in range(3) for i in range(50)]
    some = list(open_dataset(folder, "text", limit=20, seed=3))
    assert Counter(s.label for s in some) == {f"d{i}": 5 for i in range(4)}
    by_text = {s.text: s for s in everything}
    assert all(s == by_text[s.text] for s in some)
    assert some[-1].source.startswith("2.parquet row ")


def test_hugging_face_structs_and_class_names(tmp_path: Path) -> None:
    features = {"info": {"features": {"label": {"names": ["zero", "one"], "_type": "ClassLabel"}}}}
    struct = pa.array([{"bytes": png(), "path": "p.png"}, {"bytes": png(), "path": None}])
    table = pa.table({"image": struct, "label": pa.array([1, 0])})
    table = table.replace_schema_metadata({b"huggingface": json.dumps(features).encode()})
    samples = list(open_dataset(parquet(tmp_path / "a.parquet", table), "vision"))
    assert [s.label for s in samples] == ["one", "zero"]
    assert samples[0].source == "a.parquet row 0 (p.png)"


def test_whole_number_and_empty_labels(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", {"image": [png()] * 3, "label": pa.array([7, None, 12])})
    data = open_dataset(file, "vision")
    assert [s.label for s in data] == ["7", None, "12"]
    file = parquet(tmp_path / "b.parquet", {"image": [png()] * 2, "label": ["", "x"]})
    assert [s.label for s in open_dataset(file, "vision")] == [None, "x"]


def test_text_parquet_columns_are_found_or_named(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", {"body": ["one"], "language": ["German"], "other": ["two"]})
    sample = next(iter(open_dataset(file, "text")))
    assert (sample.text, sample.label) == ("one", "German")
    sample = next(iter(open_dataset(file, "text", text_column="other", label_column="body")))
    assert (sample.text, sample.label) == ("two", "one")
    titled = parquet(tmp_path / "c.parquet", {"title": ["a whole text"], "n": [1]})
    assert next(iter(open_dataset(titled, "text", text_column="title"))).source == "c.parquet row 0"
    only = parquet(tmp_path / "b.parquet", {"strange": ["three"], "n": [1]})
    assert next(iter(open_dataset(only, "text"))).text == "three"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text_column": "txt"}, "no column 'txt'; the columns are: a, b, n"),
        ({"label_column": "kind"}, "no column 'kind'; the columns are: a, b, n"),
        ({"label_column": "x"}, "no column 'x'"),
        ({"text_column": "n"}, "the column 'n' holds double, not strings"),
        ({}, "none of the columns (a, b, n) is called text"),
    ],
)
def test_wrong_columns_name_those_there_are(tmp_path: Path, options: dict[str, str], words: str) -> None:
    file = parquet(tmp_path / "a.parquet", {"a": ["x"], "b": ["y"], "n": [0.5]})
    with pytest.raises(UserError) as caught:
        open_dataset(file, "text", **{"text_column": "a", **options} if options else {})
    assert words in str(caught.value)
    assert caught.value.field in ("text_column", "label_column")


def test_text_parquet_for_images_says_so(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", {"image": ["file.png"]})
    with pytest.raises(UserError, match="not encoded image bytes"):
        open_dataset(file, "vision")


def test_bad_rows_of_parquet(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", {"image": [png(), b"junk", None, png()]})
    with pytest.raises(ImageError, match=r"a\.parquet, row 1: "):
        list(open_dataset(file, "vision"))
    data = open_dataset(file, "vision", skip_bad=True)
    assert [s.source for s in data] == ["a.parquet row 0", "a.parquet row 3"]
    assert "no image bytes" in data.walk.problems[1]
    texts = parquet(tmp_path / "b.parquet", {"text": ["fine", "  ", None]})
    data = open_dataset(texts, "text", skip_bad=True)
    assert [s.text for s in data] == ["fine"]
    assert data.walk.left_out == 2


def test_damaged_parquet(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", {"text": ["a" * 500] * 100})
    whole = file.read_bytes()
    for data in (b"", b"PAR1", whole[: len(whole) // 2], b"PAR1" + b"x" * 100):
        write(file, data)
        with pytest.raises(UserError, match="no Parquet file, or one that is cut off"):
            open_dataset(file, "text")


def test_parquet_with_a_damaged_page(tmp_path: Path) -> None:
    texts = ["x" * 300 + str(i) for i in range(200)]
    file = parquet(tmp_path / "a.parquet", {"text": texts}, row_group_size=100, compression="zstd")
    whole = bytearray(file.read_bytes())
    page = pq.ParquetFile(file).metadata.row_group(1).column(0).dictionary_page_offset
    whole[page : page + 40] = b"\xff" * 40
    write(file, bytes(whole))
    walk = iter(open_dataset(file, "text"))
    assert next(walk).text == texts[0]
    with pytest.raises(UserError, match=r"a\.parquet: row group 1 cannot be read .*damaged"):
        list(walk)


@settings(max_examples=80, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_only_user_errors_escape_damaged_parquet(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int]]
) -> None:
    file = parquet(tmp_path_factory.mktemp("p") / "a.parquet", image_table(20), row_group_size=5)
    whole = bytearray(file.read_bytes())
    for position, value in edits:
        whole[position % len(whole)] = value
    write(file, bytes(whole))
    with contextlib.suppress(UserError):
        list(open_dataset(file, "vision"))


def test_parquet_strings_that_are_not_utf8(tmp_path: Path) -> None:
    text = pa.array([b"fine", b"\xff\xfe", b"too"]).view(pa.string())
    file = parquet(tmp_path / "a.parquet", {"text": text})
    with pytest.raises(UserError, match=r"row 1: holds text that is not UTF-8"):
        list(open_dataset(file, "text"))
    assert [s.text for s in open_dataset(file, "text", skip_bad=True)] == ["fine", "too"]


def test_parquet_shards_of_different_columns(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", {"text": ["x"]})
    parquet(tmp_path / "b.parquet", {"other": ["x"]})
    with pytest.raises(UserError, match=r"b\.parquet: its columns"):
        open_dataset(tmp_path, "text")


def test_parquet_without_rows(tmp_path: Path) -> None:
    columns = {"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}
    with pytest.raises(UserError, match="no rows"):
        open_dataset(parquet(tmp_path / "a.parquet", columns), "text")


@given(
    box=st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(-9, 40)), min_size=0, max_size=5)),
    width=st.integers(1, 30),
    height=st.integers(1, 30),
)
@settings(max_examples=60, deadline=None)
def test_box_masks_fit(box: list[int] | None, width: int, height: int) -> None:
    mask = box_mask(box, width, height)
    if mask is not None:
        assert mask.shape == (height, width)
        x0, y0, x1, y1 = box
        inside_x = max(0, min(x1, width - 1) - max(x0, 0) + 1)
        inside_y = max(0, min(y1, height - 1) - max(y0, 0) + 1)
        assert int(mask.sum()) == inside_x * inside_y
