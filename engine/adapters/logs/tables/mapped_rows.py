"""Decisions of a table, read by the names that a column map gives: CSV, JSON lines or Parquet.

Shapes: r decisions.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenpaths.engine.adapters.logs.json_lines import BOM, MAX_LINE_BYTES, json_lines, no_text, parsed, text_lines
from tokenpaths.engine.adapters.logs.pieces import UNUSED
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.tables.delimited import DELIMITERS

COLUMNS = ("sequence", "phase", "token", "layer", "slot", "expert", "weight")
MOST_DECISIONS = 40_000_000
"""decisions of a table that is held whole"""
_MOST = 2**31 - 1
_NUMBER = re.compile(r"-?[0-9]{1,19}")


def shortened(path: str) -> str:
    """A column or path, for messages."""
    return path if len(path) <= 60 else f"{path[:60]} …"


@dataclass(frozen=True)
class Decisions:
    """Decisions sorted by sequence, token, layer and slot; all arrays (r,)."""

    file: Path
    unit: str
    """what rows of the file are called"""
    names: list[str]
    """of the sequences"""
    sequence: np.ndarray
    token_key: np.ndarray
    """number of the token in the log"""
    token: np.ndarray
    """number of the token as the table says"""
    layer: np.ndarray
    expert: np.ndarray
    weight: np.ndarray | None
    row: np.ndarray
    lists: bool
    """whether the experts of a token and layer stand in one list each, so that none of them can be missing"""

    def __len__(self) -> int:
        return len(self.expert)

    def place(self, decision: int) -> str:
        return f"{self.file}, {self.unit} {int(self.row[decision])}"

    def counts(self) -> np.ndarray:
        """Experts of each token and layer."""
        new = (np.diff(self.token_key, prepend=-1) != 0) | (np.diff(self.layer, prepend=-1) != 0)
        return np.diff(np.flatnonzero(new), append=len(self))


def read_decisions(file: Path, columns: dict[str, str]) -> Decisions:
    """Read a table.

    Raises:
        UserError: it is no table, a column is missing, or a row holds something else; the message names the row.
    """
    unit, rows = _rows(file, columns)
    values: dict[str, array[Any]] = {
        name: array("i") for name in ("sequence", "phase", "token", "layer", "slot", "row")
    }
    values |= {"expert": array("i"), "weight": array("f")}
    sequences: dict[str, int] = {}
    phases: dict[tuple[int, str], int] = {}
    counted = "token" not in columns
    lists = True
    for number, row in rows:
        where = f"{file}, {unit} {number}"
        name = str(row.get("sequence", ""))[:500]
        sequence = sequences.setdefault(name, len(sequences))
        phase = phases.setdefault((sequence, str(row.get("phase", ""))), len(phases))
        token = number if counted else _whole(row["token"], where, "token")
        lists &= isinstance(row["expert"], list) or str(row["expert"]).strip().startswith("[")
        for layer, slot, expert, weight in _decisions(row, columns, where):
            for key, value in (
                ("sequence", sequence),
                ("phase", phase),
                ("token", token),
                ("layer", layer),
                ("slot", slot),
                ("expert", expert),
                ("row", number),
            ):
                values[key].append(value)
            if "weight" in columns:
                values["weight"].append(weight)
        if len(values["row"]) > MOST_DECISIONS:
            raise UserError(f"{file}: holds more than {MOST_DECISIONS:,} decisions; split it by sequence", field="file")
    if not len(values["row"]):
        raise UserError(f"{file}: holds no decision", field="file")
    if counted and "layer" in columns:
        raise UserError(
            f"{file}: the map names no column for the token, so rows of one token cannot be told from the next; name "
            "'token'",
            field="map",
        )
    held = {key: np.frombuffer(value, dtype=value.typecode) for key, value in values.items() if len(value)}
    order = np.lexsort([held[key] for key in ("slot", "layer", "token", "phase", "sequence")])
    sorted_ = {key: value[order] for key, value in held.items()}
    new = np.zeros(len(order), dtype=bool)
    for key in ("token", "phase", "sequence"):
        new |= np.diff(sorted_[key], prepend=-1) != 0
    return Decisions(
        file,
        unit,
        [name or file.name for name in sequences],
        sorted_["sequence"],
        np.cumsum(new) - 1,
        sorted_["token"],
        sorted_["layer"],
        sorted_["expert"],
        sorted_.get("weight"),
        sorted_["row"],
        lists,
    )


def _rows(file: Path, columns: dict[str, str]) -> tuple[str, Iterator[tuple[int, dict[str, Any]]]]:
    """What rows are called, and (number, our name -> value) of each."""
    first = next(text_lines(file), None)
    if first is None:
        raise UserError(f"{file}: is empty", field="file")
    if first[1].startswith(b"PAR1"):
        return "row", _parquet(file, columns)
    if problem := no_text(first[1]):
        raise UserError(f"{file}: is {problem}", field="file")
    mark = first[1].removeprefix(BOM).lstrip()[:1]
    if mark == b"[":
        return "item", _array(file, columns)
    if mark == b"{":
        lines = (
            (int(where.rsplit(" ", 1)[1]), {name: _at(record, path, where) for name, path in columns.items()})
            for where, record in json_lines(file)
        )
        return "line", lines
    return "line", _csv(file, columns)


def _array(file: Path, columns: dict[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    if file.stat().st_size > MAX_LINE_BYTES:
        raise UserError(
            f"{file}: is one JSON array of more than {MAX_LINE_BYTES >> 20} MB; give a line a row", field="file"
        )
    for number, record in enumerate(parsed(str(file), file.read_bytes())):
        where = f"{file}, item {number}"
        yield number, {name: _at(record, path, where) for name, path in columns.items()}


def _at(record: Any, path: str, where: str) -> Any:
    """The value at a path such as ``route.0.ids``; a key may hold points itself."""
    if isinstance(record, dict) and path in record:
        return record[path]
    value = record
    for part in path.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isascii() and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise UserError(f"{where}: has nothing at {shortened(path)!r}", field="map")
    return value


def _csv(file: Path, columns: dict[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        rows = (line for line in stream if not line.startswith("#"))
        header = next(rows, "")
        delimiter = max(DELIMITERS, key=lambda mark: _named(header, mark, columns))
        reader = csv.DictReader(chain([header], rows), delimiter=delimiter)
        try:
            names = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = names
            for path in columns.values():
                if path not in names:
                    raise UserError(
                        f"{file}: has the columns {', '.join(names)[:300]}, but no {shortened(path)!r}", field="map"
                    )
            for row in reader:
                yield reader.line_num, {name: row[path] for name, path in columns.items()}
        except csv.Error as error:
            raise UserError(f"{file}, line {reader.line_num}: is no CSV ({error})", field="file") from None


def _named(header: str, delimiter: str, columns: dict[str, str]) -> int:
    """How many of the columns a header has if this parts them."""
    try:
        names = {name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])}
    except csv.Error:
        return 0
    return sum(path in names for path in columns.values())


def _parquet(file: Path, columns: dict[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with pq.ParquetFile(file) as opened:
            tops = {name: path.split(".")[0] for name, path in columns.items()}
            names = opened.schema_arrow.names
            for name, top in tops.items():
                if columns[name] not in names and top not in names:
                    raise UserError(
                        f"{file}: has the columns {', '.join(names)[:300]}, but no {shortened(columns[name])!r}",
                        field="map",
                    )
            start = 0
            for batch in opened.iter_batches(4096):
                for place, row in enumerate(batch.to_pylist()):
                    where = f"{file}, row {start + place}"
                    yield start + place, {name: _at(row, path, where) for name, path in columns.items()}
                start += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or [""])[0][:120]
        raise UserError(f"{file}: is no whole Parquet file ({reason})", field="file") from None


def _decisions(row: dict[str, Any], columns: dict[str, str], where: str) -> Iterator[tuple[int, int, int, float]]:
    """(layer, slot, expert, weight) of a row."""
    experts, weights = row["expert"], row.get("weight")
    if isinstance(experts, str) and experts.strip().startswith("["):
        experts = _listed(experts)
        weights = _listed(weights) if isinstance(weights, str) else weights
    nested = isinstance(experts, list) and bool(experts) and isinstance(experts[0], list)
    if nested and "layer" in columns:
        raise UserError(f"{where}: the map names a layer, but the experts are lists of layers", field="map")
    if not nested and "layer" not in columns:
        raise UserError(f"{where}: the map names no layer, and the experts are no lists of layers", field="map")
    if experts == []:
        experts = [None]
        weights = [0.0] if isinstance(weights, list) else weights
    layers = enumerate(experts) if nested else [(_whole(row["layer"], where, "layer"), experts)]
    for layer, chosen in layers:
        beside = weights[layer] if nested and isinstance(weights, list) and layer < len(weights) else weights
        if not isinstance(chosen, list):
            slot = _whole(row["slot"], where, "slot") if "slot" in columns else 0
            yield _decision(layer, slot, chosen, beside if "weight" in columns else 0.0, where)
            continue
        chosen = chosen or [None]  # the token was dropped at the layer
        beside = beside or [0.0] if isinstance(beside, list) else beside
        values = beside if isinstance(beside, list) else list(repeat(None, len(chosen)))
        if "weight" in columns and len(values) != len(chosen):
            raise UserError(f"{where}: has {len(values)} weights, but {len(chosen)} experts", field="file")
        for slot, (expert, weight) in enumerate(zip(chosen, values, strict=True)):
            yield _decision(layer, slot, expert, weight if "weight" in columns else 0.0, where)


def _decision(layer: int, slot: int, expert: Any, weight: Any, where: str) -> tuple[int, int, int, float]:
    if expert in (None, -1, "", "-1", "null", "None"):
        return layer, slot, UNUSED, 0.0
    return layer, slot, _whole(expert, where, "expert"), _weight(weight, where)


def _listed(text: str) -> list[Any]:
    return [cell.strip() for cell in text.strip().strip("[]").replace(";", ",").split(",") if cell.strip()]


def _whole(value: Any, where: str, what: str) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(text := value.strip()):
        value = int(text)
    if type(value) is not int or not 0 <= value <= _MOST:
        raise UserError(
            f"{where}: {what} is {repr(value)[:40]}, it should be a whole number from 0 to {_MOST}", field="file"
        )
    return value


def _weight(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where}: the weight is {repr(value)[:40]}, it should be a number", field="file") from None
    return number
