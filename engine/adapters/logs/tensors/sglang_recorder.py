"""SGLang's expert distribution recorder (``.pt``): choices of each token of each forward pass, or counts of each pass.

A record holds ``topk_ids_of_layer`` (layers, tokens, 8), padded with −1, of *physical* experts (replicas have ids of
their own); ``last_physical_to_logical_map`` says which expert each is. Requests have no names: a decode token goes on
where a sequence waits for its position.

Shapes: t tokens of a pass, S layers, K slots.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.counts.counter_notes import repeated_times
from tokenpaths.engine.adapters.logs.counts.expert_counts import ExpertCounts, OnlyCounts, counts_of
from tokenpaths.engine.adapters.logs.pieces.announced import Announced, LogShape
from tokenpaths.engine.adapters.logs.pieces.piece import UNRECORDED, Piece
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.adapters.logs.sequences import Sequences
from tokenpaths.engine.base.errors import UserError

IDS, MAP = "topk_ids_of_layer", "last_physical_to_logical_map"
NO_PROMPT = "{n} sequence{s} {are} without a prompt: no sequence waited for the position of a decode token"
_Key = tuple[str, str, int]
"""rank, gatherer, and the number of a sequence in the order in which they began"""
NOTE = "requests have no names in this log: a decode token belongs to the sequence that waits for its position"


def open_recorder(file: Path, value: dict[str, Any], announced: Announced) -> Log:
    """Open a dump of the recorder.

    Raises:
        OnlyCounts: of counts a pass.
    """
    records = [record for record in value["records"] if isinstance(record, dict)]
    physical: Any = value.get(MAP)
    if not records or IDS not in records[0]:
        raise OnlyCounts(file, _counts_of_passes(file, records, physical, announced))
    for number, record in enumerate(records):
        _check(f"{file}, record {number}", record, records[0])
    used = np.zeros(records[0][IDS].shape[::2], dtype=bool)
    for record in records:
        used |= (record[IDS] >= 0).any(axis=1)
    layers, top_k = np.flatnonzero(used.any(axis=1)), int(used.any(axis=0).sum())
    if not len(layers):
        raise UserError(f"{file}: every id is −1, so no decision was recorded", field="file")
    announced.check(str(file), layers=len(layers), top_k=top_k)
    experts = int(physical.max()) + 1 if _is_map(physical, records[0]) else None

    def read() -> Iterator[Piece | tuple[str, int]]:
        return _stitched(file, records, layers, top_k, physical)

    notes = [NOTE]
    if len(layers) < len(used):
        notes.append(f"{len(used) - len(layers)} layers without decisions, dense ones perhaps, are left out")
    shape = LogShape(tuple(f"layer {layer}" for layer in layers.tolist()), top_k, False, partial=True)
    width = announced.num_experts(experts, str(file))
    return Log(file, "sglang-recorder", shape, width, read, note="; ".join(notes), content=_digest(records))


def _digest(records: list[dict[str, Any]]) -> str:
    """Of passes and choices, whichever rank wrote them."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(repr((record.get("forward_pass_id"), record[IDS].shape, record[IDS].dtype)).encode())
        digest.update(record[IDS].tobytes())
        for name in ("input_ids", "positions"):
            numbers = _numbers(record.get(name), record[IDS].shape[1])
            digest.update(b"" if numbers is None else numbers.tobytes())
    return digest.hexdigest()


def _counts_of_passes(file: Path, records: list[dict[str, Any]], physical: Any, announced: Announced) -> ExpertCounts:
    """Counts of each forward pass, those of several ranks added up."""
    passes: dict[int, np.ndarray] = {}
    seen: dict[tuple[str, int], int] = {}
    """how often each rank counted each pass"""
    for number, record in enumerate(records):
        counts, name = record.get("global_physical_count"), record.get("forward_pass_id", number)
        if not isinstance(counts, np.ndarray):
            continue
        if counts.ndim != 2 or counts.dtype.kind not in "iu" or type(name) is not int or not 0 <= name < 2**53:
            raise UserError(
                f"{file}, record {number}: should be counts (layers, experts) of a forward pass", field="file"
            )
        own = _logical_counts(counts, physical)
        if passes and own.shape != next(iter(passes.values())).shape:
            raise UserError(f"{file}, record {number}: counts other layers or experts than the first", field="file")
        passes[name] = passes.get(name, 0) + own
        key = f"{record.get('rank')} {record.get('gatherer_key')}", name
        seen[key] = seen.get(key, 0) + 1
    if not passes:
        raise UserError(f"{file}: its records hold neither {IDS} nor counts", field="file")
    times = sorted(passes)
    stacked = np.stack([passes[time] for time in times])
    twice = repeated_times([name for (_, name), times in seen.items() if times > 1], len(times), "forward pass")
    about: dict[str, Any] = {"format": "sglang-recorder", "times": tuple(times), "axis": "forward pass", "notes": twice}
    return counts_of(stacked, announced, str(file), **about)


