"""H-Model on six languages: what the paper's claims rest on (``benchmarks/science/hmodel_claims.py``).

    python -m benchmarks.hmodel --data <data folder> --work <folder> [--iterations N]
    python -m benchmarks.hmodel --data <data folder> --trainings <folder>
    python -m benchmarks.hmodel --data <data folder> --shipped

Trains nothing: it reads the states that ``tokenpaths train`` (with these ``--iterations``) left in ``--work``, of
``hmodel-languages*`` and ``plain-languages-*``. Everything is measured on the held-out tenth of each language, in
float32. ``--trainings`` reads the cards of checkpoints under other seeds and of other lengths, ``--shipped`` measures
the routing of the shipped checkpoint and writes its card; both keep the rest of the results.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import kept_document, report
from benchmarks.trainings import read_trainings
from tokenpaths.engine.analysis.association import association
from tokenpaths.engine.analysis.families.connections import (
    label_distance,
    nearest_label_accuracy,
    self_share,
    stability,
)
from tokenpaths.engine.analysis.path_statistics import unique_rows
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.checkpoint_config import TOKENIZER, read_checkpoint
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.models.family import RoutedModel, family_class
from tokenpaths.engine.models.hmodel.hmodel import HModel
from tokenpaths.engine.models.losses import token_losses
from tokenpaths.engine.train.cards import note
from tokenpaths.engine.train.hmodel_recipes import (
    HMODEL_RECIPES,
    SHIPPED,
    LabelledTexts,
    Languages,
    load_languages,
    tokenizer_for,
)
from tokenpaths.engine.train.loop import evaluate, open_run

CPU = torch.device("cpu")
ALPHAS = (0.1, 0.3, 1.0, 3.0, 10.0)
RATES = (0.5, 1.0, 2.0)
TOP_K = (1, 2, 3, 4, 5)
SHUFFLES = 1000


def trained(work: Path, iterations: int | None) -> dict[str, RoutedModel]:
    """The models whose training is finished, by recipe; ``iterations``: of another length than the recipes say."""
    models = {}
    for name, recipe in HMODEL_RECIPES.items():
        if iterations is not None:
            recipe = recipe.model_copy(update={"iterations": iterations})
        if not (work / name).is_dir():
            continue
        run = open_run(recipe, work / name, CPU)
        if run.iteration < recipe.iterations:
            print(f"{name}: {run.iteration} of {recipe.iterations} iterations, left out", file=sys.stderr)
            continue
        models[name] = run.model.eval().requires_grad_(False)
    return models


def quality(model: RoutedModel, languages: Languages, tokenizer: TextTokenizer) -> dict[str, Any]:
    """Parameters, and next-token loss and accuracy on the held-out tenth, by language, and on the validation file."""
    held = languages.held_out
    row: dict[str, Any] = {"params": sum(p.numel() for p in model.parameters())}
    row |= _rounded(evaluate(model, held.corpus(tokenizer), CPU))
    row["val"] = _rounded(evaluate(model, languages.val.corpus(tokenizer), CPU))
    row["by_language"] = {}
    for language in sorted(set(held.languages)):
        texts = tuple(t for t, own in zip(held.texts, held.languages, strict=True) if own == language)
        part = LabelledTexts(texts, (language,) * len(texts)).corpus(tokenizer)
        numbers = evaluate(model, part, CPU)
        row["by_language"][language] = {k: round(numbers[k], 4) for k in ("loss", "accuracy")}
    return row


@torch.inference_mode()
def leak(model: HModel, ids: Tensor, windows: int = 128, every: int = 8) -> dict[str, float]:
    """The same predictions twice: with the tokens to come in the input, and with the text cut behind the token.

    A model that keeps to the past gives the same numbers. The standard error is of the windows' mean differences:
    predictions of one window are not independent.
    """
    context = model.config.context
    starts = torch.linspace(0, len(ids) - context - 1, windows).long()
    rows = ids[starts[:, None] + torch.arange(context + 1)].long()
    positions = range(every - 1, context, every)
    whole = model(rows[:, :-1]).logits
    totals = {"whole": [], "cut": []}
    for position in positions:
        target = rows[:, position + 1]
        cut = model(rows[:, : position + 1]).logits[:, -1]
        for name, logits in (("whole", whole[:, position]), ("cut", cut)):
            totals[name].append(torch.stack([token_losses(logits, target), (logits.argmax(-1) == target).float()]))
    means = {name: torch.cat(parts, dim=1).mean(dim=1).tolist() for name, parts in totals.items()}
    gains = (torch.stack(totals["cut"]) - torch.stack(totals["whole"]))[:, 0].mean(dim=0)
    return _rounded(
        {
            "loss_with_future": means["whole"][0],
            "loss_without": means["cut"][0],
            "leak_nats": means["cut"][0] - means["whole"][0],
            "standard_error": float(gains.std() / len(gains) ** 0.5),
            "accuracy_with_future": means["whole"][1],
            "accuracy_without": means["cut"][1],
            "predictions": windows * len(positions),
        }
    )


@torch.inference_mode()
def traced(model: HModel, texts: LabelledTexts, tokenizer: TextTokenizer, **controls) -> tuple[np.ndarray, np.ndarray]:
    """Edges and strongest chains of the first window of each text."""
    encoded = [ids[: model.config.context] for ids in tokenizer.encode_batch(list(texts.texts))]
    inputs = torch.zeros(len(encoded), max(map(len, encoded)), dtype=torch.long)
    valid = torch.zeros_like(inputs, dtype=torch.bool)
    for row, ids in enumerate(encoded):
        inputs[row, : len(ids)], valid[row, : len(ids)] = torch.from_numpy(ids).long(), True
    result = model.trace(inputs, valid, **controls)
    return result.edges.numpy(), result.module_ids[:, 0, :, 0].numpy()


def routing(model: HModel, texts: LabelledTexts, tokenizer: TextTokenizer) -> dict[str, Any]:
    """Do the connections know the language? Beside shuffled labels and the untrained twin."""
    labels, hidden = np.array(texts.languages), model.config.num_modules
    edges, chains = traced(model, texts, tokenizer)
    torch.manual_seed(1)
    untrained, untrained_chains = traced(HModel(model.config).eval(), texts, tokenizer)
    distance = label_distance(edges, labels, hidden, shuffles=SHUFFLES)
    chain, untrained_chain = (
        association(unique_rows(rows)[1], np.unique(labels, return_inverse=True)[1], shuffles=SHUFFLES)
        for rows in (chains, untrained_chains)
    )
    within_language = np.mean([stability(edges[labels == name], hidden) for name in distance.labels])
    return {
        "texts": len(labels),
        "shuffles": SHUFFLES,
        "distance": _rounded(
            {
                "within": distance.within,
                "between": distance.between,
                "ratio": distance.ratio,
                "null_mean": distance.null_mean,
                "null_max": distance.null_max,
                "p_value": distance.p_value,
                "untrained_ratio": label_distance(untrained, labels, hidden, shuffles=0).ratio,
                "untrained_between": label_distance(untrained, labels, hidden, shuffles=0).between,
            }
        ),
        "nearest_language_accuracy": round(nearest_label_accuracy(edges, labels, hidden), 4),
        "untrained_nearest_language_accuracy": round(nearest_label_accuracy(untrained, labels, hidden), 4),
        "chain": _rounded(
            {
                "nmi": chain.nmi,
                "null_mean": chain.null_mean,
                "p_value": chain.p_value,
                "untrained_nmi": untrained_chain.nmi,
                "distinct": len(np.unique(chains, axis=0)),
            }
        ),
        "strongest_chain": {name: _commonest(chains[labels == name]) for name in distance.labels},
        "self_share": round(self_share(edges, hidden), 4),
        "equal_self_share": round(1 / model.config.num_targets, 4),
        "stability": round(stability(edges, hidden), 5),
        "stability_within_language": round(float(within_language), 5),
        "untrained_stability": round(stability(untrained, hidden), 6),
    }


def _commonest(chains: np.ndarray) -> dict[str, Any]:
    rows, counts = np.unique(chains, axis=0, return_counts=True)
    return {"chain": rows[counts.argmax()].tolist(), "share": round(float(counts.max() / counts.sum()), 3)}


def output_depth(edges: np.ndarray, num_hidden: int) -> float:
    """Mean iteration at which weight is sent to the outputs, the input step being 0."""
    sent_I = edges[:, :, :, num_hidden:].sum(axis=(0, 2, 3))
    return float((np.arange(len(sent_I)) * sent_I).sum() / sent_I.sum())


@torch.inference_mode()
def controls(model: HModel, texts: LabelledTexts, tokenizer: TextTokenizer, windows: int = 64) -> list[dict[str, Any]]:
    """Loss, connections, depth and cost when α, α_rate or top-k change after training."""
    ids, context, labels = texts.corpus(tokenizer).ids, model.config.context, np.array(texts.languages)
    starts = torch.linspace(0, len(ids) - context - 1, windows).long()
    rows = ids[starts[:, None] + torch.arange(context + 1)].long()
    settings = [dict(alpha=a) for a in ALPHAS] + [dict(alpha_rate=r) for r in RATES if r != 1]
    settings += [dict(top_k=k) for k in TOP_K if k <= model.config.num_targets]
    hidden, found = model.config.num_modules, []
    for setting in settings:
        result = model.trace(rows[:, :-1], **setting)
        flat, goal = result.logits.flatten(0, 1), rows[:, 1:].flatten()
        edges, chains = traced(model, texts, tokenizer, **setting)
        used = edges[:, 1:, :hidden]
        found.append(
            setting
            | _rounded(
                {
                    "loss": float(token_losses(flat, goal).mean()),
                    "accuracy": float((flat.argmax(-1) == goal).float().mean()),
                    "flops_per_token": float(result.flops.mean()),
                    "mean_connection": float(used[used > 0].mean()),
                    "undecided": float(((edges > 0.1) & (edges < 0.9)).sum() / (edges > 0).sum()),
                    "self_share": self_share(edges, hidden),
                    "output_depth": output_depth(edges, hidden),
                    "ratio": label_distance(edges, labels, hidden, shuffles=0).ratio,
                    "chains": len(np.unique(chains, axis=0)),
                }
            )
        )
    return found


def _rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in numbers.items()}


def show_shipped(languages: Languages, trainings: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Routing of the shipped checkpoint, put on its card beside the rivals that were trained as long."""
    folder = SHIPPED_MODELS / SHIPPED
    checkpoint, tokenizer = read_checkpoint(folder), TextTokenizer.load(folder / TOKENIZER)
    model = build_model(checkpoint, CPU)
    assert isinstance(model, HModel)
    found = routing(model, languages.held_out, tokenizer)
    beside = {}
    for name, rows in trainings.items():
        own = [row for row in rows if (row["iterations"], row["seed"]) == (checkpoint.training["iterations"], 0)]
        if own:
            recipe = HMODEL_RECIPES[name]
            with torch.device("meta"):
                params = sum(p.numel() for p in family_class(recipe.family)(recipe.model).parameters())
            beside[name] = {"params": params, "loss": own[0]["loss"], "accuracy": own[0]["accuracy"]}
    note(folder, {"beside": beside, "routing": found})
    return {"iterations": checkpoint.training["iterations"], "routing": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--iterations", type=int, help="length of the trainings in --work, if not the recipes'")
    parser.add_argument("--trainings", type=Path)
    parser.add_argument("--shipped", action="store_true")
    arguments = parser.parse_args()
    if not (arguments.work or arguments.trainings or arguments.shipped):
        parser.error("give --work, the folder with the states of training, --trainings or --shipped")
    languages, document = load_languages(arguments.data), kept_document("hmodel")
    kept, measured_on = dict(document["results"]), document.get("machine")
    command = "python -m benchmarks.hmodel --data <data folder> --work <work folder>"
    if arguments.iterations:
        command += f" --iterations {arguments.iterations}"
    if arguments.trainings:
        kept["trainings"] = read_trainings(arguments.trainings, HMODEL_RECIPES, "held_out")
    if arguments.shipped:
        kept["shipped"] = show_shipped(languages, kept.get("trainings", {}))
    if arguments.work is None:
        report("hmodel", document["command"], kept, measured_on=measured_on)
        return
    tokenizer = tokenizer_for(languages, arguments.work)
    models, held = trained(arguments.work, arguments.iterations), languages.held_out
    own = {name: model for name, model in models.items() if isinstance(model, HModel)}
    ids = held.corpus(tokenizer).ids
    results: dict[str, Any] = {
        "iterations": arguments.iterations or HMODEL_RECIPES[SHIPPED].iterations,
        "held_out_texts": len(held.texts),
        "held_out_tokens": len(ids),
        "models": {name: quality(model, languages, tokenizer) for name, model in models.items()},
        "leak": {name: leak(model, ids) for name, model in own.items()},
        "routing": {name: routing(model, held, tokenizer) for name, model in own.items()},
        "controls": controls(own[SHIPPED], held, tokenizer),
    }
    report("hmodel", command, results | {key: kept[key] for key in ("trainings", "shipped") if key in kept})


if __name__ == "__main__":
    main()
