"""Rows of a routing CSV as forward passes: a row a token and chosen expert, layer by layer within a pass."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from tokenpaths.engine.adapters.logs.passes.csv_cleaning import BAD, NULLS, CleanedRows
from tokenpaths.engine.adapters.logs.passes.csv_columns import Header
from tokenpaths.engine.adapters.logs.passes.layer_passes import BadPass, Pass
from tokenpaths.engine.adapters.logs.pieces.announced import MOST_EXPERTS, Announced
from tokenpaths.engine.adapters.logs.pieces.piece import UNUSED
from tokenpaths.engine.adapters.logs.pieces.piece_checks import ROUNDING
from tokenpaths.engine.adapters.logs.pieces.wording import number_of
from tokenpaths.engine.adapters.logs.routing_log import MOST_REASONS
from tokenpaths.engine.base.errors import UserError

BLOCK_BYTES = 4 * 2**20


def csv_blocks(file: Path, header: Header, skip_bad: bool = False) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Blocks of a few megabytes of rows: (line of the first row, columns).

    With ``skip_bad`` rows that cannot be read have the expert ``BAD``.
    """
    columns, skip = header.columns, header.skip
    names = [f"f{i}" for i in range(columns["width"])]
    wanted = {key: place for key, place in columns.items() if key != "width"}
    types = {f"f{place}": _kind(key) for key, place in wanted.items()}
    try:
        cleaned = io.BufferedReader(CleanedRows(file, columns, skip), BLOCK_BYTES) if skip_bad else None
        reader = csv.open_csv(
            file if cleaned is None else cleaned,
            csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, skip_rows=skip, column_names=names),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=list(NULLS), strings_can_be_null=False
            ),
        )
        line = skip + 1
        for batch in reader:
            if batch.num_rows:
                yield line, {key: _values(file, skip, line, key, batch.column(f"f{p}")) for key, p in wanted.items()}
            line += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        said = str(error).splitlines()[0][:160]
        pointed = re.search(r"int64: invalid value '[0-9]+\.0*'", said)
        right = "; write whole numbers without a point: 3, not 3.0" if pointed else ""
        raise UserError(
            f"{file}: cannot be read as CSV ({said}); rows are counted from line {skip + 1}{right}", field="file"
        ) from None


def _values(file: Path, skip: int, line: int, key: str, column: pa.Array) -> np.ndarray:
    """A column as an array; a missing expert, or −1, is an unused slot."""
    if key == "weight":
        column = column.fill_null(np.nan)
    elif key == "expert" and column.null_count:
        column = column.fill_null(UNUSED)
    elif column.null_count:
        odd = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise UserError(f"{_line(file, skip, line - skip - 1 + odd)}: the {key} is missing", field="file")
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return np.where(values == -1, UNUSED, values) if key == "expert" and (values == -1).any() else values


def _kind(key: str) -> pa.DataType:
    if key == "weight":
        return pa.float32()
    return pa.string() if key == "seq" or key.startswith(("pass", "sample")) else pa.int64()


def csv_passes(file: Path, header: Header, announced: Announced) -> Iterator[Pass | BadPass]:
    """Split rows into forward passes: the layer does not decrease and the columns of ``PASS`` are constant."""
    told, carried = 0, False
    """bad passes that name their line; whether the last row of the pass before is bad, which may belong to this one"""

    def found(last: bool = False) -> Pass | BadPass:
        nonlocal told, carried
        try:
            is_bad = np.concatenate(held["expert"]) == BAD
            also, carried = carried, bool(is_bad[-1])
            if also or is_bad.any():
                row = held_line - skip - 1 + (-1 if also else int(is_bad.argmax()))
                # No more than are told: each takes a look through the file.
                where = _line(file, skip, row) if told < MOST_REASONS else str(file)
                told += 1
                raise UserError(f"{where}: cannot be read as a row of this log", field="file")
            return _one_pass(file, skip, held_line, held, announced, last=last)
        except UserError as error:
            if not announced.skip_bad:
                raise
            return BadPass(str(error))

    columns, skip = header.columns, header.skip
    held: dict[str, list[np.ndarray]] = {key: [] for key in columns if key != "width"}
    held_line, last = 0, None
    for line, rows in csv_blocks(file, header, announced.skip_bad):
        if header.divisor != 1 and "weight" in rows:
            rows["weight"] = rows["weight"] / np.float32(header.divisor)
        if "weight" in rows and (unused := rows["expert"] == UNUSED).any():
            rows["weight"] = np.where(unused, np.float32(0), rows["weight"])
        _check_rows(file, skip, line - skip - 1, rows, announced)
        layer = rows["layer"]
        breaks = layer[1:] < layer[:-1]
        for key, values in rows.items():
            if key.startswith(("pass", "sample")):
                breaks = breaks | (values[1:] != values[:-1])
        changes = last is not None and (
            layer[0] < last["layer"] or any(rows[k][0] != last[k] for k in rows if k.startswith(("pass", "sample")))
        )
        bounds = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(layer)]
        for low, high in zip(bounds[:-1], bounds[1:], strict=True):
            if held["layer"] and (low > 0 or changes):
                yield found()
                held = {key: [] for key in held}
            if not held["layer"]:
                held_line = line + low
            for key, values in rows.items():
                held[key].append(values[low:high])
        last = {key: values[-1] for key, values in rows.items()}
    if held["layer"]:
        yield found(last=True)


