"""Folders of Arrow files as the Hugging Face ``datasets`` library leaves them, read without that library.

``Dataset.save_to_disk`` writes ``state.json`` (which files, in which order), ``dataset_info.json`` (features) and
shards; ``DatasetDict.save_to_disk`` a folder of these for each split, named in ``dataset_dict.json``. The cache of
``load_dataset`` has no ``state.json``: the names of its files say their split.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.folders import read_text
from tokenpaths.engine.data.sources.splits import choose_split, files_by_split, refuse_split
from tokenpaths.engine.data.sources.tables.arrow import ArrowSource

DICT, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"
CACHED: Final = "{n} file{s} with results of map, filter or shuffle (cache-….arrow) {are} passed over"
OTHER_SPLITS: Final = "{n} Arrow file{s} of no split {are} passed over"


@dataclass(frozen=True)
class _Saved:
    """What a folder says of its files."""

    files: list[Path]
    split: str | None
    features: Mapping[str, Any] | None
    indices: Path | None = None
    remarks: tuple[tuple[str, int], ...] = ()
    """phrase and count of what is passed over"""


def is_saved(folder: Path) -> bool:
    """Whether a folder is a saved data set, a dictionary of them, or holds Arrow files."""
    return any((folder / name).is_file() for name in (DICT, STATE)) or any(folder.glob("*.arrow"))


def open_saved(
    folder: Path, kind: str, *, split: str | None, content_column: str | None, label_column: str | None
) -> ArrowSource:
    """The rows of a saved data set.

    Args:
        kind: ``image`` or ``text``.
        split: one of a dictionary of data sets; may be None where there is only one.

    Raises:
        UserError: it is damaged or incomplete, or has several splits, or not the one asked for.
    """
    saved = _find(folder, split)
    source = ArrowSource(
        saved.files,
        kind,
        content_column=content_column,
        label_column=label_column,
        features=saved.features,
        indices=saved.indices,
    )
    source.split = saved.split
    for what, count in saved.remarks:
        source.remarks.add((what,) if count else (), count=count)
    return source


def _find(folder: Path, split: str | None) -> _Saved:
    if (folder / DICT).is_file():
        chosen = choose_split(_names(_read_object(folder / DICT), "splits", folder / DICT), split, str(folder))
        part = folder / chosen
        if not (part / STATE).is_file():
            raise UserError(f"{part}: is named in {DICT}, and holds no saved data set; copy it too.", field="data")
        return _of_state(part, chosen)
    if (folder / STATE).is_file():
        saved = _of_state(folder, None)
        if split != saved.split:
            refuse_split(split, str(folder))
        return saved
    return _of_names(folder, split)


def _of_state(folder: Path, split: str | None) -> _Saved:
    state = _read_object(folder / STATE)
    files = [folder / name for name in _file_names(state, "_data_files", folder / STATE)]
    if not files:
        raise UserError(f"{folder / STATE}: names no files; save the data set anew.", field="data")
    # Versions before 2 keep the rows of select() and shuffle() beside the files; later ones write them out.
    old = "_indices_data_files" if state.get("_indices_data_files") else "_indices_files"
    indices = [folder / name for name in _file_names(state, old, folder / STATE)]
    if len(indices) > 1:
        raise UserError(
            f"{folder / STATE}: names {len(indices)} indices mappings; save the data set anew.", field="data"
        )
    for file in (*files, *indices):
        if not file.is_file():
            raise UserError(f"{file}: is named in {STATE} and missing; copy it too.", field="data")
    own = state.get("_split")
    named = {file.name for file in (*files, *indices)}
    others = [file for file in folder.glob("*.arrow") if file.name not in named]
    return _Saved(
        files,
        split or (own if isinstance(own, str) else None),
        _features(folder),
        indices[0] if indices else None,
        _passed_over(others),
    )


def _of_names(folder: Path, split: str | None) -> _Saved:
    """Arrow files that only their names tell apart."""
    files = sorted(file for file in folder.glob("*.arrow") if not file.name.startswith("."))
    own = [file for file in files if not file.name.startswith("cache-")]
    cached = len(files) - len(own)
    info = _read_object(folder / INFO) if (folder / INFO).is_file() else {}
    declared = info.get("splits")
    by_split = files_by_split(own, *([[str(name) for name in declared]] if isinstance(declared, dict) else []))
    if not by_split:
        refuse_split(split, str(folder))
        if not own:
            raise UserError(f"{folder}: holds only results of map, filter or shuffle (cache-….arrow).", field="data")
        return _Saved(own, None, _features(folder), remarks=((CACHED, cached),))
    chosen = choose_split(list(by_split), split, str(folder))
    left = len(own) - sum(map(len, by_split.values()))
    return _Saved(by_split[chosen], chosen, _features(folder), remarks=((CACHED, cached), (OTHER_SPLITS, left)))


def _passed_over(others: list[Path]) -> tuple[tuple[str, int], ...]:
    cached = sum(file.name.startswith("cache-") for file in others)
    return (
        (CACHED, cached),
        ("{n} Arrow file{s} that state.json does not name {are} passed over", len(others) - cached),
    )


def _features(folder: Path) -> Mapping[str, Any] | None:
    if not (folder / INFO).is_file():
        return None
    features = _read_object(folder / INFO).get("features")
    return features if isinstance(features, dict) else None


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file}: is not JSON; save the data set anew.", field="data") from error
    if not isinstance(value, dict):
        raise UserError(f"{file}: is no JSON object; save the data set anew.", field="data")
    return value


def _file_names(state: Mapping[str, Any], key: str, where: Path) -> list[str]:
    entries = state.get(key) or []
    values = (
        [entry.get("filename") if isinstance(entry, dict) else entry for entry in entries]
        if isinstance(entries, list)
        else [None]
    )
    return _plain(values, where)


def _names(value: Mapping[str, Any], key: str, where: Path) -> list[str]:
    entries = value.get(key)
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{where}: names no {key}; save the data set anew.", field="data")
    return _plain(entries, where)


def _plain(values: list[Any], where: Path) -> list[str]:
    """``values`` themselves if each is the name of something in the same folder."""
    for value in values:
        if not isinstance(value, str) or value in ("", ".", "..") or any(c in "/\\:\0" for c in value):
            raise UserError(
                f"{where}: names {str(value)[:80]!r}, it should name files of the same folder.", field="data"
            )
    return values