def _check(where: str, record: dict[str, Any], first: dict[str, Any]) -> None:
    ids = record.get(IDS)
    if not isinstance(ids, np.ndarray) or ids.ndim != 3 or ids.dtype.kind not in "iu":
        raise UserError(f"{where}: {IDS} should be whole numbers (layers, tokens, slots)", field="file")
    if ids.shape[::2] != first[IDS].shape[::2]:
        raise UserError(f"{where}: has {ids.shape[0]} layers of {ids.shape[2]} slots, unlike the first", field="file")


def _is_map(physical: Any, record: dict[str, Any]) -> bool:
    return isinstance(physical, np.ndarray) and physical.ndim == 2 and len(physical) == len(record[IDS])


def _logical_counts(counts: np.ndarray, physical: Any) -> np.ndarray:
    """Counts of experts from those of their replicas."""
    if not isinstance(physical, np.ndarray) or physical.shape != counts.shape:
        return counts
    return np.stack(
        [np.bincount(p, row, minlength=int(physical.max()) + 1) for p, row in zip(physical, counts, strict=True)]
    ).astype(np.int64)


def _stitched(
    file: Path, records: list[dict[str, Any]], layers: np.ndarray, top_k: int, physical: Any
) -> Iterator[Piece | tuple[str, int]]:
    sequences, begun, alone = Sequences(), 0, 0
    continued: dict[Hashable, int] = {}  # sequence → the last record that has tokens of it
    decoded: dict[Hashable, int] = {}  # rank → its last record with decode tokens
    chunks: set[Hashable] = set()  # sequences whose last tokens were of a prompt
    for number, record in enumerate(records):
        ids = record[IDS][layers].transpose(1, 0, 2)[:, :, :top_k]
        if _is_map(physical, record):
            width = physical.shape[1]
            logical = physical[layers][np.arange(len(layers))[:, None], np.clip(ids, 0, width - 1)]
            ids = np.where((ids >= 0) & (ids < width), logical, np.where(ids < 0, UNRECORDED, ids))
        tokens = _numbers(record.get("input_ids"), len(ids))
        positions = _numbers(record.get("positions"), len(ids))
        lengths = _lengths(record.get("extend_seq_lens"), f"{file}, record {number}")
        if sum(lengths) > len(ids):
            raise UserError(
                f"{file}, record {number}: extend_seq_lens are {sum(lengths)} tokens, there are {len(ids)}",
                field="file",
            )
        lengths, prompts = lengths + [1] * (len(ids) - sum(lengths)), len(lengths)
        rank, start, taken = (str(record.get("rank")), str(record.get("gatherer_key"))), 0, set()
        since, last = decoded.get(rank, 0), -1
        for part, length in enumerate(lengths):
            at = slice(start, start + length)
            position = int(positions[start]) if positions is not None else 0 if part < prompts else None
            waiting: list[_Key] = [k for k in sequences.keys if k[:2] == rank and k not in taken]  # type: ignore
            if position is not None:
                waiting = [k for k in waiting if position and sequences.position(k) == position]
                if part >= prompts:
                    # A batch keeps the order in which its requests came, and each request in it goes on in each pass.
                    behind = [k for k in waiting if k[2] > last]
                    waiting = sorted(behind or waiting, key=lambda k: (continued[k] < since, k[2]))
                else:
                    # A prompt goes on behind its first chunk, which did not decode, or behind an earlier turn, which
                    # has ended; hardly behind a prompt just read, and never behind a request that is being decoded.
                    waiting.sort(key=lambda k: 2 * (continued[k] >= since) + (k not in chunks))
            key, new = waiting[0] if waiting else (*rank, begun), not waiting
            if new:
                begun += 1
                alone += part >= prompts
            if part >= prompts:
                decoded[rank], last = number, key[2]
            taken.add(key)
            continued[key] = number
            (chunks.add if part < prompts else chunks.discard)(key)
            piece = Piece(
                ids[at],
                f"{file}, record {number}",
                token_id=None if tokens is None else tokens[at],
                source=f"rank {record.get('rank')}, record {number}, sequence {part}"
                + (f", from token {position} on" if position else ""),
            )
            yield from sequences.add(key, piece, new=new, position=position)
            start += length
    yield from sequences.finish()
    if alone:
        yield NO_PROMPT, alone


def _lengths(values: Any, where: str) -> list[int]:
    """Tokens of each prompt of a pass; none of a pass of decode steps."""
    if values is None:
        return []
    listed = values.reshape(-1).tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(listed, list) or not all(type(length) is int and length >= 0 for length in listed):
        raise UserError(f"{where}: extend_seq_lens should be whole numbers, of tokens of each prompt", field="file")
    return [length for length in listed if length]


def _numbers(values: Any, count: int) -> np.ndarray | None:
    """(count,) whole numbers that a record holds; None if it does not."""
    if isinstance(values, list):
        values = np.array(values) if all(type(value) is int for value in values) else None
    if not isinstance(values, np.ndarray) or values.shape != (count,) or values.dtype.kind not in "iu":
        return None
    return values.astype(np.int64) if not count or values.min() >= 0 else None
