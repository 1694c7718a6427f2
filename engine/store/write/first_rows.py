"""Rows of the first tokens of paths, where a path has no ribbon but its first token's (layout *unique*).

Shapes: n tokens of a batch, P distinct paths.
"""

from __future__ import annotations

import duckdb
import numpy as np

from tokenpaths.engine.store.file import columns as coded
from tokenpaths.engine.store.file.flow_counter import CHUNK_ROWS
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.write.path_dictionary import PathDictionary, first_seen

UNIQUE_SHARE = 0.5
"""paths for each token from which on the ribbons of paths would take more than those of tokens save"""


class FirstSeen:
    """Which tokens, in their order, took a path that no token before them took: a bit each."""

    def __init__(self) -> None:
        self.num_tokens = self.num_first = 0
        self._known = -1
        """the largest number of a path so far"""
        self._bits: list[tuple[int, np.ndarray]] = []

    def add(self, path_ids: np.ndarray) -> None:
        """The next tokens, by the paths (n,) that they take; paths are numbered as they appear."""
        first, self._known = first_seen(path_ids, self._known)
        self._bits.append((len(path_ids), np.packbits(first)))
        self.num_tokens += len(path_ids)
        self.num_first += int(first.sum())

    def rows(self) -> np.ndarray:
        """(num_first,) int64 rows of these tokens, rising."""
        rows = np.empty(self.num_first, dtype=np.int64)
        row = filled = 0
        for num_tokens, bits in self._bits:
            places = np.flatnonzero(np.unpackbits(bits, count=num_tokens))
            np.add(places, row, out=rows[filled : filled + len(places)])
            row, filled = row + num_tokens, filled + len(places)
        return rows


def first_rows_of_paths(
    con: duckdb.DuckDBPyConnection, layout: Layout, book: PathDictionary, seen: FirstSeen
) -> np.ndarray | None:
    """(P,) row of the first token of each path by path_id, where the run gets the layout *unique*; otherwise None.

    It does where ribbons are packed and more than ``UNIQUE_SHARE`` as many paths as tokens are there. Paths have to be
    numbered in the order of their first tokens, which two ribbons of one hash may prevent. ``seen`` knows them if it
    was told all tokens; else they are read from the file.
    """
    if not layout.packed or book.num_paths <= UNIQUE_SHARE * book.num_tokens:
        return None
    seen = seen if seen.num_tokens == book.num_tokens else _seen_in_file(con)
    return seen.rows() if seen.num_first == book.num_paths else None


def _seen_in_file(con: duckdb.DuckDBPyConnection) -> FirstSeen:
    """As if the tokens of the file had been added, whose rows are numbered from 0 on."""
    seen = FirstSeen()
    reader = con.execute(f"SELECT path_id FROM {coded.TABLE} ORDER BY rowid").to_arrow_reader(CHUNK_ROWS)
    for batch in reader:
        if batch.num_rows:
            seen.add(batch.column("path_id").to_numpy())
    return seen
