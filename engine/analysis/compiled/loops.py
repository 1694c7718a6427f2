"""Compiled loops for runs of several hundred thousand tokens: sorted slots, hashes, packed ids, flows, visits, numbers
of paths by hash, distinct paths of samples, sums by label.

They need numba (``pip install tokenpaths[fast]``). Without it, below ``LEAST_TOKENS``, and wherever compiling fails,
their twins in numpy do the same work: ``path_statistics.sorted_slots`` and ``word_hashes``, ``packed_ids.pack``,
``layer_patterns.LayerSets``, ``while_writing.EvenFlows`` and ``Visits``, ``path_dictionary.HashIndex``,
``arrow_tables.distinct_paths`` and ``compact``. Both give the same numbers, so a run may go from one to the other
between two batches.

The functions are plain Python until ``loops`` compiles them, once a process: half a second if numba can keep machine
code in a folder (``__pycache__`` here, or the user's cache), three seconds each time if it cannot.

Shapes: n tokens, S steps, K slots, M modules, B samples, P distinct paths.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np

from tokenpaths.engine.analysis.compiled.lanes import (
    LANE_BITS,
    LANES,
    ROWS_OF_EIGHT,
    add_bits,
    lowest_bit,
    sort_rows,
    teach,
)

_Made = TypeVar("_Made")
LEAST_TOKENS = 262_144
"""tokens of a run from which on compiling pays"""
BLOCK_TOKENS, MOST_BLOCKS = 255, 257
"""tokens whose links are counted in one byte each, and how many such blocks in two"""
SORTED, TOO_LARGE, TWICE = 0, 1, 2
"""outcomes of ``sort_slots``"""


@dataclass(frozen=True)
class Loops:
    """The functions below, compiled for one type of ids."""

    sort_slots: Callable[..., int]
    sort_eights: Callable[..., int]
    hash_words: Callable[..., None]
    sum_sets: Callable[..., None]
    squeeze: Callable[..., None]
    count_links: Callable[..., None]
    count_visits: Callable[..., None]
    count_chains: Callable[..., None]
    sum_known: Callable[..., None]
    count_distinct: Callable[..., None]
    enter: Callable[..., int]
    refill: Callable[..., None]


def sort_slots(rows: np.ndarray, ordered: np.ndarray) -> int:
    """Sort the ids of each of ``rows`` (n, K) into ``ordered``: a row is a set of 64 bits, which come out in order.

    Returns ``SORTED``, or what it met first, and left undone: an id above 63, or a row that holds an id twice.
    """
    num_rows, top_k = rows.shape
    every = np.uint64(0)
    for value in rows.reshape(-1):
        every |= np.uint64(value)
    if every > 63:
        return TOO_LARGE
    one = np.uint64(1)
    for i in range(num_rows):
        left = np.uint64(0)
        for slot in range(top_k):
            left |= one << np.uint64(rows[i, slot])
        for slot in range(top_k - 1):
            ordered[i, slot] = lowest_bit(left)
            left &= left - one
        if not left:
            return TWICE
        ordered[i, top_k - 1] = lowest_bit(left)
    return SORTED


def sort_eights(rows: np.ndarray, ordered: np.ndarray) -> int:
    """``sort_slots`` of rows (n,) of eight bytes, each a number of 64 bits; of any ids, and several times as fast.

    Returns ``SORTED``, or ``TWICE`` if a row holds an id twice.
    """
    whole = len(rows) - len(rows) % ROWS_OF_EIGHT
    twice = False
    for first in range(0, whole, ROWS_OF_EIGHT):
        twice |= sort_rows(rows, np.uint64(first), ordered)
    if whole < len(rows):
        last, last_ordered = np.zeros(ROWS_OF_EIGHT, np.uint64), np.zeros(ROWS_OF_EIGHT, np.uint64)
        last[:] = np.uint64(0x0706050403020100)  # rows that hold nothing twice behind the last ones
        last[: len(rows) - whole] = rows[whole:]
        twice |= sort_rows(last, np.uint64(0), last_ordered)
        ordered[whole:] = last_ordered[: len(rows) - whole]
    return TWICE if twice else SORTED


def hash_words(words: np.ndarray, hashes: np.ndarray) -> None:
    """``path_statistics.word_hashes`` of rows of ``words`` (n, W), in ``hashes`` (n,)."""
    for i in range(len(words)):
        value = np.uint64(0x9E3779B97F4A7C15)
        for word in words[i]:
            value = (value ^ word) * np.uint64(0xBF58476D1CE4E5B9)
            value ^= value >> np.uint64(29)
        value *= np.uint64(0x94D049BB133111EB)
        hashes[i] = value ^ (value >> np.uint64(32))


def sum_sets(rows: np.ndarray, places: np.ndarray, layers: np.ndarray, sums: np.ndarray, tokens: np.ndarray) -> None:
    """Add hashes ``rows`` (t, S), times ``places`` (t,) of their tokens, to ``sums`` (S,); ``tokens`` (t,) become their
    sums over ``layers`` (S,)."""
    num_layers = rows.shape[1]
    for token in range(len(rows)):
        total = np.uint64(0)
        for layer in range(num_layers):
            total += rows[token, layer] * layers[layer]
            sums[layer] += rows[token, layer] * places[token]
        tokens[token] = total


def squeeze(eights: np.ndarray, bits: int, words: np.ndarray) -> None:
    """Join the ids in every eight bytes of ``eights`` (w,) to one of ``words`` (w,), with ``bits`` for each."""
    gap = np.uint64(8 - bits)
    twice, fourfold = gap + gap, gap + gap + gap + gap
    for i in range(len(eights)):
        word = eights[i]
        word = (word & np.uint64(0x00FF00FF00FF00FF)) | ((word & np.uint64(0xFF00FF00FF00FF00)) >> gap)
        word = (word & np.uint64(0x0000FFFF0000FFFF)) | ((word & np.uint64(0xFFFF0000FFFF0000)) >> twice)
        words[i] = (word & np.uint64(0x00000000FFFFFFFF)) | ((word & np.uint64(0xFFFFFFFF00000000)) >> fourfold)


def count_links(ids: np.ndarray, links: np.ndarray) -> None:
    """Add the K² pairs of modules that each token of ``ids`` (n, S, K) links to ``links`` (S − 1, M, M).

    A step's ids are distinct. Targets of a token are 64 bits, which are added to the rows of its sources.
    """
    num_tokens, num_steps, top_k = ids.shape
    size = links.shape[1]
    strips = (size + LANES - 1) // LANES
    counts = np.zeros((size, LANES), np.uint8)
    sums = np.zeros((num_steps - 1, strips, size, LANES), np.uint16)
    one = np.uint64(1)
    for begin in range(0, num_tokens, MOST_BLOCKS * BLOCK_TOKENS):
        stop = min(num_tokens, begin + MOST_BLOCKS * BLOCK_TOKENS)
        sums[:] = 0
        for first in range(begin, stop, BLOCK_TOKENS):
            block = ids[first : min(first + BLOCK_TOKENS, stop)]
            for step in range(num_steps - 1):
                for strip in range(strips):
                    counts[:] = 0
                    for token in range(len(block)):
                        targets = np.uint64(0)
                        for slot in range(top_k):
                            target = np.uint64(block[token, step + 1, slot])
                            if target >> np.uint64(LANE_BITS) == np.uint64(strip):
                                targets |= one << (target & np.uint64(LANES - 1))
                        for slot in range(top_k):
                            add_bits(counts, np.uint64(block[token, step, slot]), targets)
                    into, added = sums[step, strip].reshape(-1), counts.reshape(-1)
                    for cell in range(len(into)):
                        into[cell] += added[cell]
        for step in range(num_steps - 1):
            for strip in range(strips):
                for source in range(size):
                    row = links[step, source, strip * LANES : (strip + 1) * LANES]
                    for lane in range(len(row)):
                        row[lane] += sums[step, strip, source, lane]


def count_visits(ids: np.ndarray, sample_n: np.ndarray, visits: np.ndarray) -> None:
    """Add the visits of tokens ``ids`` (n, S, K) of the samples ``sample_n`` (n,) to ``visits`` (B, S, M)."""
    num_tokens, num_steps, top_k = ids.shape
    for token in range(num_tokens):
        for step in range(num_steps):
            row = visits[sample_n[token], step]
            for slot in range(top_k):
                row[ids[token, step, slot]] += 1


def count_chains(
    ids: np.ndarray,
    weights: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    stop: int,
    links: np.ndarray,
    tokens: np.ndarray,
    levels: np.ndarray,
) -> None:
    """Add the visits of tokens ``ids`` (n, S) with 8-bit ``weights`` (n, S) to ``tokens`` (S, M) and ``levels`` (S, M),
    and the pairs of ids below ``stop`` that follow each other to ``links`` (S − 1, M, M); of the tokens from each of
    ``begins`` (b,) up to ``ends`` (b,) alone."""
    num_steps = ids.shape[1]
    for part in range(len(begins)):
        for token in range(begins[part], ends[part]):
            before = stop
            for step in range(num_steps):
                module = ids[token, step]
                tokens[step, module] += 1
                levels[step, module] += weights[token, step]
                if before < stop and module < stop:
                    links[step - 1, before, module] += 1
                before = module


def sum_known(values: np.ndarray, groups: np.ndarray, sums: np.ndarray) -> None:
    """Add how many of ``values`` (n, S) are known, and these, to ``sums`` (G, 2, S), by the group (n,) of each row."""
    for i in range(len(values)):
        into = sums[groups[i]]
        for step in range(values.shape[1]):
            value = np.float64(values[i, step])
            if value == value:
                into[0, step] += 1.0
                into[1, step] += value


def count_distinct(
    path_ids: np.ndarray, lengths: np.ndarray, keys: np.ndarray, owners: np.ndarray, distinct: np.ndarray
) -> None:
    """The number of distinct ``path_ids`` (n,) of each of the consecutive samples of ``lengths`` (B,), in ``distinct``.

    ``keys`` and ``owners``: room of a power of two, more than the longest sample has tokens; ``owners`` hold −1.
    """
    mask = np.uint64(len(keys) - 1)
    first = 0
    for sample in range(len(lengths)):
        count = 0
        for token in range(first, first + lengths[sample]):
            path = path_ids[token]
            place = ((np.uint64(path) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
            while owners[place] == sample and keys[place] != path:
                place = (place + np.uint64(1)) & mask
            if owners[place] != sample:
                owners[place] = sample
                keys[place] = path
                count += 1
        distinct[sample] = count
        first += lengths[sample]


def enter(slots: np.ndarray, known: np.ndarray, hashes: np.ndarray, first: int, numbers: np.ndarray) -> int:
    """Number hashes (n,) in ``numbers`` (n,): those in the table as before, others from ``first`` on; returns how many.

    Args:
        slots: numbers, −1 where free; a power of two, more than there are hashes.
        known: the hash of each number, with room for n more.
    """
    mask = np.uint64(len(slots) - 1)
    new = 0
    for i in range(len(hashes)):
        place = hashes[i] & mask
        while True:
            number = slots[place]
            if number < 0:
                number = first + new
                slots[place] = number
                known[number] = hashes[i]
                new += 1
                break
            if known[number] == hashes[i]:
                break
            place = (place + np.uint64(1)) & mask
        numbers[i] = number
    return new


def refill(slots: np.ndarray, known: np.ndarray, numbers: np.ndarray) -> None:
    """Put ``numbers`` of distinct hashes into free ``slots``; those below 0 are skipped."""
    mask = np.uint64(len(slots) - 1)
    for i in range(len(numbers)):
        number = numbers[i]
        if number >= 0:
            place = known[number] & mask
            while slots[place] >= 0:
                place = (place + np.uint64(1)) & mask
            slots[place] = number


def loops(id_dtype: np.dtype[Any], num_tokens: int) -> Loops | None:
    """The loops for a run with so many tokens so far; None if it is small and nobody has compiled them, or where they
    cannot be compiled."""
    if num_tokens < LEAST_TOKENS:
        return ready(id_dtype)
    if id_dtype not in _READY:
        _READY[id_dtype] = _compiled(id_dtype)
    return _READY[id_dtype]


def ready(id_dtype: np.dtype[Any]) -> Loops | None:
    """The loops, if this process has compiled them for such ids."""
    return _READY.get(id_dtype)


def any_ready() -> Loops | None:
    """The loops for whatever ids this process has compiled them, where no ids are given."""
    return next((made for made in _READY.values() if made is not None), None)


_READY: dict[np.dtype[Any], Loops | None] = {}


def made_with(compile_all: Callable[[], _Made]) -> _Made | None:
    """What ``compile_all`` makes with numba; None without it, and where compiling fails."""
    # Interpreted, as numba's own switch makes them, the loops would take hours.
    if find_spec("numba") is None or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return None
    # An installation that does not fit (another numpy, say), a broken cache: the import does not depend on it.
    with contextlib.suppress(Exception):
        return compile_all()
    return None


def machine_code(function: Callable[..., Any], *signatures: Any, **options: Any) -> Callable[..., Any]:
    """``function``, compiled for arguments of some ``signatures``; ``options`` are those of ``numba.njit``."""
    import numba

    plain = inspect.unwrap(function)
    try:
        made: Callable[..., Any] = numba.njit(list(signatures), cache=True, **options)(plain)
    except RuntimeError:  # no folder for machine code
        made = numba.njit(list(signatures), **options)(plain)
    return made


def _compiled(id_dtype: np.dtype[Any]) -> Loops | None:
    return made_with(partial(_compile, id_dtype))


def _compile(id_dtype: np.dtype[Any]) -> Loops:
    from numba import types

    teach()

    def given(kind: Any, dims: int) -> Any:
        return types.Array(kind, dims, "C", readonly=True)

    def filled(kind: Any, dims: int) -> Any:
        return types.Array(kind, dims, "C")

    id_type = types.uint8 if id_dtype.itemsize == 1 else types.uint16
    ids = given(id_type, 3)
    i4, i8, u8 = types.int32, types.int64, types.uint64
    signatures: dict[Callable[..., Any], Any] = {
        sort_slots: types.int64(given(id_type, 2), filled(id_type, 2)),
        sort_eights: types.int64(given(u8, 1), filled(u8, 1)),
        hash_words: types.void(given(u8, 2), filled(u8, 1)),
        sum_sets: types.void(given(u8, 2), given(u8, 1), given(u8, 1), filled(u8, 1), filled(u8, 1)),
        squeeze: types.void(given(u8, 1), i8, filled(u8, 1)),
        count_links: types.void(ids, filled(i8, 3)),
        count_visits: types.void(ids, given(i8, 1), filled(i8, 3)),
        count_chains: types.void(
            given(id_type, 2),
            given(types.uint8, 2),
            given(i8, 1),
            given(i8, 1),
            i8,
            filled(i8, 3),
            filled(i8, 2),
            filled(i8, 2),
        ),
        sum_known: types.void(given(types.float32, 2), given(i8, 1), filled(types.float64, 3)),
        count_distinct: types.void(given(i4, 1), given(i8, 1), filled(i4, 1), filled(i4, 1), filled(i4, 1)),
        enter: i8(filled(i4, 1), filled(u8, 1), given(u8, 1), i8, filled(i4, 1)),
        refill: types.void(filled(i4, 1), filled(u8, 1), given(i4, 1)),
    }

    return Loops(**{function.__name__: machine_code(function, signature) for function, signature in signatures.items()})
