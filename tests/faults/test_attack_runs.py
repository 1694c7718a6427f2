"""Run files made to do harm: what acts at a date or by a setting, stands in another schema, or does not add up."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.backend.conftest import Serve, problem
from tests.faults.conftest import Keep
from tests.support.foreign_runs import make_foreign
from tests.support.runs import make_run
from tokenpaths.backend.runs.registry import RunRegistry
from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.base.seal_marks import identity_of, is_sealed_here
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.intake import foreign_tables, rebuild
from tokenpaths.engine.store.intake.gate import IntakeLimits, RunGate

TRICKS = {
    "view that acts at a date": "DROP VIEW token; CREATE VIEW token AS SELECT rowid, 0 AS sample, 0 AS token, "
    "CASE WHEN now() > '2020-01-01' THEN error('acted') END AS path_id FROM token_coded",
    "view that asks for a setting": "DROP VIEW path_member; CREATE VIEW path_member AS SELECT rowid, rank, "
    "CASE WHEN current_setting('memory_limit') <> '1' THEN error('acted') END AS sample, 0 AS token FROM member",
    "table of another schema": "CREATE SCHEMA s; CREATE TABLE s.sample AS SELECT 7 AS sample; "
    "CREATE TABLE s.token AS SELECT 7 AS path_id",
    "macros that hide functions": "CREATE MACRO count(x) AS error('acted'); CREATE MACRO hash(x) AS error('acted'); "
    "CREATE MACRO duckdb_tables() AS TABLE SELECT error('acted')",
    "further objects": "CREATE SEQUENCE q; CREATE TYPE mood AS ENUM ('a'); CREATE TABLE extra (x mood); "
    "CREATE INDEX i ON extra (x)",
    "index with an expression": "CREATE INDEX i ON label ((label_id + 1))",
}
"""what is in the file besides a whole run, and is not followed"""
REFUSED = {
    "UPDATE sample SET text_0 = 'x', text_1 = 'y' WHERE sample = 0": "do not fit together",
    "UPDATE sample SET text_1 = repeat('x', 300), text_0 = repeat('x', 256) WHERE sample = 0": "do not fit together",
    "UPDATE sample SET num_tokens = num_tokens + 1 WHERE sample = 1": "do not fit together",
    "UPDATE token_coded SET path_id = 1000000 WHERE rowid = 3": "do not fit together",
    "UPDATE path_coded SET count = count + 1 WHERE rank = 1": "do not fit together",
    "UPDATE run SET loss = 'nan'": "do not fit together",
    "UPDATE flow SET weight = 'infinity'": "do not fit together",
    "UPDATE usage SET module = 99": "do not fit together",
    "UPDATE sample SET first_row = NULL WHERE sample = 0": "do not fit together",
    "UPDATE label SET label = 'x'; UPDATE sample SET label = repeat('x', 1000000) WHERE sample = 0": "1,000,000 bytes",
    "UPDATE sample SET image = 'no picture' WHERE sample = 0": "picture",
    "UPDATE run SET num_steps = 1000000000": "impossible",
    "UPDATE run SET config = '[]'": "config",
    "UPDATE run SET created_at = 'soon'": "sealed",
    "UPDATE run SET family = 'dipaco'": "its config.levels is not as this program writes it",
    "INSERT INTO run SELECT * FROM run": "2 runs",
    "DELETE FROM known_token": "do not fit together",
    "DROP TABLE run; CREATE VIEW run AS SELECT 1 AS schema_version": "no run",
    "ALTER TABLE sample RENAME TO sample2; CREATE VIEW sample AS SELECT * FROM sample2": "no table sample",
    'ALTER TABLE run RENAME TO tmp; ALTER TABLE tmp RENAME TO "RUN"': "no run",
    "ALTER TABLE finding ADD COLUMN more INTEGER DEFAULT 1": "differ",
    "ALTER TABLE region ALTER region TYPE VARCHAR": "differ",
    "DROP TABLE region; CREATE TABLE region (region INTEGER, name VARCHAR GENERATED ALWAYS AS ('x'))": "differ",
    "DROP TABLE axis; CREATE TABLE axis (axis VARCHAR COLLATE NOCASE, position INTEGER, name VARCHAR)": "differ",
    "DROP TABLE axis; CREATE TYPE t AS ENUM ('a'); CREATE TABLE axis (axis t, position INT, name VARCHAR)": "differ",
}

UNIQUE_REFUSED = {
    "UPDATE path_coded SET first_token = first_token + 1 WHERE rank = 3": "do not fit together",
    "UPDATE path_coded SET first_token = 1000000000000 WHERE rank = 3": "do not fit together",
    "UPDATE path_coded SET first_token = NULL WHERE rank = 3": "do not fit together",
    "UPDATE token_coded SET ids = NULL WHERE rowid = 2": "do not fit together",
    "UPDATE token_coded SET ids = list_transform(ids, lambda word: NULL)::UBIGINT[6]": "do not fit together",
    "UPDATE token_coded SET ids = (SELECT ids FROM token_coded WHERE rowid = 3) WHERE rowid = 2": "do not fit together",
    "UPDATE token_coded SET ids = list_transform(ids, lambda word: 18446744073709551615)::UBIGINT[6]": "modules",
    "UPDATE token_coded SET ids = list_transform(ids, lambda word: 0)::UBIGINT[6]": "twice",
    "UPDATE run SET path_layout = 'dictionary'": "differ",
    "UPDATE run SET path_layout = 'other'": "impossible",
    "UPDATE run SET path_layout = NULL": "impossible",
}
"""of a run of long ribbons, whose paths are rows of their first tokens"""


class Unconfined:
    """``Confined`` without its process, so that many files are tried in little time."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Unconfined:
        return self

    def __exit__(self, *_: object) -> None: ...

    stream = staticmethod(foreign_tables.read_tables)


