"""The shipped checkpoints' paths beside their untrained twins: slope, number of paths, effective top-k.

    python -m benchmarks.checkpoints [--data FOLDER] [--models NAME …] [--write-cards]

Without ``--data`` each model is traced over the bundled samples, for everyone to repeat; with it, over the
validation file of its recipe: that is what ``results/checkpoints.json``, ``docs/models.md`` and, with
``--write-cards``, the cards quote.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import days, kept_document, machines, report
from tokenpaths.engine.base.files import SHIPPED_MODELS, write_atomically
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.families.checkpoint_config import CONFIG, read_checkpoint
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import trace_samples
from tokenpaths.engine.train.cards import write_card

SLOPES_OF = ("observed", "untrained", "independent")
BUNDLED = {"vision": "bundled:scenes", "text": "bundled:texts"}


def measure(folder: Path, data: Path | None) -> dict[str, Any]:
    """Trace one checkpoint and its untrained twin; the figures come from the sealed run."""
    loaded = load_model(folder, [])
    name = str(data / loaded.checkpoint.validation["file"]) if data else BUNDLED[loaded.modality]
    dataset = open_dataset(name, loaded.modality)
    with tempfile.TemporaryDirectory() as home:
        path = trace_samples(
            loaded,
            dataset,
            Path(home),
            run_id="measured",
            dataset=dataset.name,
            split=dataset.split,
            regions=dataset.regions,
            display_side=64,
        )
        with Run.open(path) as run:
            return figures(run, dataset.name)


def figures(run: Run, dataset: str) -> dict[str, Any]:
    """Slopes, paths and effective top-k per step, trained and untrained, from the run's own answers."""
    fit, steps, info = run.fit(), run.usage()["steps"], run.info()
    rows: dict[str, Any] = {"dataset": dataset, "num_tokens": fit["observed"]["num_tokens"]}
    for name, key, column in (
        ("trained", "observed", "effective_top_k"),
        ("untrained", "untrained", "untrained_effective_top_k"),
    ):
        one = fit[key]
        rows[name] = {
            "num_paths": one["num_paths"],
            "effective_paths": round(one["effective_paths"], 1),
            "slope": round(one["slope"], 3),
            "r2": round(one["r2"], 3),
            "effective_top_k": [round(step[column], 2) for step in steps],
        }
    growth = run.slopes()
    rows["slopes"] = {
        whose: [
            {key: point[key] and round(point[key], 3) for key in ("num_tokens", "slope", "window_slope")}
            for point in growth[whose] or ()
        ]
        for whose in SLOPES_OF
    }
    rows["mean_compute"], rows["mean_reuse"] = (round(info["summary"][k], 3) for k in ("mean_compute", "mean_reuse"))
    rows["associations"] = info["associations"]
    return rows


PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
FAMILIES = {
    "dna": "Distributed Neural Architectures",
    "hmodel": "H-Model",
    "dipaco": "DiPaCo",
    "directional": "Directional Routing",
    "raytracing": "RayTracing",
}
HEAD = """# The shipped models

Small routed models, trained on two processor cores; a card beside the weights of each has configuration, command, curve
and numbers. The small ones come with `tokenpaths`, the others are the distribution `tokenpaths-models`
(`pip install tokenpaths_models-*.whl`, of a release or of `make wheels`); a clone has all of them. What they were
trained on, and what that allows: [Data](data.md#what-the-shipped-models-were-trained-on).
"""
DNA = """
The rest of this page is about the distributed neural architectures; [the papers' pages](science/index.md) have the
other families. It is generated from `benchmarks/results/checkpoints.json` by `python -m benchmarks.checkpoints`. The
dense twin has the same input, output and blocks, equal active parameters and the same recipe; the untrained twin the
same architecture at initialisation.
"""


