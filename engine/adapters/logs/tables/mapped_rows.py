"""Decisions of a table, read by the names that a column map gives: CSV, JSON lines or Parquet.

Shapes: r decisions.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenpaths.engine.adapters.logs.json_lines import MAX_LINE_BYTES, json_object, no_text, parsed, text_lines
from tokenpaths.engine.adapters.logs.pieces.piece import UNUSED
from tokenpaths.engine.adapters.logs.pieces.wording import check_once, shortened
from tokenpaths.engine.adapters.logs.routing_log import MOST_REASONS, TOKENS, skipped
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.tables.delimited import DELIMITERS

COLUMNS = ("sequence", "phase", "token", "layer", "slot", "expert", "weight")
MOST_DECISIONS = 40_000_000
"""decisions of a table that is held whole"""
BAD = -(2**30)
"""expert of a row that cannot be read"""
HELD = ("sequence", "phase", "token", "layer", "slot", "expert", "row")
"""what is kept of each decision, beside its weight"""
Row = dict[str, Any]
"""our name -> value; an error in place of a value that cannot be read"""
_MOST = 2**31 - 1
_NUMBER = re.compile(r"-?[0-9]{1,19}")


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
    slot: np.ndarray | None = None
    """number of the slot, or place in the list; None where the table does not say it"""
    left_out: Counter[str] = field(default_factory=Counter)
    """remark -> tokens that are left out, as they cannot be read"""
    gaps: int = 0
    """positions that are missing between the tokens of a sequence"""

    def __len__(self) -> int:
        return len(self.expert)

    def place(self, decision: int) -> str:
        return f"{self.file}, {self.unit} {int(self.row[decision])}"

    def token_name(self, decision: int) -> str:
        """The token of a decision and, where the table says it, its sequence."""
        name = self.names[int(self.sequence[decision])]
        of = f" of {shortened(repr(name))}" if name != self.file.name else ""
        return f"token {int(self.token[decision])}{of}"

    def starts(self) -> np.ndarray:
        """The first decision of each token and layer."""
        return np.flatnonzero((np.diff(self.token_key, prepend=-1) != 0) | (np.diff(self.layer, prepend=-1) != 0))

    def counts(self) -> np.ndarray:
        """Experts of each token and layer."""
        return np.diff(self.starts(), append=len(self))

    def without(self, wrong: np.ndarray, reason: Callable[[int], str]) -> Decisions:
        """Without the tokens that have these decisions.

        Raises:
            UserError: no token is left.
        """
        keys, first = np.unique(self.token_key[wrong], return_index=True)
        reasons = [skipped(reason(int(decision)), TOKENS) for decision in wrong[first[: MOST_REASONS + 1]].tolist()]
        left_out = self.left_out + Counter(reasons)
        left_out[reasons[-1]] += len(keys) - len(reasons)
        keep = ~np.isin(self.token_key, keys)
        if not keep.any():
            raise UserError(reason(int(wrong[0])), field="file")
        columns = ("sequence", "token_key", "token", "layer", "expert", "weight", "row", "slot")
        kept = {name: values[keep] for name in columns if (values := getattr(self, name)) is not None}
        return replace(self, left_out=left_out, **kept)


def read_decisions(file: Path, columns: dict[str, str], skip_bad: bool = False) -> Decisions:
    """Read a table.

    Args:
        skip_bad: Leave out the tokens of rows that cannot be read. Where not even the token can be, nobody knows whose
            row it was, and it takes those of the rows before and behind it.

    Raises:
        UserError: it is no table, a column is missing, or a row holds something else; the message names the row.
    """
    unit, rows = _rows(file, columns)
    values: dict[str, array[Any]] = {name: array("i") for name in HELD} | {"weight": array("f")}
    sequences: dict[str, int] = {}
    phases: dict[tuple[int, str], int] = {}
    counted = "token" not in columns
    lists = True
    reasons: dict[int, str] = {}
    """row -> why it cannot be read; of some, as each may be a text of its own"""
    before: tuple[int, int, int] | None = None
    """sequence, phase and token of the row before"""
    unknown = ""
    """why the row before cannot be read, whose token is not known"""

    def add(key: tuple[int, int, int], number: int, decisions: Iterable[tuple[int, int, int, float]]) -> None:
        for layer, slot, expert, weight in decisions:
            for name, value in zip(HELD, (*key, layer, slot, expert, number), strict=True):
                values[name].append(value)
            if "weight" in columns:
                values["weight"].append(weight)

    def add_bad(key: tuple[int, int, int], number: int, reason: str) -> None:
        add(key, number, [(0, 0, BAD, 0.0)])
        if len(reasons) <= MOST_REASONS:
            reasons.setdefault(number, reason)

    for number, row in rows:
        where, key = f"{file}, {unit} {number}", None
        try:
            name = str(_known(row, "sequence", ""))[:500]
            sequence = sequences.setdefault(name, len(sequences))
            phase = phases.setdefault((sequence, str(_known(row, "phase", ""))), len(phases))
            key = sequence, phase, number if counted else _whole(_known(row, "token"), where, "token")
            found = list(_decisions(row, columns, where))
            lists &= isinstance(row["expert"], list) or str(row["expert"]).strip().startswith("[")
        except UserError as error:
            if not skip_bad:
                raise
            if (own := key or before) is not None:
                add_bad(own, number, str(error))
            unknown, before = "" if key else str(error), key
            continue
        add(key, number, found)
        if unknown:
            add_bad(key, number, unknown)
        unknown, before = "", key
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
    for name in ("token", "phase", "sequence"):
        new |= np.diff(sorted_[name], prepend=-1) != 0
    decisions = Decisions(
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
        sorted_["slot"] if "slot" in columns or lists else None,
        gaps=0 if counted else _gaps(sorted_, new),
    )
    bad = np.flatnonzero(decisions.expert == BAD)
    if not len(bad):
        return decisions
    other = f"{file}: has rows that cannot be read"
    return decisions.without(bad, lambda decision: reasons.get(int(decisions.row[decision]), other))


def _gaps(sorted_: dict[str, np.ndarray], new: np.ndarray) -> int:
    """Numbers that are missing between the tokens of a sequence and phase.

    None where no two of them share a number: it then counts the tokens of the table, or the passes of a server.

    Args:
        sorted_: name -> values (r,) of decisions in order.
        new: (r,) bool: the first decision of each token.
    """
    token, sequence, phase = (sorted_[name][new].astype(np.int64) for name in ("token", "sequence", "phase"))
    if phase.any() and len(np.unique(token)) == len(token):
        return 0
    same = (np.diff(sequence) == 0) & (np.diff(phase) == 0)
    return int((np.diff(token)[same] - 1).sum())


def _rows(file: Path, columns: dict[str, str]) -> tuple[str, Iterator[tuple[int, Row]]]:
    """What rows are called, and (number, our name -> value) of each."""
    first = next(text_lines(file), None)
    if first is None:
        raise UserError(f"{file}: is empty", field="file")
    if first[1].startswith(b"PAR1"):
        return "row", _parquet(file, columns)
    if problem := no_text(first[1]):
        raise UserError(f"{file}: is {problem}", field="file")
    mark = first[1].lstrip()[:1]
    if mark == b"[":
        return "item", _array(file, columns)
    return "line", _json(file, columns) if mark == b"{" else _csv(file, columns)


def _json(file: Path, columns: dict[str, str]) -> Iterator[tuple[int, Row]]:
    for where, line in text_lines(file):
        number = int(where.rsplit(" ", 1)[1])
        try:
            record = json_object(where, line)
        except UserError as error:
            yield number, dict.fromkeys(columns, error)
            continue
        yield number, _row(record, columns, where)


def _row(record: Any, columns: dict[str, str], where: str) -> Row:
    """Values by our names; an error in place of what is not there."""
    row: Row = {}
    for name, path in columns.items():
        try:
            row[name] = _at(record, path, where)
        except UserError as error:
            row[name] = error
    return row


def _known(row: Row, name: str, default: Any = None) -> Any:
    """A value of a row; raises the error in its place."""
    value = row.get(name, default)
    if isinstance(value, UserError):
        raise value
    return value


def _array(file: Path, columns: dict[str, str]) -> Iterator[tuple[int, Row]]:
    if file.stat().st_size > MAX_LINE_BYTES:
        raise UserError(
            f"{file}: is one JSON array of more than {MAX_LINE_BYTES >> 20} MB; give a line a row", field="file"
        )
    for number, record in enumerate(parsed(str(file), file.read_bytes())):
        yield number, _row(record, columns, f"{file}, item {number}")


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


def _csv(file: Path, columns: dict[str, str]) -> Iterator[tuple[int, Row]]:
    number = 0
    """line that was read last: a row may go over several, and comments stand between"""
    undecoded: UserError | None = None
    """of a line of the row that was read last"""

    def lines(stream: TextIO) -> Iterator[str]:
        nonlocal number, undecoded
        for line in stream:
            number += 1
            if line.startswith("#"):
                continue
            if not _is_decoded(line):
                undecoded = UserError(f"{file}, line {number}: not UTF-8; save the table as UTF-8", field="file")
            yield line

    # What is no UTF-8 must not be replaced: names that differ there only would be one.
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        rows = lines(stream)
        header = next(rows, "")
        delimiter = max(DELIMITERS, key=lambda mark: _named(header, mark, columns))
        reader = csv.reader(chain([header], rows), delimiter=delimiter)
        try:
            names = [name.strip() for name in next(reader, [])]
            if undecoded is not None:
                raise undecoded
            for path in columns.values():
                if path not in names:
                    raise UserError(
                        f"{file}: has the columns {', '.join(names)[:300]}, but no {shortened(path)!r}", field="map"
                    )
            check_once(file, list(columns.values()), names, "map")
            places = {name: names.index(path) for name, path in columns.items()}
            for cells in reader:
                if undecoded is not None:
                    # The line is refused whatever column it is in; its token may be known all the same.
                    row: Row = {
                        name: cells[at] if at < len(cells) and _is_decoded(cells[at]) else undecoded
                        for name, at in places.items()
                    }
                    yield number, row | {"expert": undecoded}
                    undecoded = None
                elif len(cells) == len(names) or (len(cells) > len(names) and not any(cells[len(names) :])):
                    yield number, {name: cells[place] for name, place in places.items()}
                elif cells:
                    error = UserError(
                        f"{file}, line {number}: has {len(cells)} cells, the header {len(names)}; the table is cut "
                        f"off, or a cell that holds {delimiter!r} has no quotes",
                        field="file",
                    )
                    # Of a row that ends early, the last cell may be cut off, those before it are whole.
                    whole = len(cells) - 1 if len(cells) < len(names) else 0
                    yield number, {name: cells[at] if at < whole else error for name, at in places.items()}
        except csv.Error as error:
            raise UserError(f"{file}, line {number}: is no CSV ({error})", field="file") from None


def _is_decoded(text: str) -> bool:
    """Whether no byte of a text stands for itself, as it was no UTF-8."""
    return text.isascii() or not any("\udc80" <= character <= "\udcff" for character in text)


def _named(header: str, delimiter: str, columns: dict[str, str]) -> int:
    """How many of the columns a header has if this parts them."""
    try:
        names = {name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])}
    except csv.Error:
        return 0
    return sum(path in names for path in columns.values())


def _parquet(file: Path, columns: dict[str, str]) -> Iterator[tuple[int, Row]]:
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
                check_once(file, [columns[name] if columns[name] in names else top], names, "map")
            start = 0
            for batch in opened.iter_batches(4096):
                for place, row in enumerate(batch.to_pylist(), start):
                    yield place, _row(row, columns, f"{file}, row {place}")
                start += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or [""])[0][:120]
        raise UserError(f"{file}: is no whole Parquet file ({reason})", field="file") from None


def _decisions(row: Row, columns: dict[str, str], where: str) -> Iterator[tuple[int, int, int, float]]:
    """(layer, slot, expert, weight) of a row."""
    for name in columns:
        _known(row, name)
    experts, weights = row["expert"], row.get("weight")
    if isinstance(experts, str) and experts.strip().startswith("["):
        experts = _listed(experts)
        weights = _listed(weights) if isinstance(weights, str) else weights
    nested = isinstance(experts, list) and any(isinstance(one, list) for one in experts)
    if experts and isinstance(experts, list) and "layer" not in columns:
        nested |= all(one is None for one in experts)
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
        if not isinstance(chosen, list) and not (nested and chosen is None):
            slot = _whole(row["slot"], where, "slot") if "slot" in columns else 0
            yield _decision(layer, slot, chosen, beside if "weight" in columns else 0.0, where)
            continue
        chosen = chosen or [None]  # the token was dropped at the layer, or it is dense
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
        pointed = re.fullmatch(r"\s*([0-9]{1,10})\.0*\s*", str(value))
        # pandas writes 5.0 for 5 in every column that has gaps.
        how = f" without a point: {pointed[1]} (of pandas: astype('Int64'))" if pointed else ""
        raise UserError(
            f"{where}: {what} is {repr(value)[:40]}, it should be a whole number from 0 to {_MOST}{how}", field="file"
        )
    return value


def _weight(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        comma = isinstance(value, str) and re.fullmatch(r"\s*[0-9]{0,9},[0-9]{1,20}\s*", value)
        how = f" with a point: {value.strip().replace(',', '.')}" if comma else ""
        raise UserError(
            f"{where}: the weight is {repr(value)[:40]}, it should be a number{how}", field="file"
        ) from None
    return number
