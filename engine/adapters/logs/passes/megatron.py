"""Read Megatron-LM's router trace (``--moe-routing-trace-path``): a JSON line per step, block and layer.

``{"step": 0, "stage": "pre_dispatch", "block": "decoder", "layer": 3, "rank": 0, "num_tokens": 128, "topk": 8,
"top_indices": [[12, 45, …], …]}``. Ids of a token are ascending, because Megatron reads them from a routing map, so
the slot order does not reflect the weights.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.passes.layer_passes import STITCHED
from tokenpaths.engine.adapters.logs.passes.megatron_lines import RankPass, rank_passes, ranks_of
from tokenpaths.engine.adapters.logs.passes.megatron_scores import kind_of_logits, of_layer, sidecar
from tokenpaths.engine.adapters.logs.pieces.announced import Announced, LogShape
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.adapters.logs.pieces.wording import number_of
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.adapters.logs.sequences import Sequences
from tokenpaths.engine.base.errors import UserError

RECOMPUTED = (
    "{n} repetition{s} of a forward pass of the same step, with the same ids, {are} not counted: activations that the "
    "training recomputes"
)


def is_megatron_line(record: dict[str, Any]) -> bool:
    return "top_indices" in record and "layer" in record


def open_megatron(file: Path, announced: Announced) -> Log:
    """Open a trace of one rank, or of several in one file."""
    return open_traces(file, [file], announced)


def open_traces(place: Path, files: Sequence[Path], announced: Announced) -> Log:
    """Open the traces of all ranks of a training or server.

    Ranks that hold other layers are stages of a pipeline: their layers are joined. Ranks with the same layers saw other
    tokens, and are kept apart, or the same in all passes (tensor parallel), and are counted once.

    Raises:
        UserError: the log is invalid, or its ranks do not fit together.
    """
    firsts: dict[tuple[Path, str], RankPass] = {}
    for file in files:
        missing = ranks_of(file)
        for found in rank_passes(file):
            firsts.setdefault((file, found.rank), found)
            missing.discard(found.rank)
            if not missing:
                break
    if not firsts:
        raise UserError(f"{place}: is empty", field="file")
    stages: dict[tuple[str, ...], list[tuple[Path, str]]] = {}
    copies, digests = 0, dict[tuple[Path, str], str]()
    for key, found in sorted(firsts.items(), key=lambda item: (_number(item[0][1]), item[0][0])):
        ranks = stages.setdefault(tuple(found.names), [])
        alike = [other for other in ranks if _same(found, firsts[other])]
        if alike:  # data-parallel ranks may begin with the same tokens
            for file in {key[0], *(file for file, _ in alike)} - {file for file, _ in digests}:
                digests |= _digests(file)
        if any(digests[key] == digests[other] for other in alike):
            copies += 1
        else:
            ranks.append(key)
    names = _joined_layers(firsts, stages)
    lanes = list(zip(*stages.values(), strict=False))
    if len({len(ranks) for ranks in stages.values()}) > 1:
        sizes = " and ".join(str(len(ranks)) for ranks in stages.values())
        raise UserError(
            f"{place}: the stages of its pipeline have {sizes} ranks; each should have as many, so some files are "
            "missing",
            field="file",
        )
    first = next(iter(firsts.values()))
    top_k = first.parts[0].shape[1]
    announced.check(first.where, layers=len(names), top_k=top_k)
    if announced.sequences and len(first.parts[0]) % announced.sequences:
        raise UserError(
            f"{first.where}: {len(first.parts[0])} tokens are no {announced.sequences} sequences of equal length",
            field="sequences",
        )
    order = [name for stage in stages for name in stage]
    places = [order.index(name) for name in names]

    kind, note = kind_of_logits(list(firsts.values()))
    notes = [note] if note else []

    def read() -> Iterator[Piece | tuple[str, int]]:
        return _samples(lanes, firsts, places, announced, kind)

    if all((part[:, 1:] > part[:, :-1]).all() for found in firsts.values() for part in found.parts) and top_k > 1:
        notes.append("the ids of a token rise: a slot says nothing of a weight")
    if len(stages) > 1:
        notes.append(f"the layers of {len(stages)} pipeline stages are joined")
    if copies:
        notes.append(f"{copies} ranks hold the same rows as another one (tensor parallel) and are counted once")
    tokens = len(first.parts[0])
    if announced.sequences is None and tokens > 1:
        fits = [str(n) for n in range(2, min(tokens, 65)) if tokens % n == 0][:6]
        if fits:
            notes.append(
                "each forward pass is a sample: if a micro-batch held several sequences, their tokens alternate in it; "
                f"say --sequences then ({', '.join(fits)} would fit)"
            )
    note = "; ".join(notes)
    shape = LogShape(names, top_k, kind is not None, scores=kind is not None)
    experts = announced.experts
    if kind is not None and first.logits[0] is not None:
        experts = announced.num_experts(first.logits[0]["experts"], first.where)
    files = [sidecar(file, rank) for file, rank in firsts] if kind is not None else []
    return Log(place, "megatron", shape, experts, read, note=note.replace("; say", ", say"), beside=tuple(files))


def _number(rank: str) -> tuple[int, str]:
    return (int(rank), rank) if rank.isascii() and rank.isdigit() and len(rank) < 10 else (-1, rank)


def _same(one: RankPass, other: RankPass) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one.parts, other.parts, strict=True))


def _digests(file: Path) -> dict[tuple[Path, str], str]:
    """Of all passes of each rank."""
    sums: dict[tuple[Path, str], Any] = defaultdict(hashlib.sha256)
    for found in rank_passes(file):
        digest = sums[file, found.rank]
        digest.update(repr((found.step, found.names, found.parts[0].shape)).encode())
        for part in found.parts:
            digest.update(np.ascontiguousarray(part, dtype=np.int64).tobytes())
    return {key: digest.hexdigest() for key, digest in sums.items()}


def _joined_layers(firsts: dict[tuple[Path, str], RankPass], stages: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Layers of all stages in the order of the model."""
    seen: dict[str, tuple[Any, ...]] = {}
    for stage in stages:
        if seen and not seen.keys().isdisjoint(stage):
            found = next(found for found in firsts.values() if tuple(found.names) == stage)
            raise _other_layers(found, tuple(seen))
        seen |= {name: (" " in name.rsplit("layer ", 1)[0], _number(name.rsplit(" ", 1)[1])) for name in stage}
    if sum(1 for _ in stages) == 1:
        return tuple(seen)
    return tuple(sorted(seen, key=lambda name: seen[name]))


