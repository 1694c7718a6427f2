"""Queries of some rows that lie far apart, so written that DuckDB reads no others.

It compares a column with a single value or a range before it reads the other columns, and row numbers with a list that
a subquery yields (a *semi-join*, up to ``ROWS_AT_ONCE`` of them); any other list reads all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenpaths.engine.store.file import columns as coded
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.open_file import NUMBERS_AT_ONCE

ROWS_AT_ONCE = NUMBERS_AT_ONCE
"""row numbers in a list"""
TOKENS_IN_PARTS = 128
"""tokens of a run in parts that one query looks up"""
MOST_APART = 128
"""values that are looked up one by one"""
MOST_STRETCHES = 64
"""ranges of samples that are queried separately"""
NEAR = 64
"""gap between sample numbers up to which they are queried together"""
PACKED_TEXTS = 2048
"""texts that DuckDB compresses as one piece: where texts are read, the gap"""


def looked_up(columns: str, table: str, key: str, values: Sequence[int]) -> Query:
    """``columns`` of the rows whose ``key`` is one of ``values`` (ascending), in any order.

    To sort pages in SQL would copy them.

    A list of values, however it is written, reads all rows of a column that is not compressed: only a single value, or
    a range, is compared before the other columns are read. Beyond ``MOST_APART`` values that takes less time.
    """
    between, ends = f"{key} BETWEEN ? AND ?", (values[0], values[-1])
    missing = values[-1] - values[0] + 1 - len(values)
    if not missing:
        return Query(f"SELECT {columns} FROM {table} WHERE {between}", ends)
    if missing < len(values):  # few of the range are read for nothing
        listed = f"{between} AND {key} IN ({', '.join('?' * len(values))})"
        return Query(f"SELECT {columns} FROM {table} WHERE {listed}", (*ends, *values))
    if len(values) > MOST_APART:
        return Query(f"SELECT {columns} FROM {table} WHERE {key} IN (SELECT unnest(?::INTEGER[]))", (list(values),))
    one = f"(SELECT {columns} FROM {table} WHERE {key} = ?)"
    return Query(f"SELECT * FROM ({' UNION ALL '.join([one] * len(values))})", tuple(values))


def some_samples(numbers: Sequence[int], columns: str, table: str = "sample", *, by_row: bool = False) -> Query:
    """``columns`` of these samples in ``table``, ordered by number if ``sample`` is one of them.

    Each range of nearby numbers is a query of its own, so that only its blocks are read. A single list of many numbers
    would read the texts of all samples, but is faster for very many ranges once they are in memory.

    Args:
        by_row: the rows of ``table`` are the samples; few are then found in half the time.
    """
    order = " ORDER BY sample" if "sample" in columns.split(", ") else ""
    if by_row and len(numbers) <= ROWS_AT_ONCE:
        listed = f"SELECT {columns} FROM {table} WHERE rowid IN (SELECT unnest(?::BIGINT[])){order}"
        return Query(listed, (sorted(set(numbers)),))
    stretches = _stretches(numbers, PACKED_TEXTS if "text" in columns else NEAR)
    if len(stretches) > MOST_STRETCHES:
        listed = f"SELECT {columns} FROM {table} WHERE sample IN (SELECT unnest(?)){order}"
        return Query(listed, (list(numbers),))
    parts, parameters = [], []
    for stretch in stretches:
        where = "sample BETWEEN ? AND ?"
        parameters += [stretch[0], stretch[-1]]
        if len(stretch) <= stretch[-1] - stretch[0]:
            where += f" AND sample IN ({', '.join('?' * len(stretch))})"
            parameters += stretch
        parts.append(f"(SELECT {columns} FROM {table} WHERE {where})")
    return Query(f"SELECT * FROM ({' UNION ALL '.join(parts)}){order}", tuple(parameters))


def _stretches(numbers: Sequence[int], near: int) -> list[list[int]]:
    """Ascending numbers in groups with gaps of at most ``near``."""
    stretches: list[list[int]] = []
    for number in sorted(set(numbers)):
        if stretches and number - stretches[-1][-1] <= near:
            stretches[-1].append(number)
        else:
            stretches.append([number])
    return stretches


def members_of(wanted: Mapping[int, Sequence[int]]) -> Query:
    """place and row of these places of ``member``, by the rank of the path that they are of.

    The rank lets DuckDB skip to the rows.
    """
    one = f"SELECT rowid::BIGINT AS place, row FROM {coded.MEMBERS} WHERE rank "
    numbers = [number for places in wanted.values() for number in places]
    if len(numbers) <= ROWS_AT_ONCE:
        sql = f"{one}IN ({', '.join('?' * len(wanted))}) AND rowid IN (SELECT unnest(?::BIGINT[]))"
        return Query(sql, (*wanted, numbers))
    parts = [f"({one}= ? AND rowid IN ({', '.join('?' * len(places))}))" for places in wanted.values()]
    return Query(
        " UNION ALL ".join(parts), tuple(number for rank, places in wanted.items() for number in (rank, *places))
    )


def tokens_at_once(in_parts: bool) -> int:
    """Most ``places`` of ``tokens_at``."""
    return TOKENS_IN_PARTS if in_parts else ROWS_AT_ONCE


def tokens_at(
    columns: Sequence[str], places: Sequence[tuple[int, int]], even_weights: str = "", *, in_parts: bool = False
) -> Query:
    """``columns`` of the tokens at ``places`` (sample and row of each), in reading order.

    Two lists, of samples and of rows, of which the first passes over row groups and the second over vectors: half the
    time of one lookup for each token, up to ``ROWS_AT_ONCE`` tokens. In parts the second does nothing, and there is a
    lookup for each. Coded columns are read first and decoded together: DuckDB would otherwise scan the view once per
    token.
    """
    held = [name for name, _ in coded.coded_columns([(name, "") for name in dict.fromkeys(columns)])]
    read = ", ".join(f"{coded.read_sql(name, even_weights)} AS {name}" for name in columns)
    one = f"SELECT rowid, {', '.join(held)} FROM {coded.TABLE} WHERE "
    if in_parts or len(places) > ROWS_AT_ONCE:
        sql = " UNION ALL ".join([f"({one}sample = ? AND rowid = ?)"] * len(places))
        parameters: list[object] = [value for place in places for value in place]
    else:
        samples = sorted({sample for sample, _ in places})
        sql = f"{one}sample IN ({', '.join('?' * len(samples))}) AND rowid IN (SELECT unnest(?::BIGINT[]))"
        parameters = [*samples, [row for _, row in places]]
    return Query(f"SELECT {read} FROM ({sql}) ORDER BY rowid", tuple(parameters))
