"""Layers of forward passes as records: JSON lines ``{layer_idx, token_idx, selected_ids, gate_weights}``, and a binary
form of int32 (layer, tokens, k, then the ids, −1 in unused slots)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from tokenpaths.engine.adapters.logs.json_lines import json_object, text_lines
from tokenpaths.engine.adapters.logs.passes.layer_passes import BadPass, Pass, outline, stitched
from tokenpaths.engine.adapters.logs.pieces.announced import Announced, LogShape
from tokenpaths.engine.adapters.logs.pieces.piece import UNUSED, Piece, widened
from tokenpaths.engine.adapters.logs.pieces.piece_checks import ROUNDING
from tokenpaths.engine.adapters.logs.pieces.wording import shortened
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.base.errors import UserError

MOST_LAYERS, MOST_TOKENS, MOST_TOP_K = 1024, 1 << 24, 256
"""bounds by which a binary file is recognised"""
Record = tuple[str, int, np.ndarray, np.ndarray | None, int | None]
"""where, layer, experts (t, K), weights (t, K) and the token's number"""
Records = Callable[[], Iterator[Record | BadPass]]


def is_layer_record(record: dict[str, Any]) -> bool:
    return "selected_ids" in record and ("layer_idx" in record or "layer" in record)


def open_layer_lines(file: Path, announced: Announced) -> Log:
    """A line a token and layer."""
    return _open(file, announced, lambda: _lines(file, announced.skip_bad))


def open_layer_binary(file: Path, announced: Announced) -> Log:
    """Int32 records; ``is_layer_binary`` has looked at the first of them."""
    return _open(file, announced, lambda: _binary(file))


