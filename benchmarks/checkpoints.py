"""The shipped checkpoints' paths beside their untrained twins: slope, number of paths, effective top-k.

    python -m benchmarks.checkpoints [--data FOLDER] [--write-cards]

Without ``--data`` each model is traced over the bundled samples; with it, over the validation file
of its recipe. ``--write-cards`` puts the figures on the cards.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import report
from engine.checkpoint import CONFIG, read_checkpoint
from engine.datasets import open_dataset
from engine.disk import SHIPPED_MODELS, write_atomically
from engine.store import Run
from engine.tracing import load_model, trace_samples
from engine.train.finish import write_card

BUNDLED = {"vision": "bundled:scenes", "text": "bundled:texts"}


def measure(folder: Path, data: Path | None) -> dict[str, Any]:
    """Trace one checkpoint and its untrained twin; the figures come from the sealed run."""
    loaded = load_model(folder, [])
    name = str(data / loaded.checkpoint.validation["file"]) if data else BUNDLED[loaded.modality]
    dataset = open_dataset(name, loaded.modality)
    with tempfile.TemporaryDirectory() as home:
        path = trace_samples(
            loaded, dataset, Path(home), run_id="measured", dataset=dataset.name, split=dataset.split,
            regions=dataset.regions, display_side=64,
        )  # fmt: skip
        with Run.open(path) as run:
            return figures(run, dataset.name)


def figures(run: Run, dataset: str) -> dict[str, Any]:
    """Slope, paths and effective top-k per step, trained and untrained, from the run's own answers."""
    fit, steps, info = run.fit(), run.usage()["steps"], run.info()
    rows: dict[str, Any] = {"dataset": dataset, "num_tokens": fit["observed"]["num_tokens"]}
    for name, key, column in (
        ("trained", "observed", "effective_top_k"),
        ("untrained", "untrained", "untrained_effective_top_k"),
    ):
        one = fit[key]
        rows[name] = {
            "num_paths": one["num_paths"], "effective_paths": round(one["effective_paths"], 1),
            "slope": round(one["slope"], 3), "r2": round(one["r2"], 3),
            "effective_top_k": [round(step[column], 2) for step in steps],
        }  # fmt: skip
    rows["independent_slope"] = round(fit["independent"]["slope"], 3)
    rows["mean_compute"], rows["mean_reuse"] = (round(info["summary"][k], 3) for k in ("mean_compute", "mean_reuse"))
    rows["associations"] = info["associations"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--write-cards", action="store_true")
    parser.add_argument("models", nargs="*", help="default: all that ship")
    arguments = parser.parse_args()
    folders = sorted(p.parent for p in SHIPPED_MODELS.glob(f"*/{CONFIG}"))
    results = {}
    for folder in folders:
        if arguments.models and folder.name not in arguments.models:
            continue
        print(f"tracing {folder.name} …", file=sys.stderr, flush=True)
        results[folder.name] = measure(folder, arguments.data)
        results[folder.name]["validation"] = read_checkpoint(folder).validation
        results[folder.name]["validation"].pop("paths", None)
        if arguments.write_cards:
            about = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            about["validation"]["paths"] = {k: v for k, v in results[folder.name].items() if k != "validation"}
            write_atomically(folder / CONFIG, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
            write_card(folder)
    report("checkpoints", "python -m benchmarks.checkpoints" + (" --data …" if arguments.data else ""), results)


if __name__ == "__main__":
    main()
