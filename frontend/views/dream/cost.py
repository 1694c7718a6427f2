"""How long a dream will take: by what earlier dreams of the model took here, or by shipped models. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

IMAGE_SECONDS = 0.02
"""of one core for an iteration of one image dream"""
SCAN_SECONDS = 0.00035
"""of one core for a token of the bundled texts that is looked through"""
SWAP_SECONDS = 0.0004
"""of one core for a token of a swap that is tried"""
WINDOWS, STARTS, CANDIDATES = 4096, 8, 24
"""of a text dream, where its request leaves them out"""
# Measured by benchmarks.text_dreams (results/text_dreams.json) and benchmarks.dream_speed; a test holds them to it.


def image_seconds(iterations: int, dreams: int) -> float:
    """Of a batch of image dreams."""
    return IMAGE_SECONDS * iterations * dreams


def text_seconds(rounds: int, length: int, text: Mapping[str, Any] | None = None) -> tuple[float, float]:
    """(of looking through the bundled texts, of the rounds) of a text dream."""
    given = text or {}
    windows = given.get("corpus_windows") or WINDOWS
    tried = (given.get("starts") or STARTS) * (given.get("candidates") or CANDIDATES)
    return SCAN_SECONDS * windows * length, SWAP_SECONDS * rounds * tried * length


def pace(jobs: Sequence[Mapping[str, Any]]) -> float | None:
    """How many times as long as expected the model's finished dreams took here; None where there are none to tell.

    Dreams that were interrupted are left out, and texts' whose search ended early."""
    found = []
    for job in jobs:
        if job["state"] != "succeeded" or job["attempts"] != 1 or not (job["started_at"] and job["finished_at"]):
            continue
        took = (datetime.fromisoformat(job["finished_at"]) - datetime.fromisoformat(job["started_at"])).total_seconds()
        expected = expected_of(job)
        if took > 0 and expected > 0:
            found.append(took / expected)
    return median(found) if found else None


def expected_of(job: Mapping[str, Any]) -> float:
    """What a finished dream should have taken by the numbers above; 0 where that cannot be told."""
    dreams, request = (job["result"] or {}).get("dreams") or [], job["request"]
    if dreams and "text" in dreams[0]:
        text = request.get("text") or {}
        rounds = job["progress"]["done"] if job["progress"]["unit"] == "rounds" else text.get("iterations", 0)
        return sum(text_seconds(rounds, int(text.get("length") or 12), text))
    return image_seconds(int((request.get("image") or {}).get("iterations") or 0), len(dreams))


def cost_words(image: bool, iterations: int, dreams: int, length: int, measured: float | None) -> str:
    """How long it will take, in a sentence or two."""
    by = "by the time that earlier dreams of this model took here" if measured else "on one core, for a shipped model"
    times = measured or 1.0
    if image:
        what = "One dream" if dreams == 1 else f"{dreams} dreams as one batch"
        return f"{what}, about {_time(times * image_seconds(iterations, dreams))} {by}."
    scan, rounds = text_seconds(iterations, length)
    return (
        f"Two parts: looking through the bundled texts, about {_time(times * scan)}, then at most {iterations:,} "
        f"rounds, about {_time(times * rounds)}; {by}."
    )


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
