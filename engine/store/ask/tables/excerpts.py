"""From rows to what a page shows: nested ribbons, lists of samples, cropped patches, tokens in their text context."""

from __future__ import annotations

import base64
import io
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.data.images import MAX_PIXELS
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.lookups import some_samples
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.schema import HEADS, Layout
from tokenpaths.engine.store.file.text_pieces import PIECES, bounds, pieces_between

CONTEXT_CHARACTERS = 60
SAMPLE_FIELDS = (
    "sample",
    "label",
    "prediction",
    "confidence",
    "loss",
    "num_tokens",
    "compute",
    "reuse",
    "num_distinct_paths",
    "snippet",
    "has_image",
    "source",
)
Context = dict[str, str]
"""``before``, ``text`` and ``after``"""
Span = tuple[int, int | None, int | None]
"""number of a sample, first character of a token in its text and the one behind its last; None: unknown"""


def nested_ribbon(flat: Sequence[int], layout: Layout) -> list[list[int]]:
    """A flat ribbon of V ids as S lists of the modules used: K of them unless slots are unused."""
    k = layout.top_k
    return used_modules([[int(i) for i in flat[s * k : (s + 1) * k]] for s in range(layout.num_steps)], layout)


def used_modules(ribbon: list[list[int]], layout: Layout) -> list[list[int]]:
    """The ids of a ribbon by step, without those that stand for unused slots."""
    if layout.unused_from is None:
        return ribbon
    return [[module for module in modules if module < layout.unused_from] for modules in ribbon]


def whole_ribbon(ribbon: Sequence[Sequence[int]], layout: Layout) -> np.ndarray:
    """(S, K) ids of a ribbon of used modules, with what stands for unused slots behind them."""
    first, k = layout.unused_from or 0, layout.top_k
    return np.array([[*modules, *range(first, first + k - len(modules))] for modules in ribbon])


def sample_answer(row: Sequence[Any]) -> dict[str, Any]:
    """One row of ``queries.sample_heads``."""
    return dict(zip(SAMPLE_FIELDS, row, strict=True))


def sample_answers(run: RunFile, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
    """These samples as lists show them, by number."""
    query = queries.sample_heads(numbers, together=HEADS in run.tables_there, by_row=not run.in_parts)
    return {row[0]: sample_answer(row) for row in run.rows(query)}


def patch_box(size: tuple[int, int], grid: tuple[int, int], row: int, col: int) -> tuple[int, int, int, int]:
    """Pixels (left, upper, right, lower) of a patch; at least one pixel each way."""
    (width, height), (rows, cols) = size, grid
    left, upper = col * width // cols, row * height // rows
    right, lower = (col + 1) * width // cols, (row + 1) * height // rows
    return left, upper, max(right, left + 1), max(lower, upper + 1)


def patch_uri(picture: Image.Image, grid: tuple[int, int], row: int, col: int) -> str:
    """The patch cropped from its picture, as a PNG data URI."""
    buffer = io.BytesIO()
    picture.crop(patch_box(picture.size, grid, row, col)).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def open_picture(png: bytes) -> Image.Image:
    """The stored PNG, decoded once for all patches cropped from it.

    Raises:
        RunFileError: not a PNG or, checked before decoding, too many pixels: run files may be untrusted.
    """
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            if image.width * image.height <= MAX_PIXELS:
                picture = image.convert("RGB")
                picture.info.clear()  # Pillow would write the author's colour profile again
                return picture
            size = f"{image.width:,} × {image.height:,} pixels"
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise RunFileError("a picture of the run is damaged: copy the run again or trace it again") from error
    raise RunFileError(f"a picture of the run has {size}, at most {MAX_PIXELS:,} are decoded: trace the run again")


def clean_picture(png: bytes) -> bytes:
    """Re-encode a stored PNG from its pixels, dropping all metadata."""
    buffer = io.BytesIO()
    open_picture(png).save(buffer, format="PNG")
    return buffer.getvalue()


def text_context(text: str, start: int, end: int) -> Context:
    """The token with up to ``CONTEXT_CHARACTERS`` characters on either side."""
    return {
        "before": text[max(0, start - CONTEXT_CHARACTERS) : start],
        "text": text[start:end],
        "after": text[end : end + CONTEXT_CHARACTERS],
    }


def contexts_of(run: RunFile, spans: Sequence[Span]) -> tuple[dict[int, str | None], list[Context | None]]:
    """Label by sample, and the context of each token: None where it is unknown or its sample has no text."""
    wanted = [_pieces_around(start, end) for _, start, end in spans]
    numbers = defaultdict(set)
    for (sample, *_), pieces in zip(spans, wanted, strict=True):
        for piece in pieces:
            numbers[piece].add(sample)
    labels, texts = {}, {}
    for piece, sample, label, text in run.rows(_pieces_of(run, {piece: numbers[piece] for piece in sorted(numbers)})):
        labels[sample], texts[sample, piece] = label, text
    # No characters: there is no text, or a span beyond its end.
    joined = [
        "".join(texts[sample, piece] or "" for piece in pieces)
        for (sample, *_), pieces in zip(spans, wanted, strict=True)
    ]
    doubtful = {sample for (sample, *_), text in zip(spans, joined, strict=True) if not text}
    without = doubtful - _with_texts(run, doubtful)
    contexts: list[Context | None] = []
    for (sample, start, end), pieces, text in zip(spans, wanted, joined, strict=True):
        if start is None or end is None or sample in without:
            contexts.append(None)
            continue
        first, _ = bounds(pieces[0])
        contexts.append(text_context(text, start - first, end - first))
    return labels, contexts


def _pieces_around(start: int | None, end: int | None) -> range:
    """The pieces with a token and its context; the first one for what is asked beside, where no span is known."""
    if start is None or end is None:
        return range(1)
    return pieces_between(max(0, min(start, end) - CONTEXT_CHARACTERS), max(start, end) + CONTEXT_CHARACTERS)


def _pieces_of(run: RunFile, numbers: dict[int, set[int]]) -> Query:
    """piece, sample, label and characters of these samples by piece."""
    parts = [
        some_samples(sorted(samples), f"{piece} AS piece, sample, label, {PIECES[piece]}", by_row=not run.in_parts)
        for piece, samples in numbers.items()
    ]
    sql = " UNION ALL ".join(f"({part.sql})" for part in parts)
    return Query(sql, tuple(value for part in parts for value in part.parameters))


def _with_texts(run: RunFile, numbers: set[int]) -> set[int]:
    """Those of the samples that have a text, even an empty one."""
    if not numbers:
        return set()
    columns = f"sample, {PIECES[0]} IS NOT NULL"
    rows = run.rows(some_samples(sorted(numbers), columns, by_row=not run.in_parts))
    return {sample for sample, there in rows if there}


def finite(value: float | None) -> float | None:
    """Replace NaN and infinity, which JSON lacks, by null."""
    return None if value is None or not math.isfinite(value) else float(value)
