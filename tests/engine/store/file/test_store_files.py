"""Opening: damaged and foreign files, the read-only walls, time limits, threads."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from tests.support.naive_store import Case
from tests.support.runs import make, make_run
from tokenpaths.engine.base.errors import NoSuchThing, QueryTimeout, RunFileError, RunNotFound, UserError
from tokenpaths.engine.store.ask.export import FORMATS, TABLES
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.topics.overview import list_runs
from tokenpaths.engine.store.file import SCHEMA_VERSION, open_file
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.open_file import Connection, open_read_only
from tokenpaths.engine.store.file.verification import verify_run


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("sealed"), samples=4)


def everything(run: Run) -> str:
    """Every answer of a run as one text."""
    answers = [run.info(), run.flow(), run.flow(through=[(0, 1)]), run.paths(limit=1000), run.fit(), run.usage()]
    answers += [run.examples(1), run.samples(), run.distribution("compute"), run.distribution("gate_entropy", "token")]
    answers += [run.sample(i) for i in range(run.card()["num_samples"])]
    return json.dumps(answers, allow_nan=False)


def test_a_file_cut_anywhere_is_refused_with_a_sentence(sealed: Path, tmp_path: Path):
    data = sealed.read_bytes()
    file = tmp_path / "cut.duckdb"
    for length in [1, 8, 12, 4096, 8192, 12288, *np.linspace(5000, len(data) - 1, 40).astype(int).tolist()]:
        file.write_bytes(data[:length])
        with pytest.raises(RunFileError, match=r"cut\.duckdb (is|has)") as caught:
            Run.open(file)
        assert "\n" not in str(caught.value)


def test_other_files_are_refused_by_what_they_are(tmp_path: Path):
    rng = np.random.default_rng(0)
    (tmp_path / "empty.duckdb").write_bytes(b"")
    (tmp_path / "noise.duckdb").write_bytes(rng.bytes(100_000))
    sqlite = sqlite3.connect(tmp_path / "lite.duckdb")
    sqlite.execute("CREATE TABLE run (a)")
    sqlite.commit()
    sqlite.close()
    with duckdb.connect(str(tmp_path / "other.duckdb")) as con:
        con.execute("CREATE TABLE cats (name VARCHAR)")
    header = b"\0" * 8 + b"DUCK" + rng.bytes(50_000)
    (tmp_path / "fake.duckdb").write_bytes(header)
    (tmp_path / "folder.duckdb").mkdir()
    sentences = {
        "empty": "is empty",
        "noise": "is no run",
        "lite": "is an SQLite database",
        "other": "has no table 'run'",
        "fake": "damaged or cut off",
        "folder": "cannot be opened",
    }
    for name, sentence in sentences.items():
        with pytest.raises(RunFileError, match=sentence):
            Run.open(tmp_path / f"{name}.duckdb")
    with pytest.raises(RunNotFound, match="no run 'missing'"):
        Run.open(tmp_path / "missing.duckdb")
    cards = {card["run"]: card for card in list_runs(tmp_path)}
    assert cards.keys() == sentences.keys()
    assert all(card["status"] == "unreadable" and card["problem"] for card in cards.values())


def test_a_closed_run_and_a_name_without_its_file_are_told(sealed: Path) -> None:
    run = Run.open(sealed)
    run.close()
    with pytest.raises(UserError, match="was closed; open it again"):
        run.paths()
    with pytest.raises(RunNotFound, match=f"give the file of a run, such as {sealed.stem}.duckdb"):
        Run.open(sealed.with_suffix(""))


@pytest.mark.parametrize(
    ("version", "remedy"), [(99, "update it"), (SCHEMA_VERSION - 1, "trace the run again"), (1, "trace the run again")]
)
def test_another_schema_is_refused(version: int, remedy: str, sealed: Path, tmp_path: Path):
    file = tmp_path / "other.duckdb"
    file.write_bytes(sealed.read_bytes())
    with duckdb.connect(str(file)) as con:
        con.execute(f"UPDATE run SET schema_version = {version}")
    with pytest.raises(RunFileError, match=rf"schema version {version}, this program reads {SCHEMA_VERSION}: {remedy}"):
        Run.open(file)
    assert "schema version" in list_runs(tmp_path)[0]["problem"]


def test_flipped_bytes_give_the_right_answer_or_a_sentence_but_never_a_wrong_number(sealed: Path, tmp_path: Path):
    with Run.open(sealed) as run:
        right = everything(run).replace('"run": "demo"', '"run": "hurt"')
    data = sealed.read_bytes()
    rng = np.random.default_rng(5)
    file = tmp_path / "hurt.duckdb"
    refused = []
    for position in rng.integers(0, len(data), 40).tolist():
        hurt = bytearray(data)
        hurt[position : position + 16] = rng.bytes(16)
        file.write_bytes(bytes(hurt))
        try:
            with Run.open(file) as run:
                answer = everything(run)
        except UserError as error:
            refused.append(str(error))
        else:
            assert answer == right
    assert len(refused) > 5
    assert all("hurt.duckdb" in sentence for sentence in refused)


def test_unreadable_runs_do_not_hide_the_others(tmp_path: Path):
    make_run(tmp_path, "good", samples=2)
    (tmp_path / "bad.duckdb").write_bytes(b"nothing")
    (tmp_path / "my run.duckdb").write_bytes(b"nothing")
    (tmp_path / "notes.txt").write_text("hello")
    cards = {card["run"]: card for card in list_runs(tmp_path)}
    assert {name: card["status"] for name, card in cards.items()} == {
        "good": "sealed",
        "bad": "unreadable",
        "my run": "unreadable",
    }
    assert "no address can hold" in cards["my run"]["problem"]
    assert list_runs(tmp_path / "nowhere") == []


def test_cards_follow_their_file(tmp_path: Path):
    make_run(tmp_path, "good", samples=2)
    assert list_runs(tmp_path)[0]["num_samples"] == 2
    make_run(tmp_path, "good", samples=3, overwrite=True)
    assert list_runs(tmp_path)[0]["num_samples"] == 3
    (tmp_path / "good.duckdb").unlink()
    assert list_runs(tmp_path) == []


ESCAPES = [
    "SELECT * FROM read_csv('/etc/hostname')",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT * FROM glob('/*')",
    "COPY (SELECT 1) TO '{folder}/out.csv'",
    "ATTACH '{folder}/new.duckdb' AS n",
    "EXPORT DATABASE '{folder}/out'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SET temp_directory = '{folder}'",
    "INSERT INTO label VALUES (9, 'x', 1, 1)",
    "DELETE FROM token",
    "UPDATE run SET model = 'x'",
    "DROP TABLE path_coded",
    "CREATE TABLE r.main.mine (a INTEGER)",
    "SELECT * FROM outside",
]


@pytest.mark.parametrize("statement", ESCAPES)
def test_the_connection_can_do_nothing_but_read_its_file(statement: str, sealed: Path, tmp_path: Path):
    outside = pa.table({"a": [1]})  # a name in this frame that DuckDB could look up
    assert outside.num_rows == 1
    before = sealed.read_bytes()
    con = open_read_only(sealed)
    with pytest.raises(duckdb.Error):
        con.execute(statement.replace("{folder}", str(tmp_path))).fetchall()
    con.close()
    assert list(tmp_path.iterdir()) == []
    assert sealed.read_bytes() == before


def test_a_question_that_takes_too_long_is_interrupted(sealed: Path):
    connection = Connection(sealed, time_limit_s=0.2)
    with pytest.raises(QueryTimeout, match=r"longer than 0\.2 seconds"):
        connection.rows("SELECT count(*) FROM range(10000000000) a WHERE hash(a.range) % 7 = 3")
    assert connection.rows("SELECT 1") == [(1,)]
    connection.close()


def test_rows_that_leave_through_arrow_are_interrupted_too(sealed: Path):
    connection = Connection(sealed, time_limit_s=0.2)
    with pytest.raises(QueryTimeout), connection.cursor() as cursor:  # noqa: PT012
        slow = "SELECT a.range FROM range(10000000000) a WHERE hash(a.range) % 1000000007 = 3"
        for _ in cursor.execute(slow).to_arrow_reader(1000):
            pass
    connection.close()


def test_time_limit_holds_for_questions_of_a_run(sealed: Path, monkeypatch: pytest.MonkeyPatch):
    with Run.open(sealed, time_limit_s=3.0) as run:
        slow = "SELECT count(*) FROM range(10000000000) a WHERE hash(a.range) % 7 = ?"
        monkeypatch.setattr("tokenpaths.engine.store.ask.tables.queries.count_samples", lambda _: Query(slow, (3,)))
        with pytest.raises(QueryTimeout):
            run.samples(q="a word")
        assert run.paths(limit=1)["paths"][0]["rank"] == 1


def test_a_run_deleted_while_it_is_opened_is_gone_and_not_damaged(
    sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "gone.duckdb"
    file.write_bytes(sealed.read_bytes())
    monkeypatch.setattr("tokenpaths.engine.store.file.open_file.check_bytes", lambda given: given.unlink())
    with pytest.raises(RunNotFound, match="no run 'gone'"):
        Run.open(file)


def test_our_own_broken_sql_is_not_blamed_on_the_file(sealed: Path):
    connection = Connection(sealed, time_limit_s=5)
    with pytest.raises(duckdb.Error):
        connection.rows("SELEC 1")
    connection.close()


def test_many_threads_get_the_same_answers(top1: Case):
    run = top1.run
    expected = everything(run)
    start = threading.Barrier(6)

    def ask(_: int) -> str:
        start.wait()
        return everything(run)

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(ask, range(6))) == {expected}


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_table_leaves_in_every_format(case: Case, file_format: str):
    for table in TABLES:
        if table == "load":
            with pytest.raises(NoSuchThing, match="has no counts over time"):
                case.run.export(table, file_format)
            continue
        data = b"".join(case.run.export(table, file_format))
        if file_format == "csv":
            rows = csv.read_csv(io.BytesIO(data), parse_options=csv.ParseOptions(newlines_in_values=True))
        elif file_format == "parquet":
            rows = parquet.read_table(io.BytesIO(data))
        else:
            rows = pa.ipc.open_file(data).read_all()
        sizes = {"token": len(case.naive.keys), "path": len(case.naive.ranked), "run": 1}
        assert rows.num_rows == sizes.get(table, rows.num_rows)
        assert not {"search", "label_id"} & set(rows.column_names) or table == "label"
        assert ("image" in rows.column_names) == (table == "image")


def test_exported_tokens_are_the_tokens(text: Case):
    rows = pa.ipc.open_file(b"".join(text.run.export("token", "arrow"))).read_all()
    ids = np.stack([rows[f"m{s}"].to_numpy() for s in range(5)], axis=1)
    np.testing.assert_array_equal(ids, text.naive.ids[:, :, 0])
    weights = np.stack([rows[f"w{s}"].to_numpy() for s in range(5)], axis=1)
    np.testing.assert_allclose(weights, text.naive.made.weights[:, :, 0], atol=1 / 510 + 1e-6)
    assert rows["rank"].to_pylist() == [text.naive.rank[key] for key in text.naive.keys]
    assert rows["label"].to_pylist() == text.naive.labels


CTRL_C = """
import signal, sys, threading
from pathlib import Path
from tokenpaths.engine.store.file.open_file import Connection, open_read_only
run, endless = map(Path, sys.argv[1:])
query = "SELECT count(*) FROM range(100000000) a, range(1000000) b WHERE (a.range * b.range) % 7 = 3"
connection = Connection(run, 3600)
for ask in (lambda: connection.rows(query), lambda: open_read_only(endless)):
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    try:
        ask()
    except KeyboardInterrupt:
        print("stopped", flush=True)
