"""Computes expensive answers when a large run is sealed, into table ``answer`` (read by ``ask.sealed_answers``).

The tables of ``file.schema`` (``DRAWN_TABLES``) are added with them.

Runs below ``LEAST_TOKENS`` tokens get none: their answers are computed on demand.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokenpaths.engine.base.files import check_free
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.sealed_answers import answer_key
from tokenpaths.engine.store.file.open_file import Connection, connect, is_interrupt
from tokenpaths.engine.store.file.schema import DRAWN_TABLES
from tokenpaths.engine.store.write.arrow_tables import create_like, insert_columns, one_thread
from tokenpaths.engine.store.write.large.seal_drawn import drawn_rows

LEAST_TOKENS = 1_000_000
MEGABYTES = 2000
"""DuckDB's memory limit, as while the run is written"""
PATIENCE_S = 900
"""total time limit, seconds; questions not answered by then are left out"""
Questions = Callable[[RunFile], Iterable[tuple[Callable[..., dict[str, Any]], dict[str, Any]]]]
"""the functions decorated by ``sealed`` to call for a run, with their arguments"""
Answered = tuple[str, str, str]
"""a row of table ``answer``"""


def seal_answers(
    file: Path,
    run_id: str,
    questions: Questions,
    on_question: Callable[[int, int], None] = lambda done, of: None,
    *,
    megabytes: int = MEGABYTES,
    folder: Path | None = None,
) -> None:
    """Answer ``questions`` about the complete, closed run ``file`` and store the answers; failing ones are left out.

    After ``PATIENCE_S`` no further question is asked. ``on_question`` is called before each with the number done and
    the total. DuckDB uses up to ``megabytes`` and spills into ``folder`` (without one, a question that needs more has
    no answer). Whatever fails, the file stays a complete run, with all of these answers or none.

    Raises:
        Any exception of ``on_question``, and KeyboardInterrupt: nothing is added then.
        RunFileError, duckdb.Error, OSError: the answers could not be written, or the file not be read.
    """
    answered, tables = _answers(file, run_id, questions, on_question, megabytes, folder)
    add_answers(file, answered, tables)


def add_answers(file: Path, answered: Sequence[Answered], tables: Mapping[str, pa.Table]) -> None:
    """Add answers and drawn tables to the closed run ``file``: all of them, or none.

    Raises:
        RunFileError, duckdb.Error, OSError: they could not be written.
    """
    try:
        _add(file, answered, tables)
    except BaseException:
        # What was not taken into the file itself lies beside it, and goes.
        file.with_name(file.name + ".wal").unlink(missing_ok=True)
        raise


def _answers(
    file: Path,
    run_id: str,
    questions: Questions,
    on_question: Callable[[int, int], None],
    megabytes: int,
    folder: Path | None,
) -> tuple[list[Answered], dict[str, pa.Table]]:
    """Rows of table ``answer``, and those of the drawn tables that the file has not."""
    answered: list[Answered] = []
    tables: dict[str, pa.Table] = {}
    ends = time.monotonic() + PATIENCE_S
    connection = Connection(file, PATIENCE_S, memory_megabytes=megabytes, spill_folder=folder)
    try:
        run = opened(file, run_id, connection)
        calls, to_draw = list(questions(run)), may_draw(run)
        total = len(calls) + to_draw
        for done, (question, arguments) in enumerate(calls):
            on_question(done, total)
            left = ends - time.monotonic()
            if left <= 0:
                break
            connection.time_limit_s = left
            answered += answer(run, question, arguments)
        left = ends - time.monotonic()
        if to_draw and left > 0:
            on_question(len(calls), total)
            connection.time_limit_s = left
            tables = draw(run)
    finally:
        connection.close()
    return answered, tables


def opened(file: Path, run_id: str, connection: Connection) -> RunFile:
    """The run ``file`` under the name that it will have."""
    run = RunFile(file, connection)
    run.run_id = run_id
    return run


def may_draw(run: RunFile) -> bool:
    """Whether a run has no drawn tables yet."""
    return run.tables_there.isdisjoint(DRAWN_TABLES)


def answer(run: RunFile, question: Callable[..., dict[str, Any]], arguments: dict[str, Any]) -> list[Answered]:
    """The answer to a question; empty if there is none.

    Raises:
        KeyboardInterrupt: on Ctrl-C.
    """
    function = question.__wrapped__  # type: ignore[attr-defined]
    try:
        values = function(run, **arguments)
        text = json.dumps({name: value for name, value in values.items() if name != "run"}, allow_nan=False)
    except Exception as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        # Most often this run has nothing of the sort. Nor is what goes wrong in an answer worth the run: who asks for
        # it gets it worked out, or sees the same error.
        return []
    name, whole = answer_key(question.question, function, run, (), arguments)  # type: ignore[attr-defined]
    return [(name, whole, text)]


def draw(run: RunFile) -> dict[str, pa.Table]:
    """All drawn tables that apply to the run, or none: without them questions take longer, no more."""
    try:
        return dict(drawn_rows(run))
    except Exception as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        return {}


def _add(file: Path, answered: Sequence[Answered], tables: Mapping[str, pa.Table]) -> None:
    check_free(file.parent)
    rows = dict(zip(("question", "arguments", "answer"), zip(*answered, strict=True), strict=False))
    con = connect({"python_enable_replacements": "false", "memory_limit": "500MB"})
    try:
        address = str(file).replace("'", "''")
        con.execute(f"ATTACH '{address}' AS r")
        con.execute("USE r")
        con.execute("BEGIN")
        insert_columns(con, "answer", {name: pa.array(values, pa.string()) for name, values in rows.items()})
        with one_thread(con):
            for name, table in tables.items():
                create_like(con, name, table)
        con.execute("COMMIT")
        con.execute("CHECKPOINT")
    finally:
        con.close()
