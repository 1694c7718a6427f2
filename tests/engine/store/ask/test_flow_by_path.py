"""What a token has from its path: rank, ribbon, flows and FLOPs, beside what its own decisions say."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import numpy as np
import pytest

from tests.support.naive_store import Case
from tests.support.runs import make
from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables import lookups, path_ribbons
from tokenpaths.engine.store.ask.topics import paths
from tokenpaths.engine.store.ask.topics.flow import count_tokens
from tokenpaths.engine.store.file.filters import Filters, Query, token_condition
from tokenpaths.engine.store.file.flow_counter import FlowCounter, flow_sql, usage_sql, with_modules
from tokenpaths.engine.store.file.pages.path_pages import Shares


def test_counts_of_paths_past_32_bits_stay_counts():
    shares = Shares(np.array([3 * 10**9, 2]), np.array([1, 2]), 3 * 10**9 + 4)
    assert shares.counts().tolist() == [3 * 10**9, 2, 2]
    assert shares.counts(least=3).tolist() == [3 * 10**9]
    assert shares.counts(least=10**10).tolist() == []


@pytest.mark.parametrize("values", [[4], [0, 1, 2], [0, 1, 3], [0, 2, 5], [0, 3, 9], [3, 6, 9], [0, 3, 6, 12], [1, 70]])
@pytest.mark.parametrize("most_apart", [2, 128])
def test_rows_are_looked_up_one_by_one_or_together(values: list[int], most_apart: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MOST_APART", most_apart)
    con = duckdb.connect()
    con.execute("CREATE TABLE t AS SELECT range AS key, 'row ' || range AS text FROM range(50)")
    query = lookups.looked_up("text, key", "t", "key", values)
    wanted = [(f"row {key}", key) for key in values if key < 50]
    assert sorted(con.execute(query.sql, list(query.parameters)).fetchall()) == sorted(wanted)


def test_paths_are_looked_up_as_the_table_has_them(case: Case):
    run = case.run
    rows = run.arrays(Query("SELECT path_id, rank, cdf FROM path ORDER BY hash(path_id)"))
    ranks, ribbons = run.look_up(rows["path_id"])
    assert ranks.tolist() == rows["rank"].tolist()
    assert run.shares.cdf(ranks).tolist() == rows["cdf"].tolist()
    if run.layout.by_path:
        wanted = [row[0] for row in run.rows(Query("SELECT ribbon FROM path ORDER BY hash(path_id)"))]
        assert ribbons.tolist() == wanted


@pytest.mark.parametrize("most_held", [2**20, 200, 0], ids=["all cached", "some cached", "none cached"])
def test_paths_of_several_pages(case: Case, most_held: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Small pages: many in a file, and more than are read at once."""
    wanted = case.run.sample(0)
    monkeypatch.setattr("tokenpaths.engine.store.ask.run_file.MOST_HELD_PAGES", most_held)
    for module in ("ask.run_file", "write.seal_pages"):
        monkeypatch.setattr(f"tokenpaths.engine.store.{module}.PAGE_PATHS", 3)
        monkeypatch.setattr(f"tokenpaths.engine.store.{module}.PAGES_AT_ONCE", 2)
    file = case.naive.made.write(tmp_path)
    with Run.open(file) as run:
        assert run.row["num_paths"] > 3
        rows = run.arrays(Query("SELECT path_id, rank FROM path ORDER BY hash(path_id)"))
        assert run.look_up(rows["path_id"])[0].tolist() == rows["rank"].tolist()
        few = rows["path_id"][::5]
        assert run.look_up(few)[0].tolist() == rows["rank"][::5].tolist()
        assert run.sample(0) == wanted
        assert run.sample(0) == wanted


