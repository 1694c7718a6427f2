"""Fills ``DRAWN_TABLES`` from the closed file of a large run, by the functions that answer without them.

Shapes: n drawn tokens, P paths of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.token_table import TokenTable, most_tokens, tokens_of
from tokenpaths.engine.store.ask.topics.paths import drawn_examples
from tokenpaths.engine.store.ask.topics.work.token_losses import losses
from tokenpaths.engine.store.file import schema as drawn
from tokenpaths.engine.store.file.columns import code_column, encode
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.write.arrow_tables import blobs
from tokenpaths.engine.store.write.large.seal_strongest import strongest_rows

RANKS_AT_ONCE = 250
"""paths whose examples are read together: the texts of their samples are in memory"""


def drawn_rows(run: RunFile) -> Iterator[tuple[str, pa.Table]]:
    """Name and rows of each table that applies to the run."""
    texts = run.row["modality"] == "text" and bool(run.rows(Query("SELECT 1 FROM sample WHERE text_0 <> '' LIMIT 1")))
    # Packed ribbons would take more than they save: of a mixture nearly every drawn token has a path of its own.
    if run.row["num_tokens"] > most_tokens(run) and not run.layout.packed:
        yield from _draw(run, tokens_of(run))
    if texts:
        yield drawn.HEADS, _heads(run)
        yield drawn.EXAMPLES, _examples(run)
    if (strongest := strongest_rows(run)) is not None:
        yield drawn.STRONGEST, strongest


def _draw(run: RunFile, table: TokenTable) -> Iterator[tuple[str, pa.Table]]:
    # Samples are drawn whole or from their beginning, so rows and places in the sample follow from it.
    columns = {"sample": table.samples_N[table.sample_n].astype(np.int32), **table.columns, "path": table.path_n}
    del columns["place"], columns["token"]
    if "char_end" in columns:
        columns["char_end"] = columns["char_end"] - columns["char_start"]  # fewer bits
    words = table.words
    if words is not None:
        glued = np.zeros(table.num_tokens, dtype=bool) if words.glued_n is None else words.glued_n
        columns |= {"word": words.codes_n.astype(np.int32), "glued": glued}
    yield drawn.DRAWN_TOKENS, pa.table(columns)
    ribbons = blobs(table.ribbon_PSK.reshape(len(table.rank_P), -1))
    paths = {"rank": table.rank_P, "compute": table.compute_P, "reuse": table.reuse_P, "ribbon": ribbons}
    yield drawn.DRAWN_PATHS, pa.table(paths)
    yield drawn.DRAWN_LOSSES, pa.table({code_column("loss"): encode(losses(run, table))})
    yield drawn.DRAWN_WORDS, pa.table({"name": pa.array([] if words is None else words.names, pa.string())})


def _heads(run: RunFile) -> pa.Table:
    sql = f"SELECT sample, left(text_0, {drawn.HEAD_CHARACTERS}) AS head FROM sample ORDER BY sample"
    with run.cursor() as cursor:
        return cursor.execute(sql).to_arrow_table()


def _examples(run: RunFile) -> pa.Table:
    last = min(drawn.EXAMPLE_RANKS, int(run.row["num_paths"]))
    parts = []
    for first in range(1, last + 1, RANKS_AT_ONCE):
        ranks = range(first, min(first + RANKS_AT_ONCE - 1, last) + 1)
        shown = drawn_examples(run, ranks, drawn.EXAMPLES_EACH, drawn.EXAMPLE_SEED)
        rows = [{"rank": rank, "place": i, **row} for rank in ranks for i, row in enumerate(shown[rank])]
        parts.append(pa.Table.from_pylist(rows, schema=_EXAMPLE))
    return pa.concat_tables(parts)


_EXAMPLE = pa.schema(
    {
        **dict.fromkeys(("rank", "place", "sample", "token", "token_id"), pa.int32()),
        **dict.fromkeys(("label", "before", "text", "after"), pa.string()),
    }
)
