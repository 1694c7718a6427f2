"""Kinds of patches: by their pixels (busy edges, flat areas) and by their place in the picture.

Kinds that need pixels are measured on ``MOST_PICTURES`` pictures drawn by hash; the search counts only their patches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tokenpaths.engine.analysis.patches import at_border, at_centre, busiest, flattest, patch_contrast
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.excerpts import open_picture
from tokenpaths.engine.store.ask.tables.lookups import some_samples
from tokenpaths.engine.store.ask.tables.token_table import TokenTable
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.hash_sample import mix

BY_PIXELS: dict[str, Callable[..., np.ndarray]] = {"edge": busiest, "flat": flattest}
BY_PLACE: dict[str, Callable[..., Any]] = {"border": at_border, "centre": at_centre}
PATCH_KINDS = (*BY_PIXELS, *BY_PLACE)
MOST_PICTURES = 400
AT_ONCE = 32
SEED = 0


def measured(run: RunFile, table: TokenTable, kind: str | None) -> TokenTable:
    """The tokens that ``kind`` can be computed for: those of a draw of pictures if it needs pixels, else all."""
    if kind not in BY_PIXELS or table.num_samples <= MOST_PICTURES:
        return table
    if "pictures" not in table.cache:
        order = np.argsort(mix(table.samples_N.astype(np.uint64), SEED), kind="stable")
        table.cache["pictures"] = table.of_samples(np.sort(order[:MOST_PICTURES]))
    pictures: TokenTable = table.cache["pictures"]
    return pictures


def patches_of_kind(run: RunFile, table: TokenTable, kind: str) -> np.ndarray:
    """(n,) whether each patch is of the kind, one of ``PATCH_KINDS``.

    Raises:
        UserError: pictures or their grids were not recorded.
    """
    if kind in BY_PIXELS:
        if "contrast" not in table.cache:
            table.cache["contrast"] = _contrast(run, table)
        contrast_n = table.cache["contrast"]
        finite = np.isfinite(contrast_n)
        if not finite.any():
            raise UserError(f"run {run.run_id!r} holds no pictures, so {kind} patches are not known", field="kind")
        mask_n = np.zeros(len(contrast_n), dtype=bool)
        mask_n[finite] = BY_PIXELS[kind](contrast_n[finite])
        return mask_n
    grids_N2 = _grids(run, table)
    mask_n = np.zeros(table.num_tokens, dtype=bool)
    nowhere = np.full(table.num_tokens, -1)
    row_n, col_n = (table.columns.get(name, nowhere) for name in ("grid_row", "col"))
    known_N: np.ndarray = np.all(grids_N2 > 0, axis=1)
    if not (known_N[table.sample_n] & (row_n >= 0) & (col_n >= 0)).any():
        raise UserError(
            f"run {run.run_id!r} does not say where in its pictures the patches lie, so {kind} patches are not known",
            field="kind",
        )
    for rows, cols in np.unique(grids_N2, axis=0).tolist():
        if rows < 1 or cols < 1:
            continue
        here = (grids_N2 == (rows, cols)).all(axis=1)[table.sample_n] & (row_n >= 0) & (col_n >= 0)
        mask_n[here] = BY_PLACE[kind](rows, cols)[row_n[here].astype(np.int64) * cols + col_n[here]]
    return mask_n


def _grids(run: RunFile, table: TokenTable) -> np.ndarray:
    """(N, 2) rows and columns of patches of each sample; zeros without a grid."""
    if "grids" not in table.cache:
        rows = run.rows(Query("SELECT sample, coalesce(grid_rows, 0), coalesce(grid_cols, 0) FROM sample"))
        grids = {row[0]: row[1:] for row in rows}
        found = [grids[int(number)] for number in table.samples_N]
        table.cache["grids"] = np.array(found, dtype=np.int64).reshape(-1, 2)
    grids_N2: np.ndarray = table.cache["grids"]
    return grids_N2


def _contrast(run: RunFile, table: TokenTable) -> np.ndarray:
    """(n,) standard deviation of the grey values inside each patch; NaN without a picture."""
    return patch_values(run, table, lambda images, rows, cols: patch_contrast(images, rows, cols)[:, :, None])[:, 0]


def patch_values(
    run: RunFile, table: TokenTable, measure: Callable[[np.ndarray, int, int], np.ndarray], width: int = 1
) -> np.ndarray:
    """(n, ``width``) what ``measure`` finds in the patches of pictures of one size; NaN without a picture.

    ``measure`` takes pictures (m, H, W, 3) and their rows and columns of patches, and returns (m, rows · cols, width).
    """
    value_n = np.full((table.num_tokens, width), np.nan)
    if "grid_row" not in table.columns or "col" not in table.columns:
        return value_n
    grids_N2 = _grids(run, table)
    first_N = np.searchsorted(table.sample_n, np.arange(table.num_samples + 1))
    row_n, col_n = table.columns["grid_row"].astype(np.int64), table.columns["col"].astype(np.int64)
    for start in range(0, table.num_samples, AT_ONCE):
        places = range(start, min(start + AT_ONCE, table.num_samples))
        numbers = [int(table.samples_N[i]) for i in places]
        pngs = dict(run.rows(some_samples(numbers, "sample, image")))
        by_shape: dict[tuple[int, ...], list[tuple[int, np.ndarray]]] = {}
        for i in places:
            png = pngs.get(int(table.samples_N[i]))
            if png is not None and grids_N2[i].min() > 0:
                pixels = np.asarray(open_picture(bytes(png)))
                by_shape.setdefault((*pixels.shape, *grids_N2[i].tolist()), []).append((i, pixels))
        for shape, pictures in by_shape.items():
            rows, cols = shape[-2:]
            values = measure(np.stack([pixels for _, pixels in pictures]), rows, cols)
            for (i, _), of_picture in zip(pictures, values, strict=True):
                here = slice(first_N[i], first_N[i + 1])
                value_n[here] = of_picture[row_n[here] * cols + col_n[here]]
    return value_n
