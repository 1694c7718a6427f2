"""llama.cpp's importance matrices (GGUF): how many tokens each expert saw while they were measured.

``blk.L.ffn_*_exps.weight.counts`` holds (experts, 1) float32. Only the header and these tensors are read.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import IO, Any

import numpy as np

from tokenpaths.engine.adapters.logs.counts.expert_counts import OnlyCounts, counts_of
from tokenpaths.engine.adapters.logs.pieces.announced import MOST_EXPERTS, Announced
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.base.errors import UserError

MAGIC = b"GGUF"
NAME = re.compile(r"^blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps\.weight\.counts$")
CHUNKS = ("imatrix.chunk_count", "imatrix.chunk_size")
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _LIST, FLOAT = 8, 9, 0
_MOST = 1 << 24
"""texts, lists and tables that are longer are damage"""


class _Damaged(Exception):
    pass


def open_imatrix(file: Path, announced: Announced) -> Log:
    """Counts of an importance matrix.

    Raises:
        OnlyCounts: always, unless the file is no importance matrix of a mixture of experts (UserError).
    """
    try:
        with file.open("rb") as stream:
            layers, tokens = _counts(stream, file.stat().st_size)
    except (_Damaged, struct.error, OSError, ValueError, OverflowError) as error:
        raise UserError(f"{file}: is a cut off or damaged GGUF file ({str(error)[:80]})", field="file") from None
    if not layers:
        raise UserError(
            f"{file}: is GGUF, but holds no counts of experts (blk.0.ffn_down_exps.weight.counts); is it the "
            "importance matrix of a mixture of experts?",
            field="file",
        )
    widths = {len(row) for row in layers.values()}
    if len(widths) > 1:
        raise UserError(f"{file}: its layers have different numbers of experts ({sorted(widths)})", field="file")
    numbers = sorted(layers)
    table = np.stack([layers[layer] for layer in numbers])
    names = tuple(f"layer {layer}" for layer in numbers)
    sums = set(table.sum(axis=1).tolist())
    whole = tokens is not None and len(sums) == 1 and (total := sums.pop()) % tokens == 0
    top_k = total // tokens if whole and tokens and 0 < total // tokens <= table.shape[1] else None
    raise OnlyCounts(file, counts_of(table, announced, str(file), names, format="imatrix", top_k=top_k))


def _counts(stream: IO[bytes], size: int) -> tuple[dict[int, np.ndarray], int | None]:
    """Counts of each layer, and the number of tokens: chunks of the header × their size, where it says so."""
    if stream.read(4) != MAGIC:
        raise _Damaged("no GGUF")
    version, tensors, values = _read(stream, "<I"), _read(stream, "<Q"), _read(stream, "<Q")
    if version not in (2, 3) or tensors > _MOST or values > _MOST:
        raise _Damaged(f"version {version}, {tensors} tensors")
    alignment, chunks = 32, {}
    for _ in range(values):
        name, value = _text(stream), _value(stream, _read(stream, "<I"))
        if name in CHUNKS and type(value) is int and 0 < value < 1 << 40:
            chunks[name] = value
        if name == "general.alignment" and type(value) is int and 0 < value <= 1 << 20:
            alignment = value
    infos = []
    for _ in range(tensors):
        name = _text(stream)
        shape = [_read(stream, "<Q") for _ in range(_few(_read(stream, "<I"), 8))]
        infos.append((name, shape, _read(stream, "<I"), _read(stream, "<Q")))
    start = -(-stream.tell() // alignment) * alignment
    layers: dict[int, np.ndarray] = {}
    for name, shape, kind, offset in infos:
        match = NAME.match(name)
        count = int(np.prod(shape, dtype=np.float64))
        if start + offset + (4 * count if kind == FLOAT else 1) > size:
            raise _Damaged(f"{name} ends behind the end of the file")
        if match is None or int(match[1]) in layers:
            continue  # gate, up and down see the same tokens
        if kind != FLOAT or not 0 < count <= MOST_EXPERTS:
            raise _Damaged(f"{name} of shape {shape}")
        stream.seek(start + offset)
        row = np.frombuffer(stream.read(4 * count), "<f4")
        if not np.isfinite(row).all() or (row < 0).any() or (row >= 2**53).any():
            raise _Damaged(f"{name} holds what is no number of tokens")
        layers[int(match[1])] = np.rint(row.astype(np.float64)).astype(np.int64)
    return layers, chunks[CHUNKS[0]] * chunks[CHUNKS[1]] if len(chunks) == 2 else None


def _read(stream: IO[bytes], kind: str) -> Any:
    return struct.unpack(kind, stream.read(struct.calcsize(kind)))[0]


def _few(number: int, most: int = _MOST) -> int:
    if number > most:
        raise _Damaged(f"{number} entries")
    return number


def _text(stream: IO[bytes]) -> str:
    length = _few(_read(stream, "<Q"))
    data = stream.read(length)
    if len(data) < length:
        raise _Damaged("the file ends in a name")
    return data.decode("utf-8", "replace")


def _value(stream: IO[bytes], kind: int) -> Any:
    if kind == _TEXT:
        return _text(stream)
    if kind == _LIST:
        inner = _read(stream, "<I")
        if inner == _LIST:
            raise _Damaged("lists of lists")
        for _ in range(_few(_read(stream, "<Q"))):
            _value(stream, inner)
        return None
    if kind not in _SCALARS:
        raise _Damaged(f"a value of kind {kind}")
    return _read(stream, _SCALARS[kind])
