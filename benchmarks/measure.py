"""Interleaved, repeated timing; results as ratios with their spread.

This machine or yours is noisy: A and B run in turn (A B A B …), each pair gives one ratio, and the
median with the quartiles of the ratios is what is quoted.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tokenpaths.engine.store.write.seal_findings import plain

RESULTS = Path(__file__).resolve().parent / "results"
PAGE = RESULTS.parent.parent / "docs" / "performance.md"


def forget(file: Path) -> None:
    """Drop a file from the page cache, so that it is read from the disk."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def interleaved(
    variants: dict[str, Callable[[], Any]],
    repeats: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each variant in each round; every round runs all variants in turn.

    With ``clock=time.process_time`` and one thread, other load on the machine has little effect.
    """
    for _ in range(warmup):
        for run in variants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, run in variants.items():
            started = clock()
            run()
            seconds[name].append(clock() - started)
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, base: str, places: int = 3) -> dict[str, float]:
    """Median and quartiles of the paired ratios name / base."""
    ratios = [a / b for a, b in zip(seconds[name], seconds[base], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    found = {"median": round(middle, places), "q25": round(low, places), "q75": round(high, places)}
    return found | {"repeats": len(ratios)}


def machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [x.split(":", 1)[1].strip() for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        model = names[0] if names else model
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{model}, {torch.get_num_threads()} threads, torch {torch.__version__}{gpu}"


def by_part(what: str, document: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The ``date``, ``machine`` or ``command`` of each part of the results, recursively.

    A part equal to that in the document ``before`` was kept, not measured again, and keeps its own. Rows that say on
    which machine they were made are of that.
    """

    def of(now: Any, old: Any, kept: Any, depth: int) -> Any:
        if depth and isinstance(now, dict) and now:
            olds, known = (x if isinstance(x, dict) else {} for x in (old, kept))
            all_of = kept if isinstance(kept, str) else None
            return {key: of(value, olds.get(key), known.get(key, all_of), depth - 1) for key, value in now.items()}
        own = {row.get(what) if isinstance(row, dict) else None for row in now} if isinstance(now, list) else {None}
        if what == "machine" and own and None not in own:
            return ", ".join(sorted(own))
        same_as_before = now == old and isinstance(kept, str)
        return kept if same_as_before else document[what]

    found = of(document["results"], before.get("results"), before.get(f"{what}s", before.get(what)), 2)
    return found if isinstance(found, dict) else {}


def days(of: Any) -> str:
    """A part of ``dates`` as text: one day, or the first and the last."""
    found = _leaves(of)
    return "" if not found else min(found) if min(found) == max(found) else f"{min(found)} to {max(found)}"


def machines(of: Any) -> str:
    """A part of ``machines`` or ``commands`` as text: each of them once."""
    return "; ".join(dict.fromkeys(_leaves(of)))


def _leaves(of: Any) -> list[str]:
    if isinstance(of, dict):
        return [leaf for value in of.values() for leaf in _leaves(value)]
    return [of] if isinstance(of, str) else []


def kept_document(name: str, folder: Path | None = None) -> dict[str, Any]:
    """What a benchmark measured last (in ``folder``, else in ``RESULTS``); without results where it never ran."""
    file = (folder or RESULTS) / f"{name}.json"
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"results": {}}
    return document


def report(
    name: str,
    command: str,
    results: Any,
    *,
    quiet: bool = False,
    folder: Path | None = None,
    measured_on: str | None = None,
) -> dict[str, Any]:
    """Store the result (in ``folder``, else in ``RESULTS``), print it as one line of JSON, the last of the output
    (unless ``quiet``), and return it; ``measured_on``: the machine, if not this one."""
    document = {
        "benchmark": name,
        "command": command,
        "machine": measured_on or machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "results": results,
    }
    document = plain(document)
    folder = folder or RESULTS
    file = folder / f"{name}.json"
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = {}
    before = before if isinstance(before, dict) else {}
    document |= {f"{what}s": by_part(what, document, before) for what in ("date", "machine", "command")}
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    if not quiet:
        print(json.dumps(document))
    return document
