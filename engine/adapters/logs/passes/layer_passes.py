"""Forward passes that are written layer by layer, as sequences: prompts with the decode steps that follow them.

llama.cpp computes the last layer of a prompt only for tokens whose output is wanted, and for none of a prompt's earlier
parts: these tokens keep that step as unknown. So does a token that has no row at a layer (a dropped one, perhaps),
where tokens are numbered: without numbers a missing row would move those behind it.

Shapes: t tokens of a pass, S layers of the log, K slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.piece import UNRECORDED, Piece, widened
from tokenpaths.engine.adapters.logs.pieces.wording import number_of
from tokenpaths.engine.adapters.logs.routing_log import skipped
from tokenpaths.engine.adapters.logs.sequences import GAPS, MOST_OPEN, Sequences
from tokenpaths.engine.base.errors import UserError

STITCHED = "{n} decode step{s} {are} joined to the sequence before them"
RESTARTED = "{n} decode step{s} whose numbers begin anew {are} joined to the prompt before them"
PASSES = "{n} part{s} of samples, a forward pass each, {are} left out"
SHORT = (
    "{n} token{s} of prompts {are} without the last layer, which was computed only for tokens whose output was wanted"
)
BEGUN_LATE = (
    "{n} sample{s} {are} without the positions before the first token, which the log does not hold: the beginning of a "
    "sequence, or a gap in one, behind which a sample of its own begins"
)
LACKING = "{n} time{s} a token has no row at a layer (it was dropped, perhaps): that step is kept as unknown"


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
    phase: str | None = None
    """prompt or decoding, in the words of the log"""
    place: Callable[[int, int, int], str] | None = None
    """file and line of (token, layer of the pass, slot)"""
    varies: bool = False
    """whether K may differ from that of other passes: slots behind are unused"""
    used: tuple[int, int] | None = None
    """fewest and most experts of a token, where the log tells tokens apart"""

    @property
    def num_tokens(self) -> int:
        """Tokens of the layer that has most."""
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
    """whether some tokens lack a layer"""
    restarts: bool = False
    """whether the numbers of decode steps begin anew behind a prompt"""
    used: frozenset[int] = frozenset()
    """fewest and most experts of a token of each pass, where the log tells tokens apart"""


@dataclass(frozen=True)
class _Tokens:
    """The tokens of a pass, those included that lack some layer."""

    count: int
    numbers: np.ndarray | None
    """(t,)"""
    names: np.ndarray | None
    """(t,) of their sequences"""
    of_layer: list[np.ndarray]
    """which of them each layer's rows belong to"""


def outline(passes: Iterable[Pass | BadPass], empty: str, skip_bad: bool = False) -> Outline:
    """Read all passes once.

    Raises:
        UserError: there is none that can be read, or the last one is cut off (unless ``skip_bad``).
    """
    layers: set[int] = set()
    first = last = problem = None
    partial, top_k, restarts, used = False, 0, _Restarts(), set[int]()
    for found in passes:
        if isinstance(found, BadPass):
            problem = problem or found.reason
            continue
        try:
            restarts.look_at(found)
        except UserError as error:
            if not skip_bad:
                raise
            problem = problem or str(error)  # as a pass that ``stitched`` leaves out
            continue
        first = first or found
        top_k = max(top_k, found.experts[0].shape[1]) if found.varies else top_k or found.experts[0].shape[1]
        layers.update(found.layers)
        partial = partial or found.layers != first.layers or _is_ragged(found)
        used.update(found.used or ())
        last = found
    if first is None or last is None:
        raise UserError(problem or empty, field="file")
    every = tuple(sorted(layers))
    if not skip_bad:
        _check_layers(last, every, last=True)
    return Outline(every, top_k, partial, restarts.found, frozenset(used))


def _is_ragged(found: Pass) -> bool:
    """Whether some token of a pass lacks one of its layers."""
    if found.tokens is None:
        return len({len(rows) for rows in found.experts}) > 1
    first = found.tokens[0]
    return any(len(numbers) != len(first) or bool((numbers != first).any()) for numbers in found.tokens[1:])


_RESTARTS = (0, 1)
"""numbers of a first decode step that is not numbered behind its prompt"""


class _Restarts:
    """Whether single tokens behind a prompt are numbered from 0 again, and none ever goes on from the prompt.

    A prompt of one token looks the same, unless the log says the phase; engines hardly ever see one.
    """

    def __init__(self) -> None:
        self._prompts: dict[tuple[tuple[str, ...], str], tuple[int, str | None]] = {}
        """the last number of the prompt that each sequence has just read, and its phase"""
        self._go_on = self._restart = False

    @property
    def found(self) -> bool:
        return self._restart and not self._go_on

    def look_at(self, found: Pass) -> None:
        if self._go_on or found.tokens is None:
            return
        tokens = _tokens(found)
        assert tokens.numbers is not None, "numbered"
        for name, rows in _parts(tokens):
            number = int(tokens.numbers[rows[-1]])
            if len(rows) > 1:
                self._prompts[found.sample, name] = number, found.phase
                if len(self._prompts) > MOST_OPEN:
                    del self._prompts[next(iter(self._prompts))]
            elif (prompt := self._prompts.pop((found.sample, name), None)) is not None:
                self._go_on |= number == prompt[0] + 1
                self._restart |= number in _RESTARTS and (found.phase is None or found.phase != prompt[1])


