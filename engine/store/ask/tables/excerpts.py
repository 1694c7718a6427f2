"""From rows to what a page shows: nested ribbons, cropped patches, tokens in their text context."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.data.images import MAX_PIXELS
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.file.schema import HEADS, Layout

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
    query = queries.sample_heads(numbers, together=HEADS in run.tables_there)
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


def text_context(text: str, start: int, end: int) -> dict[str, str]:
    """The token with up to ``CONTEXT_CHARACTERS`` characters on either side."""
    return {
        "before": text[max(0, start - CONTEXT_CHARACTERS) : start],
        "text": text[start:end],
        "after": text[end : end + CONTEXT_CHARACTERS],
    }


def finite(value: float | None) -> float | None:
    """Replace NaN and infinity, which JSON lacks, by null."""
    return None if value is None or not np.isfinite(value) else float(value)