def _samples(
    lanes: Sequence[tuple[tuple[Path, str], ...]],
    firsts: dict[tuple[Path, str], RankPass],
    places: list[int],
    announced: Announced,
    kind: str | None,
) -> Iterator[Piece | tuple[str, int]]:
    sequences, joined_steps, begun = Sequences(), 0, 0
    repeats: list[str] = []
    files = {file for lane in lanes for file, _ in lane}
    for file in sorted(files) if all(len(lane) == 1 for lane in lanes) else [None]:
        ranks = {rank for lane in lanes for other, rank in lane if file in (None, other)}
        together: Iterator[tuple[RankPass, ...]]
        if file is not None:
            together = ((found,) for found in _once(rank_passes(file), repeats) if found.rank in ranks)
        else:
            together = (passes for lane in lanes for passes in _in_step(lane, repeats))
        for passes in together:
            for found in passes:
                _check_names(found, firsts)
            parts = [part for found in passes for part in found.parts]
            lines = [line for found in passes for line in found.lines]
            ids = np.stack([parts[place] for place in places], axis=1)
            lines = [lines[place] for place in places]
            weights, scored = None, None
            if kind is not None:
                layers = [of_layer(found, n, kind) for found in passes for n in range(len(found.parts))]
                weights = np.stack([layers[place][0] for place in places], axis=1)
                scored = np.stack([layers[place][1] for place in places], axis=1)
            where = passes[0].where
            source = where.removeprefix(f"{passes[0].file}, ")
            lane_key = passes[0].file, passes[0].rank
            alone = len(ids) == 1 and announced.sequences is None
            for lane in range(announced.sequences or 1):
                if len(ids) % (announced.sequences or 1):
                    raise UserError(
                        f"{where}: {len(ids)} tokens are no {announced.sequences} sequences of equal length",
                        field="sequences",
                    )
                rows = np.arange(lane, len(ids), announced.sequences or 1)
                named = f"{source}, sequence {lane}" if announced.sequences else source
                piece = Piece(
                    ids[rows],
                    where,
                    None if weights is None else weights[rows],
                    source=named,
                    locate=_locator(lines, rows),
                    scored=None if scored is None else scored[rows],
                )
                key = (*lane_key, lane)
                if alone and key in sequences.keys:
                    joined_steps += 1
                yield from sequences.add(key, piece, new=not alone)
                begun += 1
    yield from sequences.finish()
    if joined_steps:
        yield STITCHED, joined_steps
    if repeats:
        yield RECOMPUTED, len(repeats)


def _once(passes: Iterable[RankPass], repeats: list[str]) -> Iterator[RankPass]:
    """The passes that repeat no earlier one; where those are that do is added to ``repeats``."""
    for found in passes:
        if found.repeats:
            repeats.append(found.where)
        else:
            yield found


def _in_step(lane: Sequence[tuple[Path, str]], repeats: list[str]) -> Iterator[tuple[RankPass, ...]]:
    """The passes of one micro-batch at all stages of a pipeline."""
    streams = [_once(_of_rank(file, rank), repeats) for file, rank in lane]
    for passes in zip_longest(*streams):
        held = [found for found in passes if found is not None]
        if len(held) < len(passes) or len({(found.step, len(found.parts[0])) for found in held}) > 1:
            raise UserError(
                f"{held[0].where}: the stages of the pipeline have different steps or numbers of tokens here; the log "
                "of a rank is cut off, or they are of different trainings",
                field="file",
            )
        yield tuple(held)


def _of_rank(file: Path, rank: str) -> Iterator[RankPass]:
    return (found for found in rank_passes(file) if found.rank == rank)


def _check_names(found: RankPass, firsts: dict[tuple[Path, str], RankPass]) -> None:
    names = tuple(firsts[found.file, found.rank].names)
    if tuple(found.names) != names:
        raise _other_layers(found, names)


def _locator(lines: list[str], rows: np.ndarray) -> Callable[[int, int, int], str]:
    return lambda token, step, slot: f"{lines[step]}, token {int(rows[token])}"


def _other_layers(step: RankPass, names: tuple[str, ...]) -> UserError:
    odd = next((name for name in step.names if name not in names), None)
    missing = next((name for name in names if name not in step.names), None)
    what = f"{odd} is new" if odd else f"{missing} is missing" if missing else "in another order"
    return UserError(
        f"{step.where}: this step has {number_of(len(step.names), 'layer')}, the first had {len(names)} ({what}); "
        "the log is cut off, or of several models"
        + (", or a rank holds several chunks of a virtual pipeline, which are not told apart" if odd else ""),
        field="file",
    )
