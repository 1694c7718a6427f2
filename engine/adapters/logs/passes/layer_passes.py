"""Forward passes that are written layer by layer, as sequences: prompts with the decode steps that follow them.

llama.cpp computes the last layer of a prompt only for tokens whose output is wanted, and for none of a prompt's earlier
parts: these tokens keep that step as unknown.

Shapes: t tokens of a pass, S layers of the log, K slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tokenpaths.engine.adapters.logs.pieces import UNRECORDED, Piece, widened
from tokenpaths.engine.adapters.logs.routing_log import skipped
from tokenpaths.engine.adapters.logs.sequences import Sequences
from tokenpaths.engine.base.errors import UserError

STITCHED = "{n} decode step{s} {are} joined to the sequence before them"
PASSES = "{n} part{s} of samples, a forward pass each, {are} left out"
SHORT = (
    "{n} token{s} of prompts {are} without the last layer, which was computed only for tokens whose output was wanted"
)


@dataclass(frozen=True)
class Pass:
    """The rows of one forward pass by layer, in file order; t may differ between layers."""

    where: str
    layers: tuple[int, ...]
    experts: list[np.ndarray]
    """of each layer (t, K)"""
    weights: list[np.ndarray] | None = None
    """of each layer (t, K)"""
    tokens: list[np.ndarray] | None = None
    """of each layer (t,) positions, or numbers of tokens"""
    sequences: list[np.ndarray] | None = None
    """of each layer (t,) names of sequences, where several run in parallel"""
    sample: tuple[str, ...] = ()
    """what tells samples apart: turn, request"""
    call: tuple[str, ...] = ()
    """what tells passes apart"""
    place: Callable[[int, int, int], str] | None = None
    """file and line of (token, layer of the pass, slot)"""
    varies: bool = False
    """whether K may differ from that of other passes: slots behind are unused"""

    @property
    def num_tokens(self) -> int:
        return max(len(rows) for rows in self.experts)


@dataclass(frozen=True)
class BadPass:
    """A forward pass that cannot be read, where such are left out."""

    reason: str


@dataclass(frozen=True)
class Outline:
    """What all passes of a log have in common."""

    layers: tuple[int, ...]
    top_k: int
    partial: bool
    """whether some tokens lack the last layer"""


def outline(passes: Iterable[Pass | BadPass], empty: str, skip_bad: bool = False) -> Outline:
    """Read all passes once.

    Raises:
        UserError: there is none that can be read, or the last one is cut off (unless ``skip_bad``).
    """
    layers: set[int] = set()
    first = last = problem = None
    partial, top_k = False, 0
    for found in passes:
        if isinstance(found, BadPass):
            problem = problem or found.reason
            continue
        first = first or found
        top_k = max(top_k, found.experts[0].shape[1]) if found.varies else top_k or found.experts[0].shape[1]
        layers.update(found.layers)
        partial |= len({len(rows) for rows in found.experts}) > 1 or found.layers != first.layers
        last = found
    if first is None or last is None:
        raise UserError(problem or empty, field="file")
    every = tuple(sorted(layers))
    if last.layers != every and not skip_bad:
        raise _other_layers(last, every)
    return Outline(every, top_k, partial)


def _other_layers(found: Pass, every: tuple[int, ...]) -> UserError:
    return UserError(
        f"{found.where}: this pass has the layers {_said(found.layers)}, the log {_said(every)}; the log is cut off, "
        "or of several models",
        field="file",
    )


def _said(layers: tuple[int, ...]) -> str:
    return f"{layers[0]} … {layers[-1]} ({len(layers)})" if layers else "none"


def stitched(
    passes: Iterable[Pass | BadPass], about: Outline, name: Callable[[Pass], str], skip_bad: bool = False
) -> Iterator[Piece | tuple[str, int]]:
    """Samples of a log: a prompt with its decode steps.

    Args:
        name: of the sample that a pass begins.
        skip_bad: Leave out passes that cannot be read, or do not fit the others, and count them.
    """
    sequences, counts, begun = Sequences(), Counter[str](), 0
    waits = False
    """the last pass was a part of a prompt without any output"""
    for found in passes:
        if isinstance(found, BadPass):
            yield skipped(found.reason, PASSES), 1
            continue
        try:
            ids, weights = _dense(found, about, counts)
        except UserError as error:
            if not skip_bad:
                raise
            yield skipped(str(error), PASSES), 1
            continue
        numbers = None if found.tokens is None else found.tokens[0]
        for key, rows in _parts(found, len(ids)):
            position = None if numbers is None else int(numbers[rows[0]])
            open_: list[Hashable] = [k for k in sequences.keys if k[0] == (found.sample, key)]  # type: ignore[index]
            if position is None:
                other = open_[-1] if open_ and (len(rows) == 1 or waits) else None
            else:
                same = [k for k in open_ if len(rows) == 1 or k[1] == found.call]  # type: ignore[index]
                other = sequences.find(position, same)
            whole = (found.sample, key), found.call, begun
            begun += other is None
            counts[STITCHED] += other is not None and len(rows) == 1
            source = name(found) + (f", sequence {key}" if key else "")
            piece = Piece(
                ids[rows],
                found.where,
                None if weights is None else weights[rows],
                source=source + (f", from token {position} on" if position and found.sample else ""),
                locate=_locate(found, rows, about.layers),
            )
            yield from sequences.add(whole if other is None else other, piece, new=other is None, position=position)
        waits = len(ids) > 1 and found.layers != about.layers
    yield from sequences.finish()
    yield from ((kind, count) for kind, count in counts.items() if count)


def _locate(found: Pass, rows: np.ndarray, layers: tuple[int, ...]) -> Callable[[int, int, int], str] | None:
    place = found.place
    if place is None:
        return None

    def locate(token: int, step: int, slot: int) -> str:
        layer = found.layers.index(layers[step]) if layers[step] in found.layers else 0
        missing = found.num_tokens - len(found.experts[layer])
        return place(max(0, int(rows[token]) - missing), layer, slot)

    return locate


def _parts(found: Pass, count: int) -> Iterator[tuple[str, np.ndarray]]:
    """(name of the sequence, rows of the pass): one part a sequence."""
    every = np.arange(count)
    if found.sequences is not None:
        names = found.sequences[0]
        for name in dict.fromkeys(names.tolist()):
            yield str(name), every[names == name]
        return
    if found.tokens is None:
        yield "", every
        return
    numbers = found.tokens[0]
    seen: Counter[int] = Counter()
    again = np.empty(count, dtype=np.int64)  # which of the tokens of one position a row is
    for row, number in enumerate(numbers.tolist()):
        again[row] = seen[number]
        seen[number] += 1
    for lane in range(int(again.max()) + 1):
        rows = every[again == lane]
        breaks = np.flatnonzero(np.diff(numbers[rows]) != 1) + 1
        for part in np.split(rows, breaks):
            yield str(lane) if again.any() else "", part


def _dense(found: Pass, about: Outline, counts: Counter[str]) -> tuple[np.ndarray, np.ndarray | None]:
    """Ids and weights (t, S, K) of a pass, ``UNRECORDED`` where a token lacks a layer."""
    count, top_k, every = found.num_tokens, about.top_k, about.layers
    missing = [layer for layer in every if layer not in found.layers]
    if missing and (missing != [every[-1]] or count == 1):
        raise _other_layers(found, every)
    ids = np.full((count, len(every), top_k), UNRECORDED, dtype=np.int64)
    weights = None if found.weights is None else np.zeros(ids.shape, dtype=np.float32)
    counts[SHORT] += count if missing else 0
    for place, (layer, rows) in enumerate(zip(found.layers, found.experts, strict=True)):
        if found.varies:
            rows = widened(rows, top_k)
        if rows.shape[1] != top_k:
            raise UserError(
                f"{found.where}: layer {layer} has {rows.shape[1]} experts a token, the log began with {top_k}",
                field="file",
            )
        at = _rows_of(found, place)
        if len(at) < count:
            if layer != every[-1] or not len(at) or at[-1] != count - 1:
                which = "last layer" if layer == found.layers[-1] else f"layer {layer}"
                raise UserError(
                    f"{found.where}: the {which} of this pass has {len(rows)} tokens, the first "
                    f"{len(found.experts[0])}; the log is cut off",
                    field="file",
                )
            counts[SHORT] += count - len(at)
        ids[at, every.index(layer)] = rows
        if weights is not None and found.weights is not None:
            weights[at, every.index(layer)] = widened(found.weights[place], top_k, 0)
    return ids, weights


def _rows_of(found: Pass, place: int) -> np.ndarray:
    """The tokens of the pass that a layer's rows belong to."""
    count, here = found.num_tokens, len(found.experts[place])
    if found.tokens is None:
        # Only a single token can be told to be the last one.
        return np.arange(count - here, count) if here in (1, count) else np.arange(here)
    all_numbers, numbers = found.tokens[0], found.tokens[place]
    if here == count == len(all_numbers):
        if (numbers != all_numbers).any():
            raise UserError(
                f"{found.where}: layer {found.layers[place]} has other tokens than the layer before it", field="file"
            )
        return np.arange(count)
    names = found.sequences
    keys = list(zip(all_numbers.tolist(), names[0].tolist() if names else [0] * len(all_numbers), strict=True))
    index = {key: row for row, key in reversed(list(enumerate(keys)))}
    own = zip(numbers.tolist(), names[place].tolist() if names else [0] * here, strict=True)
    rows = [index.get(key, -1) for key in own]
    if -1 in rows or len(set(rows)) < len(rows):
        raise UserError(
            f"{found.where}: layer {found.layers[place]} has other tokens than the layer before it", field="file"
        )
    return np.array(rows, dtype=np.int64)
