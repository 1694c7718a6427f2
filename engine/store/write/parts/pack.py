"""One file of a run in parts: what its views put together becomes tables."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb

from tokenpaths.engine.base.errors import RunNotFound, UserError, WriterFailed
from tokenpaths.engine.base.files import HolderLock, check_free, partial_file, rename_durably
from tokenpaths.engine.base.lifecycle import claim
from tokenpaths.engine.base.run_parts import alias_of, parts_of, remove_parts
from tokenpaths.engine.base.seal_marks import digest_of, forget_replaced, is_sealed_here, mark_sealed
from tokenpaths.engine.store.file.columns import TABLE, compressed
from tokenpaths.engine.store.file.open_file import attach_parts, connect, open_read_only
from tokenpaths.engine.store.file.schema import CALCULATED, PART_TABLES, ROW, stored_sample_columns
from tokenpaths.engine.store.write.arrow_tables import one_thread
from tokenpaths.engine.store.write.run_filler import DUCKDB_MEGABYTES, temporary_folder
from tokenpaths.engine.store.write.writer import remove_partial


def pack_run(file: Path, on_part: Callable[[int, int], None] = lambda done, of: None, *, trust: bool = False) -> None:
    """Make one file of the run ``file`` and its parts, in its place; the parts are deleted once it is there.

    Args:
        file: the run.
        on_part: called before each part with the number done and the total.
        trust: whether a run that was sealed elsewhere is read, too; the file that is made of it is taken in as one
            from elsewhere.

    Raises:
        RunNotFound, RunFileError: there is no such run, or a part is missing or damaged.
        UserError: the run is in one file already, was not sealed here, or is being written.
        WriterFailed: the disk refused a write; the run is as it was.
    """
    if not file.is_file():
        raise RunNotFound(f"there is no run {file.stem!r}", field="run")
    partial = partial_file(file.parent, file.stem)
    lock = HolderLock(partial.with_suffix(".lock"))
    claim(file.parent, lock, field="data_dir", instead="another data folder")
    try:
        before = os.stat(file)
        own = is_sealed_here(file, before)
        if not own and not trust:
            raise UserError(
                f"run {file.stem!r} was not sealed in this data folder: pack it where it was, or, if it is yours, "
                f"`tokenpaths pack {file.stem} --trust`",
                field="run",
            )
        parts = _named_parts(file, trust)
        if not parts:
            remove_parts(file)  # as of a packing that ended right after the file had its name
            raise UserError(f"run {file.stem!r} is in one file already", field="run")
        remove_partial(partial)
        check_free(file.parent)
        shutil.copyfile(file, partial)
        _fill(partial, parts, on_part, trust)
        digest = digest_of(partial) if own else None
        if own:
            mark_sealed(file, os.stat(partial), digest)
        rename_durably(partial, file)
        if own:
            mark_sealed(file, os.stat(file), digest)  # renaming changed its ctime
        forget_replaced(file, before)
        remove_parts(file)
    except (duckdb.Error, OSError) as error:
        raise WriterFailed(f"run {file.stem!r} could not be packed: {error}; it is as it was") from error
    finally:
        remove_partial(partial)
        lock.release()


def _named_parts(file: Path, trust: bool) -> list[Path]:
    """The parts that the run names."""
    with open_read_only(file, trust_parts=trust) as con:
        names = con.execute("SELECT database_name FROM system.main.duckdb_databases()").fetchall()
        attached = {name for (name,) in names}
        views = con.execute("SELECT sql FROM system.main.duckdb_views() WHERE database_name = 'r'").fetchall()
    named = "".join(sql or "" for (sql,) in views)
    return [part for part in parts_of(file) if alias_of(part) in attached and alias_of(part) in named]


def _fill(partial: Path, parts: list[Path], on_part: Callable[[int, int], None], trust: bool) -> None:
    """Replace the views over the parts by tables."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "python_enable_replacements": "false",
        "memory_limit": f"{DUCKDB_MEGABYTES}MB",
        "temp_directory": temporary_folder(partial),
        "write_buffer_row_group_count": 1,
    }
    with connect(config) as con:
        address = str(partial).replace("'", "''")
        con.execute(f"ATTACH '{address}' AS r")
        con.execute("USE r")
        attach_parts(con, partial, parts, trust=trust)
        con.execute("BEGIN")
        for table in PART_TABLES:
            described = con.execute(f"DESCRIBE {alias_of(parts[0])}.main.{table}").fetchall()
            columns = [(name, kind) for name, kind, *_ in described if name != ROW]
            if table == "sample":
                columns = stored_sample_columns()
            elif table == TABLE:
                columns = compressed(columns)
            con.execute(f"DROP VIEW {table}")
            con.execute(f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns)})")
        with one_thread(con):
            for done, part in enumerate(parts):
                on_part(done, len(parts))
                for table in PART_TABLES:
                    described = con.execute(f"DESCRIBE {table}").fetchall()
                    names = ", ".join(name for name, *_ in described if (table, name) not in CALCULATED)
                    con.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM {alias_of(part)}.main.{table}")
        con.execute("COMMIT")
        con.execute("CHECKPOINT")
