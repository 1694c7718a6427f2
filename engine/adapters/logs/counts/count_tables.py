"""Counts of tokens by expert: Megatron-LM's ``tokens_per_expert`` and TensorRT-LLM's statistics of a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.counts.expert_counts import OnlyCounts, counts_of
from tokenpaths.engine.adapters.logs.json_lines import json_lines, nested_ids
from tokenpaths.engine.adapters.logs.pieces import Announced
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.adapters.logs.tensors.tensor_files import load_tensors
from tokenpaths.engine.base.errors import UserError

META = {"num_experts", "num_experts_per_token"}
NAME = re.compile(r"^\d+_(\d+)$")
Layers = dict[str, np.ndarray]


def is_tokens_per_expert(record: dict[str, Any]) -> bool:
    return "tpe" in record and "layer" in record


def open_tokens_per_expert(file: Path, announced: Announced) -> Log:
    """Lines ``{iter, block, layer, tpe}`` of Megatron-LM, a row of counts a micro-batch.

    Raises:
        OnlyCounts: always, unless a line is wrong (UserError).
    """
    layers: Layers = {}
    for where, record in json_lines(file):
        rows, layer = record.get("tpe"), record.get("layer")
        if not isinstance(rows, list) or not rows or type(layer) is not int:
            raise UserError(f"{where}: is no record of tokens per expert: it needs 'layer' and 'tpe'", field="file")
        counts = nested_ids(rows, where, "tpe")
        if counts.ndim not in (1, 2) or (counts < 0).any():
            raise UserError(f"{where}: tpe should be rows of numbers of tokens, one a micro-batch", field="file")
        block = record.get("block", "decoder")
        _add(
            layers,
            f"layer {layer}" if block == "decoder" else f"{block} layer {layer}",
            counts.reshape(-1, counts.shape[-1]),
            where,
        )
    raise OnlyCounts(file, _table(layers, announced, str(file)))


def is_statistics_folder(folder: Path, files: list[Path]) -> bool:
    """Whether a folder holds TensorRT-LLM's statistics: a ``meta_info.json`` beside safetensors."""
    return _about(folder / "meta_info.json") is not None and any(file.suffix == ".safetensors" for file in files)


def _about(file: Path) -> dict[str, Any] | None:
    try:
        about = json.loads(file.read_bytes()[: 1 << 16])
    except (OSError, ValueError, RecursionError):
        return None
    return about if isinstance(about, dict) and about.keys() >= META else None


def open_statistics(folder: Path, files: list[Path], announced: Announced) -> Log:
    """``rank*.safetensors`` with ``{iteration}_{layer}`` → counts, summed over iterations and ranks.

    Raises:
        OnlyCounts: always, unless a file is wrong (UserError).
    """
    about = _about(folder / "meta_info.json") or {}
    experts = announced.num_experts(about.get("num_experts"), f"{folder}/meta_info.json")
    layers: Layers = {}
    for file in sorted(file for file in files if file.suffix == ".safetensors"):
        for name, counts in load_tensors(file).items():
            match = NAME.match(name)
            if match is None or counts.dtype.kind not in "iu" or counts.ndim != 1:
                raise UserError(f"{file}: {name[:60]!r} is no row of counts named iteration_layer", field="file")
            _add(layers, f"layer {match[1]}", counts[None], f"{file}, {name}")
    if not layers:
        raise UserError(f"{folder}: its files hold no counts", field="file")
    ordered = dict(sorted(layers.items(), key=lambda item: int(item[0].rsplit(" ", 1)[1])))
    widths = {len(row) for row in ordered.values()}
    if experts is not None and widths != {experts}:
        raise UserError(f"{folder}: has counts of {max(widths)} experts, meta_info.json says {experts}", field="file")
    raise OnlyCounts(folder, _table(ordered, announced, str(folder)))


def _add(layers: Layers, name: str, rows: np.ndarray, where: str) -> None:
    counts = rows.sum(axis=0, dtype=np.int64)
    if name in layers and len(layers[name]) != len(counts):
        raise UserError(f"{where}: counts {len(counts)} experts, before there were {len(layers[name])}", field="file")
    layers[name] = layers.get(name, 0) + counts


def _table(layers: Layers, announced: Announced, where: str) -> Any:
    if not layers:
        raise UserError(f"{where}: is empty", field="file")
    widths = {len(row) for row in layers.values()}
    if len(widths) > 1:
        raise UserError(f"{where}: its layers have different numbers of experts ({sorted(widths)})", field="file")
    return counts_of(np.stack(list(layers.values())), announced, where, tuple(layers))
