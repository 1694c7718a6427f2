"""RunWriter: batches in, one sealed run file out, or nothing.

The caller checks and compacts (cheap, so that errors come at the call that caused them and the
caller's arrays are free again); one thread numbers paths and fills DuckDB; sealing builds the
summaries and renames. Until then the file has a name that no reader looks at.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis.ribbon_costs import NOTHING, compute, module_units, reuse
from tokenpaths.engine.base.errors import RunFileError, UserError, WriterFailed
from tokenpaths.engine.base.files import HolderLock, check_free, rename_durably, run_file
from tokenpaths.engine.base.lifecycle import SealedOnce, claim
from tokenpaths.engine.base.records import ModuleInfo, RunInfo, TraceBatch
from tokenpaths.engine.store.ask.questions import page_questions
from tokenpaths.engine.store.file import columns
from tokenpaths.engine.store.file.checks import check_batch, check_json, check_ribbons, check_run
from tokenpaths.engine.store.file.hash_sample import KNOWN_TOKENS, TokenSketch
from tokenpaths.engine.store.file.open_file import is_interrupt, open_read_only
from tokenpaths.engine.store.file.schema import (
    LARGE_BLOCK_BYTES,
    ROW_GROUP,
    SMALL_BLOCK_BYTES,
    STORAGE_VERSION,
    create_tables,
    layout_for,
    token_columns,
)
from tokenpaths.engine.store.file.soft_tables import CREATE_SOFT, SOFT_TABLES
from tokenpaths.engine.store.file.token_flops import flops_of, flops_table
from tokenpaths.engine.store.write.arrow_insert import insert_rows
from tokenpaths.engine.store.write.arrow_tables import CompactBatch, compact, sample_table, token_table
from tokenpaths.engine.store.write.batch_flow_counts import Visits
from tokenpaths.engine.store.write.path_dictionary import Growing, PathBook
from tokenpaths.engine.store.write.seal import NUM_STAGES, Totals, build_summaries
from tokenpaths.engine.store.write.seal_answers import LEAST_TOKENS, seal_answers
from tokenpaths.engine.store.write.soft_rows import SoftSums, soft_rows

QUEUE_BATCHES = 4
DUCKDB_MEGABYTES = 2000
_Item = CompactBatch | np.ndarray
"""a batch, or ribbons of the twin"""
FLUSH_TOKENS = 65_536
"""tokens that wait in memory for one insert; a run that never has so many gets a file of small blocks"""


class RunWriter(SealedOnce):
    """Write one run; a context manager that seals on success and leaves nothing behind on failure.

    Raises:
        UserError: a name that is none, a run that exists (without ``overwrite``), another writer of
            the same run, or a description that does not hold together; nothing is created then.
    """

    def __init__(
        self, runs_dir: Path, info: RunInfo, modules: Sequence[ModuleInfo], *, overwrite: bool = False
    ) -> None:
        check_run(info, modules)
        check_json(info.config, "config")
        check_json(info.findings, "findings")
        check_json(info.weight_semantics, "weight_semantics")
        self.info, self.modules, self.overwrite = info, list(modules), overwrite
        self._title = f"run {info.run_id!r}"
        self.file = run_file(Path(runs_dir), info.run_id)
        self._refuse_existing()
        self.partial_file = self.file.with_name(f".{info.run_id}.partial")
        self._lock = HolderLock(self.file.with_name(f".{info.run_id}.lock"))
        claim(self.file.parent, self._lock, field="data_dir", instead="another data folder")
        self._failure: BaseException | None = None
        self._aborting = threading.Event()
        self._queue: queue.Queue[_Item | None] = queue.Queue(maxsize=QUEUE_BATCHES)
        try:
            remove_partial(self.partial_file)
            self._filler = _Filler(self.partial_file, info, self.modules)
        except BaseException:
            self._lock.release()
            raise
        self._thread = threading.Thread(target=self._work, name=f"write {info.run_id}", daemon=True)
        self._thread.start()

    def write(self, batch: TraceBatch) -> None:
        """Queue some samples; returns at once unless ``QUEUE_BATCHES`` wait already.

        Raises:
            UserError: the batch is malformed; nothing of it is written and the run can go on.
            WriterFailed: an earlier batch could not be stored (disk full, for example).
        """
        self._check_open()
        check_batch(batch, self.info, self._filler.available)
        if batch.num_tokens:
            self._put(compact(batch, self._filler.layout, self._filler.token_columns))

    def write_compact(self, batch: CompactBatch) -> None:
        """``write`` of what was compacted and checked before: a batch of a shard. Raises as ``write``."""
        self._check_open()
        check_ribbons(batch.ids, self.info, self._filler.available)
        if batch.num_tokens:
            self._put(batch)

    def write_twin(self, module_ids: np.ndarray) -> None:
        """Count ribbons (n, S, K) of the untrained twin, for the same tokens in the same order as the run's.

        Kept are their frequencies, and the paths of the tokens on which it is told what paths know.
        """
        self._check_open()
        check_ribbons(np.asarray(module_ids), self.info, self._filler.available)
        if len(module_ids):
            self._put(np.array(module_ids, dtype=self._filler.layout.id_dtype, order="C"))

    def seal(self, on_stage: Callable[[str, int, int], None] = lambda name, done, of: None) -> Path:
        """Finish: summaries, checkpoint, fsync, rename to ``<runs_dir>/<run_id>.duckdb``.

        ``on_stage(name, done, of)`` is told before each stage what comes, how many are done, and of how many.

        What ``on_stage`` raises, and Ctrl-C, abort the run; while answers that take long are worked out, they leave it
        whole and without these answers.

        Raises:
            UserError: no sample was written, or the name was taken meanwhile.
            WriterFailed: the disk did not take it. The run is aborted in each case.
        """
        self._check_state()
        try:
            self._put(None)
            self._thread.join()
            self._raise_failure()
            if self._filler.num_samples == 0:
                raise UserError("nothing was traced: a run needs at least one sample")
            with _disk_trouble():
                self._filler.finish(on_stage)
            stopped = self._add_answers(on_stage)
            self._refuse_existing()
            with _disk_trouble():
                rename_durably(self.partial_file, self.file)
        except BaseException:
            self.abort()
            raise
        self._state = "sealed"
        self._lock.release()
        if stopped is not None:
            raise stopped
        return self.file

    def _add_answers(self, on_stage: Callable[[str, int, int], None]) -> BaseException | None:
        """Answers of a large run; the run is whole without them, so that nothing here costs it.

        Returns what stopped them from outside (Ctrl-C, or ``on_stage`` that raised): the caller raises it when the run
        has its name. A disk that is full, or whatever else goes wrong with the answers, leaves a run without.
        """
        if not self._filler.large:
            return None
        stopped: list[BaseException] = []

        def told(*stage: Any) -> None:
            try:
                on_stage(*stage)
            except BaseException as error:
                stopped.append(error)
                raise

        try:
            self._filler.add_answers(told)
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
        """Stop and delete everything written; does nothing after ``seal`` or a second time."""
        if self._state != "open":
            return
        self._state = "aborted"
        self._aborting.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join()
        self._filler.close()
        remove_partial(self.partial_file)
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
        while True:
            item = self._queue.get()
            if item is None or self._aborting.is_set():
                return
            if self._failure is not None:
                continue  # Keep emptying the queue: the caller may be waiting to put.
            try:
                if isinstance(item, CompactBatch):
                    self._filler.add(item)
                else:
                    self._filler.add_twin(item)
            except Exception as error:
                self._failure = error


class _Filler:
    """Everything that one writer thread does: number paths, sum, insert."""

    def __init__(self, file: Path, info: RunInfo, modules: Sequence[ModuleInfo]) -> None:
        self.info, self.modules = info, modules
        self.layout = layout_for(info)
        self.available, self.units = module_units(modules, info.num_steps, info.num_modules)
        self.flops = flops_table(modules, info.num_steps, info.num_modules)
        self.visits = Visits(self.layout) if self.layout.by_path else None
        self.token_columns = {name for name, _ in token_columns(self.layout, info)}
        self.book = PathBook(self.layout.id_dtype, file.parent)
        self.twin = PathBook(self.layout.id_dtype, file.parent)
        self.sketch = TokenSketch(KNOWN_TOKENS)
        self.twin_sketch = TokenSketch(KNOWN_TOKENS)
        self.num_samples = 0
        self.large = False
        """from ``finish`` on: whether the run is to hold the answers that take long"""
        self.labels: dict[str, int] = {}
        self.entropy: dict[int, np.ndarray] = {}
        self.loss = (0, 0.0)
        self._first_char = 0
        self.soft = SoftSums()
        self._no_reuse = _each_its_own(self.available, self.units)
        self._compute_P = Growing(np.float64)
        self._reuse_P = Growing(np.float64)
        self.con: duckdb.DuckDBPyConnection | None = None
        self._file = file
        self._pending: dict[str, list[pa.Table]] = {
            columns.TABLE: [],
            "sample": [],
            **{soft.table: [] for soft in SOFT_TABLES.values()},
        }
        self._pending_tokens = 0

    def _open(self, block_bytes: int) -> duckdb.DuckDBPyConnection:
        config = {
            "python_enable_replacements": "false",
            # What sealing sorts beyond this goes to the disk, into a folder that ``remove_partial`` deletes.
            "memory_limit": f"{DUCKDB_MEGABYTES}MB",
            "temp_directory": _temporary_folder(self._file),
        }
        con = duckdb.connect(":memory:", config=config)
        attached = str(self._file).replace("'", "''")
        options = f"STORAGE_VERSION '{STORAGE_VERSION}', BLOCK_SIZE {block_bytes}, ROW_GROUP_SIZE {ROW_GROUP}"
        con.execute(f"ATTACH '{attached}' AS r ({options})")
        con.execute("USE r")
        con.execute(create_tables(self.layout, self.info) + CREATE_SOFT)
        # One transaction: row groups go straight to the file, without a detour through the WAL.
        con.execute("BEGIN")
        return con

    def add(self, batch: CompactBatch) -> None:
        """Store one batch of whole samples."""
        first_row = self.book.num_tokens
        path_ids, new_rows = self.book.add(batch.ids)
        self._measure(new_rows)
        common = {
            "first_sample": self.num_samples,
            "label_ids": np.array(
                [-1 if s.label is None else self.labels.setdefault(s.label, len(self.labels)) for s in batch.samples]
            ),
            "path_ids": path_ids,
        }
        rows, self._first_char = token_table(
            batch,
            self.layout,
            usual_flops=flops_of(self.flops, batch.ids),
            first_row=first_row,
            first_char=self._first_char,
            **common,
        )
        self._hold(columns.TABLE, rows)
        self._sum_loss(batch)
        self._hold(
            "sample",
            sample_table(
                batch,
                first_row=first_row,
                compute=self._of_paths(self._compute_P, 1.0)[path_ids],
                reuse=self._of_paths(self._reuse_P, 0.0)[path_ids],
                **common,
            ),
        )
        if self.visits is not None:
            self.visits = self.visits.add(common["label_ids"], batch)
        for kind, values in batch.soft.items():
            self._hold(SOFT_TABLES[kind].table, soft_rows(kind, values, self.num_samples))
            self.soft.add(kind, values, common["label_ids"])
        label_ids_n = np.repeat(common["label_ids"], batch.lengths)
        for label, part in batch.entropy_sums.items():
            label_id = -1 if label is None else self.labels[label]
            self.entropy[label_id] = self.entropy.get(label_id, 0) + part
        unknown = np.full(batch.num_tokens, -1, dtype=np.int32)
        starts = np.cumsum(batch.lengths) - batch.lengths
        self.sketch.add(
            first_row,
            {
                "path_id": path_ids,
                "place": np.arange(first_row, first_row + batch.num_tokens),
                "sample": self.num_samples + np.repeat(np.arange(len(batch.lengths)), batch.lengths),
                "token": np.arange(batch.num_tokens) - np.repeat(starts, batch.lengths),
                "label": label_ids_n,
                "region": batch.whole.get("region", unknown),
                "token_id": batch.whole.get("token_id", unknown),
            },
        )
        self.num_samples += len(batch.samples)
        self._pending_tokens += batch.num_tokens
        if self._pending_tokens >= FLUSH_TOKENS:
            self._flush(LARGE_BLOCK_BYTES)

    def _sum_loss(self, batch: CompactBatch) -> None:
        """Add the tokens that have a loss, and the losses, to those so far: of numbers that were not rounded yet."""
        if batch.loss is not None:
            known = batch.loss[~np.isnan(batch.loss)]
            self.loss = (self.loss[0] + len(known), self.loss[1] + float(known.sum(dtype=np.float64)))

    def add_twin(self, ids: np.ndarray) -> None:
        """Count the twin's ribbons of the next tokens."""
        first_row = self.twin.num_tokens
        self.twin_sketch.add(first_row, {"path_id": self.twin.add(ids)[0]})

    def _measure(self, new_rows: np.ndarray) -> None:
        """Compute and reuse are properties of a path: worked out once for each."""
        if self._no_reuse:
            return
        ribbons = new_rows.reshape(-1, self.layout.num_steps, self.layout.top_k)
        self._compute_P.append(compute(ribbons, self.units))
        self._reuse_P.append(reuse(ribbons, self.units))

    def _of_paths(self, measured: Growing, constant: float) -> np.ndarray:
        """(P,) compute or reuse by path_id; one number for all where every visit is to a module of its own."""
        return np.broadcast_to(np.float64(constant), (self.book.num_paths,)) if self._no_reuse else measured.values

    def _hold(self, table: str, rows: pa.Table) -> None:
        self._pending[table].append(rows)

    def _flush(self, block_bytes: int) -> None:
        """Insert what waits; the first time, create the file with blocks of this size."""
        check_free(self._file.parent)
        if self.con is None:
            self.con = self._open(block_bytes)
        for table, parts in self._pending.items():
            while parts:
                insert_rows(self.con, table, parts.pop(0))
        self._pending_tokens = 0

    def finish(self, on_stage: Callable[[str, int, int], None]) -> None:
        """Build the summaries and close the file, complete and checkpointed; ``on_stage`` as ``RunWriter.seal``."""
        self._flush(SMALL_BLOCK_BYTES)
        assert self.con is not None
        # The rows of a table have their numbers once they are committed.
        self.con.execute("COMMIT")
        self.con.execute("BEGIN")
        totals = Totals(
            book=self.book,
            twin=self.twin,
            compute=self._of_paths(self._compute_P, 1.0),
            reuse=self._of_paths(self._reuse_P, 0.0),
            labels=self.labels,
            entropy=self.entropy,
            loss=self.loss,
            sketch=self.sketch.columns(),
            # Without a twin of every token, places of the two would not agree.
            twin_paths=self.twin_sketch.columns()["path_id"] if self.twin.num_tokens == self.book.num_tokens else None,
            num_samples=self.num_samples,
            soft=self.soft,
            visits=self.visits,
        )
        build_summaries(self.con, self.info, self.modules, self.layout, totals, on_stage)
        on_stage("writing to the disk", NUM_STAGES - 2, NUM_STAGES)
        self.con.execute("COMMIT")
        self.con.execute("CHECKPOINT")
        self.con.close()
        self.large = self.book.num_tokens >= LEAST_TOKENS
        # What was summed up on the way is in the file now; the answers need the memory.
        del totals
        self.book = self.twin = PathBook(self.layout.id_dtype)
        self._compute_P, self._reuse_P, self.visits = Growing(np.float64), Growing(np.float64), None
        shutil.rmtree(_temporary_folder(self._file), ignore_errors=True)

    def add_answers(self, on_stage: Callable[[str, int, int], None]) -> None:
        """Answers that take long into the finished file of a large run; see ``seal_answers`` for what is raised."""

        def told(done: int, of: int) -> None:
            on_stage(f"answers that take long: {done} of {of}", NUM_STAGES - 1, NUM_STAGES)

        folder = Path(_temporary_folder(self._file))
        try:
            seal_answers(self._file, self.info.run_id, page_questions, told, megabytes=DUCKDB_MEGABYTES, folder=folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        if self.con is not None:
            with contextlib.suppress(duckdb.Error):
                self.con.interrupt()  # after Ctrl-C its threads work on: to close would wait for them
                self.con.close()


def _each_its_own(available: np.ndarray, units: np.ndarray) -> bool:
    """True where no module is shared between steps and none does nothing: compute is 1 and reuse 0 on any ribbon."""
    offered = units[available]
    return bool((offered != NOTHING).all()) and len(np.unique(offered)) == len(offered)


@contextlib.contextmanager
def _disk_trouble():
    try:
        yield
    except (duckdb.Error, OSError) as error:
        raise WriterFailed(f"the run could not be sealed: {error}") from error
    except RuntimeError as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise


def _temporary_folder(partial_file: Path) -> str:
    return str(partial_file.with_name(partial_file.name + ".tmp"))


def remove_partial(partial_file: Path) -> None:
    """Delete an unfinished run and what DuckDB left beside it."""
    for file in (partial_file, partial_file.with_name(partial_file.name + ".wal")):
        file.unlink(missing_ok=True)
    shutil.rmtree(_temporary_folder(partial_file), ignore_errors=True)


def remove_abandoned(runs_dir: Path) -> list[str]:
    """Delete unfinished runs whose writers are dead; returns the run ids."""
    removed = []
    for partial_file in sorted(Path(runs_dir).glob(".*.partial")):
        run_id = partial_file.name[1 : -len(".partial")]
        lock = HolderLock(partial_file.with_name(f".{run_id}.lock"))
        try:
            lock.acquire()
            remove_partial(partial_file)
        except (UserError, OSError):  # somebody writes it, or it is not ours to delete
            continue
        finally:
            lock.release()
        removed.append(run_id)
    return removed
