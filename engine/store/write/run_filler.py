"""RunFiller: the work of a ``RunWriter``'s thread: number paths, sum, insert, build the summaries.

Shapes: n tokens of a batch, P distinct paths, S steps, K slots.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis.ribbon_costs import NOTHING, Work, flops_of, flops_table, module_units
from tokenpaths.engine.base.files import check_free
from tokenpaths.engine.base.records import ModuleInfo, RunInfo
from tokenpaths.engine.store.ask.questions import page_questions
from tokenpaths.engine.store.file import columns
from tokenpaths.engine.store.file.hash_sample import KNOWN_TOKENS, HashSample
from tokenpaths.engine.store.file.open_file import attach_parts, connect
from tokenpaths.engine.store.file.schema import (
    ROW_GROUP,
    STORAGE_VERSION,
    Layout,
    block_bytes,
    create_tables,
    layout_for,
    token_columns,
)
from tokenpaths.engine.store.file.soft_tables import CREATE_SOFT, SOFT_TABLES
from tokenpaths.engine.store.write.arrow_tables import CompactBatch, insert_alike, one_thread, sample_table, token_table
from tokenpaths.engine.store.write.first_rows import FirstSeen
from tokenpaths.engine.store.write.flows.while_writing import EvenFlows, Visits
from tokenpaths.engine.store.write.large.insert_in_turns import InTurns, rows_of_a_turn
from tokenpaths.engine.store.write.large.seal_answers import LEAST_TOKENS, seal_answers
from tokenpaths.engine.store.write.path_dictionary import Growing, PathDictionary
from tokenpaths.engine.store.write.seal import NUM_STAGES, Totals, build_summaries
from tokenpaths.engine.store.write.seal_nulls import Beside
from tokenpaths.engine.store.write.seal_pages import ProfilePages
from tokenpaths.engine.store.write.soft_rows import SoftSums, soft_rows
from tokenpaths.engine.store.write.twin.twin_paths import TwinCounter, TwinPaths

DUCKDB_MEGABYTES = 2000
PACKED_MEGABYTES = 150
"""the same where ribbons are packed: DuckDB keeps what it wrote up to its limit, and sorts little of it"""
TOKENS_OF_A_MEGABYTE = 65_536
"""of the sealing of such a run, and of the reader that works out its slow answers: 150 MB for ten million tokens. To
count a hundred million paths by label takes more; but what may be taken is filled with what was read"""
FLUSH_TOKENS = 65_536
"""tokens buffered for the first insert; a run that never reaches this number gets a file with small blocks"""
LATER_FLUSHES = 2
"""times as many for the later inserts, as each statement costs as much as some two thousand tokens; turns have more"""
HELD_BYTES, ENOUGH_BYTES = 1 << 20, 1 << 24
"""of samples and soft decisions that wait for the next insert, and that ask for one"""


class RunFiller:
    """All work of the writer thread: number paths, accumulate sums, insert rows."""

    def __init__(self, file: Path, info: RunInfo, modules: Sequence[ModuleInfo]) -> None:
        self.info, self.modules = info, modules
        self.layout = layout_for(info, modules)
        self.available, self.units = module_units(modules, info.num_steps, info.num_modules)
        self.flops = flops_table(modules, info.num_steps, info.num_modules)
        self.visits = Visits(self.layout) if self.layout.by_path else None
        self.even_flows = EvenFlows(self.layout) if EvenFlows.fits(self.layout) else None
        self.profiles = ProfilePages(self.layout)
        self.independent: Beside | None = None
        self.token_columns = {name for name, _ in token_columns(self.layout, info)}
        self.book = PathDictionary(self.layout.id_dtype, file.parent)
        self.first_seen = FirstSeen()
        self.twin = TwinCounter(self.layout, file.parent, KNOWN_TOKENS)
        self.twin_paths: TwinPaths | None = None
        """of an untrained twin that was traced before; set by ``finish`` if its ribbons were added"""
        self.sketch = HashSample(KNOWN_TOKENS)
        self.num_samples = 0
        self.large = False
        """set by ``finish``: whether the run is large enough to store slow answers"""
        self.labels: dict[str, int] = {}
        self.entropy: dict[int, np.ndarray] = {}
        self.loss = (0, 0.0)
        self._first_char = 0
        self.soft = SoftSums()
        self._no_reuse = _each_its_own(self.available, self.units)
        self._work_P = [Growing(np.int32) for _ in fields(Work)]
        self._flops_P = Growing(np.float32)
        self.con: duckdb.DuckDBPyConnection | None = None
        self._file = file
        self._pending: dict[str, list[pa.Table]] = {
            columns.TABLE: [],
            "sample": [],
            **{soft.table: [] for soft in SOFT_TABLES.values()},
        }
        self._pending_tokens = self._pending_bytes = 0
        self._enough_tokens = FLUSH_TOKENS
        """to be handed over"""
        self._sealing_megabytes = PACKED_MEGABYTES
        self._writing = contextlib.ExitStack()
        """what lets DuckDB insert on one thread, until the last row is in the file"""
        self._inserting: threading.Thread | None = None
        """of the rows that were handed over last"""
        self._turns: InTurns | None = None
        """of the tokens of a large run"""
        self._insert_error: BaseException | None = None

    def add(self, batch: CompactBatch) -> None:
        """Store one batch of whole samples."""
        first_row = self.book.num_tokens
        path_ids, new_rows = self.book.add(batch.ids, batch.sorted_ids)
        if self.layout.packed:
            self.first_seen.add(path_ids)
        self._measure(new_rows)
        work = self._work_of(path_ids)
        common: dict[str, Any] = {
            "first_sample": self.num_samples,
            "label_ids": np.array(
                [-1 if s.label is None else self.labels.setdefault(s.label, len(self.labels)) for s in batch.samples]
            ),
            "path_ids": path_ids,
        }
        rows, self._first_char = token_table(
            batch,
            self.layout,
            usual_flops=self._usual_flops(batch.ids, path_ids, new_rows),
            first_row=first_row,
            first_char=self._first_char,
            **common,
        )
        self._hold(columns.TABLE, rows)
        self._sum_loss(batch)
        samples = sample_table(batch, first_row=first_row, compute=work.compute, reuse=work.reuse, **common)
        self._hold("sample", samples)
        if self.visits is not None:
            self.visits = self.visits.add(common["label_ids"], batch)
        if self.even_flows is not None:
            self.even_flows = self.even_flows.add(common["label_ids"], batch)
        counted = None if self.even_flows is None else self.even_flows.of_samples
        self.profiles.add(batch.lengths, batch.ids, counted)
        for kind, values in batch.soft.items():
            self._hold(SOFT_TABLES[kind].table, soft_rows(kind, values, self.num_samples))
            self.soft.add(kind, values, common["label_ids"])
        for label, part in batch.entropy_sums.items():
            self.add_entropy(-1 if label is None else self.labels[label], part)
        chosen = self.sketch.choose(first_row, batch.num_tokens)
        ends = np.cumsum(batch.lengths)
        sample = np.searchsorted(ends, chosen, side="right")
        unknown = np.full(len(chosen), -1, dtype=np.int32)
        ids_of = {
            name: batch.whole[name][chosen] if name in batch.whole else unknown for name in ("region", "token_id")
        }
        self.sketch.keep(
            first_row,
            chosen,
            {
                "path_id": path_ids[chosen],
                "place": first_row + chosen,
                "sample": self.num_samples + sample,
                "token": chosen - (ends - batch.lengths)[sample],
                "label": common["label_ids"][sample],
                **ids_of,
            },
        )
        self.num_samples += len(batch.samples)
        self._pending_tokens += batch.num_tokens
        much = self.con is not None and self._pending_bytes >= ENOUGH_BYTES
        if self._pending_tokens >= self._enough_tokens or much:
            self._flush(large=True)

    def add_entropy(self, label_id: int, part: np.ndarray) -> None:
        """Add the numbers of tokens with known gate entropy, and its sums, (2, S)."""
        self.entropy[label_id] = self.entropy.get(label_id, 0) + part

    def _sum_loss(self, batch: CompactBatch) -> None:
        """Add the number of tokens with a loss and the sum of their unrounded losses."""
        if batch.loss is not None:
            losses = batch.loss[~np.isnan(batch.loss)]
            self.loss = (self.loss[0] + len(losses), self.loss[1] + float(losses.sum(dtype=np.float64)))

    def add_twin(self, ids: np.ndarray) -> None:
        """Count the ribbons of the untrained twin for the next tokens."""
        self.twin.add(ids)

    def _measure(self, new_rows: np.ndarray) -> None:
        """The work of new paths, counted once per path."""
        if self._no_reuse:
            return
        ribbons = new_rows.reshape(-1, self.layout.num_steps, self.layout.top_k)
        for measured, values in zip(self._work_P, vars(Work.of(ribbons, self.units)).values(), strict=True):
            measured.append(values)

    def _work_of(self, path_ids: np.ndarray) -> Work:
        """The work of these paths; one number for all if every visit is to another module."""
        if self._no_reuse:
            return Work(*[np.broadcast_to(np.int32(self.layout.visits), path_ids.shape)] * 3)
        return Work(*(measured.values[path_ids] for measured in self._work_P))

    def _usual_flops(self, ids: np.ndarray, path_ids: np.ndarray, new_rows: np.ndarray) -> np.ndarray:
        """(n,) the FLOPs of the modules of each token; of one module a step once for each new path."""
        if not self.layout.by_path:
            return flops_of(self.flops, ids)
        self._flops_P.append(flops_of(self.flops, new_rows[:, :, None]))
        return np.asarray(self._flops_P.values[path_ids])

    def _hold(self, table: str, rows: pa.Table) -> None:
        self._pending[table].append(rows)
        if table != columns.TABLE:
            self._pending_bytes += rows.nbytes

    def _tables(self) -> str:
        """SQL of the tables of the file."""
        return create_tables(self.layout, self.info) + CREATE_SOFT

    def _flush(self, *, large: bool, last: bool = False) -> None:
        """Insert the buffered rows; the first call creates the file, of a ``large`` run or not, the last leaves none.

        Threads insert them while the next ones are numbered, and are waited for before they get more.
        """
        check_free(self._file.parent)
        if self.con is None:
            megabytes = PACKED_MEGABYTES if self.layout.packed else DUCKDB_MEGABYTES
            size = block_bytes(self.layout, large=large, floats=self._has_floats())
            self.con = create_file(self._file, self._tables(), size, megabytes)
            self._writing.enter_context(one_thread(self.con))
            self._enough_tokens = LATER_FLUSHES * FLUSH_TOKENS
            if large and not last and (rows := rows_of_a_turn(self._pending[columns.TABLE], megabytes)):
                self._turns, self._enough_tokens = InTurns(self.con, columns.TABLE, f"insert {self.info.run_id}"), rows
        if self._turns is not None:
            self._insert_in_turns(self._turns)
            if last:
                self._turns.wait()  # what is left comes behind
                self._turns.close()
                self._turns = None
        rows_of: dict[str, list[pa.Table]] = {}
        if self._turns is None:
            rows_of[columns.TABLE] = self._taken(columns.TABLE)
            self._pending_tokens = 0
        # A few rows of each batch: to insert them takes longer than all else of them.
        if last or self._pending_bytes >= HELD_BYTES:
            rows_of |= {table: self._taken(table) for table in self._pending if table != columns.TABLE}
            self._pending_bytes = 0
        self._wait_for_others()
        # Not an executor, which takes nothing more once the main thread has ended.
        name = f"insert {self.info.run_id}"
        self._inserting = threading.Thread(target=self._insert, args=(self.con, rows_of), name=name, daemon=True)
        self._inserting.start()
        if last:
            self.wait_for_rows()

    def _taken(self, table: str) -> list[pa.Table]:
        """The rows of this table that were held; none are any more."""
        rows, self._pending[table] = self._pending[table], []
        return rows

    def _insert_in_turns(self, turns: InTurns) -> None:
        """Hand over as many whole row groups of tokens as there are for full turns."""
        waiting = self._pending[columns.TABLE]
        while self._pending_tokens >= self._enough_tokens:
            turn, missing = [], self._enough_tokens
            while missing:
                part = waiting.pop(0)
                if len(part) > missing:
                    waiting.insert(0, part.slice(missing))
                    part = part.slice(0, missing)
                turn.append(part)
                missing -= len(part)
            turns.insert(turn)
            self._pending_tokens -= self._enough_tokens

    def _has_floats(self) -> bool:
        """Whether rows that wait hold soft decisions, or FLOPs of a token that are not those of its modules."""
        if any(self._pending.get(soft.table) for soft in SOFT_TABLES.values()):
            return True
        tokens = self._pending[columns.TABLE]
        return any("flops" in part.column_names and part["flops"].null_count < len(part) for part in tokens)

    def _insert(self, con: duckdb.DuckDBPyConnection, rows: dict[str, list[pa.Table]]) -> None:
        """Insert the rows of these tables, and let go of them."""
        try:
            for table, parts in rows.items():
                insert_alike(con, table, parts)
        except BaseException as error:  # whatever it is: who waits raises it
            self._insert_error = error

    def wait_for_rows(self) -> None:
        """Until what was handed over is inserted; raises what went wrong with it."""
        if self._turns is not None:
            self._turns.wait()
        self._wait_for_others()

    def _wait_for_others(self) -> None:
        """The same of rows that are not inserted in turns."""
        if self._inserting is not None:
            self._inserting.join()
            self._inserting = None
        error, self._insert_error = self._insert_error, None
        if error is not None:
            raise error

    def finish(self, on_stage: Callable[[str, int, int], None]) -> None:
        """Build the summaries and close the file after a checkpoint; ``on_stage`` as in ``RunWriter.seal``."""
        self._flush(large=False, last=True)
        self._writing.close()
        self.book.complete()
        self.twin_paths = self._twin_of_run()
        assert self.con is not None
        # The rows of a table have their numbers once they are committed.
        self.con.execute("COMMIT")
        self._sealing_megabytes = sealing_megabytes(self.layout, self.book.num_tokens)
        self.con.execute(f"SET memory_limit = '{self._sealing_megabytes}MB'")
        self.con.execute("BEGIN")
        totals = Totals(
            book=self.book,
            first_seen=self.first_seen,
            twin=self.twin_paths,
            work=self._work_of,
            labels=self.labels,
            entropy=self.entropy,
            loss=self.loss,
            sketch=self.sketch.columns(),
            num_samples=self.num_samples,
            soft=self.soft,
            visits=self.visits,
            even_flows=self.even_flows,
            profiles=self.profiles,
            independent=self.independent,
        )
        build_summaries(self.con, self.info, self.modules, self.layout, totals, on_stage)
        on_stage("writing to the disk", NUM_STAGES - 2, NUM_STAGES)
        self.con.execute("COMMIT")
        self.con.execute("CHECKPOINT")
        self.con.close()
        self.large = self.book.num_tokens >= LEAST_TOKENS
        # What was summed up on the way is in the file now; the answers need the memory.
        del totals
        self.independent = None
        self.book, self.twin = PathDictionary(self.layout.id_dtype), TwinCounter(self.layout)
        self.first_seen = FirstSeen()
        self._work_P, self._flops_P, self.visits = [], Growing(np.float32), None
        self.even_flows, self.profiles = None, ProfilePages(self.layout)
        self.remove_temporary()

    def remove_temporary(self) -> None:
        """Delete what DuckDB put aside."""
        shutil.rmtree(temporary_folder(self._file), ignore_errors=True)

    def _twin_of_run(self) -> TwinPaths | None:
        """The twin's paths as counted here, or those from before if they are of as many tokens."""
        if (counted := self.twin.paths()) is not None:
            return counted.of_run(self.book.num_tokens)
        before = self.twin_paths
        return before if before is not None and before.fits(self.layout, self.book.num_tokens) else None

    def add_answers(self, on_stage: Callable[[str, int, int], None]) -> None:
        """Add slow answers to the finished file of a large run; raises as ``seal_answers``."""

        def told(done: int, of: int) -> None:
            on_stage(f"answers that take long: {done} of {of}", NUM_STAGES - 1, NUM_STAGES)

        folder = Path(temporary_folder(self._file))
        most = self._sealing_megabytes
        try:
            seal_answers(self._file, self.info.run_id, page_questions, told, megabytes=most, folder=folder)
        finally:
            self.remove_temporary()

    def close(self) -> None:
        if self._turns is not None:
            self._turns.close()
        if self.con is not None:
            with contextlib.suppress(duckdb.Error):
                self.con.interrupt()  # after Ctrl-C its threads work on: to close would wait for them
            if self._inserting is not None:
                self._inserting.join()
            with contextlib.suppress(duckdb.Error):
                self.con.close()


