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
from tokenpaths.engine.store.ask.run import Run
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
