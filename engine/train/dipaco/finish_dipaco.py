"""After DiPaCo training: the learned re-router, validation numbers, the checkpoint and its card.

Shapes: N sequences, T tokens, P paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.checkpoint_config import TOKENIZER, read_checkpoint
from tokenpaths.engine.models.checkpoint import build_model, save_checkpoint
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.models.dipaco_path import PathModel
from tokenpaths.engine.models.dipaco_router import best_continuation, fit_rerouter, nearest
from tokenpaths.engine.train.cards import ENGLISH, is_of_shipped_data, mebibytes, rounded, save_card, section
from tokenpaths.engine.train.dipaco.dipaco_run import DiPaCoRun
from tokenpaths.engine.train.dipaco.documents import Sequences, document_features, path_scores, split_documents
from tokenpaths.engine.train.dipaco.path_report import (
    PathScores,
    bounds,
    chosen_paths,
    perplexity_by_label,
    reroute_curve,
    shard_table,
)
from tokenpaths.engine.train.loop import training_record


@dataclass(frozen=True)
class RoutedSums:
    """Sums over the tokens of each sequence behind the prefix."""

    loss: Float[Tensor, " N"]
    """nats"""
    right: Int[Tensor, " N"]
    count: Int[Tensor, " N"]

    @property
    def numbers(self) -> dict[str, float]:
        """Loss, perplexity and accuracy over all of them."""
        count = int(self.count.sum())
        loss = float(self.loss.sum()) / count
        return {"loss": loss, "perplexity": math.exp(loss), "accuracy": float(self.right.sum()) / count, "count": count}


def routed_numbers(
    paths: Sequence[PathModel], chosen: Int[Tensor, " N"], sequences: Sequences, prefix: int
) -> dict[str, float]:
    """Loss, perplexity and accuracy behind the prefix in float32, each sequence on its own path only."""
    return routed_sums(paths, chosen, sequences, prefix).numbers


@torch.no_grad()
def routed_sums(paths: Sequence[PathModel], chosen: Int[Tensor, " N"], sequences: Sequences, prefix: int) -> RoutedSums:
    """What ``routed_numbers`` sums up, by sequence."""
    loss = torch.zeros(len(sequences), dtype=torch.float64)
    right, count = (torch.zeros(len(sequences), dtype=torch.long) for _ in range(2))
    device = paths[0].ends.positions.device
    for p, model in enumerate(paths):
        rows = (chosen == p).nonzero().squeeze(1)
        rows = rows[sequences.length[rows].argsort(descending=True, stable=True)]
        for part in rows.split(16):
            if not len(part):
                continue
            inputs, targets = sequences.batch(part)
            targets[:, : prefix - 1] = -100
            has_target = targets >= 0
            own, goal = part.unsqueeze(1).expand_as(targets)[has_target], targets[has_target].to(device)
            logits = model.ends.head(model.hidden(inputs.to(device))[has_target.to(device)]).float()
            nats = torch.nn.functional.cross_entropy(logits, goal, reduction="none")
            loss.index_add_(0, own, nats.double().cpu())
            right.index_add_(0, own, (logits.argmax(dim=-1) == goal).long().cpu())
            count[part] = has_target.sum(dim=1)
    return RoutedSums(loss, right, count)


def document_paths(model: DiPaCo, sequences: Sequences) -> Int[Tensor, " N"]:
    """The path of each sequence by the document's router."""
    features = document_features(model.router, sequences).to(model.device)
    return nearest(model.router.scores(features))[:, 0].cpu()


def learn_to_reroute(
    run: DiPaCoRun, sequences: Sequences, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, float]:
    """``train_rerouter`` of a finished run, on the documents that it set aside for its routers.

    Part of every export: until then the re-router is noise, and routing again with it would be too.
    """
    recipe = run.recipe
    split = split_documents(sequences, recipe.router_share, recipe.stop_share, recipe.split_seed)
    own = sequences.select(split.router)
    return train_rerouter(run.model, own, bfloat16=run.bfloat16, on_progress=on_progress)


