"""The summary of a soak, at most a few hundred rows, and a sentence for each promise that was not kept."""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.faults.figures import machine

if TYPE_CHECKING:
    from tests.faults.soak import Soak

PROCESSES = ("api", "worker", "page")
KEPT = ("t", "api_megabytes", "api_threads", "worker_megabytes", "page_megabytes")
"""columns of memory over time in the summary; the highest of the others stands with each process"""
ROWS = 240
"""of memory over time in the summary, however long it was"""
BINS = {"look": 20, "page": 10}
"""of the 95th percentiles over time; there are fewer page views"""
SEEN = {"look": "answers of the API", "page": "views of the page"}
GROWTH, GROWTH_MEGABYTES = 0.08, 25.0
"""what counts as flat: the trend over the second half adds no more than this share, or so many megabytes"""
LIVES = 1.25
"""the highest memory of the later lives of the worker over that of the earlier ones"""
SHORT_MINUTES = 5.0
"""below, all is still warming up: memory and time are not judged"""
SLOWER, SLOWER_MS = 3.0, 250.0
"""the 95th percentile at the end over that at the start, or so many ms more: others may use the machine meanwhile"""


def summary(soak: Soak, minutes: float, states: dict[str, int], *, over: bool) -> dict[str, Any]:
    """What stands in the file; ``over``: whether it came to its end."""
    end = max((t for t, *_ in soak.answers), default=0.0)
    found = {
        "minutes": minutes,
        "measured_minutes": round(end / 60, 1),
        "over": over,
        "machine": machine(),
        "load": round(os.getloadavg()[0], 1),
        "browser": soak.browser,
        "requests": len(soak.answers),
        "kinds": dict(Counter(what for _, what, _, _ in soak.answers)),
        "statuses": dict(Counter(str(status) for _, what, status, _ in soak.answers if what not in ("page", "click"))),
        "kills": [round(t, 1) for t in soak.kills],
        "jobs": states,
        "lost": soak.lost[:50],
        "num_lost": len(soak.lost),
        "p95_ms": {what: over_time(soak.answers, what, end, bins) for what, bins in BINS.items()},
        "p95_fifths_ms": {what: [ms for _, ms in over_time(soak.answers, what, end, 5)] for what in SEEN},
        "memory": thinned(soak.memory),
    }
    found["processes"] = {name: about(found["memory"], name, found["kills"]) for name in PROCESSES}
    found["memory"] = [{name: value for name, value in row.items() if name in KEPT} for row in found["memory"]]
    return found


def over_time(
    answers: Sequence[tuple[float, str, int, float]], what: str, end: float, bins: int
) -> list[list[float | None]]:
    """(second, 95th percentile in ms) in each part of the time, of what was answered well."""
    parts: list[list[float]] = [[] for _ in range(bins)]
    for t, kind, status, seconds in list(answers):
        if kind == what and status in (200, 304):
            parts[min(bins - 1, int(t / end * bins))].append(seconds)
    return [[round((n + 0.5) * end / bins, 1), p95(part)] for n, part in enumerate(parts)]


def p95(seconds: list[float]) -> float | None:
    """The 95th percentile in ms; None for fewer than 10."""
    return round(1000 * statistics.quantiles(seconds, n=20, method="inclusive")[-1], 1) if len(seconds) >= 10 else None


