"""Associations computed at sealing: NMI of path and attribute, of the run and of its untrained twin.

Labels are permuted over whole samples, token ids as sequences, regions as whole maps of images (``association``), as in
``ask.topics.knowledge``: tokens of a sample are correlated, so permuting single tokens would find any attribute known.

Shapes: n tokens of the hash sample, P distinct paths.
"""

from __future__ import annotations

import duckdb
import numpy as np

from tokenpaths.engine.analysis.association import associations, places_in
from tokenpaths.engine.store.ask.tables.region_maps import region_maps
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.write.arrow_tables import insert_columns
from tokenpaths.engine.store.write.path_dictionary import PathDictionary
from tokenpaths.engine.store.write.seal_nulls import NULL_SEED

ATTRIBUTES = {"label": "samples", "region": "maps", "token_id": "sequences"}
"""attribute -> what its null model shuffles"""
OWN, UNTRAINED = "observed", "untrained"


def write_associations(
    con: duckdb.DuckDBPyConnection,
    sketch: dict[str, np.ndarray],
    order: np.ndarray,
    twin: PathDictionary,
    twin_paths: np.ndarray | None,
) -> None:
    """NMI(path; attribute) over the sampled tokens that have the attribute; also fills ``known_token``.

    ``order`` (P,) is the path_id of each rank, ``twin_paths`` (n,) the twin's path_id of the same tokens.
    """
    # Paths go in by rank: their numbers, and with them the last digit, depend on the batches.
    rank_of = np.empty(len(order), dtype=np.int32)
    rank_of[order] = np.arange(len(order), dtype=np.int32)
    paths = {OWN: rank_of[sketch["path_id"]]}
    columns = {"place": sketch["place"]}
    if twin_paths is not None:
        columns["untrained_path"] = paths[UNTRAINED] = _numbered(twin, twin_paths)
    insert_columns(con, "known_token", columns)
    for attribute, shuffled in ATTRIBUTES.items():
        measured = sketch[attribute] >= 0
        if measured.sum() < 2 or len(np.unique(sketch[attribute][measured])) < 2:
            continue
        sample_n, token_n = sketch["sample"][measured], sketch["token"][measured]
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


def _numbered(book: PathDictionary, path_ids: np.ndarray) -> np.ndarray:
    """(n,) paths numbered by their ribbons, independent of the batches."""
    distinct, place_n = np.unique(path_ids, return_inverse=True)
    _, number = np.unique(book.ribbons(distinct), axis=0, return_inverse=True)
    return number.reshape(-1)[place_n.reshape(-1)].astype(np.int32)
