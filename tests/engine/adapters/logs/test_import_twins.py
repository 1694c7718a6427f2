"""A log whose tokens nearly all have paths of their own gives the run that the slower, general ways give."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

from tests.support.compiled_loops import run_loops
from tokenpaths.engine.adapters.logs import doctor, importing
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.adapters.logs.pieces.announced import LogShape, layer_names
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables import token_table
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.write import seal_pages
from tokenpaths.engine.store.write.flows import while_writing
from tokenpaths.engine.store.write.path_dictionary import PathDictionary

TOKENS, LAYERS = 900, 9
UNUSED_SLOT = 65_535


def write_log(file: Path, experts: int, top_k: int, *, weights: bool, varies: bool) -> None:
    """Tokens with a path each, then some that repeat them; samples of several lengths."""
    rng = np.random.default_rng(experts)
    ids = rng.random((TOKENS, LAYERS, experts)).argsort(axis=2)[:, :, :top_k].astype(np.uint16)
    ids[700:800] = ids[:100]
    if varies:
        ids[rng.random(ids.shape) < 0.1] = UNUSED_SLOT
    sample = np.repeat(np.arange(6), (300, 1, 299, 5, 245, 50))
    arrays = {"ids": ids, "sample": sample, "num_experts": np.array(experts)}
    if weights:
        given = rng.random(ids.shape, dtype=np.float32)
        arrays["weights"] = -np.sort(-given / given.sum(axis=2, keepdims=True), axis=2)
    np.savez(file, label=np.array(["a", "b", "a", "a", "c", "b"]), **arrays)


def contents(file: Path) -> dict[str, list[tuple[object, ...]]]:
    """The rows of every table and view, but when the run was made."""
    with duckdb.connect(str(file), read_only=True) as con:
        names = con.execute(
            "SELECT table_name FROM duckdb_tables() UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal"
        ).fetchall()
        return {
            name: con.execute(f"SELECT {'* EXCLUDE (created_at)' if name == 'run' else '*'} FROM {name}").fetchall()
            for (name,) in names
        }


@pytest.mark.parametrize("way", ["numpy", "compiled"])
@pytest.mark.parametrize(
    ("experts", "top_k", "weights", "varies"),
    [
        (64, 8, False, False),
        (64, 8, True, False),
        (64, 8, False, True),
        (64, 8, True, True),
        (512, 10, False, False),
        (512, 10, True, True),
        (16, 1, False, False),
    ],
)
def test_the_fast_ways_of_an_import_give_the_run_of_the_slow_ones(
    experts: int, top_k: int, weights: bool, varies: bool, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_loops(way, monkeypatch)
    log = tmp_path / "log.npz"
    write_log(log, experts, top_k, weights=weights, varies=varies)
    monkeypatch.setattr(importing, "BATCH_BYTES", 300 * LAYERS * top_k)
    monkeypatch.setattr(seal_pages, "LEAST_TOKENS", 1)
    fast = import_log(open_log(log), tmp_path / "fast", "run")
    run_loops("numpy", monkeypatch)
    monkeypatch.setattr(PathDictionary, "_add_strangers", lambda *_: None)
    monkeypatch.setattr(seal_pages, "SORTED_TOKENS", 0)
    monkeypatch.setattr(seal_pages, "SORTED_OF_MANY_PATHS", 0)
    monkeypatch.setattr(while_writing, "MOST_BESIDE", 0)
    monkeypatch.setattr(doctor, "_MOST_NARROW", 0)
    slow = import_log(open_log(log), tmp_path / "slow", "run")
    found, expected = contents(fast), contents(slow)
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert found[name] == rows, name
    with Run.open(fast) as run:
        assert run.row["num_paths"] == (TOKENS - 100 if not varies else run.row["num_paths"])
        assert run.row["num_paths"] > TOKENS // 2


def test_lists_of_paths_of_a_mixture_have_the_ribbons_of_the_paths(tmp_path: Path) -> None:
    log = tmp_path / "log.npz"
    write_log(log, 64, 8, weights=False, varies=False)
    with duckdb.connect(str(import_log(open_log(log), tmp_path / "runs", "run")), read_only=True) as con:
        assert con.execute("SELECT path_layout FROM run").fetchall() == [("unique",)]
        lists = con.execute("SELECT list, label_id, rank, ribbon FROM path_top").fetchall()
        ribbons = dict(con.execute("SELECT rank, ribbon FROM path").fetchall())
    assert {(name, label) for name, label, *_ in lists} == {("compute", None), ("reuse", None)} | {
        ("rank", label) for label in (None, 0, 1, 2)
    }
    assert all(ribbon == ribbons[rank] for *_, rank, ribbon in lists)


def test_columns_that_only_some_batches_have_are_null_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    pieces = [
        Piece(
            rng.random((80, LAYERS, 64)).argsort(axis=2)[:, :, :8],
            f"line {number}",
            label=label,
            token_id=np.full(80, 7) if number == 3 else None,
        )
        for number, label in enumerate([None, None, "a", None, "b"])
    ]
    monkeypatch.setattr(importing, "BATCH_BYTES", 1)
    shape = LogShape(layer_names(LAYERS), 8, weights=False)
    log = Log(tmp_path / "log", "made up", shape, 64, lambda: iter(pieces))
    file = import_log(log, tmp_path / "runs", "run")
    with duckdb.connect(str(file), read_only=True) as con:
        rows = con.execute("SELECT sample, label_id, token_id, flops, weights FROM token ORDER BY rowid").fetchall()
        even = con.execute("SELECT count(*) FROM token_coded WHERE weights IS NULL").fetchall()
    assert even == [(400,)]
    assert [row[1] for row in rows[::80]] == [None, None, 0, None, 1]
    assert [row[2] for row in rows[::80]] == [None, None, None, 7, None]
    assert {row[3] for row in rows} == {None}


def test_questions_that_need_no_ribbons_read_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.npz"
    write_log(log, 64, 8, weights=False, varies=False)
    file = import_log(open_log(log), tmp_path / "runs", "run")

    def refuse(*_: object) -> None:
        raise AssertionError("read ribbons")

    with Run.open(file) as run:
        expected = run.knowledge()
        ribbons = token_table.tokens_of(run).ribbon_PSK
        assert ribbons.tolist() == [
            np.sort(np.array(ribbon).reshape(LAYERS, 8), axis=1).tolist()
            for (ribbon,) in run.rows(Query("SELECT ribbon FROM path ORDER BY rank"))
        ]
    monkeypatch.setattr(token_table, "path_ribbons", refuse)
    with Run.open(file) as run:
        assert run.knowledge() == expected
        assert run.alikeness()["shared"] is not None
