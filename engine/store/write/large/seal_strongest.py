"""Fills ``path_strongest``: for each path of more than a page shows the tokens that ``topics.things.strongest`` finds.

Looked up one by one they would be tens of thousands of queries; here every column of weights is read once, and the
numbers are those of the same functions, to the last bit.

Shapes: P paths, n tokens that are compared.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tokenpaths.engine.base.records import STAND_IN_KINDS
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.topics.paths import excerpts_of
from tokenpaths.engine.store.ask.topics.samples import weights_recorded
from tokenpaths.engine.store.ask.topics.things import strongest
from tokenpaths.engine.store.file import schema as drawn
from tokenpaths.engine.store.file.columns import MEMBERS, PATHS, TABLE
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.flow_counter import CHUNK_ROWS

MOST_COMPARED = 8_000_000
"""tokens of rare paths that are compared, 60 bytes each; of further paths they are looked up when they are asked for"""


def strongest_rows(run: RunFile) -> pa.Table | None:
    """Rows of the table; None for runs whose pages read the tokens quickly, or whose weights have no order.

    Not where paths may pass steps without a module either, as each then has steps of its own to compare.
    """
    stand_ins = any(module.kind in STAND_IN_KINDS for module in run.modules)
    if run.row["num_tokens"] <= drawn.SAMPLE_TABLE_ROWS or run.layout.packed or stand_ins or not weights_recorded(run):
        return None
    counts = run.shares.counts(least=drawn.STRONGEST_EACH + 1).astype(np.int64)
    how = strongest.how_compared(run, counts)
    wanted = np.where(how == strongest.OF_ALL, counts, np.minimum(counts, strongest.LOOKED_UP))
    wanted[how == strongest.OF_SAMPLE] = 0
    num_paths = int(np.searchsorted(np.cumsum(wanted), MOST_COMPARED, side="right"))
    parts = [_of_sample(run, how[:num_paths]), _of_rare(run, counts[:num_paths], how[:num_paths])]
    rank_n, row_n, strength_n = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return _table(run, rank_n, row_n, strength_n)


Compared = tuple[np.ndarray, np.ndarray, np.ndarray]
"""rank, row and strength of tokens (n,)"""


def _strengths(run: RunFile, columns: dict[str, np.ndarray]) -> np.ndarray:
    levels_nV = np.stack([columns[name] for name in run.layout.weight_columns()], axis=1)
    return strongest.strengths(run.layout, levels_nV, range(run.layout.num_steps))


def _of_sample(run: RunFile, how: np.ndarray) -> Compared:
    """The tokens of the hash sample on the paths that are compared in it."""
    is_listed = np.concatenate([[False], how == strongest.OF_SAMPLE])
    weights = ", ".join(f"t.{name}" for name in run.layout.weight_columns())
    sql = f"SELECT rank, sample, token, {weights} FROM token_sample AS t JOIN {PATHS} USING (path_id) WHERE rank <= ?"
    parts = [(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0))]
    for columns in run.chunks(Query(sql, (len(how),)), CHUNK_ROWS):
        here = np.flatnonzero(is_listed[columns["rank"]])
        columns = {name: values[here] for name, values in columns.items()}
        rows = run.first_rows[columns["sample"]] + columns["token"]
        parts.append((columns["rank"].astype(np.int32), rows.astype(np.int64), _strengths(run, columns)))
    rank_n, row_n, strength_n = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rank_n, row_n, strength_n


def _of_rare(run: RunFile, counts: np.ndarray, how: np.ndarray) -> Compared:
    """All or the drawn tokens of the other paths, ``counts`` (P,) by rank."""
    ranks = 1 + np.flatnonzero(how != strongest.OF_SAMPLE)
    if not len(ranks):
        return np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0)
    firsts = run.shares.first_members(ranks)
    places = [
        np.arange(count) if whole else np.sort(strongest.looked_up_places(rank, count))
        for rank, count, whole in zip(
            ranks.tolist(),
            counts[ranks - 1].tolist(),
            ((how[ranks - 1] == strongest.OF_ALL) | (counts[ranks - 1] <= strongest.LOOKED_UP)).tolist(),
            strict=True,
        )
    ]
    sizes = np.array([len(part) for part in places])
    place_n = np.concatenate(places) + np.repeat(firsts, sizes)
    del places
    rank_n = np.repeat(ranks.astype(np.int32), sizes)
    row_n = _picked(run, f"SELECT rowid::BIGINT AS place, row FROM {MEMBERS}", place_n, ["row"])["row"]
    order = np.argsort(row_n, kind="stable")
    weights = run.layout.weight_columns()
    columns = _picked(run, f"SELECT rowid::BIGINT AS place, {', '.join(weights)} FROM {TABLE}", row_n[order], weights)
    return rank_n[order], row_n[order], _strengths(run, columns)


def _picked(run: RunFile, sql: str, place_n: np.ndarray, names: list[str]) -> dict[str, np.ndarray]:
    """Columns of the rows ``place_n`` (ascending) of a query that reads a whole table; its ``place`` numbers them."""
    found: dict[str, np.ndarray] = {}
    for columns in run.chunks(Query(sql), CHUNK_ROWS):
        place = columns["place"]
        low, high = np.searchsorted(place_n, (place[0], place[-1] + 1))
        here = np.searchsorted(place, place_n[low:high])
        for name in names:
            values = columns[name]
            found.setdefault(name, np.empty(len(place_n), dtype=values.dtype))[low:high] = values[here]
    return found


def _table(run: RunFile, rank_n: np.ndarray, row_n: np.ndarray, strength_n: np.ndarray) -> pa.Table:
    """The strongest of each path, strongest first; paths whose tokens are all as strong are left out."""
    order = np.lexsort((row_n, -strength_n, rank_n))
    rank_n, row_n, strength_n = rank_n[order], row_n[order], strength_n[order]
    first_P = np.flatnonzero(np.diff(rank_n, prepend=0))
    size_P = np.diff(first_P, append=len(rank_n))
    place_n = np.arange(len(rank_n)) - np.repeat(first_P, size_P)
    differs_P = strength_n[first_P] != strength_n[first_P + size_P - 1]
    kept = np.flatnonzero(np.repeat(differs_P, size_P) & (place_n < drawn.STRONGEST_EACH))
    columns = {
        "rank": pa.array(rank_n[kept]),
        "place": pa.array(place_n[kept].astype(np.int8)),
        "row": pa.array(row_n[kept]),
        "weight": pa.array(strongest.whole_weights(run.layout, strength_n[kept])),
        "compared": pa.array(np.repeat(size_P, size_P)[kept].astype(np.int32)),
    }
    return pa.table(columns | _excerpts(run, rank_n[kept], row_n[kept]))


def _excerpts(run: RunFile, rank_n: np.ndarray, row_n: np.ndarray) -> dict[str, pa.Array]:
    """The tokens of the first paths between their neighbours, of runs of texts."""
    names = ("token_id", "label", "before", "text", "after")
    texts = run.row["modality"] == "text"
    shown = np.flatnonzero(rank_n <= drawn.EXAMPLE_RANKS) if texts else np.zeros(0, np.int64)
    samples = np.searchsorted(run.first_rows, row_n[shown], side="right") - 1
    pairs = list(zip(samples.tolist(), (row_n[shown] - run.first_rows[samples]).tolist(), strict=True))
    values: dict[str, list[object]] = {name: [None] * len(rank_n) for name in names}
    excerpts = excerpts_of(run, pairs) if pairs else {}  # together: each reading looks at every row of the run
    for place, pair in zip(shown.tolist(), pairs, strict=True):
        for name in names:
            values[name][place] = excerpts[pair][name]
    return {name: pa.array(values[name], pa.int32() if name == "token_id" else pa.string()) for name in names}
