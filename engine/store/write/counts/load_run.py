"""Writes a run of counts: module by module at each step, over time and by label, and no token.

The file has all tables of a run, those of tokens empty, and one more, ``load``. It appears under its name whole, or not
at all, as every run.

Shapes: T parts (a time, a label, or both), S steps, M modules.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from jaxtyping import Int

from tokenpaths.engine.base.errors import RunFileError, UserError, WriterFailed
from tokenpaths.engine.base.files import HolderLock, check_free, rename_durably, run_file
from tokenpaths.engine.base.lifecycle import claim
from tokenpaths.engine.base.records import ModuleInfo, RunInfo
from tokenpaths.engine.base.seal_marks import digest_of, mark_sealed
from tokenpaths.engine.store.file import SCHEMA_VERSION
from tokenpaths.engine.store.file import columns as coded
from tokenpaths.engine.store.file.checks import check_json, check_run
from tokenpaths.engine.store.file.open_file import open_read_only
from tokenpaths.engine.store.file.pages.path_pages import DICTIONARY, path_table
from tokenpaths.engine.store.file.schema import ALL_LABELS, LOAD_TABLE, block_bytes, create_tables, layout_for
from tokenpaths.engine.store.file.soft_tables import CREATE_SOFT
from tokenpaths.engine.store.file.weight_codes import code_for
from tokenpaths.engine.store.write.arrow_tables import insert_columns
from tokenpaths.engine.store.write.run_filler import create_file, temporary_folder
from tokenpaths.engine.store.write.seal_findings import write_findings
from tokenpaths.engine.store.write.writer import remove_partial

LARGE_CELLS = 1 << 20


@dataclass(frozen=True)
class LoadParts:
    """Tokens of each module at each step, in parts."""

    counts: Int[np.ndarray, "T S M"]
    times: Sequence[int] | None = None
    """of each part; None: of no time"""
    axis: str = ""
    """what ``times`` number"""
    labels: Sequence[str] | None = None
    """of each part; None: of no label"""
    top_k: int | None = None
    """modules that a token chose at each step; None: not known"""


def write_load_run(
    runs_dir: Path, info: RunInfo, modules: Sequence[ModuleInfo], load: LoadParts, *, overwrite: bool = False
) -> Path:
    """Write and seal the run ``info.run_id`` of ``load``; returns its file. Leaves no file after an error.

    Args:
        info: Its ``top_k`` is not read: that of ``load`` counts.

    Raises:
        UserError: an invalid name, an existing run (without ``overwrite``), another writer of it, or parts that do not
            fit ``info``.
        WriterFailed: the disk refused a write.
    """
    info = replace(info, top_k=load.top_k or 1, config={**info.config, "load_only": {"axis": load.axis}})
    check_run(info, modules)
    if load.counts.shape[1:] != (info.num_steps, info.num_modules) or not load.counts.sum():
        raise UserError(f"the counts have shape {load.counts.shape}, or count nothing", field="file")
    file = run_file(Path(runs_dir), info.run_id)
    refuse_existing(file, overwrite)
    partial = file.with_name(f".{info.run_id}.partial")
    lock = HolderLock(file.with_name(f".{info.run_id}.lock"))
    claim(file.parent, lock, field="data_dir", instead="another data folder")
    try:
        remove_partial(partial)
        check_free(file.parent)
        _fill(partial, info, modules, _each_once(load))
        open_read_only(partial).close()
        refuse_existing(file, overwrite)
        digest = digest_of(partial)
        mark_sealed(file, os.stat(partial), digest)
        rename_durably(partial, file)
        with contextlib.suppress(OSError):  # deleted already
            mark_sealed(file, os.stat(file), digest)  # renaming changed its ctime
    except (duckdb.Error, OSError, RunFileError) as error:
        raise WriterFailed(f"the run could not be sealed: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            remove_partial(partial)
        lock.release()
    return file


def refuse_existing(file: Path, overwrite: bool) -> None:
    """UserError where a run of this name is there that may not be overwritten."""
    if file.exists() and not overwrite:
        raise UserError(
            f"there is a run {file.stem!r} already: choose another name, or say that it may be overwritten",
            field="run_id",
        )


def _each_once(load: LoadParts) -> LoadParts:
    """The same with one part for each time and label, in order of time."""
    keys = [
        (0 if load.times is None else load.times[part], "" if load.labels is None else load.labels[part])
        for part in range(len(load.counts))
    ]
    every = sorted(set(keys))
    place = {key: number for number, key in enumerate(every)}
    counts = np.zeros((len(every), *load.counts.shape[1:]), dtype=np.int64)
    np.add.at(counts, [place[key] for key in keys], load.counts)
    times = None if load.times is None else [time for time, _ in every]
    labels = None if load.labels is None else [label for _, label in every]
    return replace(load, counts=counts, times=times, labels=labels)


def _fill(partial: Path, info: RunInfo, modules: Sequence[ModuleInfo], load: LoadParts) -> None:
    layout = layout_for(info, modules)
    tokens = num_tokens(load.counts.sum(axis=0), load.top_k) or 1
    tables = create_tables(layout, info) + CREATE_SOFT + path_table(layout, tokens) + LOAD_TABLE
    con = create_file(partial, tables, block_bytes(layout, large=load.counts.size > LARGE_CELLS))
    try:
        names = ("step", "module", "name", "kind", "num_params", "flops_per_token")
        columns: dict[str, Any] = {name: [getattr(module, name) for module in modules] for name in names}
        insert_columns(con, "module", columns | {"step": pa.array(columns["step"], pa.int32())})
        labels = sorted(set(load.labels or ()))
        label_ids = None if load.labels is None else np.array([labels.index(name) for name in load.labels])
        _insert_load(con, load, label_ids)
        _insert_usage(con, load.counts.sum(axis=0), ALL_LABELS)
        for label_id, label in enumerate(labels):
            of_label = load.counts[label_ids == label_id].sum(axis=0)
            _insert_usage(con, of_label, label_id)
            con.execute(
                "INSERT INTO label VALUES (?, ?, 0, ?)", [label_id, label, num_tokens(of_label, load.top_k) or 0]
            )
        write_findings(con, info, {})
        con.execute(coded.MEMBER_SQL)
        con.execute(coded.MEMBER_VIEW_SQL)
        _run_row(con, info, load)
        con.execute("COMMIT")
        con.execute("CHECKPOINT")
    finally:
        con.close()
        shutil.rmtree(temporary_folder(partial), ignore_errors=True)


def num_tokens(counts: Int[np.ndarray, "S M"], top_k: int | None) -> int | None:
    """Tokens that the busiest step counts; None where K is not known."""
    return None if top_k is None else int(counts.sum(axis=1).max()) // top_k


def _insert_load(con: duckdb.DuckDBPyConnection, load: LoadParts, label_ids: np.ndarray | None) -> None:
    """Table ``load``, without zeros, a step at a time: step by step it is read, too."""
    times = None if load.times is None else np.asarray(load.times, dtype=np.int64)
    idle = load.counts.sum(axis=(1, 2)) == 0
    for step in range(load.counts.shape[1]):
        kept = load.counts[:, step] > 0
        kept[idle, 0] |= step == 0  # a time at which nothing was counted is a time all the same
        part, module = np.nonzero(kept)
        insert_columns(
            con,
            "load",
            {
                "step": np.full(len(part), step, dtype=np.int32),
                "time": pa.nulls(len(part), pa.int64()) if times is None else times[part],
                "label_id": pa.nulls(len(part), pa.int32()) if label_ids is None else label_ids[part].astype(np.int32),
                "module": module.astype(np.int32),
                "count": load.counts[part, step, module],
            },
        )


def _insert_usage(con: duckdb.DuckDBPyConnection, counts: np.ndarray, label_id: int) -> None:
    step, module = np.nonzero(counts)
    columns = {
        "step": step.astype(np.int32),
        "module": module.astype(np.int32),
        "count": counts[step, module],
        "weight": np.zeros(len(step)),
        "label_id": np.full(len(step), label_id, dtype=np.int32),
    }
    insert_columns(con, "usage", columns)


def _run_row(con: duckdb.DuckDBPyConnection, info: RunInfo, load: LoadParts) -> None:
    values = {
        **{name: getattr(info, name) for name in ("run_id", "model", "family", "modality", "dataset", "split")},
        "num_tokens": num_tokens(load.counts.sum(axis=0), load.top_k),
        "num_steps": info.num_steps,
        "num_modules": info.num_modules,
        "top_k": load.top_k,
        "weight_semantics": check_json(info.weight_semantics, "weight_semantics"),
        "config": check_json(info.config, "config"),
        "checkpoint_sha256": info.checkpoint_sha256,
        "engine_version": info.engine_version,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "schema_version": SCHEMA_VERSION,
        "weight_code": code_for(info.num_modules, info.top_k).name,
        "path_layout": DICTIONARY,
    }
    con.execute(f"INSERT INTO run ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", list(values.values()))
