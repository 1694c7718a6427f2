"""Token rows of a large run, inserted by two connections that take turns.

To insert them is most of what writing takes, and DuckDB does it on one thread (``arrow_tables.one_thread`` says why).
Two transactions have a thread each for whole row groups, and commit in the order of the rows. A commit takes row groups
over as they are, so the table is the one that a single transaction would have left, in the same order.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

import duckdb
import pyarrow as pa

from tokenpaths.engine.store.file.schema import ROW_GROUP
from tokenpaths.engine.store.write.arrow_tables import insert_alike

CONNECTIONS = 2
"""as many as keep up with what is numbered meanwhile"""
TURN_BYTES = 48_000_000
"""rows of a turn, if it has more than one row group"""


class InTurns:
    """Inserts rows into ``table``; those of one ``insert`` are in the table before those of the next.

    ``con`` may be in a transaction: it sees these rows in the next one. What it inserts itself comes behind them.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, table: str, title: str) -> None:
        self._table, self._title = table, title
        (database,) = con.execute("SELECT current_database()").fetchall()[0]
        self._cursors = [con.cursor() for _ in range(CONNECTIONS)]
        for cursor in self._cursors:
            cursor.execute(f"USE {database}")
        self._threads: list[threading.Thread | None] = [None] * CONNECTIONS
        self._turn = 0
        self._error: BaseException | None = None
        """what went wrong first; nothing is committed after it"""

    def insert(self, parts: Sequence[pa.Table]) -> None:
        """Begin to insert these rows; waits while all connections are busy, and raises what went wrong before."""
        place = self._turn % CONNECTIONS
        self._join(place)
        before = self._threads[place - 1]
        # Not an executor, which takes nothing more once the main thread has ended.
        thread = threading.Thread(
            target=self._work, args=(self._cursors[place], list(parts), before), name=self._title, daemon=True
        )
        self._threads[place] = thread
        self._turn += 1
        thread.start()

    def wait(self) -> None:
        """Until all rows are in the table; raises what went wrong."""
        for place in range(CONNECTIONS):
            self._join(place)

    def close(self) -> None:
        """Stop what is being inserted; never raises."""
        for cursor in self._cursors:
            with contextlib.suppress(duckdb.Error):
                cursor.interrupt()
        for thread in self._threads:
            if thread is not None:
                thread.join()
        for cursor in self._cursors:
            with contextlib.suppress(duckdb.Error):
                cursor.close()

    def _join(self, place: int) -> None:
        thread = self._threads[place]
        if thread is not None:
            thread.join()
        if self._error is not None:
            raise self._error

    def _work(self, cursor: duckdb.DuckDBPyConnection, parts: list[pa.Table], before: threading.Thread | None) -> None:
        error: BaseException | None = None
        try:
            cursor.execute("BEGIN")
            insert_alike(cursor, self._table, parts)
        except BaseException as caught:  # whatever it is: who waits raises it
            error = caught
        if before is not None:
            before.join()
        try:
            if error is None and self._error is None:
                cursor.execute("COMMIT")
        except BaseException as caught:
            error = caught
        if self._error is None:  # one thread at a time is here: the others wait for the one before
            self._error = error


def rows_of_a_turn(rows: Sequence[pa.Table], megabytes: int) -> int:
    """Rows that one connection inserts at a time, by the first ``rows`` of the run; 0: they do not fit in turns.

    A row group is in memory as it is until it is full, one for each connection, in half of DuckDB's ``megabytes``.
    """
    group = ROW_GROUP * sum(part.nbytes for part in rows) / max(1, sum(len(part) for part in rows))
    if CONNECTIONS * group > megabytes * 1e6 / 2:
        return 0
    return 2 * ROW_GROUP if 2 * group <= TURN_BYTES else ROW_GROUP
