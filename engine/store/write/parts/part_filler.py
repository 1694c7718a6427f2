"""Fills one part of a run: paths are numbered as in the whole run, and sums are kept for it.

Shapes: n tokens, P distinct paths, S steps, M modules.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis.ribbon_costs import Work, flops_of
from tokenpaths.engine.base.records import ModuleInfo, RunInfo
from tokenpaths.engine.store.file import columns
from tokenpaths.engine.store.file.schema import ROW, part_tables
from tokenpaths.engine.store.write.arrow_tables import CompactBatch
from tokenpaths.engine.store.write.parts.plan import SealPlan, load
from tokenpaths.engine.store.write.run_filler import RunFiller
from tokenpaths.engine.store.write.seal_pages import ProfilePages


class _KnownPaths:
    """The interface of ``PathDictionary`` for tokens whose paths are numbered already."""

    def __init__(self, first_row: int) -> None:
        self.num_tokens = first_row
        self._own = np.empty(0, dtype=np.int32)
        self._number = np.empty(0, dtype=np.int32)
        self._done = 0
        self.last = np.empty(0, dtype=np.int32)
        """(n,) the numbers of the shard itself of the last batch"""

    def begin(self, own: np.ndarray, number: np.ndarray) -> None:
        """The next tokens are of a shard with ``own`` numbers (n,), which stand for ``number`` (P,) in the run."""
        self._own, self._number, self._done = own, number, 0

    def add(self, module_ids: np.ndarray, sorted_ids: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The path_id of each ribbon; none is new."""
        self.last = np.asarray(self._own[self._done : self._done + len(module_ids)])
        self._done += len(module_ids)
        self.num_tokens += len(module_ids)
        return self._number[self.last], module_ids[:0]

    def complete(self) -> None:
        """Nothing to free."""


class PartFiller(RunFiller):
    """A ``RunFiller`` that writes tokens and samples into a part and hands over what it summed up."""

    def __init__(self, file: Path, info: RunInfo, modules: list[ModuleInfo], plan: SealPlan, part: int) -> None:
        super().__init__(file, info, modules)
        place = plan.shards[plan.groups[part][0]]
        self.num_samples = place.first_sample
        self._known = _KnownPaths(place.first_row)
        self._next_row = {columns.TABLE: place.first_row, "sample": place.first_sample, **place.first_soft}
        self.book = self._known  # type: ignore[assignment]
        self.profiles = ProfilePages(self.layout, place.first_sample)
        self._work_of_own: Work | None = None
        self.entropy_parts: list[tuple[int, np.ndarray]] = []
        """as they were added, so that they are added in the same order for the whole run"""
        self.loss_parts: list[tuple[int, float]] = []

    def begin(self, plan: SealPlan, shard: int) -> None:
        """The next batches are of this shard, by its place in the plan."""
        given, arrays = load(plan.numbers_file(shard))
        self.labels = {label: number for number, label in enumerate(given["labels"])}
        self._first_char = given["first_char"]
        self._known.begin(np.load(plan.ids_file(shard), mmap_mode="r", allow_pickle=False), arrays["paths"])
        if not self._no_reuse:
            ribbons = load(plan.counts_file(shard), ["ribbons"])[1]["ribbons"]
            shape = (-1, self.layout.num_steps, self.layout.top_k)
            self._work_of_own = Work.of(ribbons.reshape(shape), self.units)

    def _measure(self, new_rows: np.ndarray) -> None:
        """The work of all paths of a shard is known when it begins."""

    def _work_of(self, path_ids: np.ndarray) -> Work:
        if self._work_of_own is None:
            return super()._work_of(path_ids)
        return Work(*(values[self._known.last] for values in vars(self._work_of_own).values()))

    def _usual_flops(self, ids: np.ndarray, path_ids: np.ndarray, new_rows: np.ndarray) -> np.ndarray:
        return flops_of(self.flops, ids)

    def add_entropy(self, label_id: int, part: np.ndarray) -> None:
        self.entropy_parts.append((label_id, part))

    def _sum_loss(self, batch: CompactBatch) -> None:
        self.loss = (0, 0.0)
        super()._sum_loss(batch)
        self.loss_parts.append(self.loss)

    def _hold(self, table: str, rows: pa.Table) -> None:
        first = self._next_row[table]
        self._next_row[table] += len(rows)
        super()._hold(table, rows.append_column(ROW, pa.array(np.arange(first, first + len(rows), dtype=np.int64))))

    def _tables(self) -> str:
        return part_tables(self.layout, self.info)

    def end(self) -> None:
        """Write what is left and close the file."""
        self._flush(large=True, last=True)
        assert self.con is not None
        self.con.execute("COMMIT")
        self.con.execute("CHECKPOINT")
        self.con.close()
        self.remove_temporary()
