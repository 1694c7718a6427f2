"""TwinAdder: puts the paths of an untrained twin into a run that was sealed without them.

The run's file is copied, the copy completed and put into its place, so a run changes at once or not at all, and is then
what it would be had its twin been traced with it. Readers that have the old file open keep it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np

from tokenpaths.engine.base.errors import RunNotFound, UserError, WriterFailed
from tokenpaths.engine.base.files import HolderLock, check_free, fsync_file, partial_file, rename_durably
from tokenpaths.engine.base.lifecycle import SealedOnce, claim
from tokenpaths.engine.base.seal_marks import digest_of, forget_replaced, identity_of, is_sealed_here, mark_sealed
from tokenpaths.engine.store.ask.questions import page_questions
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.file.columns import PATHS
from tokenpaths.engine.store.file.open_file import attach_parts, connect, expected_length, open_read_only
from tokenpaths.engine.store.write.large.seal_answers import LEAST_TOKENS, seal_answers
from tokenpaths.engine.store.write.run_filler import DUCKDB_MEGABYTES, temporary_folder
from tokenpaths.engine.store.write.seal_knowledge import associate
from tokenpaths.engine.store.write.seal_nulls import write_twin_null
from tokenpaths.engine.store.write.twin.twin_paths import TwinPaths
from tokenpaths.engine.store.write.writer import remove_partial

_OPTIONAL = ("region", "token_id")
"""columns of ``token`` that attributes are of and that a run may lack"""


class TwinAdder(SealedOnce):
    """Adds the paths of a twin to the sealed run ``file``; ``seal`` does it, ``abort`` leaves the run as it was.

    Raises:
        RunNotFound: there is no such run.
        UserError: it was not sealed here, it has a twin, these are not the paths of a twin of its tokens, or somebody
            writes it.
    """

    def __init__(self, file: Path, twin: TwinPaths) -> None:
        self.file, self.twin = file, twin
        self._title = f"the untrained twin of run {file.stem!r}"
        self.partial_file = partial_file(file.parent, file.stem)
        try:
            self._before = os.stat(file)
        except OSError:
            raise RunNotFound(f"there is no run {file.stem!r}", field="run") from None
        if not is_sealed_here(file, self._before):
            raise UserError(f"run {file.stem!r} came from elsewhere: its file stays as it is", field="run")
        with RunFile.open(file) as run:
            self._num_tokens = int(run.row["num_tokens"] or 0)
            if run.has_twin:
                raise UserError(f"run {file.stem!r} holds the paths of its untrained twin already", field="run")
            if not twin.fits(run.layout, self._num_tokens):
                raise UserError(
                    f"the untrained twin was traced over {twin.num_tokens:,} tokens, run {file.stem!r} has "
                    f"{self._num_tokens:,}: its data have changed since",
                    field="data",
                )
        self._lock = HolderLock(file.with_name(f".{file.stem}.lock"))
        claim(file.parent, self._lock, field="data_dir", instead="another data folder")

    def seal(self, on_stage: Callable[[str, int, int], None] = lambda name, done, of: None) -> Path:
        """Complete a copy and put it in the place of the run; the run is as it was after any exception.

        Raises:
            UserError: the run was deleted or replaced meanwhile.
            WriterFailed: the disk refused a write.
        """
        self._check_state()
        try:
            on_stage("copying the run", 0, 3)
            remove_partial(self.partial_file)
            check_free(self.file.parent, self.file.stat().st_size)
            shutil.copyfile(self.file, self.partial_file)
            on_stage("the untrained twin", 1, 3)
            self._complete()
            on_stage("answers", 2, 3)
            if self._num_tokens >= LEAST_TOKENS:
                self._answer_anew()
            self._rename()
        except (duckdb.Error, OSError) as error:
            self.abort()
            raise WriterFailed(f"the untrained twin could not be added: {error}") from error
        except BaseException:
            self.abort()
            raise
        self._state = "sealed"
        self._lock.release()
        return self.file

    def abort(self) -> None:
        """Delete the copy; does nothing after ``seal`` or a second call."""
        if self._state != "open":
            return
        self._state = "aborted"
        remove_partial(self.partial_file)
        shutil.rmtree(temporary_folder(self.partial_file), ignore_errors=True)
        self._lock.release()

    def _complete(self) -> None:
        config: dict[str, str | bool | int | float | list[str]] = {
            "python_enable_replacements": "false",
            "memory_limit": f"{DUCKDB_MEGABYTES}MB",
            "temp_directory": temporary_folder(self.partial_file),
            "threads": 1,
        }
        con = connect(config)
        try:
            address = str(self.partial_file).replace("'", "''")
            con.execute(f"ATTACH '{address}' AS r")
            con.execute("USE r")
            attach_parts(con, self.partial_file)
            con.execute("BEGIN")
            write_twin_null(con, self.twin)
            sketch = _known_tokens(con)
            # Both are written anew, so that their rows stand in the order that sealing gives them.
            con.execute("DELETE FROM known_token")
            con.execute("DELETE FROM association")
            associate(con, sketch, sketch.pop("rank"), self.twin.known)
            con.execute("DELETE FROM answer")
            con.execute("COMMIT")
            con.execute("CHECKPOINT")
        finally:
            con.close()
        _pad(self.partial_file)

    def _answer_anew(self) -> None:
        """The answers that take long: some tell of the twin."""
        folder = Path(temporary_folder(self.partial_file))
        try:
            seal_answers(self.partial_file, self.file.stem, page_questions, megabytes=DUCKDB_MEGABYTES, folder=folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        _pad(self.partial_file)

    def _rename(self) -> None:
        open_read_only(self.partial_file).close()
        digest = digest_of(self.partial_file)
        self._check_there()
        shutil.copymode(self.file, self.partial_file)
        fsync_file(self.partial_file)  # seconds for gigabytes, in which the run may be deleted
        self._check_there()
        mark_sealed(self.file, os.stat(self.partial_file), digest)
        rename_durably(self.partial_file, self.file)
        mark_sealed(self.file, os.stat(self.file), digest)  # renaming changed its ctime
        forget_replaced(self.file, self._before)

    def _check_there(self) -> None:
        if not self.file.exists() or identity_of(os.stat(self.file)) != identity_of(self._before):
            raise UserError(f"run {self.file.stem!r} was deleted or replaced meanwhile", field="run")


def _pad(file: Path) -> None:
    """Give the file its full length: DuckDB counts free blocks at the end that it has not written yet."""
    with connect() as con:
        address = str(file).replace("'", "''")
        con.execute(f"ATTACH '{address}' AS r (READ_ONLY)")
        length = expected_length(con)
    if file.stat().st_size < length:
        os.truncate(file, length)


def _known_tokens(con: duckdb.DuckDBPyConnection) -> dict[str, np.ndarray]:
    """Of the hash sample of tokens, in its order: what ``associate`` needs, and the rank of their path from 0."""
    there = {row[0] for row in con.execute("SELECT column_name FROM (DESCRIBE token)").fetchall()}
    optional = [f"coalesce(t.{name}::INTEGER, -1)" if name in there else "-1" for name in _OPTIONAL]
    columns = ", ".join(f"{sql} AS {name}" for name, sql in zip(_OPTIONAL, optional, strict=True))
    rows = con.execute(
        "SELECT k.place, t.sample, t.token, coalesce(t.label_id, -1) AS label, (p.rank - 1)::INTEGER AS rank, "
        f"{columns} FROM (SELECT rowid AS number, place FROM known_token) k "
        "JOIN (SELECT rowid AS place, * EXCLUDE (rowid) FROM token WHERE rowid IN (SELECT place FROM known_token)) t "
        f"ON t.place = k.place JOIN {PATHS} p USING (path_id) ORDER BY k.number"
    ).fetchnumpy()
    return {name: np.asarray(values) for name, values in rows.items()}
