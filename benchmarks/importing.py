"""What importing a large log costs: rate, peak memory and file size, of a synthetic log of 16 layers × 8 of 64 experts.

    python -m benchmarks.importing --tokens 1000000 [--work FOLDER] [--format npy|parquet|npz] [--confined]
        [--keep FOLDER]

``--keep``: the run stays there, for ``python -m benchmarks.queries --page --folder FOLDER``.

Not a model's output: a token follows one of a few thousand prototype ribbons and leaves it at some layers, the more
so the later; some experts are liked more. Nearly every ribbon is distinct, as in real mixtures of this size. The log
is written first, in shards, and not measured; the import runs in a process of its own, whose peak resident memory is
what the system counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tokenpaths.engine.base.shared_cores import wait_asleep

LAYERS, EXPERTS, TOP_K = 16, 64, 8
SHARD_TOKENS = 500_000
SAMPLE_TOKENS = 1_000
PROTOTYPES = 4_000
RUN = "queried"
LABELS = ("code", "math", "news", "talk")


def ribbons(rng: np.random.Generator, prototypes: np.ndarray, count: int) -> np.ndarray:
    """(count, layers, K) ids: correlated over layers and over neighbouring tokens."""
    taste = rng.zipf(1.3, count) % len(prototypes)
    stay = rng.random(count) < 0.3
    taste[1:][stay[1:]] = taste[:-1][stay[1:]]
    ids = prototypes[taste]
    # At a layer a token swaps one slot for another expert that it does not have yet.
    for layer in range(LAYERS):
        for _ in range(2):
            leaves = np.flatnonzero(rng.random(count) < 0.15 + 0.4 * layer / LAYERS)
            slot = rng.integers(TOP_K, size=len(leaves))
            new = (rng.zipf(1.5, len(leaves)) % EXPERTS).astype(np.uint8)
            fresh = (ids[leaves, layer] != new[:, None]).all(axis=1)
            ids[leaves[fresh], layer, slot[fresh]] = new[fresh]
    return ids


def write_log(folder: Path, tokens: int, kind: str, weights: bool) -> int:
    """Shards of the log; returns their bytes."""
    rng = np.random.default_rng(0)
    prototypes = rng.random((PROTOTYPES, LAYERS, EXPERTS)).argsort(axis=2)[:, :, :TOP_K].astype(np.uint8)
    for number, start in enumerate(range(0, tokens, SHARD_TOKENS)):
        count = min(SHARD_TOKENS, tokens - start)
        ids = ribbons(rng, prototypes, count)
        file = folder / f"{number:04d}.{kind}"
        if kind == "npy":
            np.save(file, ids)
            continue
        sample = start // SAMPLE_TOKENS + np.arange(count) // SAMPLE_TOKENS
        given = rng.random((count, LAYERS, TOP_K), dtype=np.float32)
        given = -np.sort(-given / given.sum(axis=2, keepdims=True), axis=2)
        if kind == "npz":
            labels = np.array([LABELS[s % len(LABELS)] for s in np.unique(sample)])
            extra = {"weights": given.astype(np.float16)} if weights else {}
            np.savez(file, ids=ids, sample=sample, label=labels, num_experts=np.array(EXPERTS), **extra)
        else:
            _write_parquet(file, ids, given if weights else None, sample)
    return sum(file.stat().st_size for file in folder.iterdir())


def _write_parquet(file: Path, ids: np.ndarray, weights: np.ndarray | None, sample: np.ndarray) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def nested(values: np.ndarray) -> pa.Array:
        inner = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), TOP_K)
        return pa.FixedSizeListArray.from_arrays(inner, LAYERS)

    columns = {"ids": nested(ids), "sample": pa.array(sample)}
    if weights is not None:
        columns["weights"] = nested(weights)
    columns["label"] = pa.array([LABELS[s % len(LABELS)] for s in sample.tolist()])
    about = json.dumps({"num_experts": EXPERTS, "model": "synthetic"})
    pq.write_table(pa.table(columns).replace_schema_metadata({"tokenpaths": about}), file, row_group_size=65_536)


def import_it(folder: Path, runs_dir: Path, confined: bool) -> dict[str, float]:
    """Import and measure, in this process, and in the confined child that reads if ``confined``."""
    from tokenpaths.engine.adapters.logs.confined_log import READERS, open_confined_log
    from tokenpaths.engine.adapters.logs.formats import open_log
    from tokenpaths.engine.adapters.logs.importing import import_log
    from tokenpaths.engine.store.write import run_filler

    moments = {}
    sealing = run_filler.build_summaries

    def timed(*arguments: object) -> None:
        moments["read"] = time.perf_counter()
        sealing(*arguments)

    run_filler.build_summaries = timed
    started = time.perf_counter()
    log = (open_confined_log if confined else open_log)(folder, experts=EXPERTS)
    path = import_log(log, runs_dir, RUN, overwrite=True)
    done = time.perf_counter()
    with READERS.one() as reader:
        reader.close()  # the system counts a child's time when it has ended
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "seconds": round(done - started, 1),
        "seconds_reading": round(moments["read"] - started, 1),
        "seconds_sealing": round(done - moments["read"], 1),
        "cpu_seconds": round(
            sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)), 1
        ),
        "peak_bytes": peak,
        "run_bytes": path.stat().st_size,
    }


def measure(
    tokens: int, kind: str, weights: bool, confined: bool, work: Path, keep: Path | None = None
) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir=work) as folder:
        log, runs = Path(folder) / "log", (keep or Path(folder)).resolve() / "runs"
        log.mkdir()
        log_bytes = write_log(log, tokens, kind, weights)
        command = [sys.executable, "-m", "benchmarks.importing", "--only", str(log), "--work", str(runs)]
        command += ["--confined"] * confined
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        from tokenpaths.engine.store.ask.run import Run

        with Run.open(runs / f"{RUN}.duckdb", time_limit_s=60) as run:
            card = run.card()
    return {
        "tokens": tokens,
        "layers": LAYERS,
        "experts": EXPERTS,
        "top_k": TOP_K,
        "format": kind,
        "weights": weights,
        "confined": confined,
        "paths": card["num_paths"],
        "log_bytes": log_bytes,
        **found,
        "tokens_per_second": round(tokens / found["seconds"]),
        "run_bytes_per_token": round(found["run_bytes"] / tokens, 1),
        "log_megabytes_per_second": round(log_bytes / found["seconds"] / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--format", choices=("npy", "npz", "parquet"), default="npy")
    parser.add_argument("--weights", action="store_true", help="with a weight for each id (not in npy)")
    parser.add_argument("--work", type=Path, default=None, help="folder for the log and the run")
    parser.add_argument("--confined", action="store_true", help="read in a confined child, as `tokenpaths import` does")
    parser.add_argument("--keep", type=Path, help="folder in which the run stays")
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(import_it(arguments.only, arguments.work, arguments.confined)))
        return
    wait_asleep()  # as all commands do
    from benchmarks.measure import report

    of = (arguments.format, arguments.weights, arguments.confined, arguments.work, arguments.keep)
    results = [measure(tokens, *of) for tokens in arguments.tokens]
    sizes = " ".join(str(tokens) for tokens in arguments.tokens)
    flags = f" --format {arguments.format}" + " --weights" * arguments.weights + " --confined" * arguments.confined
    report("importing", f"python -m benchmarks.importing --tokens {sizes}{flags}", results)


if __name__ == "__main__":
    main()
