"""Read Megatron-LM's router trace (``--moe-routing-trace-path``): a JSON line per step, block and layer.

``{"step": 0, "stage": "pre_dispatch", "block": "decoder", "layer": 3, "rank": 0, "num_tokens": 128, "topk": 8,
"top_indices": [[12, 45, …], …]}``. Ids of a token are ascending, because Megatron reads them from a routing map, so
the slot order does not reflect the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.json_lines import json_lines, nested_ids
from tokenpaths.engine.adapters.logs.pieces import Announced, LogShape, Piece
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.base.errors import UserError


def is_megatron_line(record: dict[str, Any]) -> bool:
    return "top_indices" in record and "layer" in record


@dataclass
class _Pass:
    """One forward pass of one rank, collected layer by layer."""

    where: str
    step: object
    names: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """file and line of each layer"""
    parts: list[np.ndarray] = field(default_factory=list)
    """ids (t, K) of each layer"""


def open_megatron(file: Path, announced: Announced) -> Log:
    """Open a trace of one rank, or of several in one file. Its first pass defines the layers."""
    first = next(_passes(file), None)
    if first is None:
        raise UserError(f"{file}: is empty", field="file")
    names = tuple(first.names)
    top_k = first.parts[0].shape[1]
    announced.check(first.where, layers=len(names), top_k=top_k)

    def read() -> Iterator[Piece]:
        for step in _passes(file):
            if tuple(step.names) != names:
                raise _other_layers(step, names)
            source = step.where.removeprefix(f"{file}, ")
            yield Piece(np.stack(step.parts, axis=1), step.where, source=source, locate=_locator(step.lines))

    note = "the ids of a token rise: a slot says nothing of a weight"
    return Log(file, "megatron", LogShape(names, top_k, False), announced.experts, read, note=note)


def _locator(lines: list[str]) -> Callable[[int, int, int], str]:
    return lambda token, step, slot: f"{lines[step]}, token {token}"


def _other_layers(step: _Pass, names: tuple[str, ...]) -> UserError:
    odd = next((name for name in step.names if name not in names), None)
    missing = next((name for name in names if name not in step.names), None)
    what = f"{odd} is new" if odd else f"{missing} is missing" if missing else "in another order"
    return UserError(
        f"{step.where}: this step has {len(step.names)} layers, the first had {len(names)} ({what}); the log is cut "
        "off, of several models, or of ranks that hold different layers: import each of these apart",
        field="file",
    )


def _passes(file: Path) -> Iterator[_Pass]:
    """Forward passes: one per rank and step, split where a layer repeats. Lines of several ranks may alternate."""
    open_: dict[object, _Pass] = {}
    for where, record in json_lines(file):
        layer, ids = _record(where, record)
        step, rank = str(record.get("step")), str(record.get("rank"))
        held = open_.get(rank)
        if held is not None and (step != held.step or layer in held.names):
            yield open_.pop(rank)
            held = None
        if held is None:
            held = open_[rank] = _Pass(f"{where} (step {step}, rank {rank})", step)
        elif ids.shape != held.parts[0].shape:
            raise UserError(
                f"{where}: {layer} has {ids.shape[0]} tokens × {ids.shape[1]} experts, the layer before it in this "
                f"step {held.parts[0].shape[0]} × {held.parts[0].shape[1]}",
                field="file",
            )
        held.names.append(layer)
        held.lines.append(where)
        held.parts.append(ids)
    yield from open_.values()


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
