"""Real models: a data set traced in shards gives, row for row, the run that one process makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.checkpoints import WORDS, save_tiny
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.blocks import block_rows
from tokenpaths.engine.data.datasets import Dataset, open_dataset
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.hmodel_config import HModelConfig
from tokenpaths.engine.models.checkpoint import save_checkpoint
from tokenpaths.engine.models.hmodel.hmodel import HModel
from tokenpaths.engine.store.file.open_file import open_read_only
from tokenpaths.engine.store.file.shard_format import Shard, finished_shard
from tokenpaths.engine.store.write.merge import find_shards, seal_shards
from tokenpaths.engine.store.write.shard_writer import ShardWriter
from tokenpaths.engine.tracing.loaded_model import LoadedModel, load_model
from tokenpaths.engine.tracing.trace_run import trace_samples

BATCH = 2


def everything(file: Path) -> dict[str, list[tuple]]:
    """Every row of every table, in the order of the file; when the run was sealed is left out."""
    con = open_read_only(file)
    listed = "SELECT table_name FROM information_schema.tables WHERE table_catalog = 'r' ORDER BY table_name"
    rows = {}
    for (table,) in con.execute(listed).fetchall():
        columns = [name for name, *_ in con.execute(f"DESCRIBE {table}").fetchall() if name != "created_at"]
        rows[table] = con.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
    con.close()
    return rows


def pictures(folder: Path) -> Dataset:
    """Seven pictures of two labels, one of them no picture."""
    rng = np.random.default_rng(1)
    for i in range(8):
        place = folder / ("apple" if i % 2 else "brick")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (40, 36, 3), dtype=np.uint8)).save(place / f"{i}.png")
    (folder / "apple" / "3.png").write_bytes(b"no picture")
    return open_dataset(folder, "vision", skip_bad=True)


def texts(file: Path, passage_chars: int | None) -> Dataset:
    """Texts of very different lengths, some longer than the context, one of them empty."""
    rng = np.random.default_rng(2)
    words = WORDS.split()
    lines = [{"text": " ".join(rng.choice(words, 3 + 9 * (i % 4))), "label": "ab"[i % 2]} for i in range(18)]
    lines[13]["text"] = ""
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return open_dataset(file, "text", skip_bad=True, passage_chars=passage_chars)


def sealed(loaded: LoadedModel, dataset: Dataset, folder: Path, of: int) -> Path:
    """``dataset`` in ``of`` shards, each traced on its own, then sealed."""
    for number in range(1, of + 1):
        part = dataset.shard(number, of, block_rows(dataset.modality, BATCH))
        shard = Shard(number, of, part.first_place, part.stop_place, part.num_places, part.identity())

        def make(info, modules, shard=shard, part=part):
            return ShardWriter(folder / "shards", info, modules, shard, walk=lambda: part.walk)

        trace_samples(loaded, part, folder, run_id="r", dataset=dataset.name, batch_size=BATCH, make_writer=make)
    return seal_shards(find_shards([folder / "shards"]), folder / "sealed")


@pytest.mark.parametrize("kind", ["vision", "passages", "soft"])
def test_a_data_set_in_shards_is_the_run_of_one_process(tmp_path: Path, kind: str) -> None:
    if kind == "vision":
        save_tiny(tmp_path / "m", "vision", top_k=1)
        dataset = pictures(tmp_path / "pictures")
    else:
        dataset = texts(tmp_path / "t.jsonl", 60 if kind == "passages" else None)
        save_soft(tmp_path / "m") if kind == "soft" else save_tiny(tmp_path / "m", "text")
    loaded = load_model(tmp_path / "m", [], "cpu")
    whole = everything(
        trace_samples(loaded, dataset, tmp_path / "one", run_id="r", dataset=dataset.name, batch_size=BATCH)
    )
    of = 3
    joined = everything(sealed(loaded, dataset, tmp_path, of))
    found = find_shards([tmp_path / "shards"])
    assert sum(manifest.samples > 0 for manifest in found.manifests) == of
    assert sum(manifest.left_out for manifest in found.manifests) == 1
    assert list(joined) == list(whole)
    for table in whole:
        assert joined[table] == whole[table], table
    assert len(whole["token"]) == found.num_tokens > 20
    assert bool(whole["edge"]) == (kind == "soft")


def save_soft(folder: Path) -> None:
    """A tiny H-Model, whose decisions are soft and stand in ``edge``."""
    tokenizer = TextTokenizer.train([WORDS] * 3, 300)
    folder.mkdir()
    tokenizer.save(folder / "tokenizer.json")
    torch.manual_seed(0)
    config = HModelConfig(
        modality="text",
        hidden=("transformer",) * 2,
        iterations=2,
        width=16,
        heads=2,
        mlp_width=32,
        vocab_size=tokenizer.vocab_size,
        context=16,
    )
    save_checkpoint(folder, HModel(config), classes=())


def test_batches_never_reach_over_a_block(tmp_path: Path) -> None:
    """What makes the equality hold: the same batches, whichever shard they are in."""
    from tokenpaths.engine.tracing.trace_batches import text_batches

    save_tiny(tmp_path / "m", "text")
    loaded, dataset = load_model(tmp_path / "m", [], "cpu"), texts(tmp_path / "t.jsonl", None)
    cut = [[sample.source for sample in batch.samples] for batch, _ in text_batches(loaded, None, dataset, BATCH)]
    parts = [dataset.shard(number, 3, block_rows("text", BATCH)) for number in (1, 2, 3)]
    assert [part.first_place for part in parts] == [0, 8, 16]
    assert cut == [
        [sample.source for sample in batch.samples]
        for part in parts
        for batch, _ in text_batches(loaded, None, part, BATCH)
    ]
    assert max(map(len, cut)) > 1


def test_a_finished_shard_is_known_and_another_one_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path / "m", "text")
    loaded, dataset = load_model(tmp_path / "m", [], "cpu"), texts(tmp_path / "t.jsonl", None)
    sealed(loaded, dataset, tmp_path, 1)
    folder = tmp_path / "shards"
    from tokenpaths.engine.store.file.shard_format import read_about

    info, modules = read_about(folder / "0001-of-0001")
    shard = Shard(1, 1, 0, 18, 18, dataset.identity())
    manifest, problem = finished_shard(folder, info, modules, shard)
    assert (manifest.samples, problem) == (17, "")
    (tmp_path / "t.jsonl").write_text((tmp_path / "t.jsonl").read_text().replace("path", "pith"))
    other = open_dataset(tmp_path / "t.jsonl", "text", skip_bad=True)
    with pytest.raises(UserError, match="is there already, of another data set"):
        finished_shard(folder, info, modules, replace(shard, dataset_sha256=other.identity()))
    with pytest.raises(UserError, match="is there already, of other rows"):
        finished_shard(folder, info, modules, replace(shard, stop=9))
    (folder / "0001-of-0001" / "batch.parquet").write_bytes(b"x")
    manifest, problem = finished_shard(folder, info, modules, shard)
    assert manifest is None
    assert "batch.parquet has 1 bytes" in problem


def test_the_identity_of_a_data_set_is_its_content_wherever_it_lies(tmp_path: Path) -> None:
    def identity(name: str, **options) -> str:
        return open_dataset(tmp_path / name / "t.jsonl", "text", skip_bad=True, **options).identity()

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        texts(tmp_path / name / "t.jsonl", None)
    assert identity("a") == identity("b")
    assert (
        len({identity("a"), identity("a", limit=5), identity("a", passage_chars=9), identity("a", label_column="text")})
        == 4
    )
    with pytest.raises(UserError, match="a limit on passages"):
        open_dataset(tmp_path / "a" / "t.jsonl", "text", limit=5, passage_chars=9).shard(1, 2, 4)