def train_rerouter(
    model: DiPaCo,
    sequences: Sequences,
    *,
    horizon: int | None = 64,
    iterations: int = 300,
    batch_size: int = 16,
    learning_rate: float = 5e-4,
    seed: int = 0,
    bfloat16: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, float]:
    """Score sequences set aside with every path, and learn the best continuation at every token.

    A quarter of the sequences is held back from the learning; returns the learned router's
    accuracy on it, and that of always naming its most frequent path.
    """
    paths = [model.path_model(p) for p in range(model.config.num_paths)]
    scores = path_scores(paths, sequences, bfloat16=bfloat16, on_progress=on_progress)
    best = best_continuation(scores, horizon)
    inside = torch.arange(best.shape[1]) < (sequences.length - 1)[:, None]
    best[~inside] = -100
    # Every fourth document: none is on both sides.
    held = torch.isin(sequences.document, sequences.document.unique()[::4])
    learn, check = (~held).nonzero().squeeze(1), held.nonzero().squeeze(1)
    if not len(learn):
        raise UserError(
            f"{len(sequences.document.unique())} documents are set aside for the re-router, which needs two at least: "
            "raise router_share",
            field="router_share",
        )

    def batch(i: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + i)
        rows = learn[torch.randint(len(learn), (batch_size,), generator=generator)]
        ids, _ = sequences.batch(rows)
        return ids.to(model.device), best[rows, : ids.shape[1]].to(model.device)

    losses = fit_rerouter(model.router, batch, iterations, learning_rate=learning_rate)
    right, count, frequent = 0, 0, torch.zeros(model.config.num_paths)
    with torch.no_grad():
        for rows in check.split(32):
            ids, _ = sequences.batch(rows)
            goal = best[rows, : ids.shape[1]]
            has_goal = goal >= 0
            named = model.router.running_scores(ids.to(model.device)).argmax(dim=-1).cpu()
            right += int((named == goal)[has_goal].sum())
            count += int(has_goal.sum())
            frequent += torch.bincount(goal[has_goal], minlength=len(frequent))
    return {
        "loss": sum(losses[-20:]) / len(losses[-20:]),
        "accuracy": right / max(1, count),
        "most_frequent": float(frequent.max()) / max(1, count),
        "sequences": len(learn),
    }


def findings(found: PathScores, model: DiPaCo, sequences: Sequences) -> dict[str, Any]:
    """What the views show of a model: perplexity against W, its bounds, shards and labels."""
    once = chosen_paths(found, None)
    table = shard_table(
        found.document.numpy(),
        sequences.label.numpy(),
        sequences.labels,
        model.config.num_paths,
        documents=sequences.document.numpy(),
    )
    nmi = table.association
    return {
        "rerouting": [rounded(asdict(point)) for point in reroute_curve(found)] if found.running is not None else [],
        "bounds": rounded(bounds(found)),
        "by_label": rounded(perplexity_by_label(found, once, sequences)),
        "shards": {
            "sizes": table.sizes.tolist(),
            "labels": list(table.labels),
            "counts": table.counts.tolist(),
            "nmi": None if nmi is None else rounded(asdict(nmi)),
        },
    }


def export(run: DiPaCoRun, out: Path, tokenizer: TextTokenizer, command: str, base: DiPaCoRun | None = None) -> DiPaCo:
    """The checkpoint that ships, read back: what it says is measured on this one."""
    iterations = run.outer * run.recipe.inner_iterations
    training = training_record(run.recipe, iterations, run.seconds, command, run.history)
    training |= {"paths": run.recipe.model.num_paths, "sizes": run.sizes}
    if base is not None:
        training["base"] = {
            "iterations": base.outer * base.recipe.inner_iterations,
            "batch_size": base.recipe.batch_size,
            "learning_rate": base.recipe.learning_rate,
        }
    save_checkpoint(out, run.model, training=training)
    tokenizer.save(out / TOKENIZER)
    model = build_model(read_checkpoint(out))
    assert isinstance(model, DiPaCo)
    return model


def write_card(folder: Path) -> Path:
    """``card.md`` from the checkpoint's configuration."""
    checkpoint = read_checkpoint(folder)
    config, training, numbers = checkpoint.config, checkpoint.training, checkpoint.validation
    recipe = training["recipe"]
    grid = "×".join(str(k) for k in config.levels)
    lines = [
        f"# {checkpoint.name}",
        "",
        f"A {grid} DiPaCo: {config.num_paths} paths, each one module of {config.blocks[0]} transformer blocks a level, "
        f"width {config.width}, {config.heads} heads, embedding and unembedding shared. A document's path follows "
        f"from its first {config.prefix} tokens ({config.router} router on the features of the base path).",
        "",
        f"- weights: bfloat16 safetensors (the router's scores float32), {mebibytes(folder):.1f} MiB, base path "
        f"{'and learned re-router ' if 'rerouter' in numbers else ''}included",
        "- data: `english_train.parquet`, validated on `english_val.parquet`"
        + f": English text of five domains ({ENGLISH})" * is_of_shipped_data(training),
        f"- command: `{training['command']}`",
        *(
            [f"- base: {b['iterations']} iterations of {b['batch_size']} sequences, rate {b['learning_rate']:g}"]
            if (b := training.get("base"))
            else []
        ),
        f"- paths: {training['iterations']} iterations of {recipe['batch_size']} sequences each, an outer step "
        f"(rate {recipe['outer_rate']:g}, Nesterov momentum {recipe['outer_momentum']:g}) every "
        f"{recipe['inner_iterations']}, in "
        f"{training['wall_seconds'] / 60:.0f} minutes on {training['machine']}, finished {training['date']}",
        f"- inner: {recipe['schedule']} schedule, peak rate {recipe['learning_rate']:g}, AdamW "
        f"{tuple(recipe['betas'])}, weight decay {recipe['weight_decay']:g}, seed {recipe['seed']}; shard sizes "
        f"{', '.join(map(str, training['sizes']))}",
        *section("Validation"),
        f"Behind the routing prefix, on the shipped weights in float32, {numbers.get('count', 0):,} tokens.",
        "",
        *_numbers(checkpoint.name, numbers),
        *_rerouting(numbers),
        *_shards(numbers),
        *section("Curve"),
        *_curve(training),
        *section("Limits"),
        f"A small model for looking at routing, not for use: a context of {config.context} tokens, a vocabulary of "
        f"{config.vocab_size:,}, a few hundred iterations. The learned re-router tunes one block of the base, the "
        "paper's the whole base.",
    ]
    return save_card(folder, lines)


