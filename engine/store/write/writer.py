"""RunWriter: batches in, one sealed run file out, or nothing.

The calling thread checks and copies a batch (errors are raised by the call that caused them, and the caller may reuse
its arrays); one background thread numbers paths and fills DuckDB; sealing builds the summaries and renames the file.
Until then its name is hidden from readers.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from tokenpaths.engine.base.errors import RunFileError, UserError, WriterFailed
from tokenpaths.engine.base.files import HolderLock, partial_file, rename_durably, run_file
from tokenpaths.engine.base.lifecycle import SealedOnce, claim, claim_to_clear
from tokenpaths.engine.base.records import ModuleInfo, RunInfo, TraceBatch
from tokenpaths.engine.base.run_parts import parts_of, remove_parts
from tokenpaths.engine.base.seal_marks import digest_of, mark_sealed
from tokenpaths.engine.store.file.checks import check_batch, check_json, check_ribbons, check_run
from tokenpaths.engine.store.file.open_file import connect, is_interrupt, open_read_only
from tokenpaths.engine.store.write.arrow_tables import CompactBatch, compact
from tokenpaths.engine.store.write.run_filler import RunFiller, temporary_folder
from tokenpaths.engine.store.write.seal import NUM_STAGES
from tokenpaths.engine.store.write.twin.twin_paths import TwinPaths

QUEUE_BATCHES = 2
_Item = CompactBatch | np.ndarray
"""a batch, or ribbons of the twin"""


class RunWriter(SealedOnce):
    """Writes one run; a context manager that seals on success and leaves nothing behind on failure.

    Args:
        runs_dir: folder of the run files.
        info, modules: what the run is.
        overwrite: whether a run of the same name is replaced.
        filler: makes what fills the file.
        parts: the sealing that wrote its parts, of a run in parts; they are deleted where the run is not sealed.

    Raises:
        UserError: an invalid name, an existing run (without ``overwrite``), another writer of the same run, or an
            inconsistent description; nothing is created then.
    """

    def __init__(
        self,
        runs_dir: Path,
        info: RunInfo,
        modules: Sequence[ModuleInfo],
        *,
        overwrite: bool = False,
        filler: Callable[[Path, RunInfo, list[ModuleInfo]], RunFiller] = RunFiller,
        parts: str | None = None,
    ) -> None:
        check_run(info, modules)
        check_json(info.config, "config")
        check_json(info.findings, "findings")
        check_json(info.weight_semantics, "weight_semantics")
        self.info, self.modules, self.overwrite, self._parts = info, list(modules), overwrite, parts
        self._title = f"run {info.run_id!r}"
        self.file = run_file(Path(runs_dir), info.run_id)
        self._refuse_existing()
        self.partial_file = partial_file(self.file.parent, info.run_id)
        self._lock = HolderLock(self.file.with_name(f".{info.run_id}.lock"))
        claim(self.file.parent, self._lock, field="data_dir", instead="another data folder")
        self._failure: BaseException | None = None
        self._aborting = threading.Event()
        self._queue: queue.Queue[_Item | None] = queue.Queue(maxsize=QUEUE_BATCHES)
        try:
            remove_partial(self.partial_file)
            self.filler = filler(self.partial_file, info, self.modules)
        except BaseException:
            self._lock.release()
            raise
        self._thread = threading.Thread(target=self._work, name=f"write {info.run_id}", daemon=True)
        self._thread.start()

    def write(self, batch: TraceBatch) -> None:
        """Queue some samples; blocks only while ``QUEUE_BATCHES`` are waiting.

        Raises:
            UserError: the batch is malformed; it is not written, and the run can continue.
            WriterFailed: an earlier batch could not be stored (disk full, for example).
        """
        self._check_open()
        sorted_nV = check_batch(batch, self.info, self.filler.available, self.filler.layout.unused_from)
        if batch.num_tokens:
            self._put(compact(batch, self.filler.layout, self.filler.token_columns, sorted_nV))

    def write_compact(self, batch: CompactBatch) -> None:
        """``write`` for a checked and compacted batch, as of a shard. Raises as ``write``."""
        self._check_open()
        check_ribbons(batch.ids, self.info, self.filler.available, unused_from=self.filler.layout.unused_from)
        if batch.num_tokens:
            self._put(batch)

    def write_twin(self, module_ids: np.ndarray) -> None:
        """Count ribbons (n, S, K) of the untrained twin, for the same tokens in the same order as the run's.

        Stores their frequencies, and the paths of the hash sample used for associations.
        """
        self._check_open()
        unused_from = self.filler.layout.unused_from
        check_ribbons(np.asarray(module_ids), self.info, self.filler.available, unused_from=unused_from)
        if len(module_ids):
            self._put(np.array(module_ids, dtype=self.filler.layout.id_dtype, order="C"))

    def use_twin(self, twin: TwinPaths) -> None:
        """Give the run the paths of an untrained twin that was traced before; left out if of other tokens."""
        self._check_open()
        self.filler.twin_paths = twin

    @property
    def twin_paths(self) -> TwinPaths | None:
        """Of the untrained twin, once the run is sealed; None without one."""
        return self.filler.twin_paths

    def seal(self, on_stage: Callable[[str, int, int], None] = lambda name, done, of: None) -> Path:
        """Finish: summaries, checkpoint, fsync, rename to ``<runs_dir>/<run_id>.duckdb``.

        ``on_stage(name, done, of)`` is called before each stage: its name, finished stages, and their total.

        Exceptions of ``on_stage``, and Ctrl-C, abort the run; during the computation of slow answers they leave the run
        complete, without these answers.

        Raises:
            UserError: no sample was written, or the name was taken meanwhile.
            WriterFailed: the disk refused a write. The run is aborted in each case.
        """
        self._check_state()
        try:
            self._put(None)
            self._thread.join()
            self._raise_failure()
            if self.filler.num_samples == 0:
                raise UserError("nothing was traced: a run needs at least one sample")
            with _disk_trouble():
                self.filler.finish(on_stage)
            stopped = self._add_answers(on_stage)
            self._refuse_existing()
            with _disk_trouble():
                digest = digest_of(self.partial_file)
                mark_sealed(self.file, os.stat(self.partial_file), digest)
                rename_durably(self.partial_file, self.file)
            self._state = "sealed"
        except BaseException:
            self.abort()
            raise
        try:
            with contextlib.suppress(OSError):  # deleted already
                mark_sealed(self.file, os.stat(self.file), digest)  # renaming changed its ctime
            remove_parts(self.file, lambda seal: seal != self._parts)  # of the run that it replaces
        finally:
            self._lock.release()
        if stopped is not None:
            raise stopped
        return self.file

    def _add_answers(self, on_stage: Callable[[str, int, int], None]) -> BaseException | None:
        """Add the answers of a large run; the run is complete without them, so errors here do not affect it.

        Returns the exception that interrupted it from outside (Ctrl-C, or ``on_stage``): the caller raises it once the
        run has its name. After any other error, such as a full disk, the run has no such answers.
        """
        if not self.filler.large:
            return None
        stopped: list[BaseException] = []

        def told(*stage: Any) -> None:
            try:
                on_stage(*stage)
            except BaseException as error:
                stopped.append(error)
                raise

        try:
            self.filler.add_answers(told)
        except Exception as error:
            if is_interrupt(error):  # Ctrl-C, as DuckDB tells it
                stopped[:] = [KeyboardInterrupt()]
            elif not stopped:  # Who asks for them gets them worked out.
                with contextlib.suppress(BaseException):  # ``told`` has kept it
                    told(f"without the answers that take long ({error})", NUM_STAGES, NUM_STAGES)
        except BaseException as error:
            stopped[:] = [error]
        try:
            open_read_only(self.partial_file).close()
        except RunFileError as error:
            raise WriterFailed(f"the run could not be sealed: {error}") from error
        return stopped[0] if stopped else None

    def abort(self) -> None:
        """Stop and delete everything written; does nothing after ``seal`` or a second call."""
        if self._state != "open":
            return
        self._state = "aborted"
        self._aborting.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join()
        self.filler.close()
        remove_partial(self.partial_file)
        if self._parts is not None:  # not those of a run that has its name, as when Ctrl-C came right after that
            _remove_stale_parts(self.file)
        self._lock.release()

    def _refuse_existing(self) -> None:
        if self.file.exists() and not self.overwrite:
            raise UserError(
                f"there is a run {self.info.run_id!r} already: choose another name, or say that it may be overwritten",
                field="run_id",
            )

    def _check_open(self) -> None:
        self._check_state()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise WriterFailed(f"run {self.info.run_id!r} could not be written: {self._failure}") from self._failure

    def _put(self, item: _Item | None) -> None:
        while True:
            try:
                self._queue.put(item, timeout=0.5)
                return
            except queue.Full:
                self._raise_failure()

    def _work(self) -> None:
        last = False
        while not last:
            item = self._queue.get()
            last = item is None or self._aborting.is_set()
            if self._failure is not None or self._aborting.is_set():
                continue  # Keep emptying the queue: the caller may be waiting to put.
            try:
                if item is None:
                    self.filler.wait_for_rows()
                elif isinstance(item, CompactBatch):
                    self.filler.add(item)
                else:
                    self.filler.add_twin(item)
            except BaseException as error:  # whatever it is: the caller would wait for this thread without end
                self._failure = error


@contextlib.contextmanager
def _disk_trouble() -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, OSError) as error:
        # A disk that is full is told as a lack of memory, too.
        if isinstance(error, duckdb.OutOfMemoryException) and "max_temp_directory_size" not in str(error):
            raise WriterFailed(
                "the run could not be sealed: it has more paths than are sorted in the memory that a sealing may take; "
                "make several smaller runs of it"
            ) from error
        raise WriterFailed(f"the run could not be sealed: {error}") from error
    except RuntimeError as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise


def remove_partial(partial_file: Path) -> None:
    """Delete an unfinished run and DuckDB's files beside it."""
    for file in (partial_file, partial_file.with_name(partial_file.name + ".wal")):
        file.unlink(missing_ok=True)
    shutil.rmtree(temporary_folder(partial_file), ignore_errors=True)


