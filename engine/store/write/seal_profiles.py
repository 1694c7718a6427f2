"""Counts the path profiles of samples when a run is sealed; see ``file.profile_pages``.

Shapes: n tokens, S steps, M modules, D = S·M, V = S·K visits of a token.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.store.file.profile_pages import encode_page, page_samples
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.write.arrow_insert import insert_columns
from tokenpaths.engine.store.write.path_dictionary import PathBook

LEAST_TOKENS = 100_000
"""tokens of a run whose profiles are counted at sealing: those of a smaller one are there before a click is over"""
READ_ROWS = 262_144


def write_profiles(con: duckdb.DuckDBPyConnection, layout: Layout, book: PathBook, num_samples: int) -> None:
    """Fill ``profile_page``; ``token`` is read once, in the order of samples, with one page in memory."""
    if book.num_tokens < LEAST_TOKENS:
        return
    size, width = page_samples(layout), layout.num_steps * layout.num_modules
    first_V = np.repeat(np.arange(layout.num_steps, dtype=np.int64) * layout.num_modules, layout.top_k)
    for first in range(0, num_samples, size):
        counts = np.zeros((min(size, num_samples - first), width), dtype=np.int64)
        sql = f"SELECT sample, path_id FROM token WHERE sample >= {first} AND sample < {first + len(counts)}"
        for batch in con.execute(sql).to_arrow_reader(READ_ROWS):
            _count(
                counts,
                batch.column("sample").to_numpy().astype(np.int64) - first,
                book.ribbons(batch.column("path_id").to_numpy()),
                first_V,
            )
        _write_page(con, first, counts)


def _count(counts: np.ndarray, sample_n: np.ndarray, ribbons_nV: np.ndarray, first_V: np.ndarray) -> None:
    """Add the visits of some tokens; only the rows between their first and last sample are touched."""
    if not len(sample_n):
        return
    low, high = int(sample_n.min()), int(sample_n.max()) + 1
    part, width = counts[low:high].reshape(-1), counts.shape[1]
    base_n = (sample_n - low) * width
    for visit, first in enumerate(first_V.tolist()):
        part += np.bincount(base_n + (ribbons_nV[:, visit] + np.int64(first)), minlength=len(part))


def _write_page(con: duckdb.DuckDBPyConnection, first: int, counts: np.ndarray) -> None:
    columns = zip(("counts", "places", "large"), encode_page(counts), strict=True)
    insert_columns(
        con,
        "profile_page",
        {
            "first_sample": np.array([first], dtype=np.int32),
            "num_samples": np.array([len(counts)], dtype=np.int32),
            **{name: pa.array([value], pa.binary()) for name, value in columns},
        },
    )
