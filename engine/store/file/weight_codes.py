"""8-bit codes of routing weights.

``linear``: level / 255, absolute error at most 1/510; for one or two modules a token, where weights are seldom small.
``logarithmic``: 24 levels an octave down to 2⁻¹⁰ and 15 linear levels below; relative error at most 1.5 % from 2⁻¹⁰ to
1. For many experts a token, where the linear code would have two levels for the 0.0097 of an expert of 256. Both keep
0, 1 and the order of weights exactly; the second also 1/2, 1/4, 1/8 … 1 % over four decades would take 460 levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

TOP_LEVEL = 255
PER_OCTAVE = 24
LINEAR_LEVELS = 15
"""levels of the logarithmic code spaced evenly between 0 and its smallest power"""
SMALLEST_POWER = 2.0 ** ((LINEAR_LEVELS - TOP_LEVEL) / PER_OCTAVE)
"""2⁻¹⁰"""
_DROPPED_BITS = 14
_FEW = 100_000
"""weights that are encoded faster than a table is made"""
_MANY_MODULES = 64
_MANY_SLOTS = 2


@dataclass(frozen=True)
class WeightCode:
    """One of the two codes, identified by ``run.weight_code``."""

    name: str

    @property
    def digits(self) -> int:
        """Decimals at which an answer is no coarser than the code."""
        return 6 if self.name == "logarithmic" else 4

    def encode(self, weights: np.ndarray) -> np.ndarray:
        """The level (uint8) of each weight; clipped to [0, 1]."""
        if np.size(weights) > 1 and not any(np.asarray(weights).strides):  # one number for all
            return np.broadcast_to(self.encode(np.ravel(weights[:1])[:1])[0], np.shape(weights))
        weights = np.clip(np.asarray(weights, dtype=np.float32), 0, 1)
        if self.name == "linear":  # in place, as the clipped weights are a copy
            weights *= np.float32(TOP_LEVEL)
            np.rint(weights, out=weights)
            return np.asarray(weights, dtype=np.uint8)
        if weights.size < _FEW:
            return self._calculated(weights)
        codes, split = _beginnings(self.name)
        weights += np.float32(0)  # a negative zero has other bits
        beginnings = np.ascontiguousarray(weights).view(np.uint32) >> _DROPPED_BITS
        levels: np.ndarray = codes.take(beginnings, mode="clip")
        unsure = split.take(beginnings, mode="clip")
        if unsure.any():
            levels[unsure] = self._calculated(weights[unsure])
        return levels

    def _calculated(self, weights: np.ndarray) -> np.ndarray:
        """The levels of float32 weights in [0, 1], without a table; naive twin of ``encode``."""
        if self.name == "linear":
            levels = weights * np.float32(TOP_LEVEL)
        else:
            low = weights < SMALLEST_POWER
            levels = np.log2(np.maximum(weights, SMALLEST_POWER, dtype=np.float64))
            levels *= PER_OCTAVE
            levels += TOP_LEVEL
            if low.any():
                levels[low] = weights[low] * (LINEAR_LEVELS / SMALLEST_POWER)
        return np.rint(levels).astype(np.uint8)

    def decode(self, levels: np.ndarray) -> np.ndarray:
        """Decoded weights, in double precision."""
        weights: np.ndarray = _TABLES[self.name][levels]
        return weights

    def sql(self, column: str) -> str:
        """SQL of ``decode`` for a column, as DOUBLE."""
        return f"({self.parts_sql(column)} / {self.whole}::DOUBLE)"

    @property
    def whole(self) -> float:
        """Number of parts of a weight of 1; see ``parts_sql``."""
        return float(TOP_LEVEL) if self.name == "linear" else 1.0

    def parts_sql(self, column: str) -> str:
        """SQL for a number proportional to the weight; an integer for the linear code, so that sums are exact."""
        if self.name == "linear":
            return f"{column}::INTEGER"
        return (
            f"(CASE WHEN {column} < {LINEAR_LEVELS} THEN {column} * {SMALLEST_POWER / LINEAR_LEVELS!r}::DOUBLE "
            f"ELSE pow(2.0::DOUBLE, ({column}::DOUBLE - {TOP_LEVEL}) / {PER_OCTAVE}) END)"
        )


@cache
def _beginnings(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Of each beginning of a float32 from 0 to 1 (its first 18 bits): the level, and whether it holds several."""
    last = int(np.float32(1).view(np.uint32)) >> _DROPPED_BITS
    first_of = np.arange(last + 1, dtype=np.uint32) << np.uint32(_DROPPED_BITS)
    last_of = first_of | np.uint32((1 << _DROPPED_BITS) - 1)
    code = CODES[name]
    low = code._calculated(first_of.view(np.float32))
    high = code._calculated(np.minimum(last_of.view(np.float32), np.float32(1)))
    return low, low != high


def _table(name: str) -> np.ndarray:
    levels = np.arange(TOP_LEVEL + 1)
    if name == "linear":
        return levels / float(TOP_LEVEL)
    return np.where(
        levels < LINEAR_LEVELS,
        levels * (SMALLEST_POWER / LINEAR_LEVELS),
        2.0 ** ((levels - float(TOP_LEVEL)) / PER_OCTAVE),
    )


_TABLES = {name: _table(name) for name in ("linear", "logarithmic")}
LINEAR, LOGARITHMIC = WeightCode("linear"), WeightCode("logarithmic")
CODES = {code.name: code for code in (LINEAR, LOGARITHMIC)}


def code_for(num_modules: int, top_k: int) -> WeightCode:
    """The code of a new run with this many modules and slots."""
    return LOGARITHMIC if num_modules > _MANY_MODULES or top_k > _MANY_SLOTS else LINEAR


MARGIN_COLUMNS = ("margins", "runner_ups")
"""BLOB columns of ``token``: 16-bit levels and module ids, one a step"""
MARGIN_LEVELS = 65_534
NO_MARGIN = 65_535
"""level of an unknown margin"""


def encode_margins(margins: np.ndarray) -> np.ndarray:
    """(n, S) little-endian 16-bit levels of margins in [0, 1], NaN = unknown; the error is at most 8e-6."""
    unknown = np.isnan(margins)
    levels = np.rint(np.clip(np.where(unknown, 0, margins), 0, 1) * MARGIN_LEVELS)
    return np.where(unknown, NO_MARGIN, levels).astype("<u2")


def decode_margins(levels: np.ndarray) -> np.ndarray:
    """Margins of 16-bit levels, NaN where unknown."""
    margins: np.ndarray = np.where(levels == NO_MARGIN, np.nan, levels / float(MARGIN_LEVELS))
    return margins
