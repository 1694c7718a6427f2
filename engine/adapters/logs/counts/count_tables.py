"""Counts of tokens by expert: Megatron-LM's ``tokens_per_expert`` and TensorRT-LLM's statistics of a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.counts.counter_notes import repeated_times
from tokenpaths.engine.adapters.logs.counts.expert_counts import ExpertCounts, OnlyCounts, counts_of
from tokenpaths.engine.adapters.logs.json_lines import json_lines, nested_ids
from tokenpaths.engine.adapters.logs.pieces.announced import MOST_EXPERTS, Announced
from tokenpaths.engine.adapters.logs.pieces.wording import first_of, number_of
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.adapters.logs.tensors.tensor_files import load_tensors
from tokenpaths.engine.base.errors import UserError

META = {"num_experts", "num_experts_per_token"}
NAME = re.compile(r"^(\d{1,15})_(\d+)$")
Cells = dict[tuple[int, str], np.ndarray]
"""(time, layer) → (M,) counts, ranks added up"""


def is_tokens_per_expert(record: dict[str, Any]) -> bool:
    return "tpe" in record and "layer" in record


def open_tokens_per_expert(file: Path, announced: Announced) -> Log:
    """Lines ``{iter, block, layer, tpe}`` of Megatron-LM, a row of counts a micro-batch.

    Raises:
        OnlyCounts: always, unless a line is wrong (UserError).
    """
    cells: Cells = {}
    again: dict[int, str] = {}
    """times that a layer counts twice, and where"""
    for where, record in json_lines(file):
        rows, layer, time = record.get("tpe"), record.get("layer"), record.get("iter", 0)
        if not isinstance(rows, list) or not rows or type(layer) is not int:
            raise UserError(f"{where}: is no record of tokens per expert: it needs 'layer' and 'tpe'", field="file")
        if type(time) is not int or not 0 <= time < 2**53:
            raise UserError(f"{where}: iter is {repr(time)[:40]}, it should be a whole number from 0", field="file")
        counts = nested_ids(rows, where, "tpe")
        if counts.ndim not in (1, 2):
            raise UserError(f"{where}: tpe should be rows of numbers of tokens, one a micro-batch", field="file")
        if (counts < 0).any():
            *row, expert = np.argwhere(counts < 0)[0].tolist()
            at = f"expert {expert}" + "".join(f" of micro-batch {number}" for number in row)
            raise UserError(
                f"{where}: tpe has {counts[(*row, expert)]} for {at}, which is no number of tokens: they count from 0",
                field="file",
            )
        block = record.get("block", "decoder")
        name = f"layer {layer}" if block == "decoder" else f"{block} layer {layer}"
        if (time, name) in cells:
            again.setdefault(time, where.removeprefix(f"{file}, "))
        _add(cells, time, name, counts.reshape(-1, counts.shape[-1]), where)
    first = next(iter(again.values()), "")
    notes = repeated_times(list(again), len({time for time, _ in cells}), "iteration", first)
    raise OnlyCounts(file, _table(cells, announced, str(file), format="tokens-per-expert", notes=notes))


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
    """``rank*.safetensors`` with ``{iteration}_{layer}`` → counts, summed over ranks.

    Raises:
        OnlyCounts: always, unless a file is wrong (UserError).
    """
    about = _about(folder / "meta_info.json") or {}
    experts = announced.num_experts(about.get("num_experts"), f"{folder}/meta_info.json")
    cells: Cells = {}
    for file in sorted(file for file in files if file.suffix == ".safetensors"):
        for name, counts in load_tensors(file).items():
            match = NAME.match(name)
            if match is None or counts.dtype.kind not in "iu" or counts.ndim != 1:
                raise UserError(f"{file}: {name[:60]!r} is no row of counts named iteration_layer", field="file")
            _add(cells, int(match[1]), f"layer {match[2]}", counts[None], f"{file}, {name}")
    if not cells:
        raise UserError(f"{folder}: its files hold no counts", field="file")
    widths = {len(row) for row in cells.values()}
    if experts is not None and widths != {experts}:
        raise UserError(f"{folder}: has counts of {max(widths)} experts, meta_info.json says {experts}", field="file")
    each = about.get("num_experts_per_token")
    top_k = each if type(each) is int and 0 < each <= MOST_EXPERTS else None
    cells = dict(sorted(cells.items(), key=lambda cell: int(cell[0][1].rsplit(" ", 1)[1])))
    raise OnlyCounts(folder, _table(cells, announced, str(folder), format="trtllm", top_k=top_k))


def _add(cells: Cells, time: int, name: str, rows: np.ndarray, where: str) -> None:
    counts = rows.sum(axis=0, dtype=np.int64)
    (first_time, first_name), first = next(iter(cells.items()), ((time, name), counts))
    if len(first) != len(counts):
        raise UserError(
            f"{where}: counts {number_of(len(counts), 'expert')}, {first_name} at iteration {first_time} {len(first)}; "
            "a row is cut off, or of another model",
            field="file",
        )
    before = cells.get((time, name))
    cells[time, name] = counts if before is None else before + counts


def _table(cells: Cells, announced: Announced, where: str, **about: Any) -> ExpertCounts:
    """Counts of each iteration; a layer without a record in one has none there, which a note says."""
    if not cells:
        raise UserError(f"{where}: is empty", field="file")
    times, layers = sorted({time for time, _ in cells}), list(dict.fromkeys(layer for _, layer in cells))
    counts = np.zeros((len(times), len(layers), len(next(iter(cells.values())))), dtype=np.int64)
    missing = [f"{layer} at iteration {time}" for time in times for layer in layers if (time, layer) not in cells]
    if missing:
        about["notes"] = (
            *about.get("notes", ()),
            f"{len(missing):,} of {len(times) * len(layers):,} counts, of a layer at an iteration each, are not in the "
            f"log and stand as 0 ({first_of(missing, 3)})",
        )
    place_of, line_of = ({key: place for place, key in enumerate(keys)} for keys in (times, layers))
    for (time, layer), row in cells.items():
        counts[place_of[time], line_of[layer]] = row
    return counts_of(counts, announced, where, tuple(layers), times=tuple(times), axis="iteration", **about)
