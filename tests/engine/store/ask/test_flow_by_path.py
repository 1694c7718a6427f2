"""What a token has from its path: the same as when it was kept with each token, and of files that still do so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import duckdb
import numpy as np
import pytest

from tests.support.naive_store import Case
from tests.support.runs import make
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask import path_index
from tokenpaths.engine.store.ask.frames import Frames
from tokenpaths.engine.store.ask.path_index import Shares
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.filters import Filters, Query, token_condition
from tokenpaths.engine.store.file.flow_counter import FlowCounter, flow_sql, usage_sql, with_modules
from tokenpaths.engine.store.file.schema import SCHEMA_VERSION, SMALL_BLOCK_BYTES, STORAGE_VERSION

NEW = ("path_page", "path_count", "path_top", "label_path", "answer", "profile_page", "token_coded", "member")


def as_schema_4(file: Path, target: Path) -> Path:
    """The run as it was written before: ids, compute, reuse and FLOPs with each token, no pages of paths."""
    with Run.open(file) as run:
        tokens = Frames(run).table("token")
        layout = run.layout
    con = duckdb.connect(":memory:")
    con.execute(f"ATTACH '{file}' AS new (READ_ONLY)")
    con.execute(f"ATTACH '{target}' AS old (STORAGE_VERSION '{STORAGE_VERSION}', BLOCK_SIZE {SMALL_BLOCK_BYTES})")
    con.execute("USE old")
    for (table,) in con.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'new'").fetchall():
        if table not in (*NEW, "sample", "run"):
            con.execute(f"CREATE TABLE {table} AS SELECT * FROM new.{table}")
    con.execute("CREATE TABLE path_member AS SELECT * EXCLUDE (rowid) FROM new.path_member ORDER BY rowid")
    con.register("exported", tokens)
    ribbons = (
        ""
        if layout.packed
        else ", ".join(f"{name}::{layout.id_type} AS {name}" for name in layout.module_columns()) + ", "
    )
    weights = "ids, weights" if layout.packed else ", ".join(f"n.{name}" for name in layout.weight_columns())
    ids = [] if layout.packed else layout.module_columns()
    there = [row[0] for row in con.execute("DESCRIBE new.token").fetchall() if row[0] != "rowid"]
    plain = [f"n.{name}" for name in there if name not in ("flops", "ids", "weights", *ids, *layout.weight_columns())]
    ribbons = [f"e.{name}::{layout.id_type} AS {name}" for name in ids]
    weights = ["n.ids", "n.weights"] if layout.packed else [f"n.{name}" for name in layout.weight_columns()]
    con.execute(
        f"CREATE TABLE token AS SELECT {', '.join(plain)}, e.compute::FLOAT AS compute, e.reuse::FLOAT AS reuse, "
        f"e.flops::FLOAT AS flops, {', '.join([*ribbons, *weights])} FROM new.token AS n JOIN exported AS e "
        "ON n.sample = e.sample AND n.token = e.token ORDER BY n.rowid"
    )
    con.execute(
        "CREATE TABLE sample AS SELECT * EXCLUDE (gate_entropy) REPLACE (coalesce(search, lower(coalesce(label, '') "
        "|| chr(10) || coalesce(prediction, '') || chr(10) || coalesce(source, '') || chr(10) || coalesce(text, ''))) "
        "AS search) FROM new.sample"
    )
    con.execute("CREATE TABLE run AS SELECT * REPLACE (4 AS schema_version) FROM new.run")
    con.close()
    return target


def everything(run: Run) -> str:
    """Every answer of a run as one text; what a file says of its version is left out."""
    labels = [row[1] for row in run.labels][:1]
    info = {name: value for name, value in run.info().items() if name != "schema_version"}
    answers = [
        info,
        run.flow(),
        run.flow(through=[(0, 1)]),
        run.flow(paths=[1, 2]),
        run.usage(),
        run.fit(),
        run.law(0),
        run.repetition(),
        run.similar_samples(0),
        run.similar_tokens(0, 0),
    ]
    answers += [run.paths(limit=1000, order=order) for order in ("rank", "compute", "reuse")]
    answers += [run.paths(through=[(0, 1)]), run.paths(limit=3, offset=2, order="compute")]
    for label in labels:
        answers += [
            run.flow(label=label, through=[(0, 1)]),
            run.paths(label=label),
            run.usage(label),
            run.paths(label=label, order="reuse"),
            run.paths(label=label, limit=1, offset=1),
        ]
    for measure in run.info()["measures"]:
        for question in [{"per": "sample"}, {"per": "token"}, *({"per": "token", "label": label} for label in labels)]:
            if (measure, question["per"]) == ("gate_entropy", "sample"):
                continue  # an old file has the means of levels, a new one those of the values: not the last digits
            try:
                # Added up value by value there, level by level here: not the last digits.
                described = json.dumps(run.distribution(measure, **question))
                answers.append(json.loads(described, parse_float=lambda text: float(f"{float(text):.9g}")))
            except UserError as error:
                answers.append({"refused": str(error)})
    answers += [run.examples(rank) for rank in (1, 2)]
    answers += [run.sample(i) for i in range(run.card()["num_samples"])]
    answers += [run.token_slice(0, 0), run.samples(q="A"), run.samples(q="ÉTÉ"), run.samples(q="circle")]
    answers.append(json.loads(Frames(run).table("token").sort_index(axis=1).map(str).to_json()))
    return json.dumps(answers, allow_nan=False)


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"modality": "text"},
        {"top_k": 2},
        {"modality": "text", "labels": False},
        {"steps": 9, "modules": 12, "top_k": 8, "samples": 4},
    ],
)
def test_a_file_of_schema_4_gives_the_same_answers(kind: dict, tmp_path: Path):
    made = make("r", **kind)
    (tmp_path / "old").mkdir()
    new = made.write(tmp_path / "new")
    old = as_schema_4(new, tmp_path / "old" / "r.duckdb")
    with Run.open(new) as mine, Run.open(old) as theirs:
        assert (mine.row["schema_version"], theirs.row["schema_version"]) == (SCHEMA_VERSION, 4)
        assert mine.layout.by_path == (made.info.top_k == 1)
        assert not theirs.layout.by_path
        assert everything(mine) == everything(theirs)
        entropy, before = (run.distribution("gate_entropy", per="sample") for run in (mine, theirs))
        assert entropy["num"] == before["num"]
        for name in ("mean", "min", "median", "max"):
            assert entropy[name] == pytest.approx(before[name], abs=(1 + before["max"]) / 4000)


def test_counts_of_paths_past_32_bits_stay_counts():
    shares = Shares(np.array([3 * 10**9, 2]), np.array([1, 2]), 3 * 10**9 + 4)
    assert shares.counts().tolist() == [3 * 10**9, 2, 2]


def test_paths_are_looked_up_as_the_table_has_them(case: Case):
    run = case.run
    rows = run.arrays(Query("SELECT path_id, rank, cdf FROM path ORDER BY hash(path_id)"))
    ranks, ribbons = path_index.look_up(run, rows["path_id"])
    assert ranks.tolist() == rows["rank"].tolist()
    assert run.shares.cdf(ranks).tolist() == rows["cdf"].tolist()
    if run.layout.by_path:
        wanted = [row[0] for row in run.rows(Query("SELECT ribbon FROM path ORDER BY hash(path_id)"))]
        assert ribbons.tolist() == wanted


def test_paths_of_several_pages(case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Small pages: many in a file, and more than are read at once."""
    wanted = case.run.sample(0)
    monkeypatch.setattr(path_index, "PAGE_PATHS", 3)
    monkeypatch.setattr(path_index, "PAGES_AT_ONCE", 2)
    file = case.naive.made.write(tmp_path)
    with Run.open(file) as run:
        assert run.row["num_paths"] > 3
        rows = run.arrays(Query("SELECT path_id, rank FROM path ORDER BY hash(path_id)"))
        assert path_index.look_up(run, rows["path_id"])[0].tolist() == rows["rank"].tolist()
        few = rows["path_id"][::5]
        assert path_index.look_up(run, few)[0].tolist() == rows["rank"][::5].tolist()
        assert run.sample(0) == wanted


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
        num, links, usage = run.count(condition, 0, run.layout.num_steps)
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
    monkeypatch.setattr("tokenpaths.engine.store.write.batch_flow_counts.MOST_BYTES", 4000)
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
