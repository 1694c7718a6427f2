"""Second pass of a sealing on many: one part of the run, its paths numbered as in the whole run."""

from __future__ import annotations

import os
from pathlib import Path

from tokenpaths.engine.base.files import fsync_file
from tokenpaths.engine.base.seal_marks import mark_sealed
from tokenpaths.engine.store.file.schema import layout_for
from tokenpaths.engine.store.file.shard_format import read_about, read_manifest
from tokenpaths.engine.store.write.parts.part_filler import PartFiller
from tokenpaths.engine.store.write.parts.plan import SealPlan, save
from tokenpaths.engine.store.write.parts.sums import sums_of
from tokenpaths.engine.store.write.shard_reader import read_batches


def write_part(plan: SealPlan, part: int) -> None:
    """Write a part, by its place in ``plan.groups``, and then its sums; what a lost worker left is replaced.

    Raises:
        ShardError, Arrow's exceptions, OSError: a shard cannot be read.
        duckdb.Error: the disk refused a write.
    """
    file = plan.parts[part]
    file.unlink(missing_ok=True)
    first, stop = plan.groups[part]
    info, modules = read_about(Path(plan.shards[first].folder))
    stored = layout_for(info, modules, shard=True)
    filler = PartFiller(file, info, modules, plan, part)
    try:
        for shard in range(first, stop):
            folder = Path(plan.shards[shard].folder)
            filler.begin(plan, shard)
            for batch in read_batches(folder, read_manifest(folder), stored):
                filler.add(batch)
        filler.end()
        fsync_file(file)
        mark_sealed(file, os.stat(file))
    except BaseException:
        filler.close()
        filler.remove_temporary()
        file.unlink(missing_ok=True)
        raise
    meta, arrays = sums_of(filler)
    save(plan.sums_file(part), meta, arrays)