def is_layer_binary(head: bytes) -> bool:
    """Whether the beginning of a file (up to a megabyte, or all) is such records."""
    numbers = np.frombuffer(head[: len(head) // 4 * 4], "<i4")
    at = records = 0
    while at + 3 <= len(numbers):
        layer, tokens, top_k = (int(n) for n in numbers[at : at + 3])
        if not (0 <= layer < MOST_LAYERS and 0 < tokens <= MOST_TOKENS and 0 < top_k <= MOST_TOP_K):
            return False
        ids = numbers[at + 3 : at + 3 + tokens * top_k]
        if len(ids) and not -1 <= int(ids.min()) <= int(ids.max()) < 65_536:
            return False
        at, records = at + 3 + tokens * top_k, records + 1
    whole = len(head) < 1 << 20
    return records > 0 and (not whole or (at == len(numbers) and len(head) % 4 == 0) or records > 1)


def _open(file: Path, announced: Announced, records: Records) -> Log:
    skip_bad = announced.skip_bad
    about = outline(_passes(records(), skip_bad), f"{file}: is empty", skip_bad)
    first = next(record for record in records() if not isinstance(record, BadPass))
    announced.check(str(file), layers=len(about.layers), top_k=about.top_k)

    def read() -> Iterator[Piece | tuple[str, int]]:
        passes = _passes(records(), skip_bad)
        return stitched(passes, about, lambda found: found.where.removeprefix(f"{file}, "), skip_bad)

    names = tuple(f"layer {layer}" for layer in about.layers)
    shape = LogShape(names, about.top_k, first[3] is not None, about.partial)
    return Log(file, "llama.cpp", shape, announced.experts, read)


def _lines(file: Path, skip_bad: bool) -> Iterator[Record | BadPass]:
    for where, line in text_lines(file):
        try:
            yield _record(where, json_object(where, line))
        except UserError as error:
            if not skip_bad:
                raise
            yield BadPass(str(error))


def _record(where: str, record: dict[str, Any]) -> Record:
    layer = record.get("layer_idx", record.get("layer"))
    ids, weights = record.get("selected_ids"), record.get("gate_weights")
    token = record.get("token_idx", record.get("token"))
    if type(layer) is not int or layer < 0 or (token is not None and (type(token) is not int or token < 0)):
        raise UserError(f"{where}: layer_idx and token_idx should be whole numbers from 0", field="file")
    if ids is None or ids == []:  # the token was dropped here
        ids = [None]
        weights = [0.0] if weights is not None else None
    fits = isinstance(ids, list)
    wrong = [i for i in ids if i is not None and (type(i) is not int or not -1 <= i < 65_536)] if fits else []
    if not fits or wrong:
        given = f"holds {shortened(json.dumps(wrong[0]))}" if wrong else f"is {shortened(json.dumps(ids))}"
        raise UserError(
            f"{where}: selected_ids {given}, it should be a list of experts from 0 to 65535 (whole numbers without a "
            "point), −1 or null in unused slots",
            field="file",
        )
    values = None
    if weights is not None:
        if isinstance(weights, list) and len(weights) == len(ids):
            weights = [0.0 if i in (None, -1) else w for i, w in zip(ids, weights, strict=True)]
        numbers = isinstance(weights, list) and all(type(w) in (int, float) for w in weights)
        if not numbers or len(weights) != len(ids):
            raise UserError(f"{where}: gate_weights should be a number for each of selected_ids", field="file")
        values = np.array([weights], dtype=np.float32)
        if not (values.min() >= -ROUNDING and values.max() <= 1 + ROUNDING):
            raise UserError(f"{where}: gate_weights should be numbers from 0 to 1", field="file")
    return where, layer, np.array([[UNUSED if i in (None, -1) else i for i in ids]]), values, token


def _binary(file: Path) -> Iterator[Record]:
    with file.open("rb") as stream:
        number = 0
        while head := stream.read(12):
            where = f"{file}, record {number}"
            layer, tokens, top_k = _int32(head, 3, where).tolist()
            if not (0 <= layer < MOST_LAYERS and 0 < tokens <= MOST_TOKENS and 0 < top_k <= MOST_TOP_K):
                raise UserError(
                    f"{where}: begins with layer {layer}, {tokens} tokens, top-k {top_k}, which cannot be; the log is "
                    "damaged",
                    field="file",
                )
            yield where, layer, _ids(stream, tokens, top_k, where), None, None
            number += 1


def _ids(stream: IO[bytes], tokens: int, top_k: int, where: str) -> np.ndarray:
    ids = _int32(stream.read(4 * tokens * top_k), tokens * top_k, where)
    if ids.min() < -1 or ids.max() >= 65_536:
        raise UserError(f"{where}: expert {int(ids.max() if ids.min() >= -1 else ids.min())} is none", field="file")
    return np.where(ids == -1, UNUSED, ids.astype(np.int64)).reshape(tokens, top_k)


def _int32(data: bytes, count: int, where: str) -> np.ndarray:
    if len(data) < 4 * count:
        raise UserError(f"{where}: the log is cut off", field="file")
    return np.frombuffer(data, "<i4", count)


def _passes(records: Iterator[Record | BadPass], skip_bad: bool) -> Iterator[Pass | BadPass]:
    """Records of one pass: the layer does not decrease."""
    held: list[Record] = []
    bad: BadPass | None = None
    """of the pass that is held"""
    before: BadPass | None = None
    """the record before, which may belong to the pass that follows"""
    for record in records:
        if isinstance(record, BadPass):
            before = record
            bad = bad or record
            continue
        if held and record[1] < held[-1][1]:
            yield bad or _one(held, skip_bad)
            held, bad = [], before
        held.append(record)
        before = None
    if held or bad:
        yield bad or _one(held, skip_bad)


def _one(held: list[Record], skip_bad: bool) -> Pass | BadPass:
    layers: dict[int, list[Record]] = {}
    for record in held:
        layers.setdefault(record[1], []).append(record)
    for where, layer, ids, weights, _ in held:
        if (weights is None) != (held[0][3] is None):
            reason = (
                f"{where}: layer {layer} has {ids.shape[1]} experts a token {'without' if weights is None else 'with'} "
                "weights, unlike the first line of its pass"
            )
            if skip_bad:
                return BadPass(reason)
            raise UserError(reason, field="file")
    wide = max(record[2].shape[1] for record in held)
    numbered = all(record[4] is not None for record in held)
    places = [[record[0] for record in rows] for rows in layers.values()]
    return Pass(
        held[0][0],
        tuple(layers),
        [np.concatenate([widened(row[2], wide) for row in rows]) for rows in layers.values()],
        None
        if held[0][3] is None
        else [
            np.concatenate([widened(row[3], wide, 0) for row in rows if row[3] is not None]) for rows in layers.values()
        ],
        [np.array([row[4] for row in rows]) for rows in layers.values()] if numbered else None,
        place=lambda token, layer, slot: f"{places[layer][min(token, len(places[layer]) - 1)]}, token {token}",
        varies=True,
    )
