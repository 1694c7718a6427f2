"""Whole maps of regions of pictures, which the null of ``paths/knowledge`` exchanges between images.

The file records a region for every patch; the tokens drawn for an association are some of them only, so the maps are
read whole, of the images that these tokens come from.

Shapes: n tokens, G images, f patches of all images.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tokenpaths.engine.analysis.association import Maps
from tokenpaths.engine.store.file.filters import Query


def region_maps(
    arrays: Callable[[Query], dict[str, np.ndarray]], sample_n: np.ndarray, token_n: np.ndarray
) -> Maps | None:
    """The maps of the images of these tokens, for ``associations``; None if no two of them have maps alike in grid.

    Two maps are of one kind if their grids and the patches whose region is known are the same.

    Args:
        arrays: runs a query and returns its columns.
        sample_n: number of the sample of each token.
        token_n: its place in the sample.
    """
    numbers_G, image_n = np.unique(sample_n, return_inverse=True)
    chosen = (numbers_G.tolist(),)
    grids = arrays(
        Query(
            "SELECT num_tokens, coalesce(grid_rows, 0) AS rows, coalesce(grid_cols, 0) AS cols FROM sample "
            "WHERE sample IN (SELECT unnest(?)) ORDER BY sample",
            chosen,
        )
    )
    value_f = arrays(
        Query(
            "SELECT coalesce(region::SMALLINT, -1) AS region FROM token WHERE sample IN (SELECT unnest(?)) "
            "ORDER BY sample, token",
            chosen,
        )
    )["region"]
    sizes_G = grids["num_tokens"].astype(np.int64)
    first_G = np.cumsum(sizes_G) - sizes_G
    kinds: dict[tuple[int, int, bytes], int] = {}
    kind_G = np.array(
        [
            kinds.setdefault((int(rows), int(cols), np.packbits(value_f[a : a + size] >= 0).tobytes()), len(kinds))
            if rows and cols and size == rows * cols
            else -1 - i
            for i, (rows, cols, a, size) in enumerate(zip(grids["rows"], grids["cols"], first_G, sizes_G, strict=True))
        ],
        dtype=np.int64,
    )
    if len(np.unique(kind_G)) == len(kind_G):
        return None
    return Maps(image_n.reshape(-1), token_n.astype(np.int64), value_f, first_G, kind_G)