def _each_its_own(available: np.ndarray, units: np.ndarray) -> bool:
    """Whether no module is shared between steps and none is an identity: compute is 1 and reuse 0 on any ribbon."""
    offered = units[available]
    return bool((offered != NOTHING).all()) and len(np.unique(offered)) == len(offered)


def sealing_megabytes(layout: Layout, num_tokens: int) -> int:
    """Most memory of DuckDB for the summaries of a run, and for its slow answers."""
    if not layout.packed:
        return DUCKDB_MEGABYTES
    return min(DUCKDB_MEGABYTES, max(PACKED_MEGABYTES, num_tokens // TOKENS_OF_A_MEGABYTE))


def create_file(
    file: Path, tables: str, block_bytes: int, megabytes: int = DUCKDB_MEGABYTES, parts: Sequence[Path] = ()
) -> duckdb.DuckDBPyConnection:
    """A connection to the new run ``file`` with the ``tables`` of this SQL, in a transaction; ``parts``: of the run."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "python_enable_replacements": "false",
        # What sealing sorts beyond this goes to the disk, into a folder that ``remove_partial`` deletes.
        "memory_limit": f"{megabytes}MB",
        "temp_directory": temporary_folder(file),
        # A row group is compressed and written when it is full: five in memory are more than all else that is held.
        "write_buffer_row_group_count": 1,
    }
    con = connect(config)
    attached = str(file).replace("'", "''")
    options = f"STORAGE_VERSION '{STORAGE_VERSION}', BLOCK_SIZE {block_bytes}, ROW_GROUP_SIZE {ROW_GROUP}"
    con.execute(f"ATTACH '{attached}' AS r ({options})")
    con.execute("USE r")
    attach_parts(con, file, parts)
    con.execute(tables)
    # One transaction: row groups go straight to the file, without a detour through the WAL.
    con.execute("BEGIN")
    return con


def temporary_folder(partial_file: Path) -> str:
    """Folder for DuckDB's spill files while the run is written."""
    return str(partial_file.with_name(partial_file.name + ".tmp"))