def test_a_page_of_paths_is_read_once(case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("tokenpaths.engine.store.write.seal_pages.PAGE_PATHS", 3)
    monkeypatch.setattr("tokenpaths.engine.store.ask.run_file.PAGE_PATHS", 3)
    asked: list[list[int]] = []
    look_up = lookups.looked_up

    def noted(columns: str, table: str, key: str, values: list[int]) -> Query:
        asked.append(values)
        return look_up(columns, table, key, values)

    monkeypatch.setattr(lookups, "looked_up", noted)
    with Run.open(case.naive.made.write(tmp_path)) as run:
        for path_ids in ([0, 1], [2, 4], [0, 5], [3]):
            run.look_up(np.array(path_ids))
        assert asked == [[0], [1]]
        with pytest.raises(RunFileError, match="damaged"):
            run.look_up(np.array([10**6]))


def test_links_by_path_are_those_of_the_tokens(case: Case):
    """The exact answer of a free filter beside its naive twin, one token after the other."""
    run, made = case.run, case.naive.made
    if not run.layout.by_path:
        pytest.skip("its tokens have ids of their own")
    label = run.labels[0][1] if run.labels else None
    point = (0, int(made.ids[0, 0, 0]))
    for asked in (Filters(None, (), (point,)), Filters(None, (1, 2), ()), Filters(label, (), (point,)), Filters(label)):
        condition = token_condition(asked, run.label_id(asked.label), run.layout)
        chosen = list(case.naive.tokens(asked.label, asked.paths, asked.through))
        twin = FlowCounter(run.layout, range(run.layout.num_steps - 1))
        levels = np.rint(case.naive.levels[chosen] * 255).astype(np.uint8)
        twin.add(made.ids[chosen], levels)
        num, links, usage = count_tokens(run, condition, 0, run.layout.num_steps)
        assert num == len(chosen)
        columns = [links[name].tolist() for name in ("step", "source", "target", "count")]
        assert list(zip(*columns, strict=True)) == [row[:4] for row in sorted(twin.flow_rows())]
        assert [row[:3] for row in usage] == [row[:3] for row in twin.usage_rows()]


def test_what_was_counted_on_the_way_is_what_sql_counts(case: Case):
    run = case.run
    if not run.layout.by_path:
        pytest.skip("counted in SQL")
    for by, label in ((None, -1), ("label_id", None)):
        group = ", label_id" if by else f", {label} AS label_id"
        chosen = f"WITH chosen AS (SELECT * FROM {with_modules(run.layout)}) "
        flows = flow_sql(run.layout, range(run.layout.num_steps - 1), by)
        sql = f"{chosen} SELECT step, source, target, count, weight{group} FROM ({flows})"
        where = "label_id = -1" if by is None else "label_id >= 0"
        mine = run.rows(Query(f"SELECT * FROM flow WHERE {where} ORDER BY ALL"))
        assert mine == run.rows(Query(f"SELECT * FROM ({sql}) WHERE label_id IS NOT NULL ORDER BY ALL"))
        sql = f"{chosen} SELECT step, module, count, weight{group} FROM ({usage_sql(run.layout, by)})"
        mine = run.rows(Query(f"SELECT * FROM usage WHERE {where} ORDER BY ALL"))
        assert mine == run.rows(Query(f"SELECT * FROM ({sql}) WHERE label_id IS NOT NULL ORDER BY ALL"))


def test_many_labels_are_counted_in_sql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = make("r")
    with Run.open(made.write(tmp_path / "whole")) as run:
        wanted = [run.rows(Query(f"SELECT * FROM {table} ORDER BY ALL")) for table in ("flow", "usage")]
    monkeypatch.setattr("tokenpaths.engine.store.write.flows.while_writing.MOST_BYTES", 4000)
    with Run.open(made.write(tmp_path / "sql")) as run:
        assert [run.rows(Query(f"SELECT * FROM {table} ORDER BY ALL")) for table in ("flow", "usage")] == wanted


def test_other_flops_than_those_of_the_modules_are_kept(tmp_path: Path):
    made = make("r", modality="text")
    flops = [batch.flops.copy() for batch in made.batches]
    flops[0][0] += 7
    for batch, values in zip(made.batches, flops, strict=True):
        object.__setattr__(batch, "flops", values)
    with Run.open(made.write(tmp_path)) as run:
        ((kept,),) = run.rows(Query("SELECT count(flops) FROM token"))
        wanted = np.concatenate(flops)
        assert run.frames.table("token")["flops"].tolist() == wanted.tolist()
        shown = [token["flops"] for i in range(run.row["num_samples"]) for token in run.sample(i)["tokens"]]
        assert shown == wanted.tolist()
        assert kept < len(wanted)
    shutil.rmtree(tmp_path)


def test_ribbons_of_paths_of_their_own_are_the_same_from_every_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = make("own", "text", samples=30, steps=9, modules=12, top_k=8).write(tmp_path)
    with Run.open(file) as run:
        assert run.layout.unique
        by_sql = dict(run.rows(Query("SELECT rank, ribbon FROM path ORDER BY rank")))
        sealed = run.paths(limit=1000)
        assert {path["rank"]: sum(path["ribbon"], []) for path in sealed["paths"]} == by_sql
        monkeypatch.setattr(paths, "TOP_ROWS", 0)
        assert run.paths(limit=1000) == sealed
        monkeypatch.setattr(path_ribbons, "tokens_at_once", lambda in_parts: 7)
        assert run.paths(limit=1000) == sealed
        monkeypatch.setattr(path_ribbons, "RANKS_AT_ONCE", 3)
        asked = [9, 2, 2, 1, 30]
        assert path_ribbons.ribbons_of_ranks(run, asked) == {rank: by_sql[rank] for rank in asked}
        for columns in ("rank", "path_id, rank", "path_id, rank, count"):  # the last by a join
            of_rank = {}
            for values, ribbons in path_ribbons.path_ribbons(run, columns):
                of_rank |= dict(zip(values["rank"].tolist(), ribbons.tolist(), strict=True))
            assert of_rank == by_sql