def thinned(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """At most ``ROWS`` rows: of each stretch of time the median of every column that is there."""
    if len(rows) <= ROWS:
        return list(rows)
    kept = []
    for n in range(ROWS):
        part = rows[n * len(rows) // ROWS : (n + 1) * len(rows) // ROWS]
        names = dict.fromkeys(name for row in part for name in row)
        kept.append({name: round(statistics.median([row[name] for row in part if name in row]), 1) for name in names})
    return kept


def trend(points: Sequence[tuple[float, float]]) -> float:
    """Growth from the first to the last point along the median slope of all pairs (Theil and Sen), which single
    heights do not move; 0 for fewer than four points."""
    if len(points) < 4:
        return 0.0
    t, y = np.array(points, dtype=float).T
    one, other = np.triu_indices(len(t), 1)
    return float(np.median((y[other] - y[one]) / (t[other] - t[one])) * (t[-1] - t[0]))


def about(rows: Sequence[dict[str, float]], name: str, kills: Sequence[float]) -> dict[str, Any]:
    """Memory of one process: at its start and end, at its highest, and its trend over the second half.

    The worker has a life after each kill: the highest of each, and the trend over the second half of the longest.
    """
    points = [(row["t"], row[f"{name}_megabytes"]) for row in rows if f"{name}_megabytes" in row]
    if not points:
        return {}
    found: dict[str, Any] = {
        "first_megabytes": points[0][1],
        "last_megabytes": points[-1][1],
        "highest_megabytes": max(y for _, y in points),
        "threads": max(row.get(f"{name}_threads", 0) for row in rows),
        "files": max(row.get(f"{name}_files", 0) for row in rows),
    }
    lives = [points]
    if name == "worker":
        edges = [0.0, *kills, points[-1][0] + 1]
        lives = [[(t, y) for t, y in points if a < t <= b] for a, b in zip(edges, edges[1:], strict=False)]
        found["highest_of_lives"] = [max(y for _, y in life) for life in lives if life]
    longest = max(lives, key=lambda life: life[-1][0] - life[0][0] if life else 0)
    half = [(t, y) for t, y in longest if t >= (longest[0][0] + longest[-1][0]) / 2]
    found["second_half"] = {
        "minutes": round((half[-1][0] - half[0][0]) / 60, 1),
        "median_megabytes": statistics.median(y for _, y in half),
        "grows_megabytes": round(trend(half), 1),
    }
    return found


def slower(found: dict[str, Any]) -> list[str]:
    """Answers and views that took longer at the end than at the start; on a machine that others use too, that need not
    be ours. One fifth says little: it is the last two against all before."""
    wrong = []
    for what, words in SEEN.items():
        *before, one, two = found["p95_fifths_ms"][what]
        if None in (*before, one, two):
            wrong.append(f"too few {words} to say how long they took")
            continue
        first, last = statistics.median(before), (one + two) / 2
        if last > max(SLOWER * first, first + SLOWER_MS):
            wrong.append(f"the 95th percentile of {words} went from {first:.0f} to {last:.0f} ms")
    return wrong


def complaints(found: dict[str, Any], *, times: bool = True) -> list[str]:
    """What is not as promised, in sentences; none: all is well. Without ``times``, nothing that a clock said."""
    wrong = [] if not found["num_lost"] else [f"{found['num_lost']} things lost, such as: {found['lost'][0]}"]
    if not found["over"]:
        wrong.append(f"it ended after {found['measured_minutes']} of {found['minutes']} minutes")
    if not found["kills"]:
        wrong.append("no worker was killed")
    if found["minutes"] < SHORT_MINUTES:
        return wrong
    for name in PROCESSES:
        wrong += _grown(name, found["processes"][name])
    wrong += slower(found) if times else []
    for kind in ("count", "trace", "dream"):
        if not found["jobs"].get(f"{kind} succeeded"):
            wrong.append(f"no {kind} succeeded, so nothing is known about them")
    return wrong


def _grown(name: str, process: dict[str, Any]) -> list[str]:
    """Whether a process' memory is not flat."""
    if not process:
        return [f"the memory of the {name} was not seen"]
    half, wrong = process["second_half"], []
    # A worker that is killed every minute or two is still loading what its jobs need.
    old_enough = name != "worker" or half["minutes"] >= 4
    if old_enough and half["grows_megabytes"] > max(GROWTH * half["median_megabytes"], GROWTH_MEGABYTES):
        wrong.append(f"the {name} grew by {half['grows_megabytes']} MB in {half['minutes']} minutes")
    lives = process.get("highest_of_lives", [])
    if len(lives) >= 4:
        earlier, later = (max(part) for part in (lives[: len(lives) // 2], lives[len(lives) // 2 :]))
        if later > LIVES * earlier:
            wrong.append(f"the {name}s reach {later} MB, where earlier ones reached {earlier} MB")
    return wrong


def write(found: dict[str, Any], file: Path) -> None:
    """One line for each key and each row of memory, so that changes can be read; replaced whole."""
    lines = []
    for key, value in found.items():
        if key == "memory":
            rows = ",\n".join("  " + json.dumps(row) for row in value)
            lines.append(f' "{key}": [\n{rows}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value, ensure_ascii=False)}')
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    part.replace(file)


def in_words(found: dict[str, Any]) -> Iterable[str]:
    """A few lines for whoever ran it."""
    yield (
        f"{found['measured_minutes']:g} minutes: {found['requests']:,} answers "
        f"({', '.join(f'{n} {what}' for what, n in found['kinds'].items())}), {sum(found['jobs'].values())} jobs, "
        f"{len(found['kills'])} kills, {found['num_lost']} lost; {found['browser']}"
    )
    yield "jobs: " + ", ".join(f"{count} {name}" for name, count in sorted(found["jobs"].items()))
    for name, process in found["processes"].items():
        if process:
            half = process["second_half"]
            yield (
                f"{name}: {process['first_megabytes']} → {process['last_megabytes']} MB, at most "
                f"{process['highest_megabytes']}; trend over the last {half['minutes']} minutes of its longest "
                f"half {half['grows_megabytes']:+} MB; at most {process['threads']} threads, {process['files']} "
                "files"
            )
    for what, words in SEEN.items():
        first, *_, last = found["p95_fifths_ms"][what]
        yield f"p95 of {words}: {first} → {last} ms"
