"""Encoding of the columns of ``token_coded``, and the view ``token`` that decodes them.

DuckDB bit-packs integers, and their differences where those are smaller, in groups of 2048. So the file holds, for each
token:

- loss and gate entropy as an integer level, 1 + 2048 · ln(1 + |x|), rounded, with the sign of x; 0 = unknown. Levels
  keep the order of values; the error is at most 1/4000 of 1 + |x| (half a level is 1/4095, the rest is the rounding of
  logarithms). Zero and infinity are exact.
- the first row of its sample instead of its position: ``token`` is the row minus that.
- NULL instead of packed weights that are all 1/K, as of a log without any: ``Layout.even_weights`` reads them.
- the offset of its first character in the concatenated texts of the run, the offset at which its own text begins, and
  its length.

``member`` holds row numbers of ``token_coded`` by rank; the view ``path_member`` joins sample and position to them.

Means of samples and of the run are computed before rounding. Shapes: n tokens, B samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PER_UNIT = 2048
"""levels for each unit of ln(1 + |x|)"""
INFINITE = 1 << 20
LARGEST = int(np.log1p(float(np.finfo(np.float32).max)) * PER_UNIT) + 1
"""level of the largest finite single-precision number"""
TABLE = "token_coded"
PATHS = "path_row"
"""view of ``PATH_TABLE`` with what is worked out from its columns"""
PATH_TABLE = "path_coded"
MEASURES = ("loss", "gate_entropy")
"""columns stored as levels"""
PLACES = ("char_start", "char_end")
_PACKED = {"token_id", "predicted_id", "char_place", "char_length", "loss_code"}
"""columns whose values rarely repeat from one token to the next"""
END_UNKNOWN, START_UNKNOWN = -1, -2
"""values of ``char_length`` if only one end of a token is known; NULL if neither is"""


MEMBERS = "member"
MEMBER_SQL = (
    f"CREATE TABLE {MEMBERS} AS SELECT p.rank, t.rowid AS row FROM {TABLE} AS t JOIN {PATH_TABLE} AS p USING (path_id) "
    "ORDER BY p.rank, row"
)
"""every token once, ordered by rank; naive twin of ``write.seal_pages.write_members``"""
MEMBER_VIEW_SQL = (
    "CREATE VIEW path_member AS SELECT m.rowid, m.rank, s.sample, (m.row - s.first_row)::INTEGER AS token "
    f"FROM {MEMBERS} AS m ASOF JOIN sample AS s ON m.row >= s.first_row ORDER BY m.rowid"
)


def code_column(measure: str) -> str:
    """Name of the column with the levels of ``measure``."""
    return f"{measure}_code"


def encode(values: np.ndarray) -> np.ndarray:
    """(n,) int32 levels of (n,) numbers, NaN = unknown."""
    values = np.asarray(values, dtype=np.float32)
    size = np.abs(values)
    # The logarithm of single precision is several times as fast, and 1 + x loses less there than a level is wide.
    levels = np.log(size + np.float32(1)) * np.float32(PER_UNIT)
    unknown, endless = np.isnan(values), np.isinf(values)
    levels[unknown | endless] = 0
    codes: np.ndarray = np.minimum(np.rint(levels).astype(np.int32) + 1, LARGEST)
    codes[endless] = INFINITE
    below = (values < 0) & (codes > 1)
    codes[below] *= -1
    codes[unknown] = 0
    return codes


def decode(codes: np.ndarray) -> np.ndarray:
    """(n,) float32, as ``value_sql`` reads levels; NaN = unknown. Naive twin of ``value_sql``, also used for arrays."""
    codes = np.asarray(codes)
    size = np.expm1((np.minimum(np.abs(codes), LARGEST) - 1) / PER_UNIT)
    size = np.where(np.abs(codes) >= INFINITE, np.inf, size)
    return np.where(codes == 0, np.nan, np.sign(codes) * size).astype(np.float32)


def value_sql(code: str) -> str:
    """The FLOAT of a column of levels; NULL where unknown."""

    def size(level: str) -> str:
        return f"(exp(({level} - 1) / {PER_UNIT}.0::DOUBLE) - 1)::FLOAT"

    return (
        f"CASE WHEN {code} BETWEEN 1 AND {LARGEST} THEN {size(code)} "
        f"WHEN {code} BETWEEN -{LARGEST} AND -1 THEN -{size(f'-{code}')} "
        f"WHEN {code} > {LARGEST} THEN 'infinity'::FLOAT WHEN {code} < -{LARGEST} THEN '-infinity'::FLOAT END"
    )


def coded_columns(columns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Name and SQL type of the columns of ``token_coded`` that store the given columns of ``token``."""
    instead = {
        "token": [("first_row", "BIGINT")],
        "char_start": [("char_place", "BIGINT"), ("char_first", "BIGINT")],
        "char_end": [("char_length", "BIGINT")],
        **{measure: [(code_column(measure), "INTEGER")] for measure in MEASURES},
    }
    return [held for name, kind in columns for held in instead.get(name, [(name, kind)])]