def _numbers(name: str, numbers: dict[str, Any]) -> list[str]:
    rows = {name: numbers} | numbers.get("beside", {})
    return [
        "| model | loss (nats) | perplexity | accuracy |",
        "|---|---|---|---|",
        *(
            f"| {k} | {v['loss']:.3f} | {v['perplexity']:.1f} | {v['accuracy']:.1%} |"
            for k, v in rows.items()
            if "loss" in v
        ),
    ]


def _rerouting(numbers: dict[str, Any]) -> list[str]:
    if not numbers.get("rerouting"):
        return []
    limits = numbers["bounds"]
    return [
        *section("Routing again every W tokens"),
        "| W | perplexity | decisions that switch | paths a sequence |",
        "|---|---|---|---|",
        *(
            f"| {row['every'] or 'once'} | {row['perplexity']:.2f} | {row['switched']:.0%} | "
            f"{row['paths_per_sequence']:.2f} |"
            for row in numbers["rerouting"]
        ),
        "",
        f"Best single path for all: {limits['best_single_path']:.2f}; each sequence's best path in hindsight: "
        f"{limits['best_in_hindsight']:.2f}.",
    ]


def _shards(numbers: dict[str, Any]) -> list[str]:
    if "shards" not in numbers:
        return []
    shards = numbers["shards"]
    lines = [
        *section("Domains by path"),
        "| | " + " | ".join(f"path {p}" for p in range(len(shards["sizes"]))) + " |",
        "|---|" + "---|" * len(shards["sizes"]),
        *(
            f"| {label} | " + " | ".join(map(str, row)) + " |"
            for label, row in zip(shards["labels"], shards["counts"], strict=True)
        ),
    ]
    if nmi := shards["nmi"]:
        lines += [
            "",
            f"NMI of path and domain {nmi['nmi']:.3f}, shuffled {nmi['null_mean']:.3f}, p = {nmi['p_value']:.3f}.",
        ]
    return lines


def _curve(training: dict[str, Any]) -> list[str]:
    """Losses by outer step; the one set aside over all predictions, or over paths where their numbers are not known."""
    history = training["history"]
    rows = [(row["outer"], fmean(row["train_loss"]), _set_aside(row)) for row in history]
    over_paths = any("stop_loss" in row and "stop_count" not in row for row in history)
    lines = [
        "| outer step | training loss, mean over paths | loss set aside" + ", mean over paths" * over_paths + " |",
        "|---|---|---|",
        *(f"| {outer} | {loss:.3f} | {'–' if aside is None else f'{aside:.3f}'} |" for outer, loss, aside in rows),
    ]
    if over_paths and (steps := training["recipe"]["reshard_at"]):
        lines += [
            "",
            "Each path's loss set aside is that of the documents routed to it, 64 sequences at most. They are others "
            f"after outer step {', '.join(map(str, steps))}, where documents were sharded again: do not compare the "
            "last column across it.",
        ]
    return lines


def _set_aside(row: dict[str, Any]) -> float | None:
    """Mean of the losses of what is set aside for each path that has any: over predictions, else over paths."""
    losses = row.get("stop_loss", [])
    counts = row.get("stop_count", [int(loss is not None) for loss in losses])
    known = [(loss, count) for loss, count in zip(losses, counts, strict=True) if loss is not None]
    return sum(loss * count for loss, count in known) / sum(count for _, count in known) if known else None
