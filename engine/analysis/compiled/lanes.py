"""What compiled loops do with few instructions: sums of 64 bytes, sorted rows of eight, the place of the lowest bit and
the number of ones of 64 bits.

LLVM does not find them out by itself: rows of one array might overlap, and numba knows no such functions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

LANE_BITS = 6
LANES = 1 << LANE_BITS
"""bytes of a row"""
ROWS_OF_EIGHT = LANES // 8
_STAGES = (
    ((0, 1), (2, 3), (4, 5), (6, 7)),
    ((0, 2), (1, 3), (4, 6), (5, 7)),
    ((1, 2), (5, 6)),
    ((0, 4), (1, 5), (2, 6), (3, 7)),
    ((2, 4), (3, 5)),
    ((1, 2), (3, 4), (5, 6)),
)
"""places among eight that are compared and exchanged at a time, so that all are in order in the end (Batcher's
odd-even merge sort)"""


def add_bits(rows: np.ndarray, row: Any, bits: Any) -> None:
    """Add each of 64 ``bits``, from the lowest on, to its byte of ``rows[row]``; ``rows`` (n, 64) uint8.

    Compiled loops that call it get ``teach``'s version.
    """
    rows[row] += np.unpackbits(np.array([bits], dtype="<u8").view(np.uint8), bitorder="little")


def lowest_bit(bits: Any) -> int:
    """The place, from 0 on, of the lowest one among 64 ``bits``; 64 if there is none.

    Compiled loops that call it get ``teach``'s version.
    """
    value = int(bits)
    return (value & -value).bit_length() - 1 if value else 64


def count_ones(bits: Any) -> int:
    """How many of 64 ``bits`` are ones.

    Compiled loops that call it get ``teach``'s version.
    """
    return int(bits).bit_count()


def sort_rows(rows: np.ndarray, first: Any, ordered: np.ndarray) -> bool:
    """Sort the eight bytes of each of ``ROWS_OF_EIGHT`` of ``rows`` (n,) uint64 from ``first`` on into ``ordered``.

    Returns whether one of them holds a byte twice. Compiled loops that call it get ``teach``'s version.
    """
    part = slice(int(first), int(first) + ROWS_OF_EIGHT)
    values = np.sort(rows[part].view(np.uint8).reshape(-1, 8), axis=1)
    ordered[part] = values.reshape(-1).view(rows.dtype)
    return bool((values[:, 1:] == values[:, :-1]).any())


@cache
def teach() -> None:
    """Tell numba, once a process, how to compile the functions above, with the vectors that the processor has."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic, overload

    def vector_sum(typing: Any, rows: Any, row: Any, bits: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            bytes_64, bits_64 = (ir.VectorType(ir.IntType(width), LANES) for width in (8, 1))
            array = context.make_array(signature.args[0])(context, builder, given[0])
            place = builder.gep(builder.bitcast(array.data, bytes_64.as_pointer()), [given[1]])
            before = builder.load(place)
            before.align = 1
            after = builder.add(before, builder.zext(builder.bitcast(given[2], bits_64), bytes_64))
            builder.store(after, place).align = 1
            return context.get_dummy_value()

        return types.void(rows, types.uint64, types.uint64), code

    def vector_sort(typing: Any, rows: Any, first: Any, ordered: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            byte, place_type = ir.IntType(8), ir.IntType(32)
            bytes_64 = ir.VectorType(byte, LANES)

            def at(number: int) -> Any:
                data = context.make_array(signature.args[number])(context, builder, given[number]).data
                return builder.bitcast(builder.gep(data, [given[1]]), bytes_64.as_pointer())

            def shuffled(values: Any, others: Any, of_eight: list[int]) -> Any:
                # Bytes move within their row alone, which every processor with vectors does in one instruction.
                places = [
                    lane - lane % 8 + of_eight[lane % 8] % 8 + LANES * (of_eight[lane % 8] // 8) for lane in all_64
                ]
                return builder.shuffle_vector(values, others, ir.Constant(ir.VectorType(place_type, LANES), places))

            all_64 = range(LANES)
            values = builder.load(at(0))
            values.align = 8
            for pairs in _STAGES:
                partner = list(range(8))
                for low, high in pairs:
                    partner[low], partner[high] = high, low
                others = shuffled(values, values, partner)
                below = builder.icmp_unsigned("<", values, others)
                smaller, larger = builder.select(below, values, others), builder.select(below, others, values)
                values = shuffled(smaller, larger, [place + 8 * (partner[place] < place) for place in range(8)])
            builder.store(values, at(2)).align = 8
            behind = shuffled(values, values, [1, 2, 3, 4, 5, 6, 7, 0])
            inner = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [lane % 8 < 7 for lane in all_64])
            alike = builder.and_(builder.icmp_unsigned("==", values, behind), inner)
            none = ir.Constant(ir.IntType(LANES), 0)
            return builder.icmp_unsigned("!=", builder.bitcast(alike, ir.IntType(LANES)), none)

        return types.boolean(rows, types.uint64, ordered), code

    def trailing_zeros(typing: Any, bits: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            return builder.cttz(given[0], ir.Constant(ir.IntType(1), 0))

        return types.uint64(types.uint64), code

    def population(typing: Any, bits: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            return builder.ctpop(given[0])

        return types.uint64(types.uint64), code

    # Typed as anything: their calls leave out the first argument.
    add_vector: Any = intrinsic(vector_sum)
    count_zeros: Any = intrinsic(trailing_zeros)
    sum_bits: Any = intrinsic(population)
    sort_vector: Any = intrinsic(vector_sort)

    @overload(add_bits, strict=False)
    def add(rows: Any, row: Any, bits: Any) -> Any:
        return lambda rows, row, bits: add_vector(rows, row, bits)

    @overload(sort_rows, strict=False)
    def sort(rows: Any, first: Any, ordered: Any) -> Any:
        return lambda rows, first, ordered: sort_vector(rows, first, ordered)

    @overload(lowest_bit, strict=False)
    def lowest(bits: Any) -> Any:
        return lambda bits: count_zeros(bits)

    @overload(count_ones, strict=False)
    def ones(bits: Any) -> Any:
        return lambda bits: sum_bits(bits)
