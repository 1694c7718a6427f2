"""What a token holds as levels and as differences, against a twin of single numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest

from tests.support.runs import make
from tokenpaths.engine.store.ask.frames import Frames
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file import columns as coded
from tokenpaths.engine.store.file.filters import Query


def asked(sql: str) -> list[tuple]:
    return duckdb.connect(":memory:").execute(sql).fetchall()


def one_by_one(value: float) -> int:
    """The level of a number, said as the docstring of ``coded`` says it."""
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return int(math.copysign(coded.INFINITE, value))
    level = 1 + round(2048 * math.log1p(abs(value)))
    return -level if value < 0 and level > 1 else level


def test_levels_keep_order_zero_infinity_and_what_is_unknown():
    rng = np.random.default_rng(0)
    largest = float(np.finfo(np.float32).max)
    values = np.concatenate(
        [
            [0.0, -0.0, 1e-9, -1e-9, np.nan, np.inf, -np.inf, largest, -largest, 2.0**-126],
            rng.exponential(3, 2000),
            -rng.exponential(3, 50),
            rng.lognormal(0, 12, 500),
        ]
    ).astype(np.float32)
    codes = coded.encode(values)
    # Single precision may fall to the other side of a half.
    twin = np.array([one_by_one(float(value)) for value in values])
    assert np.abs(codes - twin).max() <= 1
    assert (codes == twin)[:2010].mean() > 0.99
    assert codes[:7].tolist() == [1, 1, 1, 1, 0, coded.INFINITE, -coded.INFINITE]
    read = coded.decode(codes)
    np.testing.assert_equal(read[4:7], [np.nan, np.inf, -np.inf])
    finite = np.isfinite(values)
    size = np.abs(values[finite].astype(np.float64))
    assert (np.abs(read[finite] - values[finite].astype(np.float64)) <= (1 + size) / 4000).all()
    order = np.argsort(values[finite], kind="stable")
    assert (np.diff(read[finite][order]) >= 0).all()
    rows = ", ".join(f"({code})" for code in [*codes.tolist(), "NULL"])
    found = [row[0] for row in asked(f"SELECT {coded.value_sql('c')} FROM (VALUES {rows}) t(c)")]
    assert found.pop() is None
    sql = np.array([np.nan if value is None else value for value in found], dtype=np.float32)
    np.testing.assert_allclose(sql, read, rtol=2e-7)
    assert (sql[codes == 1] == 0).all()


@pytest.mark.parametrize("seed", range(4))
def test_places_of_words_come_back_whatever_is_unknown(seed: int):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, 40)
    n = int(lengths.sum())
    start = rng.integers(-1, 9, n)
    end = np.where(rng.random(n) < 0.7, start + rng.integers(0, 4, n), rng.integers(-1, 9, n))
    start[-2:], end[-2:] = 2**31 - 1, [0, -1]
    columns, unknown, next_first = coded.chars(start, end, lengths, 1000)
    con = duckdb.connect(":memory:")
    con.execute("CREATE TABLE token_coded (char_place BIGINT, char_first BIGINT, char_length BIGINT)")
    place, first, size = (columns[name].tolist() for name in ("char_place", "char_first", "char_length"))
    size = [None if no else one for one, no in zip(size, unknown, strict=True)]
    con.executemany("INSERT INTO token_coded VALUES (?, ?, ?)", list(zip(place, first, size, strict=True)))
    con.execute(coded.view_sql([(name, "INTEGER") for name in coded.PLACES]))
    found = con.execute("SELECT char_start, char_end FROM token ORDER BY rowid").fetchall()
    given = zip(start.tolist(), end.tolist(), strict=True)
    assert found == [tuple(None if x < 0 else x for x in pair) for pair in given]
    owners = np.repeat(np.arange(len(lengths)), lengths)
    extents = [max(0, int(max(start[owners == i].max(), end[owners == i].max())) + 1) for i in range(len(lengths))]
    firsts = [1000, *(1000 + total for total in itertools.accumulate(extents))]
    assert columns["char_first"].tolist() == [firsts[i] for i in owners]
    assert next_first == firsts[-1]


@pytest.mark.parametrize("modality", ["text", "vision"])
def test_a_run_reads_back_what_was_written(modality: str, tmp_path: Path):
    made = make("r", modality=modality)
    # A batch without losses between others: of its tokens nothing is known.
    made.batches[1] = replace(made.batches[1], loss=None)
    with Run.open(made.write(tmp_path)) as run:
        tokens = Frames(run).table("token")
        members = run.rows(Query("SELECT rank, sample, token FROM path_member"))
        rank_of = dict(run.rows(Query("SELECT path_id, rank FROM path")))
        paths = run.rows(Query("SELECT path_id, sample, token FROM token"))
        numbers = [row[0] for row in run.rows(Query("SELECT rowid FROM token"))]
        answer = run.info()["loss"]
    assert numbers == list(range(len(tokens)))
    sizes = [sample.num_tokens for batch in made.batches for sample in batch.samples]
    assert tokens["token"].tolist() == [t for size in sizes for t in range(size)]
    entropy = np.concatenate([batch.gate_entropy.mean(axis=1) for batch in made.batches])
    np.testing.assert_allclose(tokens["gate_entropy"], entropy, rtol=1 / 4000, atol=1 / 4000)
    assert members == sorted((rank_of[path], sample, token) for path, sample, token in paths)
    if modality == "vision":
        return
    losses = [np.full(b.num_tokens, np.nan) if b.loss is None else b.loss for b in made.batches]
    np.testing.assert_allclose(tokens["loss"].astype(float), np.concatenate(losses), rtol=1 / 4000, atol=1 / 4000)
    # The mean of the run is that of the losses before they were rounded.
    assert answer == pytest.approx(np.nanmean(np.concatenate(losses).astype(np.float64)), rel=1e-7)
    for name in coded.PLACES:
        assert tokens[name].tolist() == np.concatenate([getattr(batch, name) for batch in made.batches]).tolist()
