"""Texts of samples in pieces, each a column of ``sample``, so that a few characters are read without the rest.

DuckDB compresses 2,048 texts together and reads all of them for one. The columns ``text_0``, ``text_1`` … hold the
pieces of a text, NULL from where it ends on, and ``text`` is worked out from them. A token between its neighbours lies
in one or two pieces, which takes a third of the time of whole texts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa

PIECE_ENDS = (256, 512, 768, 1024, 1536, 2048, 4096)
"""where pieces end, in characters of the text; the last one is all that is left"""
PIECES = tuple(f"text_{piece}" for piece in range(len(PIECE_ENDS) + 1))
TEXT_SQL = f"GENERATED ALWAYS AS (CASE WHEN {PIECES[0]} IS NOT NULL THEN concat({', '.join(PIECES)}) END) VIRTUAL"
"""of column ``text``: NULL where a sample has none"""
WITHOUT_PIECES = f"COLUMNS(lambda c: c NOT IN ('rowid', {', '.join(repr(name) for name in PIECES)}))"
"""SQL: the columns of ``sample`` that people know, or of any other table; views over parts list row numbers"""


def bounds(piece: int) -> tuple[int, int | None]:
    """First character of a piece, and the one behind its last; None: whatever there is."""
    return (0, *PIECE_ENDS)[piece], (*PIECE_ENDS, None)[piece]


def pieces_between(start: int, stop: int) -> range:
    """The pieces with the characters ``start`` … ``stop`` − 1, at least one."""
    first = bisect_right(PIECE_ENDS, start)
    return range(first, max(first, bisect_right(PIECE_ENDS, stop - 1)) + 1)


def cut(texts: Sequence[str | None]) -> dict[str, pa.Array]:
    """The columns of pieces of these texts."""
    columns = {}
    for piece, name in enumerate(PIECES):
        start, stop = bounds(piece)
        # The first piece of an empty text is empty, and says that there is one.
        parts = [None if text is None or 0 < start >= len(text) else text[start:stop] for text in texts]
        columns[name] = pa.array(parts, pa.string())
    return columns