def _one_pass(
    file: Path, skip: int, line: int, held: dict[str, list[np.ndarray]], announced: Announced, last: bool = False
) -> Pass:
    same = {key: str(parts[0][0]) for key, parts in held.items() if key.startswith(("pass", "sample"))}
    rows = {key: np.concatenate(parts) for key, parts in held.items() if key not in same}
    first_row = line - skip - 1
    where = f"{file}, line {line}"
    starts = np.flatnonzero(np.diff(rows["layer"], prepend=-1))
    layers = rows["layer"][starts]
    experts, weights, numbers, sequences, offsets = [], [], [], [], []
    used: list[int] = []
    slotted = "slot" in rows and "token" in rows
    widest = _widest(rows, starts) if slotted and announced.top_k is None else None
    for start, stop, layer in zip(starts.tolist(), [*starts[1:].tolist(), len(rows["layer"])], layers, strict=True):
        at = f"{file}, line {line + start}"
        top_k = announced.top_k
        if "token" in rows:
            tokens = rows["token"][start:stop]
            new = np.diff(tokens, prepend=tokens[0] - 1) != 0
            if "seq" in rows:
                new[1:] |= rows["seq"][start + 1 : stop] != rows["seq"][start : stop - 1]
            if slotted:
                new[1:] |= rows["slot"][start + 1 : stop] <= rows["slot"][start : stop - 1]
            firsts = np.flatnonzero(new)
            counts = np.diff(firsts, append=len(tokens))
            if top_k is not None and not (counts % top_k).any():
                firsts = np.arange(0, len(tokens), top_k)  # parallel sequences at one position
                counts = np.full(len(firsts), top_k)
            top_k = top_k or widest
            fewer = top_k is not None and counts.max() <= top_k and bool((counts < top_k).any())
            used += [int(counts.min()), int(counts.max())]
            others = max(used)
            if last and stop == len(rows["layer"]) and counts[-1] < others and (counts[:-1] == others).all():
                raise UserError(
                    f"{_line(file, skip, first_row + start + int(firsts[-1]))}: the last token of the log, "
                    f"{int(tokens[-1])}, has {number_of(int(counts[-1]), 'expert')} at layer {int(layer)}, others "
                    f"{others}; the log is cut off, or that token used fewer: --skip-bad leaves its pass out",
                    field="file",
                )
            if fewer and top_k is not None:
                numbers.append(tokens[firsts])
                if "seq" in rows:
                    sequences.append(rows["seq"][start:stop][firsts])
                experts.append(_spread(rows["expert"][start:stop], firsts, counts, top_k, UNUSED))
                if "weight" in rows:
                    weights.append(_spread(rows["weight"][start:stop], firsts, counts, top_k, 0))
                offsets.append(firsts)
                continue
            if (counts != counts[0]).any():
                odd = int(firsts[np.flatnonzero(counts != counts[0])[0]])
                raise UserError(
                    f"{_line(file, skip, first_row + start + odd)}: token {int(tokens[odd])} has another number of "
                    f"experts at layer {int(layer)} than token {int(tokens[0])} ({int(counts[0])}); the log is cut "
                    "off, or sequences ran in parallel, or k varies: say --top-k, the most experts of a token",
                    field="file",
                )
            if top_k is not None and top_k != int(counts[0]):
                has = number_of(int(counts[0]), "expert")
                raise UserError(f"{at}: tokens have {has}, not {top_k} as announced", field="top_k")
            top_k = int(counts[0])
            numbers.append(tokens[firsts])
            if "seq" in rows:
                sequences.append(rows["seq"][start:stop][firsts])
        assert top_k is not None, "open_csv asks for it where there is no column 'token'"
        if (stop - start) % top_k:
            raise UserError(
                f"{at}: layer {int(layer)} has {number_of(stop - start, 'row')}, which are no whole tokens of "
                f"{number_of(top_k, 'expert')}; the log is cut off, or --top-k is another number",
                field="top_k",
            )
        experts.append(rows["expert"][start:stop].reshape(-1, top_k))
        offsets.append(np.arange(0, stop - start, top_k))
        if "weight" in rows:
            weights.append(rows["weight"][start:stop].reshape(-1, top_k))
    first_rows = (first_row + starts).tolist()
    return Pass(
        where,
        tuple(layers.tolist()),
        experts,
        weights if "weight" in rows else None,
        numbers if "token" in rows else None,
        sequences or None,
        tuple(f"{key.split(' ', 1)[1]} {value}" for key, value in same.items() if key.startswith("sample")),
        tuple(value for key, value in same.items() if key == "pass call"),
        next((same[key] for key in ("pass phase", "pass is_decode") if key in same), None),
        lambda token, layer, slot: _line(file, skip, first_rows[layer] + int(offsets[layer][token]) + slot),
        varies=slotted,
        used=(min(used), max(used)) if used else None,
    )


