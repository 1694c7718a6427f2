"""Path report of a trained DiPaCo: shards and labels, shared modules, and the gain from routing again.

Shapes: N sequences, T tokens, P paths, L labels, S levels, W tokens between decisions.
Source: DiPaCo, sections 2.4, 4.4 and 7.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from tokenpaths.engine.analysis.association import Association, association
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.dipaco_config import DiPaCoConfig
from tokenpaths.engine.models.dipaco import DiPaCo, chunk_of_position
from tokenpaths.engine.models.dipaco_router import nearest
from tokenpaths.engine.train.dipaco.documents import Sequences, after_prefix, document_features, path_scores

WINDOWS: tuple[int | None, ...] = (None, 64, 32, 16)


@dataclass(frozen=True)
class ShardTable:
    """Documents by path, and by label and path."""

    sizes: Integer[np.ndarray, " P"]
    labels: tuple[str, ...]
    counts: Integer[np.ndarray, "L P"]
    association: Association | None
    """NMI of path and label with its permutation null; None where there is one label only"""


def shard_table(
    paths: Integer[np.ndarray, " N"],
    labels: Integer[np.ndarray, " N"],
    names: Sequence[str],
    num_paths: int,
    *,
    documents: Integer[np.ndarray, " N"] | None = None,
    shuffles: int = 200,
    seed: int = 0,
) -> ShardTable:
    """Shard sizes, label × path table, and whether paths know the label.

    ``documents`` says which sequences are of one document: labels are shuffled over documents then.

    Raises:
        UserError: a path or a label is outside its range.
    """
    for field, values, count in (("paths", paths, num_paths), ("labels", labels, len(names))):
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < count:
            raise UserError(f"{field} must be between 0 and {count - 1}", field=field)
    counts = np.zeros((len(names), num_paths), dtype=np.int64)
    np.add.at(counts, (labels, paths), 1)
    domain_nmi = None
    if len(np.unique(labels)) > 1:
        domain_nmi = association(paths, labels, groups=documents, shuffles=shuffles, seed=seed)
    return ShardTable(counts.sum(axis=0), tuple(names), counts, domain_nmi)


@dataclass(frozen=True)
class SharedModule:
    """A module and the paths through it."""

    level: int
    module: int
    paths: tuple[int, ...]


def shared_modules(config: DiPaCoConfig) -> list[SharedModule]:
    """Which paths share which module, level by level."""
    members = config.path_modules
    return [
        SharedModule(level, module, tuple(np.flatnonzero(members[:, level] == module).tolist()))
        for level, count in enumerate(config.levels)
        for module in range(count)
    ]


def levels_in_common(config: DiPaCoConfig) -> Integer[np.ndarray, "P P"]:
    """At how many levels two paths share their module; S on the diagonal."""
    members = config.path_modules
    return (members[:, None, :] == members[None, :, :]).sum(axis=-1)


@dataclass(frozen=True)
class PathScores:
    """Every sequence under every path, and what the routers say: all that a choice of paths is judged by."""

    scores: Float[Tensor, "N T P"]
    counted: Bool[Tensor, "N T"]
    """positions whose successor stands behind the routing prefix"""
    document: Int[Tensor, " N"]
    """path of each sequence by the document's router"""
    running: Int[Tensor, "N T"] | None
    """path that the learned router would choose after each token"""
    prefix: int


