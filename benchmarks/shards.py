"""What shards cost: a run written whole, the same in N shards, the shards sealed into one run, and into a run in parts
by 1, 2 and 4 processes, each in a process of its own that tells its time and its peak memory; at the end the runs are
compared row for row.

    python -m benchmarks.shards --tokens 1e6 --shards 4

The batches are those of ``tests.support.runs.synthetic``; the time to make them is not counted. The time of the shards
is that of all N together; on N machines each takes an N-th of it. ``cpu_seconds`` hardly depend on what else the
machine does (of the run of one process they are left out: its writer works beside the making of the batches).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.runs.synthetic import SyntheticRun, batches_with_twins, count, number_of_batches
from tokenpaths.cli.support.shard_workers import seal_workers
from tokenpaths.engine.base.records import DATA_SHA256
from tokenpaths.engine.base.run_parts import parts_of
from tokenpaths.engine.data.blocks import shard_rows
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.open_file import open_read_only
from tokenpaths.engine.store.file.shard_format import Shard
from tokenpaths.engine.store.write.merge import SealProgress, find_shards, seal_shards
from tokenpaths.engine.store.write.parts.seal_in_parts import seal_in_parts
from tokenpaths.engine.store.write.shard_writer import ShardWriter
from tokenpaths.engine.store.write.writer import RunWriter

READ_ROWS = 100_000


class Clock:
    """Seconds spent inside ``counting``, by the wall and by the processor (all threads)."""

    seconds = cpu_seconds = 0.0

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        started, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started
            self.cpu_seconds += time.process_time() - cpu


def peak_mebibytes() -> int:
    """The most memory that this process had so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def whole(spec: SyntheticRun, folder: Path, of: int) -> dict[str, Any]:
    """The run of one process."""
    clock = Clock()
    writer = RunWriter(folder / "whole", spec.info(), spec.bank())
    for batch, twin in batches_with_twins(spec):
        with clock.counting():
            writer.write(batch)
            if twin is not None:
                writer.write_twin(twin)
    with clock.counting():
        file = writer.seal()
    return {"seconds": clock.seconds, "bytes": file.stat().st_size}


def shards(spec: SyntheticRun, folder: Path, of: int) -> dict[str, Any]:
    """The same in ``of`` shards, one after the other."""
    clock, total, number = Clock(), number_of_batches(spec), 0
    source = batches_with_twins(spec)
    for one in range(1, of + 1):
        first, stop = shard_rows(total, 1, one, of)
        with clock.counting():
            writer = ShardWriter(folder / "shards", spec.info(), spec.bank(), Shard(one, of, first, stop, total, ""))
        for batch, twin in (next(source) for _ in range(stop - first)):
            with clock.counting():
                writer.write(batch)
                if twin is not None:
                    writer.write_twin(twin)
            number += 1
        with clock.counting():
            writer.seal()
    assert number == total
    found = find_shards([folder / "shards"])
    tables = {file.name: 0 for file in found.folders[0].iterdir()}
    for one in found.folders:
        for file in one.iterdir():
            tables[file.name] = tables.get(file.name, 0) + file.stat().st_size
    return {"seconds": clock.seconds, "cpu_seconds": clock.cpu_seconds, "bytes": found.num_bytes, "bytes_of": tables}


