"""A run as a Hugging Face data set: what its files hold, that nothing half is left, and that it can be traced again."""

from __future__ import annotations

import errno
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.runs import make_experts, make_run, make_soft
from tokenpaths.engine.base import files
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.store.ask import dataset_export, export
from tokenpaths.engine.store.ask.run import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Pictures, texts with two slots, BLOBs of a mixture of experts, and soft decisions."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder, "vision", samples=9)
    make_run(folder, "text", "text", samples=9, top_k=2)
    make_experts("experts", layers=33, samples=4).write(folder)
    make_soft(edges=np.random.default_rng(0).random((6, 2, 3, 3))).write(folder)
    return {name: Run.open(folder / f"{name}.duckdb") for name in ("vision", "text", "experts", "soft")}


def rows_of(folder: Path) -> pa.Table:
    state = json.loads((folder / "state.json").read_text())
    shards = [pa.ipc.open_stream(folder / file["filename"]).read_all() for file in state["_data_files"]]
    return pa.concat_tables(shards)


@pytest.mark.parametrize("name", ["vision", "text", "experts", "soft"])
def test_every_split_is_its_table(runs: dict[str, Run], name: str, tmp_path: Path) -> None:
    run = runs[name]
    num_bytes = run.save_dataset(tmp_path / "out")
    assert num_bytes == sum(file.stat().st_size for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert json.loads((tmp_path / "out" / "dataset_dict.json").read_text()) == {"splits": list(dataset_export.SPLITS)}
    for split, table in dataset_export.SPLITS.items():
        rows, whole = rows_of(tmp_path / "out" / split), run.frames.arrow(table)
        info = json.loads((tmp_path / "out" / split / "dataset_info.json").read_text())
        assert list(info["features"]) == rows.column_names
        assert json.loads(rows.schema.metadata[b"huggingface"])["info"]["features"] == info["features"]
        alike = [name for name in rows.column_names if name in whole.column_names and name not in CHANGED]
        assert len(alike) >= 4
        assert rows.select(alike).replace_schema_metadata().equals(whole.select(alike).replace_schema_metadata())
    tokens, paths = rows_of(tmp_path / "out" / "tokens"), rows_of(tmp_path / "out" / "paths")
    steps, slots = run.row["num_steps"], run.row["top_k"]
    ribbons, weights = np.array(tokens["ribbon"].to_pylist()), np.array(tokens["weights"].to_pylist())
    assert ribbons.shape == weights.shape == (run.row["num_tokens"], steps, slots)
    of_rank = dict(zip(paths["rank"].to_pylist(), np.sort(paths["ribbon"].to_pylist(), axis=2), strict=True))
    assert all(
        (of_rank[rank] == ribbon).all()
        for rank, ribbon in zip(tokens["rank"].to_pylist(), np.sort(ribbons, 2), strict=True)
    )
    assert ((weights >= 0) & (weights <= 1)).all()


CHANGED = ("ribbon", "weights", "region", "text")
"""columns that are lists here, or names"""


def test_weights_are_those_of_the_table(runs: dict[str, Run], tmp_path: Path) -> None:
    runs["text"].save_dataset(tmp_path / "out")
    tokens, whole = rows_of(tmp_path / "out" / "tokens"), runs["text"].frames.arrow("token")
    for step in range(runs["text"].row["num_steps"]):
        for slot, name in enumerate((f"w{step}", f"w{step}_1")):
            assert [row[step][slot] for row in tokens["weights"].to_pylist()] == whole[name].to_pylist()
    vocabulary = dict(
        zip(*(runs["text"].frames.arrow("token_text")[c].to_pylist() for c in ("token_id", "text")), strict=True)
    )
    assert tokens["text"].to_pylist() == [vocabulary[i] for i in whole["token_id"].to_pylist()]


def test_small_ranges_and_many_shards_are_the_same(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs["vision"].save_dataset(tmp_path / "one")
    monkeypatch.setattr(export, "BATCH_ROWS", 7)
    monkeypatch.setattr(dataset_export, "SHARD_RANGES", 2)
    runs["vision"].save_dataset(tmp_path / "many")
    shards = sorted(file.name for file in (tmp_path / "many" / "tokens").glob("*.arrow"))
    assert len(shards) == -(-runs["vision"].row["num_tokens"] // 14)
    assert shards[-1] == f"data-{len(shards) - 1:05d}-of-{len(shards):05d}.arrow"
    for split in dataset_export.SPLITS:
        assert rows_of(tmp_path / "many" / split).equals(rows_of(tmp_path / "one" / split))


def test_it_can_be_traced_again(runs: dict[str, Run], tmp_path: Path) -> None:
    for name, modality in (("vision", "vision"), ("text", "text")):
        run = runs[name]
        run.save_dataset(tmp_path / name)
        data = open_dataset(tmp_path / name, modality, split="samples")
        samples = list(data)
        whole = run.frames.arrow("sample")
        assert [s.label for s in samples] == whole["label"].to_pylist()
        if modality == "text":
            assert [s.text for s in samples] == whole["text"].to_pylist()
        else:
            assert samples[0].image is not None


def test_the_card(runs: dict[str, Run], tmp_path: Path) -> None:
    runs["text"].save_dataset(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    head = card.split("---\n")[1]
    for words in (
        "# license: left to",
        "- config_name: tokens\n  data_files: tokens/*.arrow",
        "    sequence:\n      sequence: uint8",
    ):
        assert words in head
    for words in (
        "| model | toy-text |",
        "checkpoint (SHA-256)",
        "| `ribbon` | module ids",
        "@software{tokenpaths",
        "149 rows",
    ):
        assert words in card
    for split in dataset_export.SPLITS:
        for column in rows_of(tmp_path / "out" / split).column_names:
            assert f"| `{column}` | |" not in card, "every column has a meaning"
            assert f"| `{column}` |" in card


def test_zip_holds_the_same_files(runs: dict[str, Run], tmp_path: Path) -> None:
    runs["text"].save_dataset(tmp_path / "text")
    with zipfile.ZipFile(io.BytesIO(b"".join(runs["text"].zipped_dataset()))) as archive:
        assert archive.testzip() is None
        archive.extractall(tmp_path / "unzipped")
    names = [file.relative_to(tmp_path / "text") for file in (tmp_path / "text").rglob("*") if file.is_file()]
    assert len(names) == 4 * 3 + 2
    for name in names:
        if name.suffix != ".arrow":  # of which bytes below nulls may be any
            assert (tmp_path / "unzipped" / "text" / name).read_bytes() == (tmp_path / "text" / name).read_bytes()
    for split in dataset_export.SPLITS:
        assert rows_of(tmp_path / "unzipped" / "text" / split).equals(rows_of(tmp_path / "text" / split))


def test_nothing_half_is_left(runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def cancelled(written: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dataset_export.save_dataset(runs["text"], tmp_path / "out", cancelled)
    assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(dataset_export, "check_free", full)
        with pytest.raises(OSError, match="No space"):
            runs["text"].save_dataset(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "taken").mkdir()
    runs["text"].save_dataset(tmp_path / "taken")
    with pytest.raises(FileExistsError):
        runs["text"].save_dataset(tmp_path / "taken")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]
    with pytest.raises(FileExistsError), files.atomic_folder(tmp_path / "taken" / "README.md"):
        pass
