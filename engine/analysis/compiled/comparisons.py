"""Compiled loops that compare one sample with all others, and one ribbon with all others, of large runs.

Their twins in numpy, ``Page.shared`` and ``DistancesInPlanes``, do the same work wherever nothing is compiled: the same
numbers of ids, and sums of roots that differ by rounding alone, which no answer shows.

Answers do not wait for them: to import numba and to load machine code takes a second, to compile three. A question that
could use them says so, and whoever has time for it, as a server between questions, calls ``compile_if_wanted``.

Shapes: n samples, D numbers of a profile, V = S·K visits, B bits of an id, W words of 64 paths, C bits of a count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenpaths.engine.analysis.compiled.lanes import count_ones, teach
from tokenpaths.engine.analysis.compiled.loops import machine_code, made_with

LEAST_BYTES = 1 << 18
"""bytes of a page from which on compiling pays: those of runs of many samples, or many paths"""
BLOCK_WORDS = 512
"""words of each array that are looked at together, so that they stay in the processor's cache"""


@dataclass(frozen=True)
class Comparisons:
    """The functions below, compiled."""

    sum_roots: Callable[..., None]
    count_shared: Callable[..., None]


def sum_roots(counts: np.ndarray, own: np.ndarray, sums: np.ndarray) -> None:
    """Sums of √``counts`` (n, D) · ``own`` (D,) in ``sums`` (n,) float64; roots of single precision, in any order."""
    num_rows, width = counts.shape
    for i in range(num_rows):
        total = 0.0
        for d in range(width):
            total += np.float64(np.sqrt(np.float32(counts[i, d]))) * np.float64(own[d])
        sums[i] = total


def count_shared(
    planes: np.ndarray, own: np.ndarray, num_paths: int, shared: np.ndarray, paths_in_words: np.ndarray
) -> None:
    """How many ids each path of ``planes`` (V, B, W) shares with ``own`` (S, K); one that it has twice at a step, once.

    Args:
        planes: the paths, 64 a word.
        own: a ribbon.
        num_paths: how many paths there are; the last words may not be full.
        shared: (C, W), becomes that number of each path, bit by bit.
        paths_in_words: (V + 1, W) uint8, becomes the number of paths of each word at each distance.
    """
    num_bits, width = planes.shape[1], planes.shape[2]
    num_steps, top_k = own.shape
    nothing, one = np.uint64(0), np.uint64(1)
    every = ~nothing
    here, found = np.empty(BLOCK_WORDS, np.uint64), np.empty(BLOCK_WORDS, np.uint64)
    for start in range(0, width, BLOCK_WORDS):
        size = min(BLOCK_WORDS, width - start)
        shared[:, start : start + size] = nothing
        for step, slot in np.ndindex(num_steps, top_k):
            module = own[step, slot]
            if module >> num_bits:  # no path has it
                continue
            found[:] = nothing
            for visit in range(step * top_k, (step + 1) * top_k):
                here[:] = every
                for bit in range(num_bits):
                    plane, flip = planes[visit, bit, start : start + size], nothing if module >> bit & 1 else every
                    for w in range(size):
                        here[w] &= plane[w] ^ flip
                for w in range(size):
                    found[w] |= here[w]
            for bit in range(len(shared)):
                row = shared[bit, start : start + size]
                for w in range(size):
                    held = row[w]
                    row[w] = held ^ found[w]
                    found[w] &= held
        for distance in range(num_steps * top_k + 1):
            here[:] = every
            for bit in range(len(shared)):
                row = shared[bit, start : start + size]
                flip = nothing if (num_steps * top_k - distance) >> bit & 1 else every
                for w in range(size):
                    here[w] &= row[w] ^ flip
            for w in range(max(0, num_paths // 64 - start), size):  # words that are not full
                filled = max(0, num_paths - 64 * (start + w))
                here[w] &= (one << np.uint64(filled)) - one
            into = paths_in_words[distance, start : start + size]
            for w in range(size):
                into[w] = count_ones(here[w])


def ready(num_bytes: int) -> Comparisons | None:
    """The loops, if this process has compiled them; otherwise they are wanted from now on, for pages of many bytes."""
    global _wanted
    _wanted |= num_bytes >= LEAST_BYTES
    return _made[0] if _made else None


def compile_if_wanted() -> bool:
    """Compile the loops, once a process, if any question could have used them; whether they were compiled just now."""
    if not _wanted or _made:
        return False
    _made.append(made_with(_compile))
    return _made[0] is not None


_wanted = False
_made: list[Comparisons | None] = []
"""the loops; empty before they are compiled, None where that is impossible"""


def _compile() -> Comparisons:
    from numba import types

    teach()
    f4, f8, i8, u1, u2, u8 = types.float32, types.float64, types.int64, types.uint8, types.uint16, types.uint64

    def given(kind: Any, dims: int) -> Any:
        return types.Array(kind, dims, "C", readonly=True)

    def filled(kind: Any, dims: int) -> Any:
        return types.Array(kind, dims, "C")

    roots = [types.void(given(count, 2), given(f4, 1), filled(f8, 1)) for count in (u1, u2)]
    shared = types.void(given(u8, 3), given(i8, 2), i8, filled(u8, 2), filled(u1, 2))
    return Comparisons(
        # Several sums at once, as vectors need it: the order in which roots are added up is left open.
        machine_code(sum_roots, *roots, nogil=True, fastmath={"reassoc", "contract"}),
        machine_code(count_shared, shared, nogil=True),
    )
