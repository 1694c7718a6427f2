"""ShardWriter: batches in, one finished shard out, or nothing; the interface of ``RunWriter``.

Shapes: n tokens of a batch, S steps, K slots, V = S·K.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenpaths.engine.analysis.ribbon_costs import module_units
from tokenpaths.engine.base.errors import UserError, WriterFailed
from tokenpaths.engine.base.files import (
    HolderLock,
    NearlyFull,
    check_free,
    fsync_folder,
    replace_folder,
    restore_folder,
)
from tokenpaths.engine.base.lifecycle import SealedOnce, claim
from tokenpaths.engine.base.records import ModuleInfo, RunInfo, TraceBatch
from tokenpaths.engine.data.walk import Walk
from tokenpaths.engine.store.file import SCHEMA_VERSION
from tokenpaths.engine.store.file.checks import check_batch, check_json, check_ribbons, check_run
from tokenpaths.engine.store.file.schema import SAMPLE_COLUMNS, Layout, layout_for, token_columns
from tokenpaths.engine.store.file.shard_format import (
    ABOUT,
    MANIFEST,
    FileEntry,
    Manifest,
    Remark,
    Shard,
    about_bytes,
    manifest_bytes,
)
from tokenpaths.engine.store.file.soft_tables import SOFT_TABLES
from tokenpaths.engine.store.file.weight_codes import MARGIN_COLUMNS
from tokenpaths.engine.store.write.arrow_tables import CompactBatch, compact, own_sample_columns, own_token_columns
from tokenpaths.engine.store.write.soft_rows import soft_rows

GROUP_BYTES = 32 * 2**20
"""bytes of uncompressed rows buffered for one row group"""
NUMBERED = {"label_id", "path_id", "compute", "reuse", "first_row", "num_distinct_paths", "search"}
"""columns that depend on the whole run: computed at sealing"""
_ARROW_TYPES = {
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "SMALLINT": pa.int16(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
}
BATCH_SCHEMA = pa.schema(
    {
        "samples": pa.int32(),
        "tokens": pa.int32(),
        "labels": pa.list_(pa.string()),
        "known": pa.list_(pa.int64()),
        "entropy": pa.list_(pa.float64()),
    }
)
"""one row per batch: number of samples and tokens; per label and step, tokens with known gate entropy and its sum"""
_BATCH_TYPES = {kind.name: kind.type for kind in BATCH_SCHEMA}


def token_schema(layout: Layout, info: RunInfo) -> pa.Schema:
    """Columns of ``token.parquet``."""
    widths = {"ids": layout.visits * layout.id_dtype.itemsize, "weights": layout.visits}
    widths |= dict(zip(MARGIN_COLUMNS, layout.margin_bytes, strict=True))
    columns = {
        name: pa.binary(widths[name]) if name in widths else _ARROW_TYPES[kind]
        for name, kind in token_columns(layout, info)
    }
    return pa.schema({name: kind for name, kind in columns.items() if name not in NUMBERED})


def sample_schema() -> pa.Schema:
    """Columns of ``sample.parquet``."""
    types = _ARROW_TYPES | {"BLOB": pa.binary()}
    return pa.schema(
        {name: types[kind] for name, kind in SAMPLE_COLUMNS if name not in NUMBERED and name != "gate_entropy"}
    )


def ribbon_names(layout: Layout) -> list[str]:
    """Columns of ``token`` that hold the module ids, in visit order."""
    return ["ids"] if layout.packed else layout.module_columns()


class ShardWriter(SealedOnce):
    """Writes one shard of a run; a context manager that seals on success and leaves nothing behind on failure.

    Raises:
        UserError: an inconsistent description, an existing shard (without ``overwrite``), or another process that
            writes it; nothing is created then.
        WriterFailed: the folder is not writable.
    """

    def __init__(
        self,
        folder: Path,
        info: RunInfo,
        modules: Sequence[ModuleInfo],
        shard: Shard,
        *,
        overwrite: bool = False,
        walk: Callable[[], Walk] = Walk,
    ) -> None:
        check_run(info, modules)
        for name in ("config", "findings", "weight_semantics"):
            check_json(getattr(info, name), name)
        self.info, self.modules, self.shard = info, list(modules), shard
        self._walk, self._overwrite = walk, overwrite
        self.layout = layout_for(info, modules, shard=True)
        self._available, _ = module_units(modules, info.num_steps, info.num_modules)
        self._columns = {name for name, _ in token_columns(self.layout, info)}
        self._title = shard.name
        self.folder = folder / shard.name
        self._partial = folder / f".{shard.name}.partial"
        self._lock = HolderLock(folder / f".{shard.name}.lock")
        self._refuse_existing()
        self.num_samples = self.num_tokens = 0
        self._shapes: dict[str, list[int]] = {}
        self._tables: dict[str, _Table] = {}
        self._started = time.monotonic()
        claim(folder, self._lock, field="shards_dir", instead="another one with --shards-dir")
        try:
            restore_folder(self.folder)
            self._refuse_existing()
            shutil.rmtree(self._partial, ignore_errors=True)  # what a killed worker left
            self._partial.mkdir()
            for name, schema in (
                ("token", token_schema(self.layout, info)),
                ("sample", sample_schema()),
                ("batch", BATCH_SCHEMA),
            ):
                self._tables[name] = _Table(self._partial / f"{name}.parquet", schema)
        except BaseException:
            self.abort()
            raise

    def write(self, batch: TraceBatch) -> None:
        """Add some whole samples.

        Raises:
            UserError: the batch is malformed; it is not written, and the shard can continue.
            WriterFailed: the disk refused a write.
        """
        self._check_state()
        check_batch(batch, self.info, self._available, self.layout.unused_from)
        if batch.num_tokens:
            with self._disk_trouble():
                self._add(compact(batch, self.layout, self._columns))

    def write_twin(self, module_ids: np.ndarray) -> None:
        """Add ribbons (n, S, K) of the untrained twin, for the same tokens in the same order as the shard's."""
        self._check_state()
        check_ribbons(np.asarray(module_ids), self.info, self._available, unused_from=self.layout.unused_from)
        if len(module_ids):
            with self._disk_trouble():
                self._add_twin(np.asarray(module_ids))

    def seal(self, on_stage: Callable[[str, int, int], None] = lambda name, done, of: None) -> Path:
        """Finish: check sums, manifest, fsync, rename; returns the shard's folder. A shard may be empty.

        Raises:
            UserError: the shard was written by another process meanwhile.
            WriterFailed: the disk refused a write. The shard is aborted in each case.
        """
        self._check_state()
        try:
            with self._disk_trouble():
                files = {f"{name}.parquet": table.close() for name, table in self._tables.items()}
                files[ABOUT] = _write(self._partial / ABOUT, about_bytes(self.info, self.modules))
                _write(self._partial / MANIFEST, manifest_bytes(self._manifest(files)))
                fsync_folder(self._partial)
            self._refuse_existing()
            with self._disk_trouble():
                replace_folder(self._partial, self.folder)
        except BaseException:
            self.abort()
            raise
        self._state = "sealed"
        self._lock.release()
        return self.folder

    def abort(self) -> None:
        """Delete everything written; does nothing after ``seal`` or a second call."""
        if self._state != "open":
            return
        self._state = "aborted"
        for table in self._tables.values():
            table.drop()
        shutil.rmtree(self._partial, ignore_errors=True)
        self._lock.release()

    def _add(self, batch: CompactBatch) -> None:
        self._put("token", own_token_columns(batch, self.layout, self.num_samples), batch.num_tokens)
        texts = pa.array([sample.text for sample in batch.samples], pa.string())
        self._put("sample", {**own_sample_columns(batch, self.num_samples), "text": texts}, len(batch.samples))
        sums = list(batch.entropy_sums.values())
        self._put(
            "batch",
            {
                "samples": [len(batch.samples)],
                "tokens": [batch.num_tokens],
                "labels": [list(batch.entropy_sums)],
                "known": [np.concatenate([part[0] for part in sums]).astype(np.int64)],
                "entropy": [np.concatenate([part[1] for part in sums])],
            },
            1,
        )
        for kind, values in batch.soft.items():
            table = SOFT_TABLES[kind].table
            rows = soft_rows(kind, values, self.num_samples)
            if table not in self._tables:
                self._tables[table] = _Table(self._partial / f"{table}.parquet", rows.schema)
                self._shapes[kind] = list(values.shape[1:])
            self._tables[table].add(rows)
        self.num_samples += len(batch.samples)
        self.num_tokens += batch.num_tokens

    def _put(self, table: str, columns: dict[str, Any], num_rows: int) -> None:
        schema = self._tables[table].schema
        given = {
            name: values if isinstance(values, pa.Array) else pa.array(values, _BATCH_TYPES.get(name))
            for name, values in columns.items()
        }
        arrays = [given[f.name].cast(f.type) if f.name in given else pa.nulls(num_rows, f.type) for f in schema]
        self._tables[table].add(pa.Table.from_arrays(arrays, schema=schema))

    def _add_twin(self, ids: np.ndarray) -> None:
        names, wide = ribbon_names(self.layout), token_schema(self.layout, self.info)
        if "twin" not in self._tables:
            schema = pa.schema([wide.field(name) for name in names])
            self._tables["twin"] = _Table(self._partial / "twin.parquet", schema)
        rows = ids.reshape(len(ids), self.layout.visits).astype(self.layout.id_dtype, copy=False)
        if self.layout.packed:
            columns = {"ids": pa.array([row.tobytes() for row in rows], wide.field("ids").type)}
        else:
            columns = dict(zip(names, np.ascontiguousarray(rows.T), strict=True))
        self._put("twin", columns, len(rows))

    def _manifest(self, files: dict[str, FileEntry]) -> Manifest:
        info, shard = self.info, self.shard
        walk = self._walk()
        return Manifest(
            run=info.run_id,
            model=info.model,
            checkpoint_sha256=info.checkpoint_sha256,
            dataset=info.dataset,
            split=info.split,
            dataset_sha256=shard.dataset_sha256,
            options=shard.options,
            shard=shard.shard,
            of=shard.of,
            first=shard.first,
            stop=shard.stop,
            places=shard.places,
            samples=self.num_samples,
            tokens=self.num_tokens,
            left_out=walk.left_out,
            problems=walk.problems,
            remarks=[Remark(kind=kind, count=count, first=first) for kind, count, first in walk.remarks.to_rows()],
            shapes=self._shapes,
            files=files,
            made_with=shard.made_with,
            engine_version=info.engine_version,
            schema_version=SCHEMA_VERSION,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._started, 3),
        )

    def _refuse_existing(self) -> None:
        if self.folder.exists() and not self._overwrite:
            raise UserError(
                f"shard {self.shard.shard} of {self.shard.of} of run {self.info.run_id!r} is there already "
                f"({self.folder}): say that it may be overwritten, or choose another run",
                field="shard",
            )

    def _disk_trouble(self) -> _DiskTrouble:
        return _DiskTrouble(self)


