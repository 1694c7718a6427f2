"""Answers that take long, worked out when a large run is sealed: what its page asks as soon as it is opened.

A row of ``answer`` is one question with its arguments and the answer as JSON, as ``Run`` gives it. ``Run`` looks there
first; any other argument is worked out when asked, and so is everything of a run below ``LEAST_TOKENS`` or of another
``ANSWERS_VERSION``. The same methods make the answer then and now, so there is no second way to be wrong in.
"""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from tokenpaths.engine.base.files import check_free
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.open_file import Connection, is_interrupt
from tokenpaths.engine.store.write.arrow_insert import insert_columns

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

ANSWERS_VERSION = 1
"""another number when an answer changes its shape or its meaning: older files are asked anew then"""
LEAST_TOKENS = 1_000_000
MOST_LABELS = 16
"""labels whose distributions are kept, those with the most tokens"""
MOST_STEPS = 32
BINS = 40
MEGABYTES = 2000
"""of DuckDB, as while the run is written"""
PATIENCE_S = 900
"""for all of them: what is not answered by then is left out"""


def questions(run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of methods of ``Run`` with the arguments that the page uses."""
    yield "knowledge", {}
    for of in ("path", "module"):
        yield "specific", {"of": of, "limit": 20}
    yield "law", {"draws": 0}
    for limit, thumbnails in ((1000, True), (2000, False)):
        yield "map", {"limit": limit, "thumbnails": thumbnails}
    yield "repetition", {}
    yield "samples_fingerprint", {}
    for step in range(min(run.layout.num_steps, MOST_STEPS)):
        yield "specialisation", {"of": "input", "step": step, "limit": 16}
        yield "specialisation", {"of": "input", "step": step, "limit": 256, "each": 24}
    labels = sorted(run.labels, key=lambda row: (-row[3], row[1]))[:MOST_LABELS]
    for measure in run.info()["measures"]:
        for per in ("sample", "token"):
            # Compute and reuse are counted by path, loss and gate entropy by level: no answer holds all tokens.
            for label in (None, *(row[1] for row in labels)):
                yield "distribution", {"measure": measure, "per": per, "bins": BINS, "label": label}


def key(method: Callable[..., Any], run: Run, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[str, str]:
    """What a row is found by: the method, and all of its arguments, those that were not given too."""
    bound = inspect.signature(method).bind(run, *given, **named)
    bound.apply_defaults()
    arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
    return f"{method.__name__} {ANSWERS_VERSION}", json.dumps(arguments, sort_keys=True, default=str)


def kept(method: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A method of ``Run`` whose answer may lie in the file."""

    @functools.wraps(method)
    def ask(run: Run, *given: Any, **named: Any) -> dict[str, Any]:
        if run.paged:
            place = key(method, run, given, named)
            rows = run.rows(Query("SELECT answer FROM answer WHERE question = ? AND arguments = ?", place))
            if rows:
                return {"run": run.run_id, **json.loads(rows[0][0])}
        return method(run, *given, **named)

    return ask


def seal_answers(
    file: Path,
    run_id: str,
    on_question: Callable[[int, int], None] = lambda done, of: None,
    *,
    megabytes: int = MEGABYTES,
    folder: Path | None = None,
) -> None:
    """Ask the complete, closed run ``file`` all ``questions`` and add the answers to it; one that fails is left out.

    After ``PATIENCE_S`` nothing more is asked. ``on_question`` is told before each how many were asked, and of how
    many. DuckDB takes up to ``megabytes``, and puts into ``folder`` what does not fit (without one, a question that
    needs more has no answer). Whatever goes wrong, the file stays a whole run, with all of these answers or none.

    Raises:
        What ``on_question`` raises, and a KeyboardInterrupt: nothing is added then.
        RunFileError, duckdb.Error, OSError: the answers could not be written, or the file not be read.
    """
    rows = _asked(file, run_id, on_question, megabytes, folder)
    try:
        _add(file, rows)
    except BaseException:
        # What was not taken into the file itself lies beside it, and goes.
        file.with_name(file.name + ".wal").unlink(missing_ok=True)
        raise


def _asked(
    file: Path, run_id: str, on_question: Callable[[int, int], None], megabytes: int, folder: Path | None
) -> dict[str, list[str]]:
    """The columns of ``answer``."""
    from tokenpaths.engine.store.ask.run import Run

    rows: dict[str, list[str]] = {"question": [], "arguments": [], "answer": []}
    ends = time.monotonic() + PATIENCE_S
    connection = Connection(file, PATIENCE_S, memory_megabytes=megabytes, spill_folder=folder)
    try:
        run = Run(file, connection)
        run.run_id = run_id
        wanted = list(questions(run))
        for done, (question, arguments) in enumerate(wanted):
            on_question(done, len(wanted))
            left = ends - time.monotonic()
            if left <= 0:
                break
            connection.time_limit_s = left
            method = getattr(Run, question).__wrapped__
            try:
                found = method(run, **arguments)
                answer = json.dumps({name: value for name, value in found.items() if name != "run"}, allow_nan=False)
            except Exception as error:
                if is_interrupt(error):
                    raise KeyboardInterrupt from error
                # Most often this run has nothing of the sort. Nor is what goes wrong in an answer worth the run: who
                # asks for it gets it worked out, or sees the same error.
                continue
            name, whole = key(method, run, (), arguments)
            for column, value in zip(rows.values(), (name, whole, answer), strict=True):
                column.append(value)
    finally:
        connection.close()
    return rows


def _add(file: Path, rows: dict[str, list[str]]) -> None:
    check_free(file.parent)
    con = duckdb.connect(":memory:", config={"python_enable_replacements": "false", "memory_limit": "500MB"})
    try:
        address = str(file).replace("'", "''")
        con.execute(f"ATTACH '{address}' AS r")
        con.execute("USE r")
        insert_columns(con, "answer", rows)
        con.execute("CHECKPOINT")
    finally:
        con.close()