@pytest.fixture
def taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """The copy of a run, made in this process."""
    monkeypatch.setattr(rebuild, "Confined", Unconfined)
    folder = tmp_path / "copies"
    folder.mkdir()

    def take_in(file: Path) -> Path:
        target = folder / file.name
        limits = rebuild.ReaderLimits(60, 2048)
        rebuild.rebuild(file, identity_of(os.stat(file)), target, folder / ".partial", limits, lambda share: None)
        return target

    return take_in


def changed(tmp_path: Path, sql: str) -> Path:
    file = make_run(tmp_path / "elsewhere", "given", samples=6, seed=1)
    with duckdb.connect(str(file)) as con:
        con.execute(sql)
    return file


@pytest.mark.parametrize("trick", TRICKS)
def test_what_a_run_brings_along_is_not_followed(
    tmp_path: Path, taken_in: Callable[[Path], Path], trick: str, figure: Keep
) -> None:
    """A whole run with views that act later, macros, other schemas, types, sequences and indexes besides"""
    copy = taken_in(changed(tmp_path, TRICKS[trick]))
    with Run.open(make_run(tmp_path / "plain", "given", samples=6, seed=1)) as plain, Run.open(copy) as run:
        assert run.flow() == plain.flow()
        assert run.sample(1) == plain.sample(1)
        assert run.examples(1, limit=5) == plain.examples(1, limit=5)
    with duckdb.connect(str(copy), read_only=True) as con:
        schemas = con.execute("SELECT DISTINCT schema_name FROM duckdb_tables()").fetchall()
        assert schemas == [("main",)]
        assert con.execute("SELECT count(*) FROM duckdb_indexes()").fetchall() == [(0,)]
        assert con.execute("SELECT count(*) FROM duckdb_functions() WHERE database_name = 'given'").fetchall() == [(0,)]
    figure(23, f"{len(TRICKS)} runs with views, macros, schemas and indexes of their own: none was followed")


@pytest.mark.parametrize("sql", REFUSED)
def test_what_no_writer_makes_is_refused(tmp_path: Path, taken_in: Callable[[Path], Path], sql: str) -> None:
    with pytest.raises(RunFileError, match=REFUSED[sql]):
        taken_in(changed(tmp_path, sql))


@pytest.mark.parametrize("sql", UNIQUE_REFUSED)
def test_what_no_writer_makes_of_long_ribbons_is_refused(
    tmp_path: Path, taken_in: Callable[[Path], Path], sql: str
) -> None:
    file = make_run(tmp_path / "elsewhere", "given", modality="vision", steps=9, modules=12, top_k=8, samples=4, seed=1)
    with Run.open(file) as run:
        assert run.info()["path_layout"] == "unique"
        assert run.layout.num_words == 6
        first = run.paths(limit=3)
    with Run.open(taken_in(file)) as copy:
        assert copy.paths(limit=3) == first
    with duckdb.connect(str(file)) as con:
        con.execute(sql)
    with pytest.raises(RunFileError, match=UNIQUE_REFUSED[sql]):
        taken_in(file)


def test_a_run_with_a_log_of_changes_beside_it_is_refused(tmp_path: Path, taken_in: Callable[[Path], Path]) -> None:
    file = make_run(tmp_path / "elsewhere", "given", samples=6, seed=1)
    whole = shutil.copy(file, tmp_path / "whole.duckdb")
    con = duckdb.connect(str(file), config={"checkpoint_threshold": "1TB"})
    con.execute("UPDATE run SET model = 'another'")
    shutil.copy(f"{file}.wal", tmp_path / "log")
    con.close()
    shutil.copy(whole, file)
    shutil.copy(tmp_path / "log", f"{file}.wal")
    with pytest.raises(RunFileError, match="unfinished changes"):
        taken_in(file)
    with pytest.raises(RunFileError, match=r"given\.duckdb\.wal lies beside it"):
        RunGate(file.parent, IntakeLimits()).passage(file)
    file.with_name("given.duckdb.wal").unlink()
    with Run.open(taken_in(file)) as run:
        assert run.card()["model"] == "toy-vision"