class _DiskTrouble:
    """Converts errors of the disk or Arrow into WriterFailed and aborts the shard."""

    def __init__(self, writer: ShardWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, pa.ArrowException)) and not isinstance(error, UserError):
            self._writer.abort()
            shard = self._writer.shard
            why = str(error).splitlines()[0]
            if not isinstance(error, NearlyFull):
                why = getattr(error, "strerror", None) or why
            raise WriterFailed(
                f"shard {shard.shard} of {shard.of} could not be written to {self._writer.folder.parent} ({why}); "
                "nothing of it was kept: make room and trace it again",
                field="shards_dir",
            ) from error


class _Table:
    """One Parquet file with row groups of ``GROUP_BYTES``; its SHA-256 is computed over the bytes written."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self.schema, self.num_rows, self._folder = schema, 0, file.parent
        self._sink = _HashingFile(file)
        plain = [
            kind.name
            for kind in schema
            if pa.types.is_floating(kind.type)
            or pa.types.is_binary(kind.type)
            or pa.types.is_fixed_size_binary(kind.type)
            or kind.name == "text"
        ]
        coded = [kind.name for kind in schema if kind.name not in plain]
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            schema,
            compression="zstd",
            use_dictionary=coded,
            write_statistics=False,
        )
        self._held: list[pa.Table] = []
        self._held_bytes = 0

    def add(self, rows: pa.Table) -> None:
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            check_free(self._folder)
            rows = pa.concat_tables(self._held)
            self._held, self._held_bytes = [], 0
            self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
            self.num_rows += rows.num_rows

    def close(self) -> FileEntry:
        """Finish the file and flush it to disk."""
        self._flush()
        self._writer.close()
        self._sink.close()
        return FileEntry(rows=self.num_rows, bytes=self._sink.size, sha256=self._sink.digest.hexdigest())

    def drop(self) -> None:
        """Discard the file, whatever its state."""
        self._held = []
        with suppress(OSError, pa.ArrowException, ValueError):
            self._writer.close()
        with suppress(OSError, ValueError):
            self._sink.close()


class _HashingFile:
    """A file written once, sequentially, that computes its hash."""

    def __init__(self, file: Path) -> None:
        self._file = open(file, "wb")  # noqa: SIM115 - as long as the object
        self.digest, self.size = hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self.digest.update(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        if not self._file.closed:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
            finally:
                self._file.close()


def _write(file: Path, content: bytes) -> FileEntry:
    sink = _HashingFile(file)
    try:
        sink.write(content)
    finally:
        sink.close()
    return FileEntry(rows=1, bytes=sink.size, sha256=sink.digest.hexdigest())
