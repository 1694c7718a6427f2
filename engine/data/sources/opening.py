"""Which source reads a file or folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import Modality
from tokenpaths.engine.data.sources.folders import FileSource
from tokenpaths.engine.data.sources.sample import Source
from tokenpaths.engine.data.sources.shard_names import shard_files
from tokenpaths.engine.data.sources.splits import choose_split, files_by_split, refuse_split

JSONL_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
ARROW_SUFFIXES: Final = (".arrow", ".feather")
DELIMITED_SUFFIXES: Final = (".csv", ".tsv")
SHARD_SUFFIXES: Final = (".parquet", ".tar", ".feather")
"""a folder that holds one of these is read as shards of one data set"""
BESIDE: Final = "{n} other file{s} or folder{s} beside the shards {are} passed over"
SPLITS_TOGETHER: Final = "{n} file{s} of several splits {are} read together; split takes one of them"


def open_source(
    path: Path, modality: Modality, columns: dict[str, str | None], skip_bad: bool, split: str | None = None
) -> Source:
    """The source of a file or folder, read in this process: call it in a confined child only.

    Raises:
        UserError: it is no source of that modality, or cannot be read.
    """
    kind: Literal["image", "text"] = "image" if modality == "vision" else "text"
    content, label = columns[f"{kind}_column"], columns["label_column"]
    if path.is_dir():
        return _open_folder(path, kind, columns, skip_bad, split)
    shards = shard_files(path)
    files = shards or [path]
    suffix = path.suffix.lower()
    refuse_split(split, str(path))
    if reader := _reader_of_shards(suffix):
        return reader(files, kind, content_column=content, label_column=label)
    if suffix in DELIMITED_SUFFIXES:
        return _delimited(files, kind, columns, skip_bad)
    if shards:
        raise UserError(f"'{path}': braces are for shards (.tar, .parquet, .arrow, .csv); give one file.", field="data")
    if suffix in JSONL_SUFFIXES:
        if kind == "image":
            raise UserError(f"'{path}' holds texts, and this model takes images; give images or Parquet.", field="data")
        from tokenpaths.engine.data.sources.jsonl import JsonlSource

        return JsonlSource(path, columns["text_column"], columns["label_column"], skip_bad=skip_bad)
    refuse_columns(str(path), columns)
    return FileSource.single(path, kind)


def _open_folder(
    path: Path, kind: Literal["image", "text"], columns: dict[str, str | None], skip_bad: bool, split: str | None
) -> Source:
    from tokenpaths.engine.data.sources.tables.saved_dataset import is_saved, open_saved

    content, label = columns[f"{kind}_column"], columns["label_column"]
    if is_saved(path):
        return open_saved(path, kind, split=split, content_column=content, label_column=label)
    visible = sorted(file for file in path.iterdir() if not file.name.startswith("."))
    for suffix in SHARD_SUFFIXES:
        files = [file for file in visible if file.suffix.lower() == suffix]
        if files:
            return _open_shards(path, files, len(visible) - len(files), kind, columns, split)
    refuse_split(split, str(path))
    if visible and all(file.is_file() and file.suffix.lower() in DELIMITED_SUFFIXES for file in visible):
        return _delimited(visible, kind, columns, skip_bad)
    refuse_columns(str(path), columns)
    return FileSource.folder(path, kind)


def _open_shards(
    folder: Path, files: list[Path], others: int, kind: str, columns: dict[str, str | None], split: str | None
) -> Source:
    """Shards of one data set, or those of a split that their names say."""
    by_split = files_by_split(files)
    if split is not None and not by_split:
        refuse_split(split, str(folder))
    chosen = files if split is None else by_split[choose_split(list(by_split), split, str(folder))]
    reader = _reader_of_shards(files[0].suffix.lower())
    assert reader is not None, "one of SHARD_SUFFIXES"
    source = reader(chosen, kind, content_column=columns[f"{kind}_column"], label_column=columns["label_column"])
    source.split = split or (next(iter(by_split)) if len(by_split) == 1 else None)
    together = len(files) if split is None and len(by_split) > 1 else 0
    for what, count in ((BESIDE, others), (SPLITS_TOGETHER, together)):
        source.remarks.add((what,) if count else (), count=count)
    return source


def _reader_of_shards(suffix: str) -> Callable[..., Any] | None:
    if suffix == ".parquet":
        from tokenpaths.engine.data.sources.tables.parquet import ParquetSource

        return ParquetSource
    if suffix == ".tar":
        from tokenpaths.engine.data.sources.webdataset import WebDatasetSource

        return WebDatasetSource
    if suffix in ARROW_SUFFIXES:
        from tokenpaths.engine.data.sources.tables.arrow import ArrowSource

        return ArrowSource
    return None


def _delimited(files: list[Path], kind: str, columns: dict[str, str | None], skip_bad: bool) -> Source:
    from tokenpaths.engine.data.sources.tables.delimited import DelimitedSource

    content, label = columns[f"{kind}_column"], columns["label_column"]
    return DelimitedSource(files, kind, content_column=content, label_column=label, skip_bad=skip_bad)


def refuse_columns(name: str, columns: dict[str, str | None]) -> None:
    """UserError that names the first of ``columns`` (field → column) that is given: data ``name`` have none."""
    for field, column in columns.items():
        if column is not None:
            raise UserError(
                f"'{name}' has no columns, so {field} '{column}' means nothing there; leave it out, "
                "or give .parquet, .arrow, .csv, .tar or .jsonl.",
                field=field,
            )
