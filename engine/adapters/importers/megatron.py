"""Megatron-LM's router trace (``--moe-routing-trace-path``): a JSON line for each step, block and layer.

``{"step": 0, "stage": "pre_dispatch", "block": "decoder", "layer": 3, "rank": 0, "num_tokens": 128, "topk": 8,
"top_indices": [[12, 45, …], …]}``. The ids of a token rise: Megatron reads them from a map, so a slot says nothing
of a weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.adapters.importers.base import Asked, Log, Piece, Shape
from engine.adapters.importers.lines import json_lines, nested_ids
from engine.errors import UserError


def is_megatron_line(record: dict[str, Any]) -> bool:
    return "top_indices" in record and "layer" in record


def open_megatron(file: Path, asked: Asked) -> Log:
    """A trace of one rank. Its first step says which layers there are."""
    first = next(_steps(file), None)
    if first is None:
        raise UserError(f"{file}: is empty", field="file")
    where, names, parts = first
    top_k = parts[0].shape[1]
    for name, given, found in (("layers", asked.layers, len(names)), ("top_k", asked.top_k, top_k)):
        if given is not None and given != found:
            raise UserError(f"{where}: has {found} {name.replace('_', '-')}, not {given} as announced", field=name)

    def read() -> Iterator[Piece]:
        for where, layers, parts in _steps(file):
            if layers != names:
                odd = next((name for name in layers if name not in names), None)
                missing = next((name for name in names if name not in layers), "the order")
                what = f"{odd} is new" if odd else f"{missing} is missing"
                raise UserError(
                    f"{where}: this step has {len(layers)} layers, the first had {len(names)} ({what}); "
                    "the log is cut off, or of several models",
                    field="file",
                )
            yield Piece(np.stack(parts, axis=1), where, source=where.removeprefix(f"{file}, "))

    note = "the ids of a token rise: a slot says nothing of a weight"
    return Log(file, "megatron", Shape(names, top_k, False), asked.experts, None, note, _read=read)


def _steps(file: Path) -> Iterator[tuple[str, tuple[str, ...], list[np.ndarray]]]:
    """(file and line, layers, ids (t, K) of each) of each forward pass: a step, or less where a layer repeats."""
    key, began, names, parts = None, "", [], []
    for where, record in json_lines(file):
        layer, ids = _record(where, record)
        now = (record.get("step"), record.get("rank"))
        if parts and (now != key or layer in names):
            yield began, tuple(names), parts
            names, parts = [], []
        if not parts:
            began = f"{where} (step {record.get('step')}, rank {record.get('rank')})"
        elif ids.shape != parts[0].shape:
            raise UserError(
                f"{where}: {layer} has {ids.shape[0]} tokens × {ids.shape[1]} experts, the layer before it in this "
                f"step {parts[0].shape[0]} × {parts[0].shape[1]}",
                field="file",
            )
        key = now
        names.append(layer)
        parts.append(ids)
    if parts:
        yield began, tuple(names), parts


def _record(where: str, record: dict[str, Any]) -> tuple[str, np.ndarray]:
    indices, layer = record.get("top_indices"), record.get("layer")
    if not isinstance(indices, list) or type(layer) is not int:
        raise UserError(f"{where}: is no record of a router: it needs 'layer' and 'top_indices'", field="file")
    if not indices:
        raise UserError(f"{where}: top_indices has no token", field="file")
    ids = nested_ids(indices, where, "top_indices")
    if ids.ndim != 2:
        raise UserError(f"{where}: top_indices should be a list of tokens, each a list of experts", field="file")
    for name, found in (("num_tokens", ids.shape[0]), ("topk", ids.shape[1])):
        if record.get(name, found) != found:
            raise UserError(f"{where}: {name} is {record[name]}, but top_indices has {found}", field="file")
    block = record.get("block", "decoder")
    prefix = f"mtp {record['mtp_idx']} " if "mtp_idx" in record else "" if block == "decoder" else f"{block} "
    return f"{prefix}layer {layer}", ids
