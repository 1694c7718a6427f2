"""Data sets on disk in the layouts of Hugging Face ``datasets`` and WebDataset, written without either library."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa


def arrow_stream(file: Path, table: pa.Table, rows: int = 1000, **options: Any) -> Path:
    """An IPC stream in batches of ``rows``."""
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return file


def arrow_file(file: Path, table: pa.Table, rows: int = 1000, **options: Any) -> Path:
    """The IPC file format, which is Feather 2."""
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return file


def save_to_disk(
    folder: Path,
    table: pa.Table,
    features: Mapping[str, Any],
    *,
    shards: int = 1,
    split: str | None = None,
    indices: Sequence[int] | None = None,
) -> Path:
    """What ``Dataset.save_to_disk`` of version 5.2 leaves; with ``indices``, what versions 1 left of a selection."""
    folder.mkdir(parents=True)
    about = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({"huggingface": about})
    names = [f"data-{shard:05d}-of-{shards:05d}.arrow" for shard in range(shards)]
    bounds = [len(table) * shard // shards for shard in range(shards + 1)]
    for name, start, stop in zip(names, bounds, bounds[1:], strict=False):
        arrow_stream(folder / name, table.slice(start, stop - start), rows=7)
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "3f23f2503cfb55ee",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    if indices is not None:
        arrow_stream(folder / "indices.arrow", pa.table({"indices": pa.array(indices, pa.uint64())}))
        state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (folder / "state.json").write_text(json.dumps(state))
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def tar(file: Path, members: Sequence[tuple[str | tarfile.TarInfo, bytes]]) -> Path:
    """An archive of members by name or header."""
    with tarfile.open(file, "w") as archive:
        for name, data in members:
            header = tarfile.TarInfo(name) if isinstance(name, str) else name
            header.size = len(data) if header.isreg() else 0
            archive.addfile(header, io.BytesIO(data))
    return file
