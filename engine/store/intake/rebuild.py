"""Rebuilds a run from elsewhere as a file of ours: base tables by our writer's SQL, all others derived."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tokenpaths.engine.base.errors import NotEnoughMemory, RunFileError, RunNotFound, UserError
from tokenpaths.engine.base.files import check_free, rename_durably
from tokenpaths.engine.confined.limits import Limits
from tokenpaths.engine.confined.parent import Confined
from tokenpaths.engine.store.ask.question import Question
from tokenpaths.engine.store.ask.questions import QUESTIONS, page_questions
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.columns import MEMBER_SQL, MEMBER_VIEW_SQL, PATHS
from tokenpaths.engine.store.file.open_file import first_line
from tokenpaths.engine.store.file.schema import block_bytes
from tokenpaths.engine.store.file.soft_tables import SOFT_TABLES
from tokenpaths.engine.store.file.verification import verify_run
from tokenpaths.engine.store.intake.base_tables import Plan, plan_of
from tokenpaths.engine.store.intake.consistency import check_counts, check_tables
from tokenpaths.engine.store.write.arrow_tables import insert_rows, one_thread
from tokenpaths.engine.store.write.large.seal_answers import LEAST_TOKENS, seal_answers
from tokenpaths.engine.store.write.run_filler import DUCKDB_MEGABYTES, FLUSH_TOKENS, create_file, temporary_folder
from tokenpaths.engine.store.write.seal import derive_tables, label_table

OnProgress = Callable[[float], None]
"""called with the finished share of the whole, 0 to 1"""
READ, CHECKED, DERIVED, ANSWERED = 0.5, 0.65, 0.75, 0.95
"""finished share after each stage"""
SPACE = 1.5
"""free disk space needed, as a multiple of the size of the original"""


@dataclass(frozen=True)
class ReaderLimits:
    """What the process that reads the file of a stranger may use."""

    seconds: int | float
    """until it has read everything"""
    megabytes: int


def rebuild(
    original: Path, identity: str, target: Path, partial: Path, limits: ReaderLimits, on_progress: OnProgress
) -> None:
    """Write the run ``original`` anew as ``target``, by way of ``partial``.

    Args:
        original: a run file of unknown origin; it is read in a confined process.
        identity: of that file (``seal_marks.identity_of``).
        target: the run file to write.
        partial: the name of ``target`` while it is written; the caller deletes what an error leaves of it.
        limits: of the confined process.
        on_progress: see ``OnProgress``.

    Raises:
        UserError: what is wrong with the original, as a sentence that names it.
        NotEnoughMemory, OSError: nothing is known of it.
    """
    try:
        check_free(partial.parent)
        free, needed = shutil.disk_usage(partial.parent).free, int(os.stat(original).st_size * SPACE)
        if free < needed:
            raise OSError(28, f"{needed / 1e6:,.0f} MB are needed to copy it and {free / 1e6:,.0f} MB are free")
        plan, con = _copied(original, identity, partial, limits, on_progress)
        try:
            _completed(con, plan, on_progress)
        finally:
            con.close()
            shutil.rmtree(temporary_folder(partial), ignore_errors=True)
        if plan.num_tokens >= LEAST_TOKENS and not plan.load_only:
            _add_answers(partial, target.stem, on_progress)
        on_progress(ANSWERED)
        verify_run(partial)
        ask_everything(partial)
        rename_durably(partial, target)
        on_progress(1.0)
    except duckdb.OutOfMemoryException as error:
        raise NotEnoughMemory("to copy it needs more memory than there is") from error
    except duckdb.Error as error:
        raise RunFileError(f"its values cannot be stored ({first_line(error, partial)})") from error


def _copied(
    original: Path, identity: str, partial: Path, limits: ReaderLimits, on_progress: OnProgress
) -> tuple[Plan, duckdb.DuckDBPyConnection]:
    """Copy the base tables; the connection has them committed and a new transaction begun."""
    reader = Limits(
        memory_megabytes=limits.megabytes,
        seconds=limits.seconds,
        processor_seconds=int(limits.seconds * 2) + 1,
        descriptors=256,
        threads=True,
    )
    entry = "tokenpaths.engine.store.intake.foreign_tables:read_tables"
    with Confined(entry, reader, "it") as child:
        parts = child.stream(file=str(original), identity=identity, megabytes=limits.megabytes // 2)
        first = next(parts)
        plan = plan_of(_row_of(first.get("run")), frozenset(map(str, first.get("token_columns") or ())))
        declared = next(parts).get("rows")
        total = sum(map(int, declared.values())) or 1
        floats = any(int(declared.get(soft.table, 0)) for soft in SOFT_TABLES.values())
        size = block_bytes(plan.layout, large=plan.num_tokens >= FLUSH_TOKENS, floats=floats)
        con = create_file(partial, plan.tables_sql, size, min(DUCKDB_MEGABYTES, limits.megabytes // 2))
        try:
            done = 0
            with one_thread(con):
                for part in parts:
                    table, rows = part.get("table"), part.get("rows")
                    if table not in plan.copied or not isinstance(rows, pa.Table):
                        raise RunFileError("the process that read it sent what is no table")
                    check_free(partial.parent)
                    insert_rows(con, table, rows)
                    done += rows.num_rows
                    on_progress(READ * min(1.0, done / total))
            con.execute("COMMIT")
            con.execute("BEGIN")
        except BaseException:
            con.close()
            raise
        return plan, con


def _row_of(row: Any) -> Mapping[str, Any]:
    """The row of ``run`` as the reader sent it."""
    if not isinstance(row, dict):
        raise RunFileError("the process that read it sent what is no run")
    return row


def _completed(con: duckdb.DuckDBPyConnection, plan: Plan, on_progress: OnProgress) -> None:
    """Check the copied tables, derive the others, and flush all to the disk."""
    if plan.load_only:
        check_counts(con, plan)
        con.execute(MEMBER_SQL)
        con.execute(MEMBER_VIEW_SQL)
        con.execute("COMMIT")
        con.execute("CHECKPOINT")
        return
    label_table(con)
    paths = check_tables(con, plan)
    on_progress(CHECKED)
    order = con.execute(f"SELECT path_id FROM {PATHS} ORDER BY rank").fetchnumpy()["path_id"]
    derive_tables(con, plan.layout, paths, order, plan.num_samples)
    con.execute("COMMIT")
    con.execute("CHECKPOINT")
    on_progress(DERIVED)


def _add_answers(partial: Path, run_id: str, on_progress: OnProgress) -> None:
    """Add the answers that take long, as sealing does; the run is complete without them."""
    folder = Path(temporary_folder(partial))

    def on_question(done: int, of: int) -> None:
        on_progress(DERIVED + (ANSWERED - DERIVED) * done / max(1, of))

    try:
        seal_answers(partial, run_id, page_questions, on_question, folder=folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


ASKED: dict[str, Callable[[Run], Any]] = {
    "card": lambda run: run.card(),
    "load by label": lambda run: run.load_by_label(0),
    "load over time": lambda run: run.load_over_time(0),
    "flow of two paths": lambda run: run.flow(paths=(1,)),
    "examples of a path": lambda run: run.examples(1, limit=20),
    "samples": lambda run: run.samples(limit=1000),
    "words of samples": lambda run: run.samples(q="e"),
    "first sample": lambda run: run.sample(0),
    "compute": lambda run: run.distribution("compute"),
    "loss": lambda run: run.distribution("loss", per="token"),
    "search": lambda run: run.search_tokens(ranks=(1, 3)),
    "edges": lambda run: run.soft("edges"),
    "effect on itself": lambda run: run.effect(run) if (run.row["num_tokens"] or 0) <= FLUSH_TOKENS else None,
    "export of tokens": lambda run: next(run.export("token", "csv")),
    "export of samples": lambda run: sum(len(part) for part in run.export("sample", "csv")),
}
"""questions of the page with arguments; those that need none are asked as they are declared"""


def _as_declared(question: Question) -> Callable[[Run], str]:
    """Asks a question without arguments and writes its answer as the API does."""

    def ask(run: Run) -> str:
        answer = getattr(run, question.name)()
        following = {"next": None} if question.paged else {}  # the API makes a cursor of the offset
        return question.answer.model_validate(answer | following).model_dump_json(exclude_unset=True)

    return ask


def ask_everything(file: Path) -> None:
    """Ask what the page asks; RunFileError if an answer cannot be given or is not of its declared shape."""
    with Run.open(file) as run:
        asked: dict[str, Callable[[Run], Any]] = dict(ASKED)
        for question in QUESTIONS:
            if all(parameter.default is not parameter.empty for parameter in question.parameters.values()):
                asked[question.name] = _as_declared(question)
        for name, ask in asked.items():
            try:
                ask(run)
            except (RunFileError, RunNotFound, NotEnoughMemory, MemoryError):
                raise
            except UserError:
                continue  # a run need not have losses, labels or edges; and the server checks limits itself
            except Exception as error:
                raise RunFileError(
                    f"its {name} cannot be read ({type(error).__name__}): its tables do not fit together"
                ) from error