class Stages:
    """Seconds of each stage of a sealing, and the peak of memory at its end."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, int] = {}
        self._name, self._since = "", time.perf_counter()

    def __call__(self, progress: SealProgress) -> None:
        name = "reading" if progress.unit == "tokens" else progress.stage.split(":")[0]
        if name != self._name:
            self.end()
            self._name = name

    def end(self) -> None:
        """Close the last stage."""
        now = time.perf_counter()
        if self._name:
            self.seconds[self._name], self.peaks[self._name] = round(now - self._since, 3), peak_mebibytes()
        self._since = now


def seal(spec: SyntheticRun, folder: Path, of: int) -> dict[str, Any]:
    """The shards as one run."""
    clock, stages = Clock(), Stages()
    with clock.counting():
        file = seal_shards(find_shards([folder / "shards"]), folder / "sealed", on_progress=stages)
    stages.end()
    with Run.open(file) as run:
        paths = run.card()["num_paths"]
    return {
        "seconds": clock.seconds,
        "cpu_seconds": clock.cpu_seconds,
        "stages": stages.seconds,
        "peaks": stages.peaks,
        "paths": paths,
        "bytes": file.stat().st_size,
    }


def parts_by(workers: int) -> Callable[[SyntheticRun, Path, int], dict[str, Any]]:
    """The shards as a run in parts, by so many processes on as many cores, where there are so many."""

    def step(spec: SyntheticRun, folder: Path, of: int) -> dict[str, Any]:
        clock, stages = Clock(), Stages()
        processes = seal_workers(workers, None)
        assert processes is not None
        if hasattr(os, "sched_setaffinity"):  # a worker that writes has two threads: one core has to do both
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:workers])
        with clock.counting():
            found, runs_dir = find_shards([folder / "shards"]), folder / "parts"
            file = seal_in_parts(found, runs_dir, processes, overwrite=True, on_progress=stages)
        stages.end()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "seconds": clock.seconds,
            "cpu_seconds": clock.cpu_seconds + used.ru_utime + used.ru_stime,
            "stages": stages.seconds,
            "parallel_seconds": round(sum(stages.seconds.get(name, 0) for name in PARALLEL), 3),
            "peak_MiB_of_a_worker": round(used.ru_maxrss / 1024),
            "bytes": sum(part.stat().st_size for part in [file, *parts_of(file)]),
            "bytes_beside_parts": file.stat().st_size,
        }

    return step


def differing(first: Path, second: Path) -> list[str]:
    """Tables whose rows, in the order of the file, are not those of the other; ``created_at`` is left out."""
    one, other = open_read_only(first), open_read_only(second)
    listed = "SELECT table_name FROM information_schema.tables WHERE table_catalog = 'r' ORDER BY table_name"
    tables = [table for (table,) in one.execute(listed).fetchall()]
    assert tables == [table for (table,) in other.execute(listed).fetchall()]
    found = []
    for table in tables:
        columns = [name for name, *_ in one.execute(f"DESCRIBE {table}").fetchall() if name not in NOT_COMPARED]
        # A view joins in no order of its own; and only shards say of which data they are.
        ordered = " ORDER BY sample, token" if table == "token_sample" else ""
        ordered = f" WHERE name <> '{DATA_SHA256}'" if table == "finding" else ordered
        sql = f"SELECT {', '.join(columns)} FROM {table}{ordered}"
        mine, theirs = one.cursor(), other.cursor()
        for cursor in (mine, theirs):
            cursor.execute("USE r")
            cursor.execute(sql)
        while (rows := mine.fetchmany(READ_ROWS)) == theirs.fetchmany(READ_ROWS):
            if not rows:
                break
        else:
            found.append(table)
    return found


PARALLEL = ("counting paths", "writing parts", "answers that take long")
"""stages of a sealing in parts that its processes do"""
NOT_COMPARED = ("created_at", "rowid")
STEPS = {
    "whole": whole,
    "shards": shards,
    "seal": seal,
    **{f"parts_{workers}": parts_by(workers) for workers in (1, 2, 4)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=count, default=1_000_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--modules", type=int, default=18)
    parser.add_argument("--top-k", type=int, default=1)
    parser.add_argument("--modality", choices=["text", "vision"], default="text")
    parser.add_argument("--folder", type=Path, help="where the files go, and stay [default: a temporary folder]")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/shards.json")
    parser.add_argument("--step", choices=sorted(STEPS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    spec = SyntheticRun("made", options.tokens, options.steps, options.modules, options.top_k, options.modality)
    if options.step:
        found = STEPS[options.step](spec, options.folder, options.shards)
        print(json.dumps(found | {"peak_MiB": peak_mebibytes()}))
        return
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        results: dict[str, Any] = {
            "tokens": spec.tokens,
            "num_shards": options.shards,
            "steps": spec.steps,
            "modules": spec.modules,
            "top_k": spec.top_k,
            "modality": spec.modality,
            "load_before": round(os.getloadavg()[0], 1),
        }
        same = [word for word in sys.argv[1:] if word != "--keep"]
        for step in STEPS:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.shards", *same, "--folder", str(folder), "--step", step],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            results[step] = json.loads(done.stdout.splitlines()[-1])
            results[step]["tokens_per_second"] = round(spec.tokens / results[step]["seconds"])
            if "cpu_seconds" in results[step]:
                results[step]["tokens_per_cpu_second"] = round(spec.tokens / results[step]["cpu_seconds"])
            if "bytes" in results[step]:
                results[step]["bytes_per_token"] = round(results[step]["bytes"] / spec.tokens, 2)
        results["differing_tables"] = differing(folder / "whole" / "made.duckdb", folder / "sealed" / "made.duckdb")
        results["differing_of_parts"] = differing(folder / "sealed" / "made.duckdb", folder / "parts" / "made.duckdb")
        results["load_after"] = round(os.getloadavg()[0], 1)
    if options.keep:
        from benchmarks.measure import report

        report("shards", f"python -m benchmarks.shards {' '.join(same)}", results)
    else:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
