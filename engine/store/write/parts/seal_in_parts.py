"""Sealing on many: three passes of workers, and between them what has to know of all shards.

1. Each shard: bytes verified, distinct paths counted (``count_shard``).
   Here: their dictionaries merged in order, which numbers paths as one process would; labels likewise.
2. Each part: tokens and samples written with these numbers, sums kept (``write_part``). Here, beside that: the null of
   independent steps, which needs no more than the paths (``seal_nulls.Beside``).
   Here: sums added, and every summary made of the parts (``seal.build_summaries``) as of a run in one file.
3. The answers that take long, each by whoever is free (``answer_questions``).

The run is then a small file beside its parts. Row for row it is the run that one process writes, but for the last digit
of means of soft tables (``sums``).
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tokenpaths.engine.base.errors import WriterFailed
from tokenpaths.engine.base.files import kept_free, make_folder
from tokenpaths.engine.base.records import ModuleInfo, RunInfo
from tokenpaths.engine.base.run_parts import alias_of
from tokenpaths.engine.store.file.schema import block_bytes, tables_over_parts
from tokenpaths.engine.store.file.soft_tables import CREATE_AROUND_SOFT, SOFT_TABLES
from tokenpaths.engine.store.write.large.seal_answers import add_answers
from tokenpaths.engine.store.write.merge import SealProgress, ShardSet, check_files, describe, nothing_left
from tokenpaths.engine.store.write.parts.answer_questions import answers_of
from tokenpaths.engine.store.write.parts.plan import SealPlan, ShardPlace, load, remove_lost, save, work_folder
from tokenpaths.engine.store.write.parts.sums import add_sums
from tokenpaths.engine.store.write.parts.workers import ANSWER, COUNT, WRITE, Workers
from tokenpaths.engine.store.write.run_filler import DUCKDB_MEGABYTES, FLUSH_TOKENS, RunFiller, create_file
from tokenpaths.engine.store.write.seal import NUM_STAGES
from tokenpaths.engine.store.write.seal_nulls import Beside
from tokenpaths.engine.store.write.writer import RunWriter

MOST_PARTS = 64
"""more shards share parts: every question names all parts"""


class MergedFiller(RunFiller):
    """A ``RunFiller`` whose tokens and samples lie in parts: it adds up what their writers know."""

    def __init__(
        self, file: Path, info: RunInfo, modules: Sequence[ModuleInfo], plan: SealPlan, workers: Workers
    ) -> None:
        super().__init__(file, info, modules)
        self._plan, self._workers = plan, workers

    def add_paths(self, on_shard: Callable[[int], None]) -> None:
        """Merge the paths, twins and labels of all shards, and write the numbers that their parts need."""
        first_char = 0
        for shard in range(len(self._plan.shards)):
            meta, counted = load(self._plan.counts_file(shard))
            known = self.book.num_paths
            numbers = self.book.merge(counted["ribbons"], counted["counts"])
            self._measure(self.book.ribbons(np.arange(known, self.book.num_paths)))
            self.twin.add_arrays(
                {name.removeprefix("twin_"): values for name, values in counted.items() if name.startswith("twin_")}
            )
            for label in meta["labels"]:
                self.labels.setdefault(label, len(self.labels))
            # Every label of this shard and of those before it.
            given = {"labels": list(self.labels), "first_char": first_char}
            save(self._plan.numbers_file(shard), given, {"paths": numbers})
            first_char += meta["num_chars"]
            on_shard(shard + 1)
        # Packed paths are ranked by their first tokens, which are not known yet; and few of them are drawn.
        if not self.layout.packed:
            self.independent = Beside(self.layout, self.book)
            self.independent.start()

    def add_parts(self) -> None:
        """Add the sums of all parts."""
        for part in range(len(self._plan.groups)):
            add_sums(self, load(self._plan.sums_file(part)))

    def add_answers(self, on_stage: Callable[[str, int, int], None]) -> None:
        """The answers of a large run, by the workers; raises as they do, and as ``add_answers``."""
        on_stage("answers that take long", NUM_STAGES - 1, NUM_STAGES)
        self._workers.run(ANSWER, self._plan.work, self._workers.slots, lambda done: None)
        add_answers(self._file, *answers_of(self._plan))

    def _flush(self, *, large: bool, last: bool = False) -> None:
        """Create the file over its parts; there are no rows to insert."""
        tables = tables_over_parts(self.layout, self.info, [alias_of(part) for part in self._plan.parts])
        tables += CREATE_AROUND_SOFT
        size = block_bytes(self.layout, large=large or self.book.num_tokens >= FLUSH_TOKENS)
        self.con = create_file(self._file, tables, size, DUCKDB_MEGABYTES, self._plan.parts)


def seal_in_parts(
    found: ShardSet,
    runs_dir: Path,
    workers: Workers,
    *,
    run_id: str | None = None,
    overwrite: bool = False,
    on_progress: Callable[[SealProgress], None] = lambda progress: None,
) -> Path:
    """Seal the shards by ``workers``; returns the run's file. The shards are kept.

    Raises:
        ShardError: a wrong check sum, differing descriptions, an unreadable file.
        UserError: the run exists (without ``overwrite``), no shard holds a sample, or a worker was lost too often.
        WriterFailed: the disk refused a write. No run is left in any of these cases.
    """
    check_files(found)
    info, modules = describe(found, run_id)
    plan = _plan(found, runs_dir, info.run_id)

    def run(name: str, num: int, stage: str) -> None:
        on_progress(SealProgress(stage, 0, num, "pieces"))
        workers.run(name, plan.work, num, lambda done: on_progress(SealProgress(stage, done, num, "pieces")))

    def merged(file: Path, info: RunInfo, modules: Sequence[ModuleInfo]) -> MergedFiller:
        return MergedFiller(file, info, modules, plan, workers)

    try:
        with RunWriter(runs_dir, info, modules, overwrite=overwrite, filler=merged, parts=plan.seal) as writer:
            filler = writer.filler
            assert isinstance(filler, MergedFiller)
            remove_lost(found.folders, runs_dir, info.run_id)
            make_folder(plan.work)
            plan.write()
            run(COUNT, len(plan.shards), "counting paths")
            filler.add_paths(lambda done: on_progress(SealProgress("merging paths", done, len(plan.shards), "pieces")))
            run(WRITE, len(plan.groups), "writing parts")
            filler.add_parts()
            return writer.seal(lambda name, at, of: on_progress(SealProgress(name, at, of, "stages")))
    except WriterFailed as error:
        raise nothing_left(error) from error
    finally:
        shutil.rmtree(plan.work, ignore_errors=True)


def _plan(found: ShardSet, runs_dir: Path, run_id: str) -> SealPlan:
    seal = secrets.token_hex(4)
    places, row, sample = [], 0, 0
    soft = {kind.table: 0 for kind in SOFT_TABLES.values()}
    for folder, manifest in zip(found.folders, found.manifests, strict=True):
        if manifest.tokens:
            places.append(ShardPlace(str(folder.resolve()), row, sample, manifest.tokens, dict(soft)))
        row, sample = row + manifest.tokens, sample + manifest.samples
        for table in soft:
            if (entry := manifest.files.get(f"{table}.parquet")) is not None:
                soft[table] += entry.rows
    edges = np.unique(np.linspace(0, len(places), min(MOST_PARTS, len(places)) + 1).astype(int)).tolist()
    groups = tuple(zip(edges[:-1], edges[1:], strict=True))
    work = work_folder(found.folders[0].resolve().parent, seal)
    return SealPlan(work, Path(runs_dir).resolve(), run_id, seal, tuple(places), groups, kept_free())
