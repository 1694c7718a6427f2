"""Rows inserted by connections in turns: the table of one transaction, and nothing behind what went wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from tests.engine.store.write.test_parts import made_of, rows_of
from tests.engine.store.write.test_shards import KINDS
from tests.support.flushing import flush_every
from tests.support.runs import make
from tokenpaths.engine.store.file.schema import ROW_GROUP
from tokenpaths.engine.store.write.large import insert_in_turns
from tokenpaths.engine.store.write.large.insert_in_turns import CONNECTIONS, InTurns, rows_of_a_turn
from tokenpaths.engine.store.write.run_filler import RunFiller
from tokenpaths.engine.store.write.writer import WriterFailed


@pytest.fixture
def con(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A file attached as ``r``, in a transaction, as the filler has it."""
    con = duckdb.connect()
    con.execute(f"ATTACH '{tmp_path / 'rows.duckdb'}' AS r")
    con.execute("USE r")
    con.execute("CREATE TABLE numbers (place INTEGER, other TINYINT)")
    con.execute("BEGIN")
    yield con
    con.close()


def numbers(first: int, count: int, **other: object) -> pa.Table:
    return pa.table({"place": pa.array(range(first, first + count), pa.int32()), **other})


def in_file(con: duckdb.DuckDBPyConnection) -> list[tuple]:
    con.execute("COMMIT")
    return con.execute("SELECT rowid, place FROM numbers").fetchall()


def test_turns_are_in_the_order_in_which_they_were_given(con: duckdb.DuckDBPyConnection, monkeypatch):
    """Every second one is slow, so that the next is ready before it."""
    inserted, slow = insert_in_turns.insert_alike, threading.Event()

    def every_second_waits(cursor, table, parts):
        if parts[-1]["place"][0].as_py() % 2 == 0:
            slow.wait(0.05)
        inserted(cursor, table, parts)

    monkeypatch.setattr(insert_in_turns, "insert_alike", every_second_waits)
    turns = InTurns(con, "numbers", "insert")
    first = 0
    for count in (1, 3000, 1, 7, 500, 1, 1, 2049, 12):
        half = count // 2  # of other columns, as where a batch knows something that the one before does not
        turns.insert([numbers(first, half, other=pa.nulls(half, pa.int8())), numbers(first + half, count - half)])
        first += count
    turns.wait()
    con.execute("INSERT INTO numbers SELECT ?, 1", [first])  # its own transaction began before all of them
    turns.close()
    assert in_file(con) == [(i, i) for i in range(first + 1)]


def test_nothing_is_committed_behind_what_went_wrong(con: duckdb.DuckDBPyConnection):
    turns = InTurns(con, "numbers", "insert")
    turns.insert([numbers(0, 10)])
    turns.wait()
    turns.insert([numbers(10, 3, other=pa.array([1, 1000, 1]))])  # no TINYINT
    for _ in range(CONNECTIONS - 1):
        turns.insert([numbers(20, 5)])
    with pytest.raises(duckdb.Error, match="1000"):
        turns.insert([numbers(30, 5)])
    with pytest.raises(duckdb.Error, match="1000"):
        turns.wait()
    turns.close()
    assert in_file(con) == [(i, i) for i in range(10)]


def test_closed_in_the_middle_it_ends(con: duckdb.DuckDBPyConnection):
    turns = InTurns(con, "numbers", "insert")
    many = numbers(0, 1 << 21)
    for _ in range(CONNECTIONS):
        turns.insert([many])
    turns.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "insert"]


@pytest.mark.parametrize(
    ("row_bytes", "megabytes", "groups"), [(66, 2000, 2), (92, 2000, 2), (93, 2000, 1), (120, 150, 1), (160, 150, 0)]
)
def test_turns_fit_the_memory(row_bytes: int, megabytes: int, groups: int):
    rows = [
        pa.table(
            {"a": np.zeros(1000, np.uint8)} | {"b": pa.array([b"x" * (row_bytes - 1)] * 1000, pa.binary(row_bytes - 1))}
        )
    ]
    assert rows_of_a_turn(rows, megabytes) == groups * ROW_GROUP


@pytest.mark.parametrize("kind", [*KINDS, "edges", "blocks"])
def test_a_run_in_turns_is_that_of_one_insert(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch):
    made = made_of(kind)
    whole = rows_of(made.write(tmp_path / "one"))
    turns, insert = [], InTurns.insert
    monkeypatch.setattr(InTurns, "insert", lambda self, parts: (turns.append(len(parts)), insert(self, parts)))
    flush_every(7, monkeypatch)
    assert rows_of(made.write(tmp_path / "turns")) == whole
    assert len(turns) > 2


def test_a_turn_that_fails_ends_the_run_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    flush_every(20, monkeypatch)
    turns = []

    def second_fails(cursor, table, parts):
        turns.append(table)
        if len(turns) == 2:
            raise duckdb.IOException("no space left")

    monkeypatch.setattr(insert_in_turns, "insert_alike", second_fails)
    made = make("full", "text", samples=12)
    with pytest.raises(WriterFailed, match="no space left"):
        made.write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_pictures_and_texts_do_not_pile_up_while_tokens_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A turn has half a million tokens; the thumbnails of as many have hundreds of megabytes."""
    monkeypatch.setattr("tokenpaths.engine.store.write.run_filler.FLUSH_TOKENS", 20)
    monkeypatch.setattr("tokenpaths.engine.store.write.run_filler.ENOUGH_BYTES", 4000)
    monkeypatch.setattr("tokenpaths.engine.store.write.run_filler.HELD_BYTES", 1000)
    most, add = [0], RunFiller.add

    def watched(self, batch):
        add(self, batch)
        most.append(self._pending_bytes)

    monkeypatch.setattr(RunFiller, "add", watched)
    made = make("pictures", samples=40, batch_size=2)
    made.write(tmp_path)
    size = max(np.diff(most))
    assert sum(np.diff(most) > 0) > 3
    assert max(most[2:]) < 4000 + size
