"""Lines of Megatron-LM's router trace, gathered into the forward passes of each rank."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.json_lines import json_lines, nested_ids, text_lines
from tokenpaths.engine.adapters.logs.pieces.announced import MOST_EXPERTS
from tokenpaths.engine.adapters.logs.pieces.piece import widened
from tokenpaths.engine.adapters.logs.pieces.wording import number_of
from tokenpaths.engine.base.errors import UserError

LEAST_REPEATED = 16
"""tokens of a pass that is taken for a repeated one: as many choose alike by chance hardly ever"""
_RANK = re.compile(rb'"rank"\s*:\s*("[^"]*"|[^,}\s]+)')


@dataclass
class RankPass:
    """One forward pass of one rank, collected layer by layer."""

    where: str
    step: object
    rank: str
    file: Path
    names: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """file and line of each layer"""
    parts: list[np.ndarray] = field(default_factory=list)
    """ids (t, K) of each layer"""
    logits: list[dict[str, int] | None] = field(default_factory=list)
    """where the logits of each layer lie in the file beside the trace (``megatron_scores``), if it says so"""
    digests: dict[str, bytes] = field(default_factory=dict)
    """of the ids of each layer, if there are enough tokens"""
    repeats: bool = False
    """whether an earlier pass of the step has the same ids at all of these layers: its activations are recomputed"""


Earlier = dict[object, dict[tuple[str, bytes], list[RankPass]]]
"""passes of the step that each rank is in, by each layer and its ids: thousands may have one step"""


def ranks_of(file: Path) -> set[str]:
    """The ranks whose lines a file holds."""
    ranks = set()
    for _, line in text_lines(file):
        match = _RANK.search(line)
        ranks.add("None" if match is None or match[1] == b"null" else match[1].decode("utf-8", "replace").strip('"'))
    return ranks


def rank_passes(file: Path) -> Iterator[RankPass]:
    """Forward passes: one per rank and step, split where a layer repeats. Lines of several ranks may alternate.

    A training that recomputes activations writes a pass again, layers in any order or some of them only: such a pass is
    marked (``repeats``).
    """
    open_: dict[object, RankPass] = {}
    earlier: Earlier = {}
    stage = None
    for where, record in json_lines(file):
        stage = stage or record.get("stage")
        if record.get("stage") not in (None, stage):
            continue  # a router that is written before and after dispatch chose once
        layer, ids = _record(where, record)
        step, rank = str(record.get("step")), str(record.get("rank"))
        held = open_.get(rank)
        digest = _digest(ids)
        if held is not None and (
            step != held.step or layer in held.names or _begins_anew(held, layer, digest, earlier)
        ):
            yield _ended(open_.pop(rank), earlier)
            held = None
        if held is None:
            held = open_[rank] = RankPass(f"{where} (step {step}, rank {rank})", step, rank, file)
        elif ids.shape != held.parts[0].shape:
            raise UserError(
                f"{where}: {layer} has {number_of(ids.shape[0], 'token')} × {number_of(ids.shape[1], 'expert')}, the "
                f"layer before it in this step {held.parts[0].shape[0]} × {held.parts[0].shape[1]}",
                field="file",
            )
        held.names.append(layer)
        held.lines.append(where)
        held.parts.append(ids)
        if digest is not None:
            held.digests[layer] = digest
        held.logits.append(logit_place(record, len(ids)))
    for held in open_.values():
        yield _ended(held, earlier)


def _digest(ids: np.ndarray) -> bytes | None:
    """Of the ids of a layer; None if they are too few to be known again."""
    if len(ids) < LEAST_REPEATED:
        return None
    return hashlib.sha256(np.ascontiguousarray(ids, dtype=np.int64).tobytes()).digest()


def _repeated(found: RankPass, earlier: Earlier) -> list[RankPass]:
    """The earlier passes of the step that have the same ids at all layers of a pass."""
    first = next(iter(found.digests.items()), None)
    alike = () if first is None else earlier.get(found.rank, {}).get(first, ())
    return [one for one in alike if one.step == found.step and found.digests.items() <= one.digests.items()]


def _begins_anew(held: RankPass, layer: str, digest: bytes | None, earlier: Earlier) -> bool:
    """Whether a layer behind some that were recomputed is that of another pass."""
    repeated = _repeated(held, earlier)
    return bool(repeated) and all(other.digests.get(layer, digest) != digest for other in repeated)


def _ended(found: RankPass, earlier: Earlier) -> RankPass:
    """The pass, marked if it repeats an earlier one of its step."""
    found.repeats = bool(_repeated(found, earlier))
    if not found.repeats:
        held = earlier.setdefault(found.rank, {})
        if any(others[-1].step != found.step for others in islice(held.values(), 1)):
            held.clear()
        bare = replace(found, parts=[], lines=[], logits=[])
        for known in found.digests.items():
            held.setdefault(known, []).append(bare)
    return found


def _record(where: str, record: dict[str, Any]) -> tuple[str, np.ndarray]:
    indices, layer = record.get("top_indices"), record.get("layer")
    if not isinstance(indices, list) or type(layer) is not int:
        raise UserError(f"{where}: is no record of a router: it needs 'layer' and 'top_indices'", field="file")
    if not indices:
        raise UserError(f"{where}: top_indices has no token", field="file")
    ids = nested_ids(indices, where, "top_indices", slots_at=2)
    if ids.ndim != 2:
        raise UserError(f"{where}: top_indices should be a list of tokens, each a list of experts", field="file")
    if type(record.get("topk")) is int and 0 < record["topk"] <= MOST_EXPERTS:
        ids = widened(ids, record["topk"])
    if not ids.shape[1]:
        raise UserError(
            f"{where}: every token was dropped at layer {layer}, and no 'topk' says how many experts a token has",
            field="file",
        )
    for name, found in (("num_tokens", ids.shape[0]), ("topk", ids.shape[1])):
        if record.get(name, found) != found:
            raise UserError(f"{where}: {name} is {record[name]}, but top_indices has {found}", field="file")
    block = record.get("block", "decoder")
    prefix = f"mtp {record['mtp_idx']} " if "mtp_idx" in record else "" if block == "decoder" else f"{block} "
    return f"{prefix}layer {layer}", ids


def logit_place(record: dict[str, Any], tokens: int) -> dict[str, int] | None:
    """Where the logits of a record lie; None where it does not say so, or other than for each of its tokens."""
    shape = record.get("logit_shape")
    numbers = [record.get("logit_offset"), record.get("logit_bytes"), *(shape if isinstance(shape, list) else ())]
    if len(numbers) != 4 or any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers):
        return None
    offset, size, rows, experts = numbers
    if rows != tokens or not 0 < experts <= MOST_EXPERTS or size not in (4 * rows * experts, 2 * rows * experts):
        return None
    return {"offset": offset, "bytes": size, "tokens": rows, "experts": experts}