@pytest.mark.parametrize("way", ["replaced", "grown", "link to nothing", "pipe"])
def test_a_file_that_is_not_what_it_was(tmp_path: Path, taken_in: Callable[[Path], Path], way: str) -> None:
    file = make_run(tmp_path / "runs", "given", samples=3, twin=False)
    identity = identity_of(os.stat(file))
    if way in ("replaced", "grown"):
        if way == "replaced":
            make_run(tmp_path / "runs", "given", samples=4, twin=False, overwrite=True)
        else:
            with open(file, "ab") as handle:
                handle.write(bytes(16384))
        with pytest.raises(RunFileError, match="changed"):
            list(foreign_tables.read_tables(str(file), identity, 1000))
        return
    file.unlink()
    if way == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(tmp_path / "nothing")
    with pytest.raises(OSError):
        RunGate(tmp_path / "runs", IntakeLimits()).passage(file)


def test_a_sealed_run_written_over_in_place_is_taken_in(tmp_path: Path) -> None:
    """As by ``cp -p`` of a file that was made to have the size and the time of a run of this folder"""
    file = make_run(tmp_path / "runs", "own", samples=3, twin=False)
    info, gate = os.stat(file), RunGate(tmp_path / "runs", IntakeLimits())
    assert gate.standing(file).state == "open"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    with open(file, "r+b") as handle:
        handle.write(data)
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert identity_of(os.stat(file)) == identity_of(info)
    assert gate.standing(file).state == "waiting"
    assert not is_sealed_here(file)
    data[-100] ^= 1
    with open(file, "r+b") as handle:
        handle.write(data)
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert gate.standing(file).state == "open", "its content is what was sealed"


def test_a_data_folder_without_room_for_copies_says_so(tmp_path: Path) -> None:
    (file,) = make_foreign(tmp_path / "runs", "given")
    (tmp_path / ".taken_in").write_text("a file where the folder of copies should be")
    gate = RunGate(tmp_path / "runs", IntakeLimits())
    with pytest.raises(RunFileError, match="cannot be copied"):
        gate.passage(file)
    standing = gate.standing(file)
    assert (standing.state, standing.passing) == ("refused", True)
    assert str(tmp_path) not in str(standing.sentence)


def test_json_of_other_shapes_is_a_problem_of_the_run(serve: Serve, tmp_path: Path) -> None:
    """An effect or a report of a run whose finding or configuration is JSON, and nothing that this program writes"""
    served = serve()
    make_run(served.runs_dir, "own", samples=6, seed=1)
    shutil.move(changed(tmp_path, "INSERT INTO finding VALUES ('effect', '[1]')"), served.runs_dir / "given.duckdb")
    for question in ("", "/effect?of=own", "/report"):
        assert "effect" in problem(served.get(f"/runs/given{question}"), 409)["detail"]


def test_a_run_with_a_view_that_acts_in_the_api_is_answered(serve: Serve) -> None:
    """The view would have ended each question of the API with an error"""
    served = serve()
    (file,) = make_foreign(served.runs_dir, "given", samples=6)
    with duckdb.connect(str(file)) as con:
        con.execute(TRICKS["view that asks for a setting"])
    assert served.get("/runs/given/paths/1/examples").status_code == 200
    file.write_bytes(b"nothing")
    assert "given.duckdb" in problem(served.get("/runs/given/flow"), 409)["detail"]


def test_many_runs_are_listed_at_once_after_a_restart(serve: Serve, figure: Keep) -> None:
    """2,000 names of one sealed run (hard links), listed by an API that has just started, with the index of cards"""
    served = serve()
    file = make_run(served.runs_dir, "run0", samples=2, twin=False)
    for number in range(1, 2000):
        os.link(file, served.runs_dir / f"run{number}.duckdb")
    registry = RunRegistry(served.runs_dir)
    card = registry.card("run0")
    assert card is not None
    names = [f"run{number}" for number in range(2000)]
    registry.index.put({name: (registry.identity(name), card | {"run": name}) for name in names})
    again = serve()
    began = time.monotonic()
    cards = again.get("/runs?limit=1000").json()["runs"]
    seconds = time.monotonic() - began
    assert len(cards) == 1000
    assert {card["status"] for card in cards} == {"sealed"}
    figure(35, f"2,000 runs: the first list after a restart took {seconds:.2f} s")
    assert seconds < 10
