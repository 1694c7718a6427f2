"""Associations computed at sealing: NMI of path and attribute, of the run and of its untrained twin.

Labels are permuted over whole samples, token ids as sequences, regions as whole maps of images (``association``), as in
``ask.topics.knowledge``: tokens of a sample are correlated, so permuting single tokens would find any attribute known.

Shapes: n tokens of the hash sample, P distinct paths.
"""

from __future__ import annotations

import duckdb
import numpy as np

from tokenpaths.engine.analysis.association import MOST_ALIKE, associations, exchanged_alike, places_in
from tokenpaths.engine.store.ask.tables.region_maps import region_maps
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.write.arrow_tables import insert_columns
from tokenpaths.engine.store.write.seal_nulls import NULL_SEED
from tokenpaths.engine.store.write.twin.twin_paths import TwinPaths

ATTRIBUTES = {"label": "samples", "region": "maps", "token_id": "sequences"}
"""attribute -> what its null model shuffles"""
OWN, UNTRAINED = "observed", "untrained"


def write_associations(
    con: duckdb.DuckDBPyConnection, sketch: dict[str, np.ndarray], order: np.ndarray, twin: TwinPaths | None
) -> None:
    """NMI(path; attribute) over the sampled tokens that have the attribute; also fills ``known_token``.

    ``order`` (P,) is the path_id of each rank.
    """
    # Paths go in by rank: their numbers, and with them the last digit, depend on the batches.
    rank_of = np.empty(len(order), dtype=np.int32)
    rank_of[order] = np.arange(len(order), dtype=np.int32)
    associate(con, sketch, rank_of[sketch["path_id"]], None if twin is None else twin.known)


def associate(
    con: duckdb.DuckDBPyConnection, sketch: dict[str, np.ndarray], rank_n: np.ndarray, twin_n: np.ndarray | None
) -> None:
    """``write_associations`` for paths (n,) by rank, and those of the twin of the same tokens."""
    paths = {OWN: rank_n}
    columns = {"place": sketch["place"]}
    if twin_n is not None:
        columns["untrained_path"] = paths[UNTRAINED] = twin_n
    insert_columns(con, "known_token", columns)
    for attribute, shuffled in ATTRIBUTES.items():
        measured = sketch[attribute] >= 0
        values = len(np.unique(sketch[attribute][measured]))
        if measured.sum() < 2 or values < 2:
            continue
        sample_n, token_n = sketch["sample"][measured], sketch["token"][measured]
        if shuffled == "samples" and exchanged_alike(sketch[attribute][measured], sample_n) >= MOST_ALIKE:
            continue
        maps = region_maps(lambda query: _arrays(con, query), sample_n, token_n) if shuffled == "maps" else None
        if shuffled == "maps" and maps is None:
            continue
        results = associations(
            [of[measured] for of in paths.values()],
            sketch[attribute][measured],
            groups=sample_n if shuffled == "samples" else None,
            sequences=places_in(sample_n, token_n, by_place=False) if shuffled == "sequences" else None,
            maps=maps,
            seed=NULL_SEED,
        )
        for whose, result in zip(paths, results, strict=True):
            con.execute(
                "INSERT INTO association VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    attribute,
                    result.nmi,
                    result.null_mean,
                    result.null_std,
                    result.p_value,
                    result.shuffles,
                    result.num_tokens,
                    shuffled,
                    whose,
                ],
            )


def _arrays(con: duckdb.DuckDBPyConnection, query: Query) -> dict[str, np.ndarray]:
    return {name: np.asarray(values) for name, values in con.execute(query.sql, query.parameters).fetchnumpy().items()}
