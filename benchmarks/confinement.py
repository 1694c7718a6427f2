"""What reading in a confined child costs: traces of a folder of JPEGs and imports of a log, with the child and without.

    python -m benchmarks.confinement [--pictures 1000] [--tokens 200000] [--repeats 3]

Each measurement is a process of its own and its children: their processor time, and the time on the clock. With and
without take turns. "Without" opens the same readers in the process itself, as nothing in the product does.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).resolve().parent.parent / "data"
MODELS = ("dna-vision-top1", "raytracing-cifar10")
WAYS = ("confined", "in_process")


def write_pictures(folder: Path, count: int) -> None:
    """``count`` JPEGs of 320 × 240: crops of the bundled photographs, each with noise of its own."""
    from PIL import Image

    rng = np.random.default_rng(0)
    photographs = [
        Image.open(DATA / "samples" / name).convert("RGB").resize((480, 360)) for name in ("coffee.png", "cat.png")
    ]
    for number in range(count):
        x, y = rng.integers(160), rng.integers(120)
        crop = np.asarray(photographs[number % 2].crop((x, y, x + 320, y + 240)), np.int16)
        noisy = np.clip(crop + rng.integers(-12, 13, crop.shape), 0, 255).astype(np.uint8)
        file = folder / ("coffee", "cat")[number % 2] / f"{number:05d}.jpg"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(noisy).save(file, quality=85)


def trace(way: str, model: str, data: Path, runs: Path) -> None:
    """A whole trace, summaries and untrained twin included."""
    from tokenpaths.engine.data import datasets
    from tokenpaths.engine.data.sources.opening import open_source
    from tokenpaths.engine.tracing.loaded_model import load_model
    from tokenpaths.engine.tracing.trace_run import trace_samples

    if way == "in_process":
        datasets.ConfinedSource = lambda path, **options: _with_split(open_source(path, **options))
    loaded = load_model(DATA / "models" / model, [], "cpu")
    dataset = datasets.open_dataset(data, "vision")
    trace_samples(loaded, dataset, runs, run_id=f"{way}-{model}", dataset="pictures", overwrite=True)


def _with_split(source: Any) -> Any:
    """A source with what the child tells of it beside its rows."""
    source.split = getattr(source, "split", None)
    return source


def import_log(way: str, model: str, data: Path, runs: Path) -> None:
    """A whole import, sealed."""
    from tokenpaths.engine.adapters.logs import importing
    from tokenpaths.engine.adapters.logs.confined_log import open_confined_log
    from tokenpaths.engine.adapters.logs.formats import open_log

    opened = (open_confined_log if way == "confined" else open_log)(data, experts=64)
    importing.import_log(opened, runs, way, overwrite=True)


def measured(what: str, way: str, model: str, data: Path, work: Path) -> dict[str, float]:
    """Seconds of one process, measured by the process itself when it is done."""
    command = [sys.executable, "-m", "benchmarks.confinement", "--only", what, way, model, str(data), str(work)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=one_thread)
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def only(what: str, way: str, model: str, data: str, work: str) -> None:
    """What ``measured`` runs."""
    from tokenpaths.engine.adapters.logs import confined_log
    from tokenpaths.engine.data.sources import confined_source

    began = time.perf_counter()
    (trace if what == "trace" else import_log)(way, model, Path(data), Path(work))
    seconds = time.perf_counter() - began
    for pool in (confined_source.READERS, confined_log.READERS):
        with pool.one() as reader:
            reader.close()  # the time of a child counts when it has ended
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({"cpu_seconds": sum(u.ru_utime + u.ru_stime for u in used), "seconds": seconds}))


def compared(what: str, model: str, data: Path, work: Path, repeats: int) -> dict[str, Any]:
    """Seconds of both ways in turn, and the ratios with child / without."""
    from benchmarks.measure import ratio

    numbers: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            numbers[way].append(measured(what, way, model, data, work))
    found: dict[str, Any] = {"repeats": numbers}
    for clock in ("cpu_seconds", "seconds"):
        found[clock] = ratio({way: [n[clock] for n in numbers[way]] for way in WAYS}, *WAYS)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        only(*arguments.only)
        return
    from benchmarks.importing import write_log
    from benchmarks.measure import report

    results: dict[str, Any] = {"pictures": arguments.pictures, "tokens": arguments.tokens}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        pictures, log = work / "pictures", work / "log"
        pictures.mkdir()
        log.mkdir()
        write_log(log, arguments.tokens, "npz", weights=True)
        results["import"] = compared("import", "", log, work, arguments.repeats)
        write_pictures(pictures, arguments.pictures)
        for model in reversed(MODELS):
            results[model] = compared("trace", model, pictures, work, arguments.repeats)
    flags = f"--pictures {arguments.pictures} --tokens {arguments.tokens} --repeats {arguments.repeats}"
    report("confinement", f"python -m benchmarks.confinement {flags}", results)


if __name__ == "__main__":
    main()