def compressed(columns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Columns of ``token_coded`` with how DuckDB compresses those for which it has one good choice: it need not try.

    The rest is left to it: paths, entropies and weights of a router that is sure of itself, or keeps to a path, lie in
    runs of equal values, which take half the room.
    """
    return [(name, f"{kind} USING COMPRESSION bitpacking" if name in _PACKED else kind) for name, kind in columns]


def read_sql(name: str, even_weights: str = "") -> str:
    """SQL for a column of ``token`` in terms of those of ``token_coded``; ``even_weights`` as of the ``Layout``."""
    start = "(char_place - char_first)"
    read = {
        "token": "(rowid - first_row)::INTEGER",
        "char_start": f"CASE WHEN char_length <> {START_UNKNOWN} THEN {start}::INTEGER END",
        "char_end": f"(CASE WHEN char_length >= 0 THEN {start} + char_length "
        f"WHEN char_length < {START_UNKNOWN} THEN {start} + char_length - ({START_UNKNOWN}) "
        f"WHEN char_length = {START_UNKNOWN} THEN {start} END)::INTEGER",
        **{measure: value_sql(code_column(measure)) for measure in MEASURES},
        **({"weights": f"coalesce(weights, {even_weights})"} if even_weights else {}),
    }
    return read.get(name, name)


def view_sql(columns: Sequence[tuple[str, str]], even_weights: str = "") -> str:
    """SQL that creates the view ``token`` with ``columns``, and its row number as ``rowid``."""
    columns_sql = [f"{read_sql(name, even_weights)} AS {name}" for name, _ in columns]
    return f"CREATE VIEW token AS SELECT rowid, {', '.join(columns_sql)} FROM {TABLE};\n"


def chars(
    start: np.ndarray, end: np.ndarray, lengths: np.ndarray, first_char: int
) -> tuple[dict[str, np.ndarray], np.ndarray, int]:
    """``char_place``, ``char_first``, ``char_length`` of tokens; where the last is NULL; and the next ``first_char``.

    Args:
        start, end: (n,) characters in the text of the sample, −1 = unknown.
        lengths: (B,) tokens of each sample, at least one.
        first_char: where the texts of this batch begin among all texts of the run.
    """
    start, end = start.astype(np.int64), end.astype(np.int64)
    furthest = np.maximum(start, end)
    extents = np.maximum.reduceat(furthest, np.cumsum(lengths) - lengths) + 1
    first = np.repeat(first_char + np.cumsum(extents) - extents, lengths)
    neither = furthest < 0
    place = first + np.where(start < 0, end, start)
    if neither.any():
        # A place that nobody asks for: that of the token before, so that it costs nothing.
        last_known = np.maximum.accumulate(np.where(neither, -1, np.arange(len(place))))
        place = np.where(last_known < 0, first_char, place[last_known])
    length = end - start
    length[length < 0] += START_UNKNOWN
    length[(end < 0) & ~neither] = END_UNKNOWN
    length[(start < 0) & ~neither] = START_UNKNOWN
    columns = {"char_place": place, "char_first": first, "char_length": length}
    return columns, neither, first_char + int(extents.sum())
