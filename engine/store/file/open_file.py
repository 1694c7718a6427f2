"""Opens run files read-only and sandboxed; errors are sentences that say what is wrong with the file."""

from __future__ import annotations

import atexit
import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.base.errors import NotEnoughMemory, QueryTimeout, RunFileError, RunNotFound, UserError
from tokenpaths.engine.base.files import RUN_SUFFIX
from tokenpaths.engine.base.run_parts import ALIAS, alias_of, part_file, parts_of, run_of
from tokenpaths.engine.base.seal_marks import is_sealed_here
from tokenpaths.engine.store.file import SCHEMA_VERSION
from tokenpaths.engine.store.file.alarms import ALARMS
from tokenpaths.engine.store.file.columns import TABLE

NUMBERS_AT_ONCE = 1024
"""rows that are looked up by number at once"""
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    # Up to so many numbers in a semi-join DuckDB passes over the vectors without any of them (50 otherwise).
    "dynamic_or_filter_threshold": str(NUMBERS_AT_ONCE),
    "temp_directory": "",
}
_HEADER_BYTES = 3 * 4096
SPARE_SECONDS = 2.0
"""from when an instance was taken until another one is made"""
LOOK_SECONDS = 20.0
"""time limit of the first inspection of a file; it takes milliseconds unless the file was crafted to take longer"""


def connect(config: dict[str, str | bool | int | float | list[str]] | None = None) -> duckdb.DuckDBPyConnection:
    """A private in-memory database; without DuckDB's own bars, which it draws wherever Python is asked by hand."""
    con = duckdb.connect(":memory:", config=config or {})
    con.execute("SET enable_progress_bar = false")
    return con


def warm_up() -> None:
    """Trigger the lazy imports of DuckDB, Arrow and numpy that a first query needs, and keep the
    instance for the first run; touches no file."""
    con = connect(_CONFIG)
    con.execute("CREATE TABLE t AS SELECT range AS i, [1, 2] AS r, 'a' AS s, 0.5 AS x FROM range(2)")
    cursor = con.cursor()
    cursor.execute("SELECT s, sum(i), any_value(r) FROM t WHERE i IN (?, ?) GROUP BY s ORDER BY s", [0, 1])
    cursor.fetchall()
    cursor.execute("SELECT i FROM t WHERE i IN (SELECT unnest(?::INTEGER[]))", [[0, 1]]).fetchnumpy()
    for batch in cursor.execute("SELECT i, r FROM t").to_arrow_reader(1024):
        batch.column("r").flatten().to_numpy(zero_copy_only=False)
    cursor.execute("DROP TABLE t")
    cursor.close()
    SPARE.begin(con)


class Spare:
    """An empty instance of DuckDB that waits for the next run: to make one is 10 ms of what opens a run.

    Only processes that were warmed up have one. After one was taken another is made when the question for which the
    run was opened should be answered; where threads or memory are short the next run that is opened asks for it again.
    """

    def __init__(self) -> None:
        self.waiting: list[duckdb.DuckDBPyConnection] = []
        """one, or none"""
        self._begun = False
        self._later: threading.Timer | None = None
        self._lock = threading.Lock()

    def begin(self, con: duckdb.DuckDBPyConnection) -> None:
        """Keep an instance, and from now on have one waiting."""
        self._begun = True
        self.waiting.append(con)
        atexit.register(self.end)

    def take(self) -> duckdb.DuckDBPyConnection:
        """An instance of nobody else's."""
        try:
            return self.waiting.pop()
        except IndexError:
            return connect(_CONFIG)
        finally:
            self._make_later()

    def end(self) -> None:
        """Make none any more: a thread that is in DuckDB when Python ends takes the process down."""
        with self._lock:
            self._begun, later = False, self._later
        if later is not None:
            later.cancel()
            later.join()

    def _make_later(self) -> None:
        with self._lock:
            if not self._begun or self._later is not None:
                return
            later = threading.Timer(SPARE_SECONDS, self._make)
            later.daemon = True
            with suppress(RuntimeError):  # no thread can be started
                later.start()
                self._later = later

    def _make(self) -> None:
        with suppress(duckdb.Error, MemoryError):
            if not self.waiting:
                self.waiting.append(connect(_CONFIG))
        with self._lock:
            self._later = None


SPARE = Spare()