@torch.no_grad()
def score_all_paths(
    model: DiPaCo, sequences: Sequences, *, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> PathScores:
    """Run every path over every sequence, once, in float32; every W is then a matter of looking up.

    ``on_progress`` hears (sequences done, of how many).
    """
    paths = [model.path_model(p) for p in range(model.config.num_paths)]
    scores = path_scores(paths, sequences, on_progress=on_progress)
    document = nearest(model.router.scores(document_features(model.router, sequences).to(model.device)))[:, 0]
    running = None
    if model.router.rerouter is not None:
        running = torch.zeros(scores.shape[:2], dtype=torch.long)
        for rows in torch.arange(len(sequences)).split(64):
            ids, _ = sequences.batch(rows)
            running[rows, : ids.shape[1]] = model.router.running_scores(ids.to(model.device)).argmax(dim=-1).cpu()
    prefix = model.config.prefix
    return PathScores(scores, after_prefix(sequences, prefix), document.cpu(), running, prefix)


def chosen_paths(found: PathScores, every: int | None) -> Int[Tensor, "N T"]:
    """The path behind each position's prediction when the path is chosen again every W tokens.

    Raises:
        UserError: W is given, but there is no learned router.
    """
    tokens = found.scores.shape[1]
    if every is None:
        return found.document[:, None].expand(-1, tokens)
    if found.running is None:
        raise UserError("this model has no learned router to choose again with", field="reroute_every")
    chunk_T = chunk_of_position(tokens, found.prefix, every)
    last_T = (found.prefix + chunk_T * every - 1).clamp(max=tokens - 1)
    return torch.where(chunk_T == 0, found.document[:, None], found.running[:, last_T])


def perplexity(found: PathScores, paths: Int[Tensor, "N T"]) -> float:
    """exp of the mean loss behind the prefix, every position under its path."""
    chosen = found.scores.gather(2, paths.unsqueeze(2)).squeeze(2)
    return math.exp(-float(chosen[found.counted].double().mean()))


def perplexity_by_label(found: PathScores, paths: Int[Tensor, "N T"], sequences: Sequences) -> dict[str, float]:
    """The same for the sequences of each label."""
    chosen = found.scores.gather(2, paths.unsqueeze(2)).squeeze(2)
    answer = {}
    for index, name in enumerate(sequences.labels):
        own = found.counted & (sequences.label == index)[:, None]
        if bool(own.any()):
            answer[name] = math.exp(-float(chosen[own].double().mean()))
    return answer


@dataclass(frozen=True)
class ReroutePoint:
    """What routing again every W tokens gives."""

    every: int | None
    perplexity: float
    switched: float
    """share of decisions after the first that changed the path"""
    paths_per_sequence: float


def reroute_curve(found: PathScores, windows: Sequence[int | None] = WINDOWS) -> list[ReroutePoint]:
    """Perplexity against W, once per sequence (None) first as it stands in ``windows`` (table 3)."""
    curve = []
    for every in windows:
        paths = chosen_paths(found, every)
        reaches_NT = found.counted
        changes = 0
        decisions = 0
        distinct = torch.stack([((paths == p) & reaches_NT).any(dim=1) for p in range(found.scores.shape[2])], dim=1)
        if every is not None:
            chunk_T = chunk_of_position(paths.shape[1], found.prefix, every)
            starts = (chunk_T[1:] > chunk_T[:-1]).nonzero().squeeze(1) + 1
            real = reaches_NT[:, starts]
            changes = int(((paths[:, starts] != paths[:, starts - 1]) & real).sum())
            decisions = int(real.sum())
        curve.append(
            ReroutePoint(
                every, perplexity(found, paths), changes / max(1, decisions), float(distinct.sum(dim=1).float().mean())
            )
        )
    return curve


def bounds(found: PathScores) -> dict[str, float]:
    """What routing could give: the best single path for all, and each sequence's best path in hindsight."""
    sums_NP = (found.scores * found.counted.unsqueeze(2)).sum(dim=1)
    shape = found.scores.shape[:2]
    single = sums_NP.sum(dim=0).argmax().expand(shape)
    hindsight = sums_NP.argmax(dim=1)[:, None].expand(shape)
    return {"best_single_path": perplexity(found, single), "best_in_hindsight": perplexity(found, hindsight)}


@torch.no_grad()
def path_sequence(model: DiPaCo, ids: Int[Tensor, " T"], every: int | None) -> list[dict[str, Any]]:
    """The paths along one document: a row a decision, with the tokens that it predicted.

    ``start`` and ``end`` bound the tokens (the first chunk begins with the prefix); ``loss`` is their mean
    over the tokens behind the prefix, in nats, None where there is none.
    """
    prefix = model.config.prefix
    output = model(ids[:-1].unsqueeze(0), reroute_every=every)
    losses_T = torch.nn.functional.cross_entropy(output.logits[0].float(), ids[1:], reduction="none")
    position_T = torch.arange(len(losses_T), device=ids.device)
    rows = []
    for chunk, path in enumerate(output.paths[0].tolist()):
        own = output.chunks == chunk
        own_positions = position_T[own]
        counted = own & (position_T >= prefix - 1)
        rows.append(
            {
                "chunk": chunk,
                "start": 0 if chunk == 0 else int(own_positions[0]) + 1,
                "end": int(own_positions[-1]) + 2,
                "path": path,
                "modules": model.config.path_modules[path].tolist(),
                "loss": float(losses_T[counted].mean()) if bool(counted.any()) else None,
            }
        )
    return rows
