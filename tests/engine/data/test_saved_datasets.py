"""Arrow files and what Hugging Face ``datasets`` leaves on disk: rows, splits, labels, and what is refused of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.engine.data.test_datasets import parquet, png
from tests.support.saved_datasets import arrow_file, arrow_stream, save_to_disk
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.data.images import ImageError

CLASSES = {"names": ["bee", "cat", "dog"], "_type": "ClassLabel"}
STRING = {"dtype": "string", "_type": "Value"}


def picture_table(num_rows: int = 20) -> pa.Table:
    image = pa.array([{"bytes": png((i, 0, 0)), "path": f"{i}.png"} for i in range(num_rows)])
    tags = pa.array([["a"] * (i % 3) for i in range(num_rows)], pa.list_(pa.string()))
    return pa.table({"image": image, "label": [i % 3 for i in range(num_rows)], "tags": tags})


def text_table(num_rows: int = 20, name: str = "text") -> pa.Table:
    texts = pa.array([f"{name} {i}" for i in range(num_rows)], pa.large_string())
    return pa.table({"text": texts, "label": [["x", "y"][i % 2] for i in range(num_rows)]})


def test_pictures_with_class_names_in_shards(tmp_path: Path) -> None:
    features = {"image": {"_type": "Image"}, "label": CLASSES, "tags": {"feature": STRING, "_type": "List"}}
    folder = save_to_disk(tmp_path / "animals", picture_table(), features, shards=3)
    data = open_dataset(folder, "vision")
    assert (data.name, data.split, data.num_samples, data.notes) == ("animals", "all", 20, [])
    samples = list(data)
    assert [s.image.getpixel((0, 0))[0] for s in samples] == list(range(20))
    assert [s.label for s in samples] == [CLASSES["names"][i % 3] for i in range(20)]
    assert samples[7].source == "data-00001-of-00003.arrow row 1 (7.png)"
    with pytest.raises(UserError, match="holds list<item: string>; labels must be"):
        open_dataset(folder, "vision", label_column="tags")
    with pytest.raises(UserError, match="has no splits"):
        open_dataset(folder, "vision", split="train")


def test_class_names_of_the_folder_where_files_have_none(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "animals", picture_table(3), {"label": CLASSES})
    arrow_stream(folder / "data-00000-of-00001.arrow", picture_table(3))
    assert [s.label for s in open_dataset(folder, "vision")] == ["bee", "cat", "dog"]


def test_a_dictionary_wants_its_split_named(tmp_path: Path) -> None:
    folder = tmp_path / "imdb"
    for split, rows in (("train", 20), ("test", 5)):
        save_to_disk(folder / split, text_table(rows, split), {"text": STRING}, split=split)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(UserError, match=r"holds the splits train, test; say which one with split \(--split") as caught:
        open_dataset(folder, "text")
    assert caught.value.field == "split"
    with pytest.raises(UserError, match="no split 'dev'; there are: train, test"):
        open_dataset(folder, "text", split="dev")
    data, train = open_dataset(folder, "text", split="test"), open_dataset(folder, "text", split="train")
    assert (data.name, data.split, data.num_samples) == ("imdb", "test", 5)
    assert next(iter(data)).text == "test 0"
    assert data.identity() != train.identity()
    assert open_dataset(folder / "train", "text").split == "train"
    (folder / "dataset_dict.json").write_text('{"splits": ["test"]}')
    assert open_dataset(folder, "text").num_samples == 5, "the only one needs no name"


def test_an_indices_mapping_is_followed(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(60)[:45].tolist()
    folder = save_to_disk(tmp_path / "mixed", text_table(60), {"text": STRING}, shards=2, indices=[*order, order[0]])
    data = open_dataset(folder, "text")
    assert [s.text for s in data] == [f"text {row}" for row in (*order, order[0])]
    assert [s.label for s in data] == ["xy"[row % 2] for row in (*order, order[0])]
    some = list(open_dataset(folder, "text", limit=6))
    assert Counter(s.label for s in some) == {"x": 3, "y": 3}
    halves = [data.shard(part, 2, 4) for part in (1, 2)]
    assert [s.text for half in halves for s in half] == [s.text for s in data]
    assert {half.identity() for half in halves} == {data.identity()}
    arrow_stream(folder / "indices.arrow", pa.table({"indices": [0, 60]}))
    with pytest.raises(UserError, match="its row numbers must be those of 60 rows"):
        open_dataset(folder, "text")


def test_the_cache_of_load_dataset(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for shard in range(2):
            arrow_stream(tmp_path / f"wiki-{split}-{shard:05d}-of-00002.arrow", text_table(4, f"{split}{shard}"))
    arrow_stream(tmp_path / "cache-0f345ecd2f7bc6f7.arrow", text_table(3))
    (tmp_path / "dataset_info.json").write_text('{"splits": {"train": {}, "test": {}}}')
    with pytest.raises(UserError, match="holds the splits test, train"):
        open_dataset(tmp_path, "text")
    data = open_dataset(tmp_path, "text", split="train")
    assert [s.text for s in data][3:5] == ["train0 3", "train1 0"]
    assert data.notes == ["1 file with results of map, filter or shuffle (cache-….arrow) is passed over"]


def test_parquet_shards_of_several_splits(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        parquet(tmp_path / f"{split}-00000-of-00001.parquet", {"text": [split], "label": ["x"]})
    (tmp_path / "README.md").write_text("about")
    data = open_dataset(tmp_path, "text")
    assert data.num_samples == 2
    assert "2 files of several splits are read together; split takes one of them" in data.notes
    assert "1 other file or folder beside the shards is passed over" in data.notes
    assert [s.text for s in open_dataset(tmp_path, "text", split="validation")] == ["validation"]


@pytest.mark.parametrize("write", [arrow_stream, arrow_file])
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_single_files_compressed_or_not(tmp_path: Path, write: Any, codec: str | None) -> None:
    table = text_table(50).set_column(1, "label", text_table(50)["label"].dictionary_encode())
    options = pa.ipc.IpcWriteOptions(compression=codec)
    file = write(tmp_path / "texts_test.feather", table, rows=8, options=options)
    data = open_dataset(file, "text")
    assert (data.split, data.labels, data.notes) == ("test", ("x", "y"), [])
    assert [(s.text, s.label) for s in data] == [(f"text {i}", "xy"[i % 2]) for i in range(50)]


def test_dictionaries_that_grow_from_batch_to_batch(tmp_path: Path) -> None:
    batches = [pa.record_batch({"text": pa.array(words).dictionary_encode()}) for words in (["a", "b"], ["c", "a"])]
    with pa.ipc.new_stream(tmp_path / "t.arrow", batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    assert [s.text for s in open_dataset(tmp_path / "t.arrow", "text")] == ["a", "b", "c", "a"]


def test_rows_without_bytes_name_their_file(tmp_path: Path) -> None:
    image = pa.array([{"bytes": png(), "path": None}, {"bytes": None, "path": "/etc/passwd"}])
    file = arrow_stream(tmp_path / "a.arrow", pa.table({"image": image}))
    with pytest.raises(ImageError, match=r"row 1: This row names a file \(/etc/passwd\) and holds no bytes"):
        list(open_dataset(file, "vision"))
    data = open_dataset(file, "vision", skip_bad=True)
    assert len(list(data)) == 1
    assert data.walk.left_out == 1


def test_text_that_is_not_utf8_is_one_row(tmp_path: Path) -> None:
    texts = pa.array([b"fine", b"\xff\xfe", b"too"]).view(pa.string())
    file = arrow_stream(tmp_path / "a.arrow", pa.table({"text": texts}))
    with pytest.raises(UserError, match="row 1: holds text that is not UTF-8"):
        list(open_dataset(file, "text"))
    assert [s.text for s in open_dataset(file, "text", skip_bad=True)] == ["fine", "too"]


def ending_of(file: Path) -> str:
    """What is said of a file when it is opened: its error, or its notes."""
    try:
        return "; ".join(open_dataset(file, "text").notes)
    except UserError as error:
        return str(error)


def test_files_cut_off(tmp_path: Path) -> None:
    whole = arrow_stream(tmp_path / "whole.arrow", text_table(20), rows=7).read_bytes()
    file, endings = tmp_path / "a.arrow", Counter[str]()
    for length in range(0, len(whole), 37):
        file.write_bytes(whole[:length])
        said = ending_of(file)
        assert f"{file}" in said or "1 Arrow stream without an end mark may be cut off (a.arrow)" in said
        endings["refused" if str(file) in said else "read"] += 1
    assert endings["refused"] > endings["read"]
    feather = arrow_file(tmp_path / "b.feather", text_table(20)).read_bytes()
    (tmp_path / "b.feather").write_bytes(feather[:-100])
    with pytest.raises(UserError, match="is cut off, its end is missing"):
        open_dataset(tmp_path / "b.feather", "text")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("state.json", '{"_data_files": [{"filename": "../../secret.arrow"}]}', "it should name files of the same"),
        ("state.json", '{"_data_files": [{"filename": "/etc/passwd"}]}', "it should name files of the same folder"),
        ("state.json", '{"_data_files": [{"filename": "other.arrow"}]}', "is named in state.json and missing"),
        ("state.json", '{"_data_files": []}', "names no files"),
        ("state.json", '{"_data_files": 7}', "it should name files of the same folder"),
        ("state.json", "[1]", "is no JSON object"),
        ("state.json", "[" * 100_000, "is not JSON"),
        ("dataset_dict.json", '{"splits": ["../elsewhere"]}', "it should name files of the same folder"),
        ("dataset_dict.json", '{"splits": ["train"]}', "holds no saved data set"),
        ("dataset_dict.json", "{}", "names no splits"),
    ],
)
def test_folders_that_lie(tmp_path: Path, name: str, content: str, words: str) -> None:
    folder = save_to_disk(tmp_path / "data", text_table(), {"text": STRING})
    (folder / name).write_text(content)
    with pytest.raises(UserError) as caught:
        open_dataset(folder, "text")
    assert words in str(caught.value)


def test_other_kinds_say_what_they_are(tmp_path: Path) -> None:
    for start, words in (
        (b"FEA1....", "Feather of version 1"),
        (b"PAR1....", "is Parquet"),
        (b"not Arrow", "no Arrow"),
    ):
        (tmp_path / "a.arrow").write_bytes(start)
        with pytest.raises(UserError, match=words):
            open_dataset(tmp_path / "a.arrow", "text")
    arrow_stream(tmp_path / "a.arrow", text_table(0))
    with pytest.raises(UserError, match="holds no rows"):
        open_dataset(tmp_path / "a.arrow", "text")


def test_declared_sizes_are_compared_first(tmp_path: Path) -> None:
    nothing = pa.table({"text": pa.nulls(3), "words": ["a", "b", "c"]})
    whole = bytearray(arrow_stream(tmp_path / "a.arrow", nothing).read_bytes())
    at = whole.rindex((3).to_bytes(8, "little"), 0, len(whole) - 64)
    for place in range(at % 8, len(whole) - 8, 8):
        if whole[place : place + 8] == (3).to_bytes(8, "little"):
            whole[place : place + 8] = (1 << 40).to_bytes(8, "little")
    (tmp_path / "a.arrow").write_bytes(whole)
    with pytest.raises(UserError, match="declares [0-9,]+ rows"):
        open_dataset(tmp_path / "a.arrow", "text", text_column="words")
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    table = pa.table({"text": ["x" * 100_000] * 20})
    whole = bytearray(arrow_stream(tmp_path / "b.arrow", table, options=options).read_bytes())
    at = whole.index((2_000_000).to_bytes(8, "little"), whole.index(b"\x28\xb5\x2f\xfd") - 200)
    whole[at : at + 8] = (3 << 30).to_bytes(8, "little")
    (tmp_path / "b.arrow").write_bytes(whole)
    with pytest.raises(UserError, match="MB that would be in memory at once"):
        list(open_dataset(tmp_path / "b.arrow", "text"))


def test_metadata_without_features_is_no_matter(tmp_path: Path) -> None:
    table = text_table(2).replace_schema_metadata({"huggingface": json.dumps([1])})
    assert open_dataset(arrow_stream(tmp_path / "a.arrow", table), "text").labels == ("x", "y")