connection.close()
"""


def test_ctrl_c_ends_a_question_at_once(sealed: Path, tmp_path: Path):
    """DuckDB only leaves the call: its threads go on, and closing waits for them."""
    endless = tmp_path / "endless.duckdb"
    with duckdb.connect(str(endless)) as con:
        con.execute("CREATE TABLE token (path_id INTEGER)")
        con.execute(
            "CREATE VIEW run AS SELECT count(*)::INTEGER AS schema_version FROM range(100000000) a, "
            "range(1000000) b WHERE (a.range * b.range) % 7 = 3"
        )
    command = [sys.executable, "-c", CTRL_C, str(sealed), str(endless)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["stopped", "stopped"], done.stderr


def test_no_bars_are_drawn_but_ours(tmp_path: Path) -> None:
    file = make("r", "text").write(tmp_path)
    code = (
        "import sys; from tokenpaths.engine.store.file.open_file import open_read_only as opened; "
        "con = opened(__import__('pathlib').Path(sys.argv[1])); "
        "setting = \"SELECT current_setting('enable_progress_bar')\"; "
        "print(con.execute(setting).fetchall() + con.cursor().execute(setting).fetchall())"
    )
    # Code that is no file is what DuckDB takes for somebody who types, or a notebook.
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[(False,), (False,)]"


def test_an_instance_that_waited_is_taken_by_one_run_and_replaced(sealed: Path, monkeypatch: pytest.MonkeyPatch):
    spare = open_file.Spare()
    monkeypatch.setattr(open_file, "SPARE", spare)
    monkeypatch.setattr(open_file, "SPARE_SECONDS", 0.01)
    limit = "SELECT current_setting('memory_limit'), current_setting('threads')"
    with closing(open_read_only(sealed)) as first:
        assert not spare.waiting, "who has not asked for one keeps none"
        usual = first.execute(limit).fetchall()
    open_file.warm_up()
    (waiting,) = spare.waiting
    assert waiting.execute("SHOW ALL TABLES").fetchall() == []
    with (
        closing(open_read_only(sealed, memory_megabytes=64, threads=1)) as small,
        closing(open_read_only(sealed)) as other,
    ):
        assert small is waiting
        assert small.execute(limit).fetchall() == [("61.0 MiB", 1)]
        assert other.execute(limit).fetchall() == usual
        with pytest.raises(duckdb.Error, match="locked"):
            small.execute("SET threads = 2")
        with pytest.raises(duckdb.PermissionException):
            small.execute("SELECT * FROM read_csv('/etc/passwd')")
    until = time.monotonic() + 60
    while not spare.waiting:
        assert time.monotonic() < until, "no other one was made"
        time.sleep(0.01)
    assert spare.waiting[0] not in (small, other)
    with Run.open(sealed) as run, Run.open(sealed) as again:
        assert everything(run) == everything(again)
    spare.end()
    spare.waiting.clear()
    with closing(open_read_only(sealed)):
        time.sleep(0.1)
        assert not spare.waiting, "no other one is made once Python ends"


ENDS_AT_ONCE = """
import sys, time
from pathlib import Path
from tokenpaths.engine.store.file import open_file
open_file.SPARE_SECONDS = 0.05
open_file.warm_up()
open_file.open_read_only(Path(sys.argv[1])).close()
time.sleep(0.05 + int(sys.argv[2]) / 1000)
"""


@pytest.mark.parametrize("milliseconds", range(0, 20, 4))
def test_python_ends_well_while_another_instance_is_made(sealed: Path, milliseconds: int):
    command = [sys.executable, "-c", ENDS_AT_ONCE, str(sealed), str(milliseconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_macros_of_a_file_stand_in_for_no_function_that_tells_what_it_holds(sealed: Path, tmp_path: Path):
    file = tmp_path / "macros.duckdb"
    file.write_bytes(sealed.read_bytes())
    tables = verify_run(file)
    with duckdb.connect(str(file)) as con:
        con.execute("CREATE MACRO duckdb_tables() AS TABLE SELECT 'r' AS database_name, 'none' AS table_name")
        con.execute("CREATE MACRO duckdb_views() AS TABLE SELECT 'r' AS database_name, 'token_coded' AS view_name")
        con.execute(
            "CREATE MACRO pragma_database_size() AS TABLE "
            "SELECT 'r' AS database_name, 'many' AS total_blocks, 'bytes' AS block_size"
        )
    with Run.open(sealed) as run, Run.open(file) as other:
        assert other.tables_there == run.tables_there
        assert not open_file.has_parts(other._connection)
    assert verify_run(file) == tables