def open_read_only(
    file: Path,
    *,
    memory_megabytes: int | None = None,
    spill_folder: Path | None = None,
    threads: int | None = None,
    trust_parts: bool = False,
) -> duckdb.DuckDBPyConnection:
    """A connection that can read this one file, with its parts, and do nothing else outside its own memory.

    ``spill_folder`` takes what does not fit into ``memory_megabytes`` (default: 80 % of the machine's); without it
    nothing is spilled. ``threads`` (default: one a core) are DuckDB's. ``trust_parts``: as in ``attach_parts``.

    The file is attached to a private in-memory database: DuckDB keeps one instance per path and process, so a
    connection to the path itself would go on showing a run that was overwritten.

    Raises:
        RunNotFound: there is no such file.
        RunFileError: it is empty, truncated, damaged, newer than this program, or not a run.
    """
    check_bytes(file)
    own: dict[str, str] = {} if memory_megabytes is None else {"memory_limit": f"{memory_megabytes}MB"}
    if spill_folder is not None:
        own["temp_directory"] = str(spill_folder)
    if threads is not None:
        own["threads"] = str(threads)
    con = SPARE.take()
    try:
        for name, value in own.items():
            con.execute(f"SET {name} = ?", [value])
        address = str(file).replace("'", "''")
        con.execute(f"ATTACH '{address}' AS r (READ_ONLY)")
        con.execute("USE r")
        attach_parts(con, file, trust=trust_parts)
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
        check_length(con, file)
        _check_schema(con, file)
    except duckdb.OutOfMemoryException as error:
        con.close()
        raise NotEnoughMemory(f"{file.name} needs more memory to be opened than there is") from error
    except duckdb.Error as error:
        con.close()
        if not file.exists():  # deleted since its first bytes were read
            raise RunNotFound(f"there is no run {file.stem!r}", field="run") from None
        raise RunFileError(
            f"{file.name} is damaged or cut off and cannot be read ({first_line(error, file)}): "
            "copy it again or trace the run again"
        ) from error
    except BaseException:
        con.close()
        raise
    return con


def attach_parts(
    con: duckdb.DuckDBPyConnection, file: Path, parts: Sequence[Path] | None = None, *, trust: bool = False
) -> None:
    """Attach the parts of the run ``file`` to read from; does nothing for a run in one file.

    In a folder of runs only files that were sealed there are attached: nobody else's is opened by this program. What
    cannot be attached is left out: a file that merely has such a name does no harm, and one that the run names is
    missed by whoever reads it.

    Args:
        con: the connection.
        file: the run.
        parts: its parts, if they are known; otherwise those beside it.
        trust: attach those that were sealed elsewhere, too.
    """
    for part in parts_of(file) if parts is None else parts:
        with suppress(OSError, duckdb.Error):
            if trust or part.parent.name != "runs" or is_sealed_here(part):
                address = str(part).replace("'", "''")
                con.execute(f"ATTACH '{address}' AS {alias_of(part)} (READ_ONLY)")


def _missing_part(error: duckdb.Error, file: Path) -> RunFileError | None:
    """What is wrong if DuckDB knows nothing of a part that a view names; None if something else is."""
    match = ALIAS.search(str(error))
    if match is None:
        return None
    run = run_of(file)
    part = part_file(file.parent, run, match["seal"], int(match["number"]))
    bring = "bring the one file that `tokenpaths pack` makes of it, or seal its shards again"
    if not part.exists():
        return RunFileError(f"{file.name} is a run in parts, and {part.name} is missing: {bring}")
    return RunFileError(
        f"{file.name} is a run in parts, and {part.name} is damaged or was not written in this folder: {bring}; if all "
        f"files are here and yours, `tokenpaths pack {run} --trust` makes one of them"
    )


def check_bytes(file: Path) -> None:
    """Check size and magic bytes first, for clearer errors than DuckDB's."""
    try:
        with open(file, "rb") as handle:
            head = handle.read(16)
    except FileNotFoundError:
        hint = "" if file.suffix == RUN_SUFFIX else f"; give the file of a run, such as {file.name}{RUN_SUFFIX}"
        raise RunNotFound(f"there is no run {file.stem!r}{hint}", field="run") from None
    except OSError as error:
        raise RunFileError(f"{file.name} cannot be opened: {error.strerror}") from error
    if not head:
        raise RunFileError(f"{file.name} is empty: copy it again or trace the run again")
    if head.startswith(b"SQLite format 3"):
        raise RunFileError(f"{file.name} is an SQLite database, a run is a DuckDB file made by tokenpaths")
    if head[8:12] != b"DUCK":
        raise RunFileError(f"{file.name} is no run: a run is a DuckDB file made by tokenpaths")


def expected_length(con: duckdb.DuckDBPyConnection) -> int:
    """Bytes of the file attached as ``r``, its free blocks included."""
    # So named, no macro of the file stands in for the function; the same wherever a run is asked for its tables.
    sizes = "SELECT total_blocks * block_size FROM system.main.pragma_database_size() WHERE database_name = 'r'"
    return int(con.execute(sizes).fetchall()[0][0]) + _HEADER_BYTES


def check_length(con: duckdb.DuckDBPyConnection, file: Path) -> None:
    expected, size = expected_length(con), file.stat().st_size
    if size < expected:
        raise RunFileError(
            f"{file.name} is cut off: {size:,} of {expected:,} bytes are there; copy it again or trace the run again"
        )


