"""Read llama.cpp's routing CSV: one row per token and selected expert.

With a header: ``layer`` and ``expert``, optionally ``token`` (or ``pos``, ``row``), ``weight``, columns that
distinguish passes (``call``, ``phase``, ``step``, ``turn``), and ``seq``, which distinguishes tokens of parallel
sequences. Without a header: ``layer,expert``, as written by ``llama-moe-trace``; K must then be given. Rows are
ordered by layer within a pass: a new pass begins where the layer decreases.

The last layer of a prompt is computed only for tokens whose output is needed. If it has fewer tokens than the other
layers it is omitted from the run, with a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from tokenpaths.engine.adapters.logs.json_lines import text_lines
from tokenpaths.engine.adapters.logs.pieces import MOST_EXPERTS, ROUNDING, Announced, LogShape, Piece, unread_note
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.base.errors import UserError

LAYER, EXPERT = ("layer", "layer_id", "il"), ("expert", "expert_id")
TOKEN, WEIGHT = ("token", "pos", "position", "row", "token_position"), ("weight", "routing_weight", "prob")
POSITIONS = ("pos", "position", "token_position")
"""the columns whose values tokens of parallel sequences may share"""
SEQUENCE = ("seq", "seq_id")
PASS = ("call", "phase", "step", "turn", "is_decode")
BOM = b"\xef\xbb\xbf"
BLOCK_BYTES = 4 * 2**20


@dataclass(frozen=True)
class _Pass:
    """The rows of one forward pass by layer, in file order."""

    where: str
    layers: tuple[int, ...]
    experts: list[np.ndarray]
    """per layer (t, K)"""
    weights: list[np.ndarray] | None
    last_tokens: list[int] | None
    """per layer, if the log numbers its tokens"""
    rows: list[int]
    """first row of each layer, counted from the first row of the file"""

    @property
    def is_short(self) -> bool:
        """Whether the last layer has fewer tokens than the first."""
        return len(self.layers) > 1 and len(self.experts[-1]) < len(self.experts[0])


def is_csv(line: bytes) -> bool:
    """Whether the first line is a header with layer and expert, or two whole numbers."""
    cells = [cell.strip().strip('"').lower() for cell in line.decode("utf-8", "replace").split(",")]
    return (any(c in LAYER for c in cells) and any(c in EXPERT for c in cells)) or (
        len(cells) == 2 and all(cell.isdigit() for cell in cells)
    )


def open_csv(file: Path, announced: Announced) -> Log:
    """Open a trace; scans the whole file once for a last layer with fewer tokens."""
    columns, skip, position, unread = _header(file)
    if "token" not in columns and announced.top_k is None:
        raise UserError(
            f"{file}: has no column 'token', so where a token ends cannot be seen; say --top-k of the model",
            field="top_k",
        )
    first = short = None
    for found in _passes(file, columns, skip, announced):
        first = first or found
        if found.is_short:
            _refuse_cut_off(found, short is not None)
            short = found.layers[-1]
    if first is None:
        raise UserError(f"{file}: is empty", field="file")
    layers = tuple(layer for layer in first.layers if layer != short)
    top_k = first.experts[0].shape[1]
    announced.check(str(file), layers=len(first.layers))

    def read() -> Iterator[Piece]:
        for found in _passes(file, columns, skip, announced):
            kept = [i for i, layer in enumerate(found.layers) if layer != short]
            if tuple(found.layers[i] for i in kept) != layers:
                raise UserError(
                    f"{found.where}: this pass has the layers {_said(found.layers)}, the first had "
                    f"{_said(first.layers)}; the log is cut off, or of several models",
                    field="file",
                )
            sizes = {found.experts[i].shape for i in kept}
            if len(sizes) > 1:
                raise UserError(
                    f"{found.where}: the layers of this pass have different numbers of tokens or experts "
                    f"({_sizes(sizes)}); the log is cut off",
                    field="file",
                )
            ids = np.stack([found.experts[i] for i in kept], axis=1)
            weights = None if found.weights is None else np.stack([found.weights[i] for i in kept], axis=1)
            source = found.where.removeprefix(f"{file}, ")
            rows = [found.rows[i] for i in kept]
            yield Piece(ids, found.where, weights, source=source, locate=_place_of(file, skip, rows, top_k))

    notes = [note] if (note := unread_note("columns", unread)) else []
    if position is not None and "seq" not in columns and announced.top_k is None:
        notes.append(
            f"top-k {top_k} is the number of rows with one {position}: say --top-k if sequences ran in parallel"
        )
    if short is not None:
        notes.append(f"layer {short} is left out: llama.cpp computed it only for tokens whose output was wanted")
    names = tuple(f"layer {layer}" for layer in layers)
    shape = LogShape(names, top_k, "weight" in columns)
    return Log(file, "llama.cpp", shape, announced.experts, read, note="; ".join(notes))


def _place_of(file: Path, skip: int, rows: list[int], top_k: int) -> Callable[[int, int, int], str]:
    return lambda token, step, slot: _line(file, skip, rows[step] + token * top_k + slot)


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


def _refuse_cut_off(found: _Pass, not_the_first: bool) -> None:
    """Refuse truncated passes: a last layer may hold only the last tokens, but not only the first."""
    if found.last_tokens is not None:
        cut_off = found.last_tokens[-1] != found.last_tokens[0]
    else:
        cut_off = len(found.experts[-1]) > 1 and not not_the_first
    if cut_off:
        raise UserError(
            f"{found.where}: the last layer of this pass has {len(found.experts[-1])} tokens, the first "
            f"{len(found.experts[0])}; the log is cut off",
            field="file",
        )


def _said(layers: tuple[int, ...]) -> str:
    return f"{layers[0]} … {layers[-1]} ({len(layers)})" if layers else "none"


def _sizes(sizes: set[tuple[int, ...]]) -> str:
    return " and ".join(" × ".join(map(str, size)) for size in sorted(sizes))


def _header(file: Path) -> tuple[dict[str, int], int, str | None, list[str]]:
    """Position of each known column, number of lines before the rows (blank lines, comments and the header), name of
    the token's column if it is a position, and names of the columns that are not read."""
    for where, raw in text_lines(file):
        skip = int(where.rsplit(" ", 1)[1]) - 1
        line = raw.removeprefix(BOM) if not skip else raw
        if line.startswith(b"#") or not line.strip():
            continue
        cells = [cell.strip().strip('"').lower() for cell in line.decode("utf-8", "replace").split(",")]
        if all(cell.lstrip("-").isdigit() for cell in cells):
            if len(cells) != 2:
                raise UserError(
                    f"{file}: has {len(cells)} columns and no header; name them (layer, expert, token, weight)",
                    field="file",
                )
            return {"layer": 0, "expert": 1, "width": 2}, skip, None, []
        found = {"width": len(cells)}
        known_columns = {"layer": LAYER, "expert": EXPERT, "token": TOKEN, "weight": WEIGHT, "seq": SEQUENCE}
        for name, known in known_columns.items():
            place = next((cells.index(cell) for cell in known if cell in cells), None)
            if place is not None:
                found[name] = place
        if "layer" not in found or "expert" not in found:
            raise UserError(f"{file}: has the columns {', '.join(cells)}, but no 'layer' and 'expert'", field="file")
        found |= {f"pass {cell}": cells.index(cell) for cell in PASS if cell in cells}
        token = cells[found["token"]] if "token" in found else None
        unread = [
            cell for place, cell in enumerate(cells) if place not in [v for k, v in found.items() if k != "width"]
        ]
        return found, skip + 1, token if token in POSITIONS else None, unread
    raise UserError(f"{file}: is empty", field="file")


