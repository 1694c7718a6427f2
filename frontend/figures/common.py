"""Helpers of the figures: samples, bands of a measure, and properties of a run."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tokenpaths.frontend.figures.figure import NotHere, Source

SAMPLE_COLUMNS = (
    "sample",
    "label",
    "prediction",
    "confidence",
    "loss",
    "num_tokens",
    "compute",
    "reuse",
    "num_distinct_paths",
    "source",
)
PAGE = 1000
"""maximum rows per query"""


def is_vision(info: Mapping[str, Any]) -> bool:
    return info["modality"] == "vision"


def identities(info: Mapping[str, Any]) -> list[int]:
    """Ids of identity modules."""
    return sorted({int(module["module"]) for module in info["modules"] if module["kind"] == "identity"})


def all_differ(info: Mapping[str, Any]) -> bool:
    """Whether nearly every token has its own path, so that ranks are meaningless."""
    return info["num_steps"] > 1 and info["num_paths"] > max(100, 0.9 * info["num_tokens"])


def png_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def with_pictures(source: Source, info: Mapping[str, Any]) -> bool:
    """Whether the run holds the images of its samples."""
    if not is_vision(info):
        return False
    first = source.samples(limit=1)["samples"]
    return bool(first) and bool(first[0]["has_image"])


def need_pictures(source: Source, info: Mapping[str, Any], what: str) -> None:
    if not is_vision(info):
        raise NotHere(f"{what} is of images, and this run is of texts.")
    if not with_pictures(source, info):
        raise NotHere(f"{what} needs images, and this run was recorded without them.")


def ranks_shown(source: Source, num_paths: int, wanted: Sequence[int], most: int, least: int) -> list[int]:
    """The wanted ranks, or 1, 2, 4, 8 … while a path has at least ``least`` tokens; always at least the first."""
    if wanted:
        beyond = [rank for rank in wanted if not 1 <= rank <= num_paths]
        if beyond:
            raise NotHere(f"This run has paths of rank 1 to {num_paths:,}, not {beyond[0]:,}.")
        return list(wanted)[:most]
    ranks: list[int] = []
    rank = 1
    while rank <= num_paths and len(ranks) < most:
        if ranks and source.examples(rank, limit=1)["count"] < least:
            break
        ranks.append(rank)
        rank *= 2
    return ranks


def drawn_samples(source: Source, most: int = 20_000) -> tuple[list[dict[str, Any]], int]:
    """All samples of the run, or ``most`` drawn at random (runs are often sorted by label); and the total number."""
    total = int(source.samples(limit=1)["total"])
    order = "sample" if total <= most else "drawn"
    samples: list[dict[str, Any]] = []
    offset: int | None = 0
    while offset is not None and len(samples) < most:
        page = source.samples(order=order, limit=min(PAGE, most - len(samples)), offset=offset)
        samples += page["samples"]
        offset = page["next"]
    return samples, total


def samples_at(source: Source, measure: str, places: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Samples by position, at these positions of the descending order by a measure."""
    samples: dict[int, dict[str, Any]] = {}
    for place in sorted(places):
        if place in samples:
            continue
        near = [other for other in places if place <= other < place + PAGE]
        page = source.samples(order=measure, descending=True, limit=max(near) - place + 1, offset=place)["samples"]
        samples |= {other: page[other - place] for other in near}
    return samples


def sample_rows(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Table of samples, without their contents."""
    return [{name: row.get(name) for name in SAMPLE_COLUMNS} for row in samples]


def bands(ordered: Sequence[Any], each: int, seed: int) -> list[tuple[str, list[Any]]]:
    """``each`` items drawn from the top 1 %, from 49–51 % and from the bottom 1 % of a descending list.

    A band holds at least one item, and at least ``each`` if there are enough for three disjoint bands. A band further
    than a tenth from its percentage is named by its size, “top 4 of 90”.
    """
    num = len(ordered)
    size = max(1, -(-num // 100))
    middle = max(1, -(-num // 50))
    if num >= 3 * each:
        size, middle = max(size, each), max(middle, each)
    elif num < 3:
        return [("all", list(ordered))]
    start = max(size, (num - middle) // 2)
    parts = {
        "top": ordered[:size],
        "middle": ordered[start : min(start + middle, num - size)],
        "bottom": ordered[num - size :],
    }
    rng = np.random.default_rng(seed)
    return [
        (_band_name(place, len(part), num), [part[i] for i in _draw(rng, len(part), each)])
        for place, part in parts.items()
        if part
    ]


def _draw(rng: np.random.Generator, num: int, most: int) -> list[int]:
    return sorted(rng.choice(num, min(most, num), replace=False).tolist())


_BANDS = {"top": ("top 1 %", 0.01), "middle": ("49–51 %", 0.02), "bottom": ("bottom 1 %", 0.01)}


def _band_name(place: str, size: int, num: int) -> str:
    name, share = _BANDS[place]
    return name if abs(size / num - share) <= share / 10 else f"{place} {size:,} of {num:,}"