def _check_layers(found: Pass, every: tuple[int, ...], *, last: bool) -> None:
    """UserError if a pass lacks layers of the log otherwise than a prompt or a token that was dropped.

    ``last``: of the log, which may be cut off.
    """
    missing = [layer for layer in every if layer not in found.layers]
    if missing == [every[-1]]:
        wrong = last or (found.num_tokens == 1 and found.tokens is None)
    else:
        wrong = bool(missing) and (found.tokens is None or found.layers[-1] != every[-1])
    if wrong:
        raise _other_layers(found, every)


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
    late = Counter[int]()
    """positions at which samples begin that go on from nothing in the log"""
    began_in: dict[Hashable, str | None] = {}
    """phase in which each sequence began, where numbers of decode steps begin anew"""
    anew: dict[Hashable, int] = {}
    """sequence whose decode steps are numbered anew → the last number"""
    waits = False
    """the last pass was a part of a prompt without any output"""
    for found, last in _marked(passes):
        if isinstance(found, BadPass):
            yield skipped(found.reason, PASSES), 1
            continue
        try:
            tokens = _tokens(found)
            ids, weights = _dense(found, tokens, about, counts, last=last)
        except UserError as error:
            if not skip_bad:
                raise
            yield skipped(str(error), PASSES), 1
            continue
        for key, rows in _parts(tokens):
            position = None if tokens.numbers is None else int(tokens.numbers[rows[0]])
            open_: list[Hashable] = [k for k in sequences.keys if k[0] == (found.sample, key)]  # type: ignore[index]
            single, restarts = len(rows) == 1, False
            if position is None:
                other = open_[-1] if open_ and (single or waits) else None
            else:
                if single and about.restarts and open_:
                    before = anew.get(open_[-1])
                    follows = position in _RESTARTS if before is None else position - before in (0, 1)
                    restarts = follows and (found.phase is None or found.phase != began_in.get(open_[-1]))
                same = [k for k in open_ if single or k[1] == found.call]  # type: ignore[index]
                other = open_[-1] if restarts else sequences.find(position, same)
            whole = (found.sample, key), found.call, begun
            sequence = whole if other is None else other
            begun += other is None
            counts[RESTARTED if restarts else STITCHED] += other is not None and single
            if position is not None and other is None and not found.sample:
                late[position] += sequences.find(position, sequences.keys) is None
            if tokens.names is not None and tokens.numbers is not None:
                counts[GAPS] += int(np.maximum(np.diff(tokens.numbers[rows]) - 1, 0).sum())
            if other is None and about.restarts:
                began_in[sequence] = found.phase
            if restarts and position is not None:
                anew[sequence], position = position, None
            source = name(found) + (f", sequence {key}" if key else "")
            piece = Piece(
                ids[rows],
                found.where,
                None if weights is None else weights[rows],
                source=source + (f", from token {position} on" if position and found.sample else ""),
                locate=_locate(found, rows, about.layers, tokens),
            )
            yield from sequences.add(sequence, piece, new=other is None, position=position)
        waits = len(ids) > 1 and found.layers != about.layers
    yield from sequences.finish()
    counts[BEGUN_LATE] = sum(count for position, count in late.items() if position > (min(late) == 1))
    yield from ((kind, count) for kind, count in counts.items() if count)


def _marked(passes: Iterable[Pass | BadPass]) -> Iterator[tuple[Pass | BadPass, bool]]:
    """Each pass, and whether it is the last one."""
    held = None
    for found in passes:
        if held is not None:
            yield held, False
        held = found
    if held is not None:
        yield held, True


def _locate(
    found: Pass, rows: np.ndarray, layers: tuple[int, ...], tokens: _Tokens
) -> Callable[[int, int, int], str] | None:
    place = found.place
    if place is None:
        return None

    def locate(token: int, step: int, slot: int) -> str:
        layer = found.layers.index(layers[step]) if layers[step] in found.layers else 0
        here = np.flatnonzero(tokens.of_layer[layer] == rows[token])
        return place(int(here[0]) if len(here) else 0, layer, slot)

    return locate


def _parts(tokens: _Tokens) -> Iterator[tuple[str, np.ndarray]]:
    """(name of the sequence, tokens of the pass): one part a sequence."""
    every = np.arange(tokens.count)
    if tokens.names is not None:
        for name in dict.fromkeys(tokens.names.tolist()):
            yield str(name), every[tokens.names == name]
        return
    if tokens.numbers is None:
        yield "", every
        return
    numbers = tokens.numbers
    seen: Counter[int] = Counter()
    again = np.empty(tokens.count, dtype=np.int64)  # which of the tokens of one position a row is
    for row, number in enumerate(numbers.tolist()):
        again[row] = seen[number]
        seen[number] += 1
    for lane in range(int(again.max()) + 1):
        rows = every[again == lane]
        breaks = np.flatnonzero(np.diff(numbers[rows]) != 1) + 1
        for part in np.split(rows, breaks):
            yield str(lane) if again.any() else "", part


