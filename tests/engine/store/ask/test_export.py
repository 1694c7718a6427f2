"""Exports range by range: the same rows in the same order however small the ranges, and nothing held afterwards."""

from __future__ import annotations

import base64
import io

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

from tests.support.runs import make_experts, make_run, make_soft
from tokenpaths.engine.base.errors import NoSuchThing
from tokenpaths.engine.base.spreadsheet import spreadsheet_text
from tokenpaths.engine.store.ask import export
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.open_file import Connection


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Pictures, texts with two slots, BLOBs of a mixture of experts, and soft decisions."""
    folder = tmp_path_factory.mktemp("export")
    make_run(folder, "vision", samples=9)
    make_run(folder, "text", "text", samples=9, top_k=2)
    made = make_experts("experts", layers=33, samples=4)
    made.write(folder)
    soft = make_soft(edges=np.random.default_rng(0).random((6, 2, 3, 3))).write(folder)
    files = {name: folder / f"{name}.duckdb" for name in ("vision", "text", "experts")} | {"soft": soft}
    return {name: Run.open(file) for name, file in files.items()}


def arrow(run: Run, table: str) -> pa.Table:
    return pa.ipc.open_file(b"".join(run.export(table, "arrow"))).read_all()


@pytest.mark.parametrize("name", ["vision", "text", "experts", "soft"])
def test_small_ranges_give_the_same_table(runs, name, monkeypatch):
    run = runs[name]
    whole = {one["table"]: arrow(run, one["table"]) for one in run.tables()["tables"]}
    assert {"run", "token", "path", "path_member", "flow", "usage", "sample"} <= whole.keys()
    monkeypatch.setattr(export, "BATCH_ROWS", 7)
    for table, rows in whole.items():
        pieces = list(run.export(table, "arrow"))
        assert len(pieces) >= rows.num_rows // 7
        assert pa.ipc.open_file(b"".join(pieces)).read_all().equals(rows)


def test_an_arrow_file_is_one_that_its_suffix_promises(runs, tmp_path, monkeypatch):
    """The IPC file format: what Feather, polars and ``open_file`` read; of several ranges too."""
    monkeypatch.setattr(export, "BATCH_ROWS", 7)
    file = tmp_path / "path.arrow"
    file.write_bytes(b"".join(runs["text"].export("path", "arrow")))
    assert feather.read_table(file).equals(pa.ipc.open_file(file).read_all())
    assert pa.ipc.open_file(file).num_record_batches > 1


@pytest.mark.parametrize("name", ["vision", "text", "experts", "soft"])
def test_every_table_is_what_the_file_holds(runs, name):
    run = runs[name]
    con = duckdb.connect(str(run.file), read_only=True)
    con.execute("SET threads = 1")
    for one in run.tables()["tables"]:
        table, rows = one["table"], arrow(run, one["table"])
        assert one["num_rows"] == rows.num_rows
        source = "sample" if table == "image" else table
        kept = [c for c in rows.column_names if c in _columns(con, source)]
        assert table == "token" or set(rows.column_names) - set(kept) <= {"label"}, table
        # Weights are kept as codes, FLOPs where they are not those of the path (see test_store_by_path), ids as words.
        kept = [c for c in kept if not (table == "token" and (c.startswith("w") or c in ("flops", "ids")))]
        names = ", ".join(f'"{c}"' for c in kept)
        wanted = con.execute(f"SELECT {names} FROM {source}").to_arrow_table()
        assert rows.select(wanted.column_names).equals(wanted.cast(rows.select(wanted.column_names).schema)), table
    tokens = con.execute(
        "SELECT label.label, path.rank FROM token JOIN path USING (path_id) LEFT JOIN label USING (label_id) "
        "ORDER BY token.sample, token.token"
    ).fetchall()
    rows = arrow(run, "token")
    assert list(zip(rows["label"].to_pylist(), rows["rank"].to_pylist(), strict=True)) == tokens
    flows = con.execute(
        "SELECT step, source, target, count, label FROM flow LEFT JOIN label USING (label_id)"
    ).fetchall()
    assert sorted(flows, key=str) == sorted(
        zip(*(arrow(run, "flow")[c].to_pylist() for c in ("step", "source", "target", "count", "label")), strict=True),
        key=str,
    )
    con.close()


def _columns(con: duckdb.DuckDBPyConnection, table: str) -> list[str]:
    return [row[0] for row in con.execute(f"DESCRIBE {table}").fetchall()]


def test_pictures_leave_as_png_and_in_csv_in_base_64(runs):
    run = runs["vision"]
    pictures = parquet.read_table(io.BytesIO(b"".join(run.export("image", "parquet"))))
    assert pictures["image"].to_pylist() == [run.image(i) for i in range(9)]
    text = csv.read_csv(io.BytesIO(b"".join(run.export("image", "csv"))))
    assert [base64.b64decode(one) for one in text["image"].to_pylist()] == pictures["image"].to_pylist()
    assert arrow(runs["text"], "image").num_rows == 0


def test_a_reader_that_leaves_releases_its_cursor(runs, monkeypatch):
    open_cursors = []
    plain = Connection.cursor

    def counted(self, **options):
        manager = plain(self, **options)

        class Watched:
            def __enter__(self):
                open_cursors.append(self)
                return manager.__enter__()

            def __exit__(self, *error):
                open_cursors.remove(self)
                return manager.__exit__(*error)

        return Watched()

    monkeypatch.setattr(Connection, "cursor", counted)
    monkeypatch.setattr(export, "BATCH_ROWS", 10)
    chunks = runs["vision"].export("token", "csv")
    assert next(chunks).count(b"\n") == 11
    assert len(open_cursors) == 1
    chunks.close()
    assert open_cursors == []


def test_only_what_is_there_leaves(runs):
    listed = {one["table"] for one in runs["vision"].tables()["tables"]}
    with pytest.raises(NoSuchThing, match="there is no table 'secrets', run 'vision' has run, module, ") as refused:
        runs["vision"].export("secrets", "csv")
    assert set(str(refused.value).partition(" has ")[2].split(", ")) == listed
    assert not listed & {"edge", "gate", "block", "token_text"}
    assert "edge" in {one["table"] for one in runs["soft"].tables()["tables"]}


def test_tables_that_hold_no_zeros_say_so(runs):
    """Who takes the mean of the rates of a table would otherwise count silent samples as absent."""
    for name, run in runs.items():
        for one in run.tables()["tables"]:
            if one["table"] in ("flow", "usage"):
                assert min(arrow(run, one["table"])["count"].to_pylist()) > 0, name
                assert "no row" in one["what"]
    assert "no row: its rate is 0" in export.TABLES["block"]


def test_rows_are_counted_without_joining_a_view(runs, monkeypatch):
    run, asked = runs["vision"], []
    plain = export._size
    monkeypatch.setattr(export, "_size", lambda *given: asked.append(plain(*given)) or asked[-1])
    num_tokens = run.row["num_tokens"]
    for table in ("token", "path_member"):
        assert arrow(run, table).num_rows == num_tokens
    assert len(asked) == 2
    for sql in asked:
        assert run.rows(Query(sql)) == [(num_tokens,)]
        assert "JOIN" not in run.rows(Query(f"EXPLAIN {sql}"))[0][1]


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\tx", "\rx", "\nx", " =1", "\u200b=1", "\uff1d1"]
FORMULAS += ["\ufeff-x", "-", "--1"]
PLAIN = ["a=b", "", "-1", "+5", "-0.5", "-.5e-3", "1-1", "it's", "'=1", "e@mail", "3 4", "漢字", None]


def test_no_cell_of_a_csv_file_is_a_formula(runs, monkeypatch):
    texts = [*FORMULAS, *PLAIN]
    table = pa.table({"text": pa.array(texts, pa.string()), "number": [-1.5] * len(texts)})
    monkeypatch.setattr(export, "table_batches", lambda *_, **__: (batch for batch in (table, table.slice(13))))
    read = csv.read_csv(
        io.BytesIO(b"".join(runs["vision"].export("sample", "csv"))),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types={"text": pa.string()}, strings_can_be_null=True),
    )
    expected = [f"'{text}" for text in FORMULAS] + PLAIN + PLAIN
    assert [text or None for text in read["text"].to_pylist()] == [text or None for text in expected]
    assert set(read["number"].to_pylist()) == {-1.5}
    assert [spreadsheet_text(text or "") for text in texts] == [text or "" for text in expected[: len(texts)]]
    plain = pa.ipc.open_file(b"".join(runs["vision"].export("sample", "arrow"))).read_all()
    assert plain["text"].to_pylist()[: len(texts)] == texts