def models_page(document: dict[str, Any]) -> str:
    """The comparison page, from the kept result."""
    results = document["results"]
    lines = [HEAD, *_distribution_lines(), DNA, "## Accuracy", ""]
    lines += ["| model | loss (nats) | accuracy | dense twin: loss | accuracy |", "|---|---|---|---|---|"]
    for name, row in results.items():
        own, twin = row["validation"], row["validation"].get("dense_twin", {})
        cells = [f"{own['loss']:.3f}", f"{own['accuracy']:.1%}"]
        cells += [f"{twin['loss']:.3f}", f"{twin['accuracy']:.1%}"] if twin else ["–", "–"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Accuracy: top-1 of 50 classes (vision), of the next token among 8 192 (text). Effective top-k counts identity "
        "modules, which `docs/science/dna.md` leaves out.",
        "",
        "## Paths",
        "",
        "| model | traced over | tokens | paths | effective paths | effective top-k per step |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        for kind in ("trained", "untrained"):
            one = row[kind]
            steps = ", ".join(f"{k:.2f}" for k in one["effective_top_k"])
            lines.append(
                f"| {name}{'' if kind == 'trained' else ', untrained'} | {row['dataset']} | {row['num_tokens']:,} | "
                f"{one['num_paths']:,} | {one['effective_paths']:,.0f} | {steps} |"
            )
    lines += [*_slope_lines(results), *_knowledge_lines(results)]
    lines += ["", "## Measured", "", f"`{document['command']}`", "", "| model | when | on |", "|---|---|---|"]
    when, where = document["dates"], document["machines"]
    lines += [f"| {name} | {days(when[name])} | {machines(where[name])} |" for name in results]
    return "\n".join([*lines, ""])


def _distribution_lines() -> list[str]:
    """Every shipped model, and what to install for it."""
    small = set(re.findall(r"data/models/([\w-]+) ", (PAGE.parents[1] / "MANIFEST.in").read_text(encoding="utf-8")))
    lines = ["| model | family | takes | parameters | comes with |", "|---|---|---|---|---|"]
    for file in sorted(SHIPPED_MODELS.glob(f"*/{CONFIG}"), key=lambda file: file.parent):
        about, name = json.loads(file.read_text(encoding="utf-8")), file.parent.name
        takes = {"vision": "images", "text": "texts"}[about["config"]["modality"]]
        comes_with = "tokenpaths" if name in small else "tokenpaths-models"
        lines.append(f"| {name} | {FAMILIES[about['family']]} | {takes} | {about['num_params']:,} | `{comes_with}` |")
    return lines


def _slope_lines(results: dict[str, Any]) -> list[str]:
    lines = [
        "",
        "## Slopes",
        "",
        "Least squares of log frequency on log rank. Over all ranks, the number that the paper quotes, it falls with "
        "the number of tokens, because every rare path that is met once more lengthens the flat end: compare only at "
        "equal numbers. Over ranks 10 to 1,000 it depends less on them. Shuffled: each step's choices dealt out anew "
        "over the tokens.",
        "",
        "| model | tokens | ranks 10–1,000: trained | untrained | shuffled | all ranks: trained | untrained "
        "| shuffled |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        sizes = [point["num_tokens"] for point in row["slopes"]["observed"]]
        for at in sorted({0, len(sizes) // 2, len(sizes) - 1}):
            cells = [
                _slope(row["slopes"][whose][at : at + 1], key)
                for key in ("window_slope", "slope")
                for whose in SLOPES_OF
            ]
            lines.append(f"| {name} | {sizes[at]:,} | {' | '.join(cells)} |")
    return lines


def _slope(points: list[dict[str, Any]], key: str) -> str:
    value = points[0][key] if points else None
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def _knowledge_lines(results: dict[str, Any]) -> list[str]:
    lines = [
        "",
        "## What paths know",
        "",
        "Normalised mutual information of path and attribute, the mean of 200 shuffles, and what is left above it: "
        "(NMI − shuffled) / (1 − shuffled), which is 0 for chance and 1 for paths that tell the attribute (the "
        "adjusted mutual information of Vinh, Epps and Bailey, 2010, with the mean of the shuffles for the expected "
        "one). Labels are dealt out among samples, regions as whole maps, tokens as whole sequences. These are figures "
        f"of runs, which draw {_drawn(results)} tokens of each; `docs/science/dna.md` has those of all tokens.",
        "",
        "| model | attribute | NMI | shuffled | p | adjusted | untrained: adjusted | p |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        for one in row["associations"]:
            trained, untrained = (_adjusted(one[f"{of}nmi"], one[f"{of}null_mean"]) for of in ("", "untrained_"))
            p = "–" if one["untrained_p_value"] is None else f"{one['untrained_p_value']:.3f}"
            lines.append(
                f"| {name} | {one['attribute']} | {one['nmi']:.3f} | {one['null_mean']:.3f} | {one['p_value']:.3f} | "
                f"{trained} | {untrained} | {p} |"
            )
    return lines


def _drawn(results: dict[str, Any]) -> str:
    return " or ".join(
        f"{n:,}" for n in sorted({one["num_tokens"] for r in results.values() for one in r["associations"]})
    )


def _adjusted(nmi: float | None, by_chance: float | None) -> str:
    if nmi is None or by_chance is None or by_chance == 1:
        return "–"
    return f"{(nmi - by_chance) / (1 - by_chance):.3f}".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--write-cards", action="store_true")
    parser.add_argument("--models", nargs="*", help="measure only these, keep the others; none: read the cards anew")
    arguments = parser.parse_args()
    if not arguments.data and (arguments.models is not None or arguments.write_cards):
        parser.error("the cards and docs/models.md quote validation data: give --data with the data folder")
    folders = sorted(p.parent for p in SHIPPED_MODELS.glob(f"*/{CONFIG}") if read_checkpoint(p.parent).family == "dna")
    results, kept = {}, kept_document("checkpoints")
    for folder in folders:
        measured = arguments.models is None or folder.name in arguments.models
        if measured:
            print(f"tracing {folder.name} …", file=sys.stderr, flush=True)
        results[folder.name] = measure(folder, arguments.data) if measured else kept["results"][folder.name]
        results[folder.name]["validation"] = read_checkpoint(folder).validation
        results[folder.name]["validation"].pop("paths", None)
        if measured and arguments.write_cards:
            about = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            about["validation"]["paths"] = {k: v for k, v in results[folder.name].items() if k != "validation"}
            write_atomically(folder / CONFIG, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
            write_card(folder)
    command = "python -m benchmarks.checkpoints" + (" --data <data folder>" if arguments.data else "")
    measured_on = kept["machine"] if arguments.models == [] else None
    document = report(
        "checkpoints" if arguments.data else "checkpoints-bundled", command, results, measured_on=measured_on
    )
    if arguments.data:
        write_atomically(PAGE, models_page(document).encode())


if __name__ == "__main__":
    main()
