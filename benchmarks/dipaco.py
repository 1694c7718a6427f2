"""DiPaCo at small scale: train every variant from one base, measure them, ship the 2×2 and the 4×4.

    python -m benchmarks.dipaco --data FOLDER --work FOLDER [--seeds 0 1 2] [--workers N] [--ship] [names …]

``--work`` holds the runs: what is done is not done again, and a stopped run goes on from its last outer
step. Perplexity is measured behind the routing prefix for all, the dense path included (section 2.4). Runs of other
seeds start from the same base and set the same documents aside.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.measure import kept_document, report
from benchmarks.science.dipaco_claims import COMPARED
from tokenpaths.engine.analysis.contrast import ratio_error
from tokenpaths.engine.base.files import SHIPPED_MODELS, write_atomically
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.models.checkpoint import save_tensors
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.models.dipaco_path import PathModel
from tokenpaths.engine.train.cards import note
from tokenpaths.engine.train.dipaco.dipaco_recipe import RECIPES, DiPaCoRecipe
from tokenpaths.engine.train.dipaco.dipaco_run import DiPaCoRun, branch
from tokenpaths.engine.train.dipaco.documents import Sequences, document_features, load_documents
from tokenpaths.engine.train.dipaco.finish_dipaco import (
    document_paths,
    export,
    findings,
    learn_to_reroute,
    routed_numbers,
    routed_sums,
)
from tokenpaths.engine.train.dipaco.path_report import score_all_paths, shard_table
from tokenpaths.engine.train.dipaco.train_dipaco import Resources, best_path, train
from tokenpaths.engine.train.loop import Progress

ORDER = tuple(RECIPES)
SHIPPED = ("dipaco-2x2", "dipaco-4x4")
OF_FOUR_PATHS = ("kmeans", "product", "flat")
COMMAND = "python -m benchmarks.dipaco --data <data folder> --work <folder>"
MEASURED, SUMS = "measured.json", "sums.safetensors"
TRAIN, VAL = "text/english_train.parquet", "text/english_val.parquet"


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def announce(name: str):
    """Progress lines, at most one every twenty seconds."""
    last = 0.0

    def heard(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > 20 or progress.iteration == progress.iterations:
            last = time.monotonic()
            say(
                f"{name} {progress.iteration}/{progress.iterations} {progress.note}, loss {progress.loss:.3f}, "
                f"{progress.rate_per_s:.2f}/s, {progress.seconds_left / 60:.0f} min left"
            )

    return heard


def seeded(name: str, seed: int) -> DiPaCoRecipe:
    """The recipe under another seed; its name, and that of its folder, says so."""
    recipe = RECIPES[name]
    return recipe if seed == recipe.seed else recipe.model_copy(update={"name": f"{name}-s{seed}", "seed": seed})


def train_all(
    sequences: Sequences, work: Path, names: tuple[str, ...], seeds: tuple[int, ...], workers: int
) -> Iterator[tuple[str, int, DiPaCoRun]]:
    """Every run in turn, finished. The 2×2 branches off the k-means run at the step where it shards again."""
    run = train(RECIPES["base"], sequences, work / "base", resources=Resources(workers), on_progress=announce("base"))
    base = run.model.path_model(0)
    features = base_features(run.model, base, sequences, work / "features.safetensors")
    yield "base", 0, run
    for seed, name in itertools.product(seeds, ORDER[1:]):
        if name not in names:
            continue
        recipe, later = seeded(name, seed), seeded("dipaco-2x2", seed)
        options = dict(base=base, features=features, resources=Resources(workers), on_progress=announce(recipe.name))
        if name == "kmeans" and "dipaco-2x2" in names and not (work / later.name).exists():
            train(recipe, sequences, work / recipe.name, until=later.reshard_at[0], **options)
            branch(work / recipe.name, work / later.name, later)
        yield name, seed, train(recipe, sequences, work / recipe.name, **options)


def base_features(model: DiPaCo, base: PathModel, sequences: Sequences, file: Path) -> Tensor:
    """Routing features under the trained base, worked out once for all runs."""
    if not file.exists():
        model.start_from(base)
        save_tensors(file, {"features": document_features(model.router, sequences)})
    return load_file(file)["features"]


def measure(run: DiPaCoRun, val: Sequences) -> dict[str, Any]:
    """Numbers of one run on all validation text, kept beside it; losses by sequence as an array of their own."""
    kept = run.folder / MEASURED
    if kept.exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    say(f"{run.recipe.name}: measuring")
    model, prefix = run.model, run.recipe.model.prefix
    paths = [model.path_model(p) for p in range(run.recipe.model.num_paths)]
    chosen = document_paths(model, val) if len(paths) > 1 else torch.zeros(len(val), dtype=torch.long)
    found = {"params_of_a_path": sum(p.numel() for p in paths[0].parameters())}
    sums = routed_sums(paths, chosen, val, prefix)
    found |= sums.numbers
    save_tensors(run.folder / SUMS, {"loss": sums.loss, "count": sums.count})
    if len(paths) > 1:
        early = [best_path(run, p) for p in range(len(paths))]
        found["early_stopped"] = routed_numbers(early, chosen, val, prefix)
        found["trained_params"] = sum(p.numel() for n, p in model.named_parameters() if not n.startswith("router."))
        table = shard_table(chosen.numpy(), val.label.numpy(), val.labels, len(paths), documents=val.document.numpy())
        found |= {"val_sizes": table.sizes.tolist(), "train_sizes": run.sizes, "nmi": asdict(table.association)}
    found["losses"] = [sum(entry["train_loss"]) / len(entry["train_loss"]) for entry in run.history]
    write_atomically(kept, json.dumps(found).encode())
    return found


def effects(work: Path, names: list[str], seeds: tuple[int, ...], val: Sequences) -> dict[str, Any]:
    """Loss of each run less the dense path's of the same seed: mean over seeds with a 95 % interval, and by seed.

    The interval takes documents as what was drawn (the runs see the same ones) and adds the spread of seeds.
    """
    found = {}
    for name in names:
        by_seed = {seed: one for seed in seeds if (one := apart(work, name, "dense", seed, val)) is not None}
        if by_seed:
            changes, errors = zip(*by_seed.values(), strict=True)
            of_seeds = statistics.stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else 0.0
            error = math.hypot(statistics.fmean(errors), of_seeds)
            found[name] = _interval("loss_less_dense", statistics.fmean(changes), error) | {
                "by_seed": {str(seed): _interval("loss_less_dense", *one) for seed, one in by_seed.items()}
            }
    return found


def apart(work: Path, own: str, other: str, seed: int, val: Sequences) -> tuple[float, float] | None:
    """Loss of one run less that of another of the same seed, and its standard error over documents; None if one of
    them is not measured."""
    files = [work / seeded(name, seed).name / SUMS for name in (own, other)]
    if not all(file.exists() for file in files):
        return None
    mine, others = (load_file(file) for file in files)
    by_document = lambda x: np.bincount(val.document, x.double(), minlength=int(val.document.max()) + 1)  # noqa: E731
    change, count = by_document(mine["loss"] - others["loss"]), by_document(mine["count"])
    error = ratio_error(change, count)
    return None if error is None else (float(change.sum() / count.sum()), error)


def _interval(name: str, mean: float, error: float) -> dict[str, Any]:
    return {name: mean, "low": mean - 1.96 * error, "high": mean + 1.96 * error}


def ship(
    name: str,
    run: DiPaCoRun,
    sequences: Sequences,
    val: Sequences,
    tokenizer: TextTokenizer,
    work: Path,
    out: Path,
    beside: dict[str, Any],
    base: DiPaCoRun,
) -> dict[str, Any]:
    """Learn the re-router, export, and measure what was exported: every path over every validation sequence."""
    kept = work / name / "shipped.json"
    if kept.exists() and (out / name).exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    say(f"{name}: learning to route again")
    rerouter = learn_to_reroute(run, sequences, counted(name))
    model = export(run, out / name, tokenizer, f"{COMMAND} --ship", base)
    say(f"{name}: every path over the validation text")
    scores = score_all_paths(model, val, on_progress=counted(name))
    paths = [model.path_model(p) for p in range(model.config.num_paths)]
    numbers = routed_numbers(paths, scores.document, val, model.config.prefix)
    answer = {**numbers, "file": VAL, "rerouter": rerouter, **findings(scores, model, val)}
    note(out / name, answer | {"beside": beside})
    write_atomically(kept, json.dumps(answer).encode())
    return answer


def counted(name: str) -> Callable[[int, int], None]:
    """Say how many sequences are scored, every few hundred."""
    return lambda done, total: say(f"{name} {done}/{total}") if done % 320 < 32 else None


CLAIMS = (
    ("a dense path trained on", "16.23 (150 M)", "dense"),
    ("k-means routing", "17.2 (8×8)", "kmeans"),
    ("product k-means beats k-means", "16.8", "product"),
    ("discriminative routing beats both", "16.5", "dipaco-2x2"),
    ("a flat mixture of as many paths beats shared modules", "14.62 (8 paths) against 14.86 (2×4)", "flat"),
    ("more paths are better", "13.37 (8×8), 12.39 (16×16)", "dipaco-4x4"),
)


def show(results: dict[str, Any]) -> None:
    """Paper's claim → our number, readable."""
    print("perplexity behind the prefix | paper (C4) | ours")
    for words, paper, name in CLAIMS:
        if name in results:
            print(f"{words} | {paper} | {results[name]['perplexity']:.2f} ({name})")
    for name in SHIPPED:
        for row in results.get(name, {}).get("shipped", {}).get("rerouting", []):
            print(
                f"{name}, W = {row['every'] or 'once'} | 12.39, 11.38, 11.31, 11.26 (16×16, once, 64, 32, 16) | "
                f"{row['perplexity']:.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--results", default="dipaco", help="their name, another one for paths from another base")
    parser.add_argument("--ship", action="store_true", help="write the 2×2 and the 4×4 to the shipped models")
    parser.add_argument("names", nargs="*", default=ORDER)
    arguments = parser.parse_args()
    tokenizer = TextTokenizer.load(SHIPPED_MODELS / "dna-text-top1" / "tokenizer.json")
    config = RECIPES["base"].model
    sequences = load_documents(arguments.data / TRAIN, tokenizer, config, on_short="drop")
    val = load_documents(arguments.data / VAL, tokenizer, config, on_short="drop")
    runs, results = {}, {}
    seeds = tuple(arguments.seeds)
    for name, seed, run in train_all(sequences, arguments.work, tuple(arguments.names), seeds, arguments.workers):
        measure(run, val)
        if seed == 0:
            runs[name] = run
    for name in ORDER:
        files = {seed: arguments.work / seeded(name, seed).name / MEASURED for seed in range(10)}
        found = {seed: json.loads(file.read_text(encoding="utf-8")) for seed, file in files.items() if file.exists()}
        if 0 in found:
            numbers = {str(seed): {k: row[k] for k in ("loss", "perplexity")} for seed, row in found.items()}
            results[name] = found[0] | {"by_seed": numbers}
    for name, effect in effects(arguments.work, list(results), tuple(range(10)), val).items():
        for seed, own in effect.pop("by_seed").items():
            results[name]["by_seed"][seed]["effect"] = own
        results[name]["effect"] = effect
    for own, other in {pair for _, _, pairs in COMPARED for pair in pairs}:
        for seed, row in results.get(own, {}).get("by_seed", {}).items():
            if (found_apart := apart(arguments.work, own, other, int(seed), val)) is not None:
                row.setdefault("less", {})[other] = _interval("value", *found_apart)
                if seed == "0":
                    results[own]["less"] = row["less"]
    beside = {name: results[name] for name in results if name not in SHIPPED}
    beside = {name: {k: row[k] for k in ("loss", "perplexity", "accuracy")} for name, row in beside.items()}
    for name in SHIPPED:
        if arguments.ship and name in runs:
            # Beside a model stand those of as many paths, and smaller ones under their own names.
            fair = beside if name == "dipaco-2x2" else {n: beside[n] for n in beside if n not in OF_FOUR_PATHS}
            results[name]["shipped"] = ship(
                name, runs[name], sequences, val, tokenizer, arguments.work, SHIPPED_MODELS, fair, runs["base"]
            )
            beside[name] = {k: results[name]["shipped"][k] for k in ("loss", "perplexity", "accuracy")}
    shipped = kept_document(arguments.results)["results"]
    for name in SHIPPED:
        if name in results and "shipped" not in results[name] and "shipped" in shipped.get(name, {}):
            results[name]["shipped"] = shipped[name]["shipped"]  # measured when it was shipped
    show(results)
    report(arguments.results, COMMAND + (f" --results {arguments.results}" * (arguments.results != "dipaco")), results)


if __name__ == "__main__":
    main()