def _widest(rows: dict[str, np.ndarray], starts: np.ndarray) -> int:
    """Most experts of a token, of which the slots rise."""
    new = np.diff(rows["slot"], prepend=rows["slot"][0]) <= 0
    new[1:] |= np.diff(rows["token"]) != 0
    new[starts] = True
    return int(np.diff(np.flatnonzero(new), append=len(new)).max())


def _spread(values: np.ndarray, firsts: np.ndarray, counts: np.ndarray, top_k: int, fill: int) -> np.ndarray:
    """(t, K) values of tokens that begin at ``firsts`` and have ``counts`` values; ``fill`` behind them."""
    spread = np.full((len(firsts), top_k), fill, dtype=values.dtype)
    token = np.repeat(np.arange(len(firsts)), counts)
    spread[token, np.arange(len(values)) - np.repeat(firsts, counts)] = values
    return spread


def _check_rows(file: Path, skip: int, first_row: int, rows: dict[str, np.ndarray], announced: Announced) -> None:
    """UserError that names the line of an invalid layer, expert or weight; or such rows have the expert ``BAD``."""
    most = announced.experts or MOST_EXPERTS
    faults = [
        ("layer", rows["layer"] < 0, "layers count from 0"),
        (
            "expert",
            ((rows["expert"] < 0) & (rows["expert"] != UNUSED)) | (rows["expert"] >= most),
            f"the experts are 0 … {most - 1}",
        ),
    ]
    if "weight" in rows:
        right = (rows["weight"] >= -ROUNDING) & (rows["weight"] <= 1 + ROUNDING)
        faults.append(("weight", ~right, "weights are numbers from 0 to 1, after the softmax or sigmoid"))
    for what, wrong, expected in faults:
        if announced.skip_bad:
            rows["expert"] = np.where(wrong, BAD, rows["expert"])
        elif wrong.any():
            odd = int(np.flatnonzero(wrong)[0])
            raise UserError(
                f"{_line(file, skip, first_row + odd)}: {what} {rows[what][odd]:g}, but {expected}",
                field="experts" if what == "expert" and announced.experts else "file",
            )


def _line(file: Path, skip: int, row: int) -> str:
    """File and line of a row, counted from the first one; blank lines are taken into account."""
    number = skip
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if number > skip and line.strip():
                if row == 0:
                    break
                row -= 1
    return f"{file}, line {number}"
