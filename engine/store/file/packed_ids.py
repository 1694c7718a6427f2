"""Ids of long ribbons as numbers of 64 bits, in column ``ids`` of ``token``.

A ribbon of many visits has no column for each: its V ids lie in W words, ``ids_in_word`` of them in each from the
lowest bits on, in the order of visits. DuckDB stores words in as many bits as they have, so an id of 64 modules takes
six.

Shapes: n tokens, S steps, K slots, V = S·K visits, W words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis.compiled.loops import any_ready
from tokenpaths.engine.store.file.schema import WORD_BITS, Layout

ROWS_AT_ONCE = 4096
"""tokens whose words stay in the processor's cache"""
_HALVES = ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF))
"""width in bits of what is joined, and where the lower one of each two lies"""


def pack(ids_nV: np.ndarray, layout: Layout) -> pa.FixedSizeListArray:
    """The words of (n, V) ids as values of column ``ids``."""
    n, per_word, bits = len(ids_nV), layout.ids_in_word, layout.id_bits
    if _are_bytes(layout):
        padded = np.zeros((n, layout.num_words * per_word), dtype=layout.id_dtype)
        padded[:, : layout.visits] = ids_nV
        return pa.FixedSizeListArray.from_arrays(padded.view("<u8").reshape(-1), layout.num_words)
    if _in_eights(layout):
        return pa.FixedSizeListArray.from_arrays(_squeezed(ids_nV, bits).reshape(-1), layout.num_words)
    words = np.zeros((n, layout.num_words), dtype=np.uint64)
    for start in range(0, n, ROWS_AT_ONCE):
        block, ids = words[start : start + ROWS_AT_ONCE], ids_nV[start : start + ROWS_AT_ONCE]
        for place in range(per_word):
            part = ids[:, place::per_word].astype(np.uint64)
            part <<= np.uint64(place * bits)
            block[:, : part.shape[1]] |= part
    return pa.FixedSizeListArray.from_arrays(words.reshape(-1), layout.num_words)


def _squeezed(ids_nV: np.ndarray, bits: int) -> np.ndarray:
    """Words (n, V/8) of (n, V) bytes: of every eight, neighbours are joined to pairs, fours and eights of ``bits``."""
    eights: np.ndarray = np.ascontiguousarray(ids_nV, dtype=np.uint8).view("<u8")
    words: np.ndarray = np.empty(eights.shape, dtype="<u8")
    if (compiled := any_ready()) is not None and eights.flags.aligned:
        compiled.squeeze(eights.reshape(-1), bits, words.reshape(-1))
        return words
    high = np.empty((min(len(words), ROWS_AT_ONCE), words.shape[1]), dtype="<u8")
    for start in range(0, len(words), ROWS_AT_ONCE):
        source, low = eights[start : start + ROWS_AT_ONCE], words[start : start + ROWS_AT_ONCE]
        upper = high[: len(low)]
        for joined, (width, mask) in enumerate(_HALVES):
            np.right_shift(source, np.uint64(width), out=upper)
            upper &= np.uint64(mask)
            upper <<= np.uint64(bits << joined)
            np.bitwise_and(source, np.uint64(mask), out=low)
            low |= upper
            source = low
    return words


def _spread(words_nW: np.ndarray, bits: int) -> np.ndarray:
    """Bytes (n, V): inverse of ``_squeezed``. Halves of a word are moved apart, then their halves, then single ids."""
    ids: np.ndarray = np.empty(words_nW.shape, dtype="<u8")
    upper_room = np.empty((min(len(ids), ROWS_AT_ONCE), ids.shape[1]), dtype="<u8")
    for start in range(0, len(ids), ROWS_AT_ONCE):
        source, low = words_nW[start : start + ROWS_AT_ONCE], ids[start : start + ROWS_AT_ONCE]
        upper = upper_room[: len(low)]
        for joined, width in ((4, 32), (2, 16), (1, 8)):
            mask = sum((1 << joined * bits) - 1 << place for place in range(0, 64, 2 * width))
            np.left_shift(source, np.uint64(width - joined * bits), out=upper)
            upper &= np.uint64(mask << width)
            np.bitwise_and(source, np.uint64(mask), out=low)
            low |= upper
            source = low
    return ids.view(np.uint8)


