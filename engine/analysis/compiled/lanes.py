"""What compiled loops do with one instruction each: sums of 64 bytes, and the place of the lowest bit and the number of
ones of 64.

LLVM does not find them out by itself: rows of one array might overlap, and numba knows no such functions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

LANE_BITS = 6
LANES = 1 << LANE_BITS
"""bytes of a row"""


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

    @overload(add_bits, strict=False)
    def add(rows: Any, row: Any, bits: Any) -> Any:
        return lambda rows, row, bits: add_vector(rows, row, bits)

    @overload(lowest_bit, strict=False)
    def lowest(bits: Any) -> Any:
        return lambda bits: count_zeros(bits)

    @overload(count_ones, strict=False)
    def ones(bits: Any) -> Any:
        return lambda bits: sum_bits(bits)