def remove_abandoned(runs_dir: Path) -> list[str]:
    """Delete what writers that are dead left of unfinished runs; returns the ids of those runs."""
    removed = []
    left = [*Path(runs_dir).glob(".*.partial"), *Path(runs_dir).glob(".*.lock")]
    for run_id in sorted({file.stem[1:] for file in left}):
        partial_file = Path(runs_dir) / f".{run_id}.partial"
        lock = HolderLock(partial_file.with_suffix(".lock"))
        try:
            claim_to_clear(lock)
            # A writer that is killed before its first byte, or right after its run has its name, leaves a lock only.
            if partial_file.exists():
                removed.append(run_id)
            remove_partial(partial_file)
            _remove_stale_parts(run_file(Path(runs_dir), run_id))
        except (UserError, OSError):  # somebody writes it, or it is not ours to delete
            continue
        finally:
            lock.release()
    return removed


def _remove_stale_parts(file: Path) -> None:
    """Delete parts that the run ``file`` does not name, as of a sealing that was killed; all, if there is no run."""
    named = ""
    if parts_of(file) and file.exists():
        try:
            with connect() as con:
                address = str(file).replace("'", "''")
                con.execute(f"ATTACH '{address}' AS r (READ_ONLY)")
                rows = con.execute("SELECT sql FROM duckdb_views() WHERE database_name = 'r'").fetchall()
        except duckdb.Error:
            return  # whether it names them is not known
        named = "".join(sql or "" for (sql,) in rows)
    remove_parts(file, lambda seal: f"part_{seal}_" not in named)
