"""What a ``kill -9`` costs a dream: its worker is killed at random moments, and what comes out is compared.

    python -m benchmarks.kill_dream [--kills 10] [--iterations 2048] [--workers 2]

Real processes: an API and workers over a folder of their own. First the dream runs without disturbance, then again with
kills; another worker goes on each time. ``lost`` is how many iterations had been reported and were not kept: those are
done again. A worker is up to a second further than it has reported, but never 64 iterations further than it has kept.
``equal`` says whether every picture, the curve and the result are the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors import safe_open

from benchmarks.crew import Crew
from benchmarks.measure import report
from tokenpaths.engine.dream.dream_state import STATE

LEASE_SECONDS = 5.0


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=2048)
    parser.add_argument("--model", default="dna-vision-top1")
    parser.add_argument("--until", type=int, default=2, help="the dream's S")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # bit for bit means: the same sums in the same order
    request = {
        "model": options.model,
        "data": "bundled:photos",
        "row": 0,
        "seed": 1,
        "frame_every": 128,
        "target": {"of": "choices", "until": [options.until]},
        "image": {"iterations": options.iterations},
    }
    with tempfile.TemporaryDirectory() as folder:
        crew = Crew(Path(folder) / "data", job_lease_seconds=LEASE_SECONDS)
        crew.patience_s = 3600
        try:
            results = _compare(crew, request, options)
        finally:
            crew.close()
    command = f"python -m benchmarks.kill_dream --kills {options.kills} --iterations {options.iterations}"
    report("kill_dream", command, results)


def _compare(crew: Crew, request: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    chance = random.Random(options.seed)
    crew.staff(options.workers)
    crew.start_api()
    began = time.monotonic()
    whole = crew.over(crew.submit("dream", **request))
    undisturbed_s = time.monotonic() - began
    assert whole["state"] == "succeeded", whole
    moments = sorted(chance.sample(range(1, options.iterations), options.kills))
    began = time.monotonic()
    job, lost, away = crew.submit("dream", **request), [], []
    for moment in moments:
        crew.until(lambda moment=moment: crew.job(job)["progress"]["done"] >= moment)
        crew.kill_holder(job)
        killed, row = time.monotonic(), crew.job(job)
        lost.append(max(0, row["progress"]["done"] - _kept(crew.data_dir / "jobs" / job / STATE)))
        crew.staff(options.workers)
        crew.until(lambda row=row: crew.job(job)["attempts"] > row["attempts"])
        away.append(round(time.monotonic() - killed, 2))
    disturbed = crew.over(job)
    assert disturbed["state"] == "succeeded", disturbed
    seconds = time.monotonic() - began
    folders = [crew.data_dir / "jobs" / row["job"] / "artifacts" for row in (whole, disturbed)]
    different = [name for name in _hashes(folders[0]) if _hashes(folders[0])[name] != _hashes(folders[1]).get(name)]
    return {
        "iterations": options.iterations,
        "kills": options.kills,
        "attempts": disturbed["attempts"],
        "moments": moments,
        "lost": lost,
        "most_lost": max(lost),
        "seconds_until_taken_over": away,
        "lease_seconds": LEASE_SECONDS,
        "seconds": {"undisturbed": round(undisturbed_s, 1), "killed": round(seconds, 1)},
        "equal": not different and _hashes(folders[0]).keys() == _hashes(folders[1]).keys(),
        "files": len(_hashes(folders[0])),
        "different": different,
    }


def _kept(state: Path) -> int:
    """The iteration that the state on the disk stands at."""
    if not state.is_file():
        return 0
    with safe_open(state, framework="pt") as opened:
        return int(opened.get_tensor("iteration"))


def _hashes(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


if __name__ == "__main__":
    main()
