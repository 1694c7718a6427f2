"""First pass of a sealing on many: what one shard knows of its paths without the others.

Shapes: n tokens, B samples, P distinct paths of the shard, V = S·K.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tokenpaths.engine.analysis.ribbon_costs import module_units
from tokenpaths.engine.store.file.checks import check_ribbons
from tokenpaths.engine.store.file.hash_sample import KNOWN_TOKENS
from tokenpaths.engine.store.file.schema import layout_for
from tokenpaths.engine.store.file.shard_format import ShardError, check_sums, read_about, read_manifest
from tokenpaths.engine.store.write.parts.plan import SealPlan, save
from tokenpaths.engine.store.write.path_dictionary import PathDictionary
from tokenpaths.engine.store.write.shard_reader import TOKEN_ROWS, read_ribbons, read_twin
from tokenpaths.engine.store.write.twin.twin_paths import TwinCounter


def count_shard(plan: SealPlan, number: int) -> None:
    """Verify the bytes of a shard, by its place in ``plan.shards``, and count its paths.

    Leaves the distinct ribbons in the order of their first tokens, the number of tokens of each, the number of each
    token's path, the same of the untrained twin with its hash sample, the labels in the order of their first samples,
    and the number of characters (``columns.chars``).

    Raises:
        ShardError: a wrong check sum, a damaged manifest, or another number of tokens.
        UserError: a module that the run does not have.
        Arrow's exceptions, OSError: a file cannot be read.
    """
    place = plan.shards[number]
    folder = Path(place.folder)
    manifest = read_manifest(folder)
    check_sums(folder, manifest)
    info, modules = read_about(folder)
    layout, stored = layout_for(info, modules), layout_for(info, modules, shard=True)
    available, _ = module_units(modules, info.num_steps, info.num_modules)
    book = PathDictionary(layout.id_dtype, plan.work)
    path_ids = np.empty(place.num_tokens, dtype=np.int32)
    done = 0
    for ids in read_ribbons(folder, stored):
        check_ribbons(ids, info, available, unused_from=layout.unused_from)
        if done + len(ids) <= place.num_tokens:
            path_ids[done : done + len(ids)] = book.add(ids)[0]
        done += len(ids)
    if done != place.num_tokens:
        raise ShardError(
            f"{folder} holds {done:,} tokens, its manifest says {place.num_tokens:,}: trace {manifest.name} again",
            field="shards",
        )
    arrays = {"ribbons": book.ribbons(), "counts": book.counts()}
    twin = TwinCounter(layout, plan.work, KNOWN_TOKENS, place.first_row)
    for ids in read_twin(folder, manifest, stored):
        check_ribbons(ids, info, available, unused_from=layout.unused_from)
        twin.add(ids)
    arrays |= {f"twin_{name}": values for name, values in twin.arrays().items()}
    labels, num_chars = _labels(folder), _num_chars(folder)
    partial = plan.ids_file(number).with_suffix(".partial.npy")
    np.save(partial, path_ids)
    partial.replace(plan.ids_file(number))
    save(plan.counts_file(number), {"labels": labels, "num_chars": num_chars}, arrays)


def _labels(folder: Path) -> list[str]:
    """Labels in the order of their first samples."""
    seen: dict[str, None] = {}
    for rows in pq.ParquetFile(folder / "sample.parquet").iter_batches(TOKEN_ROWS, columns=["label"]):
        seen |= dict.fromkeys(label for label in rows.column(0).unique().to_pylist() if label is not None)
    return list(seen)


def _num_chars(folder: Path) -> int:
    """Characters of the texts up to the furthest token of each; 0 where no token has a place."""
    file = pq.ParquetFile(folder / "token.parquet")
    if not {"char_start", "char_end"} <= set(file.schema_arrow.names):
        return 0
    furthest: dict[int, int] = {}
    for rows in file.iter_batches(TOKEN_ROWS, columns=["sample", "char_start", "char_end"]):
        sample, *places = (rows.column(name).fill_null(-1).to_numpy() for name in rows.schema.names)
        at = np.flatnonzero(np.diff(sample, prepend=-1))
        reached = np.maximum.reduceat(np.maximum(*places), at)
        for owner, place in zip(sample[at].tolist(), reached.tolist(), strict=True):
            furthest[owner] = max(place, furthest.get(owner, -1))
    return sum(furthest.values()) + len(furthest)