@contextmanager
def _interrupted_after(con: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    """Raises duckdb.InterruptException if the block exceeds the time limit, KeyboardInterrupt on Ctrl-C."""
    try:
        with ALARMS.after(seconds, con.interrupt):
            yield
    except RuntimeError as error:
        if not is_interrupt(error):
            raise
        con.interrupt()  # its threads work on: to close would wait for them
        raise KeyboardInterrupt from error


def _check_schema(con: duckdb.DuckDBPyConnection, file: Path) -> None:
    try:  # a look into the catalogue would take longer than all else here
        with _interrupted_after(con, LOOK_SECONDS):  # both may be views, and a stranger's may never end
            con.execute("SELECT path_id FROM token LIMIT 0")
            rows = con.execute("SELECT schema_version FROM run LIMIT 2").fetchall()
    except duckdb.InterruptException:
        raise RunFileError(
            f"{file.name} does not say within {LOOK_SECONDS:g} s what it holds: it is damaged or was made to do harm"
        ) from None
    except (duckdb.CatalogException, duckdb.BinderException) as error:
        if (missing := _missing_part(error, file)) is not None:
            raise missing from None
        raise RunFileError(f"{file.name} is a DuckDB file, but no run: it has no table 'run' and 'token'") from None
    if len(rows) != 1:
        raise RunFileError(f"{file.name} holds {len(rows)} runs in its table 'run', it should be one")
    version = rows[0][0]
    if version != SCHEMA_VERSION:
        remedy = "trace the run again" if version is None or version < SCHEMA_VERSION else "update it"
        raise RunFileError(f"{file.name} has schema version {version}, this program reads {SCHEMA_VERSION}: {remedy}")


class Connection:
    """Queries to one open file from any thread: a cursor each, interrupted at the time limit."""

    def __init__(
        self,
        file: Path,
        time_limit_s: int | float,
        *,
        memory_megabytes: int | None = None,
        spill_folder: Path | None = None,
        threads: int | None = None,
    ) -> None:
        self._con = open_read_only(file, memory_megabytes=memory_megabytes, spill_folder=spill_folder, threads=threads)
        self._file = file
        self.time_limit_s = time_limit_s
        """of each further query"""
        self._lock = threading.Lock()
        self._names = "r"

    def with_names(self, schema: str) -> Connection:
        """The same open file, asked by way of the views in ``schema`` of the in-memory database."""
        other = copy.copy(self)
        other._names = schema
        return other

    @contextmanager
    def cursor(self, *, limited: bool = True) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor for one query; DuckDB's errors are raised as errors of ours, Ctrl-C as KeyboardInterrupt."""
        with self._lock:
            try:
                cursor = self._con.cursor()
            except duckdb.ConnectionException:
                raise UserError(f"{self._file.name} was closed; open it again to ask it something") from None
        late = threading.Event()

        def stop() -> None:
            late.set()
            cursor.interrupt()

        try:
            cursor.execute(f"USE {self._names}")
            with ALARMS.after(self.time_limit_s, stop) if limited else nullcontext():
                yield cursor
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            # Rows that leave through Arrow fail with its exceptions or plain OSErrors.
            if late.is_set():
                raise QueryTimeout(
                    f"the question took longer than {self.time_limit_s:g} seconds and was stopped: "
                    "ask for fewer tokens, for example one label or one path"
                ) from error
            if isinstance(error, duckdb.OutOfMemoryException):
                raise NotEnoughMemory("the question needs more memory than there is: ask for fewer tokens") from error
            if isinstance(error, duckdb.ProgrammingError):
                raise  # Our own SQL is wrong: no fault of the file.
            raise RunFileError(f"{self._file.name} could not be read: {first_line(error, self._file)}") from error
        except RuntimeError as error:
            if not is_interrupt(error):
                raise
            cursor.interrupt()  # its threads work on: to close would wait for them, without a time limit
            raise KeyboardInterrupt from error
        finally:
            cursor.close()

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of one query."""
        with self.cursor() as cursor:
            return cursor.execute(sql, list(parameters)).fetchall()

    def arrays(self, sql: str, parameters: Sequence[object] = ()) -> dict[str, np.ndarray]:
        """The columns of one query without NULLs, as numpy arrays."""
        with self.cursor() as cursor:
            return cursor.execute(sql, list(parameters)).fetchnumpy()

    def close(self) -> None:
        """Close the file; running queries finish first or fail with an error of ours."""
        with self._lock:
            self._con.close()


def has_parts(connection: Connection) -> bool:
    """Whether tokens and samples of a run lie in parts beside its file."""
    sql = f"SELECT 1 FROM system.main.duckdb_views() WHERE database_name = 'r' AND view_name = '{TABLE}'"
    return bool(connection.rows(sql))


def is_interrupt(error: BaseException) -> bool:
    """Whether an error is DuckDB's reaction to Ctrl-C, which has no exception class of its own."""
    return type(error) is RuntimeError and str(error) == "Query interrupted"


def first_line(error: Exception, file: Path) -> str:
    """First line of an error of DuckDB or the system about ``file``, without the file's location."""
    message = (str(error).splitlines() or [type(error).__name__])[0]
    for path in sorted({str(file), str(file.absolute()), str(file.resolve())}, key=len, reverse=True):
        message = message.replace(path, file.name).replace(path.removesuffix(file.name), "")
    return message[:200]