def _blocks(file: Path, columns: dict[str, int], skip: int) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Blocks of a few megabytes of rows: (line of the first row, columns)."""
    names = [f"f{i}" for i in range(columns["width"])]
    wanted = {key: place for key, place in columns.items() if key != "width"}
    types = {f"f{place}": _kind(key) for key, place in wanted.items()}
    try:
        reader = csv.open_csv(
            file,
            csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, skip_rows=skip, column_names=names),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=[], strings_can_be_null=False
            ),
        )
        line = skip + 1
        for batch in reader:
            if batch.num_rows:
                yield line, {key: batch.column(f"f{p}").to_numpy(zero_copy_only=False) for key, p in wanted.items()}
            line += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        said = str(error).splitlines()[0][:160]
        raise UserError(f"{file}: cannot be read as CSV ({said}); rows are counted from line {skip + 1}") from None


def _kind(key: str) -> pa.DataType:
    if key == "weight":
        return pa.float32()
    return pa.string() if key == "seq" or key.startswith("pass") else pa.int64()


def _passes(file: Path, columns: dict[str, int], skip: int, announced: Announced) -> Iterator[_Pass]:
    """Split rows into forward passes: the layer does not decrease and the columns of ``PASS`` are constant."""
    held: dict[str, list[np.ndarray]] = {key: [] for key in columns if key != "width"}
    held_line, last = 0, None
    for line, rows in _blocks(file, columns, skip):
        _check_rows(file, skip, line - skip - 1, rows, announced)
        layer = rows["layer"]
        breaks = layer[1:] < layer[:-1]
        for key, values in rows.items():
            if key.startswith("pass"):
                breaks = breaks | (values[1:] != values[:-1])
        changes = last is not None and (
            layer[0] < last["layer"] or any(rows[k][0] != last[k] for k in rows if k.startswith("pass"))
        )
        bounds = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(layer)]
        for low, high in zip(bounds[:-1], bounds[1:], strict=True):
            if held["layer"] and (low > 0 or changes):
                yield _one_pass(file, skip, held_line, held, announced)
                held = {key: [] for key in held}
            if not held["layer"]:
                held_line = line + low
            for key, values in rows.items():
                held[key].append(values[low:high])
        last = {key: values[-1] for key, values in rows.items()}
    if held["layer"]:
        yield _one_pass(file, skip, held_line, held, announced)


def _one_pass(file: Path, skip: int, line: int, held: dict[str, list[np.ndarray]], announced: Announced) -> _Pass:
    rows = {key: np.concatenate(parts) for key, parts in held.items() if not key.startswith("pass")}
    first_row = line - skip - 1
    where = f"{file}, line {line}"
    starts = np.flatnonzero(np.diff(rows["layer"], prepend=-1))
    layers = rows["layer"][starts]
    experts, weights = [], []
    tokens_before, last_tokens = None, []
    for start, stop, layer in zip(starts.tolist(), [*starts[1:].tolist(), len(rows["layer"])], layers, strict=True):
        at = f"{file}, line {line + start}"
        top_k = announced.top_k
        if "token" in rows:
            tokens = rows["token"][start:stop]
            new = np.diff(tokens, prepend=tokens[0] - 1) != 0
            if "seq" in rows:
                new[1:] |= rows["seq"][start + 1 : stop] != rows["seq"][start : stop - 1]
            firsts = np.flatnonzero(new)
            counts = np.diff(firsts, append=len(tokens))
            if top_k is not None and not (counts % top_k).any():
                firsts = np.arange(0, len(tokens), top_k)  # parallel sequences at one position
                counts = np.full(len(firsts), top_k)
            if (counts != counts[0]).any():
                odd = int(firsts[np.flatnonzero(counts != counts[0])[0]])
                raise UserError(
                    f"{_line(file, skip, first_row + start + odd)}: token {int(tokens[odd])} has another number of "
                    f"experts at layer {int(layer)} than token {int(tokens[0])} ({int(counts[0])}); the log is cut "
                    "off, or sequences ran in parallel: say --top-k",
                    field="file",
                )
            if top_k is not None and top_k != int(counts[0]):
                raise UserError(f"{at}: tokens have {int(counts[0])} experts, not {top_k} as announced", field="top_k")
            top_k = int(counts[0])
            named = tokens[firsts]
            if tokens_before is not None and len(named) == len(tokens_before) and (named != tokens_before).any():
                raise UserError(f"{at}: layer {int(layer)} has other tokens than the layer before it", field="file")
            tokens_before = named
            last_tokens.append(int(named[-1]))
        assert top_k is not None, "open_csv asks for it where there is no column 'token'"
        if (stop - start) % top_k:
            raise UserError(
                f"{at}: layer {int(layer)} has {stop - start} rows, which are no whole tokens of {top_k} "
                "experts; the log is cut off, or --top-k is another number",
                field="top_k",
            )
        experts.append(rows["expert"][start:stop].reshape(-1, top_k))
        if "weight" in rows:
            weights.append(rows["weight"][start:stop].reshape(-1, top_k))
    return _Pass(
        where,
        tuple(layers.tolist()),
        experts,
        weights if "weight" in rows else None,
        last_tokens if "token" in rows else None,
        (first_row + starts).tolist(),
    )


def _check_rows(file: Path, skip: int, first_row: int, rows: dict[str, np.ndarray], announced: Announced) -> None:
    """UserError that names the line of an invalid layer, expert or weight."""
    most = announced.experts or MOST_EXPERTS
    faults = [
        ("layer", rows["layer"] < 0, "layers count from 0"),
        ("expert", (rows["expert"] < 0) | (rows["expert"] >= most), f"the experts are 0 … {most - 1}"),
    ]
    if "weight" in rows:
        right = (rows["weight"] >= -ROUNDING) & (rows["weight"] <= 1 + ROUNDING)
        faults.append(("weight", ~right, "weights are numbers from 0 to 1, after the softmax or sigmoid"))
    for what, wrong, expected in faults:
        if wrong.any():
            odd = int(np.flatnonzero(wrong)[0])
            raise UserError(
                f"{_line(file, skip, first_row + odd)}: {what} {rows[what][odd]:g}, but {expected}",
                field="experts" if what == "expert" and announced.experts else "file",
            )
