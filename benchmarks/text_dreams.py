"""The text dreams of docs/dreams.md: a path, a direction and a connection, each searched for in the bundled texts and
improved by swaps.

    python -m benchmarks.text_dreams [--only rank|direction|connection]

Each is the job that ``tokenpaths dream`` runs with the arguments that its row keeps; for the path, the bundled texts
are traced first. What is kept: what the objective is over the corpus, the stretch that it likes best, the dreamed
texts, and how many seconds the look through the corpus and the rounds took.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import report
from tokenpaths.engine.base.model_folders import models_folders
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.jobs.dream import DreamJob
from tokenpaths.engine.jobs.registry import JobContext, read_request
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import trace_samples

RUN = "texts-dna-text-top1"
ITERATIONS = 16
SHOWN = 8
"""dreamed texts that are kept: as many as are dreamt at once"""
DREAMS: dict[str, dict[str, Any]] = {
    "rank": {"model": "dna-text-top1", "run": RUN, "target": {"of": "path", "rank": 5}},
    "direction": {"model": "directional-text", "target": {"of": "direction", "layer": 3, "head": 2, "direction": 1}},
    "connection": {
        "model": "hmodel-languages",
        "target": {"of": "connection", "iteration": 1, "source": 0, "target": 1},
    },
}
ARGUMENTS = {
    "rank": f"--model dna-text-top1 --run {RUN} --rank 5",
    "direction": "--model directional-text --direction 3.2.1",
    "connection": "--model hmodel-languages --connection 1.0.1",
}


def dreamed(name: str, context: JobContext, folder: Path) -> dict[str, Any]:
    """One row."""
    values = DREAMS[name] | {"text": {"iterations": ITERATIONS}}
    request = read_request(DreamJob, values)
    DreamJob.check(request, context)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = time.perf_counter()
    job = DreamJob.start(request, folder, context)
    scanned = None
    while not (progress := job.advance()).finished:
        if scanned is None and job.work.dreams is not None:
            scanned = time.perf_counter() - started
        print(f"{name}: {progress.done}/{progress.total} {progress.unit}, {progress.message}", file=sys.stderr)
    job.close()
    whole, result = time.perf_counter() - started, progress.result
    best = result["corpus"]["examples"][0]
    return {
        "command": f"tokenpaths dream {ARGUMENTS[name]} --iterations {ITERATIONS}",
        "checkpoint_sha256": context.load_model(values["model"]).sha256,
        "corpus": {key: result["corpus"][key] for key in ("corpus", "windows", "mean", "p99")},
        "best stretch": {key: best[key] for key in ("objective", "text", "tokens", "targets")},
        "dreamed": [
            {key: one[key] for key in ("objective", "text", "tokens", "targets", "matched_choices", "matched_tokens")}
            for one in result["dreams"][:SHOWN]
        ],
        "seconds": {"corpus": round(scanned or whole, 1), "rounds": round(whole - (scanned or whole), 1)},
    }


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(DREAMS), help="one of the three; nothing is kept then")
    only = parser.parse_args().only
    names = [only] if only else list(DREAMS)
    loaded = {DREAMS[name]["model"]: load_model(DREAMS[name]["model"], models_folders(), "cpu") for name in names}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if "rank" in names:
            corpus = open_dataset("bundled:texts", "text")
            trace_samples(loaded["dna-text-top1"], corpus, folder / "runs", run_id=RUN, dataset=corpus.name, twin=False)
        context = JobContext(folder, tuple(models_folders()), loaded.__getitem__)
        rows = {name: dreamed(name, context, folder / name) for name in names}
    if only:
        print(rows)
    else:
        report("text_dreams", "python -m benchmarks.text_dreams", rows)


if __name__ == "__main__":
    main()