def _dense(
    found: Pass, tokens: _Tokens, about: Outline, counts: Counter[str], *, last: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Ids and weights (t, S, K) of a pass, ``UNRECORDED`` where a token lacks a layer."""
    count, top_k, every = tokens.count, about.top_k, about.layers
    _check_layers(found, every, last=last)
    missing = len(every) - len(found.layers)
    counts[SHORT if missing == 1 < count and found.layers[-1] != every[-1] else LACKING] += missing * count
    ids = np.full((count, len(every), top_k), UNRECORDED, dtype=np.int64)
    weights = None if found.weights is None else np.zeros(ids.shape, dtype=np.float32)
    for place, (layer, rows) in enumerate(zip(found.layers, found.experts, strict=True)):
        if found.varies:
            rows = widened(rows, top_k)
        if rows.shape[1] != top_k:
            raise UserError(
                f"{found.where}: layer {layer} has {number_of(rows.shape[1], 'expert')} a token, the log began "
                f"with {top_k}; the log is cut off, or k varies: say --top-k, the most experts of a token",
                field="file",
            )
        at = tokens.of_layer[place]
        if len(at) < count:
            _check_short(found, place, at, count, every, last=last)
            behind = layer == every[-1] and int(at.min()) == count - len(at)
            counts[SHORT if behind else LACKING] += count - len(at)
        ids[at, every.index(layer)] = rows
        if weights is not None and found.weights is not None:
            weights[at, every.index(layer)] = widened(found.weights[place], top_k, 0)
    return ids, weights


def _check_short(found: Pass, place: int, at: np.ndarray, count: int, every: tuple[int, ...], *, last: bool) -> None:
    """UserError if a layer lacks tokens because the log is cut off, or nobody can tell which ones it lacks."""
    numbered, ends = found.tokens is not None, int(at.max()) == count - 1
    if (found.layers[place] == every[-1] and ends) or (numbered and not (last and place == len(found.layers) - 1)):
        return
    which = "last layer" if place == len(found.layers) - 1 else f"layer {found.layers[place]}"
    longer = "the first" if len(found.experts[0]) == count else "others have"
    raise UserError(
        f"{found.where}: the {which} of this pass has {number_of(len(at), 'token')}, {longer} {count}; the log "
        + "is cut off"
        + ("" if numbered else ", or tokens were dropped, which only a column 'token' can tell"),
        field="file",
    )


def _tokens(found: Pass) -> _Tokens:
    """The tokens of a pass, and which of them each layer has."""
    sizes = [len(rows) for rows in found.experts]
    count = max(sizes)
    every = np.arange(count)
    if found.tokens is None:
        # Only a single token can be told to be the last one.
        rows = [every[count - here :] if here == 1 else every[:here] for here in sizes]
        return _Tokens(count, None, None, rows)
    longest = sizes.index(count)
    numbers = found.tokens[longest]
    names = None if found.sequences is None else found.sequences[longest]
    whole = [
        len(own) == count
        and not (own != numbers).any()
        and (names is None or found.sequences is None or not (found.sequences[place] != names).any())
        for place, own in enumerate(found.tokens)
    ]
    if all(whole):
        return _Tokens(count, numbers, names, [every] * len(whole))
    keys = [_keys(found, place) for place in range(len(whole))]
    for place, own in enumerate(keys):
        if len(set(own)) < len(own):
            raise UserError(
                f"{found.where}: layer {found.layers[place]} has a token twice, or other tokens than the layers around "
                "it; did sequences run in parallel, without a column 'seq' that tells them apart?",
                field="file",
            )
    index = {key: row for row, key in enumerate(keys[longest])}
    if any(key not in index for own in keys for key in own):
        # No layer has all tokens: each sequence in the order of its numbers.
        order = {name: place for place, (name, _) in enumerate(dict.fromkeys(key for own in keys for key in own))}
        every_key = sorted(set().union(*keys), key=lambda key: (order[key[0]], key[1]))
        index = {key: row for row, key in enumerate(every_key)}
        numbers = np.array([number for _, number in every_key], dtype=np.int64)
        names = None if names is None else np.array([name for name, _ in every_key], dtype=object)
    rows = [np.array([index[key] for key in own], dtype=np.int64) for own in keys]
    return _Tokens(len(index), numbers, names, rows)


def _keys(found: Pass, place: int) -> list[tuple[str, int]]:
    """(sequence, number) of the tokens of a layer."""
    assert found.tokens is not None, "numbered"
    numbers = found.tokens[place].tolist()
    names = [""] * len(numbers) if found.sequences is None else map(str, found.sequences[place].tolist())
    return list(zip(names, numbers, strict=True))