def unpack(column: Any, layout: Layout) -> np.ndarray:
    """The ids (n, V) of values of column ``ids``, as Arrow, numpy or DuckDB's rows give them. Inverse of ``pack``."""
    words, per_word, bits = _words(column, layout.num_words), layout.ids_in_word, layout.id_bits
    if _are_bytes(layout):
        return np.ascontiguousarray(words).view(layout.id_dtype)[:, : layout.visits]
    if _in_eights(layout):
        return _spread(words, bits)
    ids = np.empty((len(words), layout.num_words, per_word), dtype=layout.id_dtype)
    mask = np.uint64(2**bits - 1)
    for place in range(per_word):
        ids[:, :, place] = (words >> np.uint64(place * bits)) & mask
    return ids.reshape(len(words), layout.num_words * per_word)[:, : layout.visits]


def ids_at(column: Any, layout: Layout, step: int) -> np.ndarray:
    """The ids (n, K) of one step of values of column ``ids``: ``unpack`` of a part."""
    words, per_word, bits = _words(column, layout.num_words), layout.ids_in_word, layout.id_bits
    ids = np.empty((len(words), layout.top_k), dtype=layout.id_dtype)
    for slot in range(layout.top_k):
        word, place = divmod(step * layout.top_k + slot, per_word)
        ids[:, slot] = (words[:, word] >> np.uint64(place * bits)) & np.uint64(2**bits - 1)
    return ids


def _in_eights(layout: Layout) -> bool:
    """Whether a word is eight ids that take a byte each in arrays."""
    return layout.id_dtype.itemsize == 1 and layout.ids_in_word == 8 and layout.visits % 8 == 0


def _are_bytes(layout: Layout) -> bool:
    """Whether the ids of a word are its bytes, or pairs of them."""
    width = 8 * layout.id_dtype.itemsize
    return layout.id_bits == width and layout.ids_in_word * width == WORD_BITS


def _words(column: Any, num_words: int) -> np.ndarray:
    """(n, W) words."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        return np.asarray(column.flatten().to_numpy(zero_copy_only=False), dtype="<u8").reshape(-1, num_words)
    rows: Sequence[Any] = column
    if not len(rows):
        return np.zeros((0, num_words), dtype="<u8")
    if isinstance(rows, np.ndarray) and rows.ndim == 2:
        return rows.astype("<u8", copy=False)
    if isinstance(rows[0], np.ndarray):
        return np.concatenate(list(rows)).astype("<u8", copy=False).reshape(-1, num_words)
    return np.array(list(rows), dtype="<u8").reshape(-1, num_words)


def id_sql(layout: Layout, visit: int | str, column: str = "ids") -> str:
    """SQL of the id of a visit, an integer or an SQL expression of one."""
    per_word, bits = layout.ids_in_word, layout.id_bits
    word, shift = f"({visit}) // {per_word} + 1", f"(({visit}) % {per_word}) * {bits}"
    if isinstance(visit, int):
        word, shift = str(visit // per_word + 1), str(visit % per_word * bits)
    return f"(({column}[{word}] >> {shift}) & {2**bits - 1})::{layout.id_type}"


def chooses_sql(layout: Layout, step: int) -> str:
    """Condition on rows of ``token`` with K placeholders: a module is chosen at ``step`` in any slot."""
    visits = range(step * layout.top_k, (step + 1) * layout.top_k)
    return "(" + " OR ".join(f"{id_sql(layout, visit)} = ?" for visit in visits) + ")"


def ribbon_sql(layout: Layout, column: str) -> str:
    """SQL of the canonical ribbon, a list of ids with those of each step in ascending order."""
    one = id_sql(layout, "visit", column)
    step = f"list_sort(list_transform(range(step * {layout.top_k}, (step + 1) * {layout.top_k}), lambda visit: {one}))"
    return f"flatten(list_transform(range({layout.num_steps}), lambda step: {step}))"
