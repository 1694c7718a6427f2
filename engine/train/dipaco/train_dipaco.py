"""DiPaCo training: paths apart for τ iterations, then one outer step per module; resumable after each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor

from tokenpaths.engine.base.device import pick_device
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.models.checkpoint import save_tensors
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.models.dipaco_path import PathModel, new_path
from tokenpaths.engine.models.dipaco_router import LinearScores, fit_discriminative, fit_kmeans, fit_product, nearest
from tokenpaths.engine.train.dipaco.dipaco_recipe import DiPaCoRecipe
from tokenpaths.engine.train.dipaco.dipaco_run import STATE, DiPaCoRun, resume, save_run
from tokenpaths.engine.train.dipaco.documents import (
    Sequences,
    Split,
    check_shards,
    document_features,
    path_scores,
    split_documents,
)
from tokenpaths.engine.train.dipaco.path_workers import (
    PathDiverged,
    PathTask,
    PathWorker,
    WorkerPool,
    path_file,
    save_sequences,
    shards_file,
)
from tokenpaths.engine.train.loop import Progress, TrainingDiverged
from tokenpaths.engine.train.resuming import takes_bfloat16

BEST = "best-{:03d}.safetensors"


@dataclass(frozen=True)
class Resources:
    """What a training runs on; none of it changes its numbers, but for ``threads``."""

    workers: int = 0
    """processes that share the paths; 0: this one trains them one after the other"""
    threads: int | None = None
    """of each process; None: torch's present number"""
    device: torch.device | None = None
    """None: the best there is"""


def outer_step(before: Tensor, change: Tensor, velocity: Tensor, rate: float, momentum: float) -> tuple[Tensor, Tensor]:
    """Nesterov: ``v ← μ·v + Δ``, ``θ ← θ − η·(Δ + μ·v)``; returns the new θ and v."""
    velocity = momentum * velocity + change
    return before - rate * (change + momentum * velocity), velocity


def path_weights(sizes: list[int], users: list[int], recipe: DiPaCoRecipe) -> dict[int, float]:
    """Weight of each path's change of a module: its share of the documents, times √(number of paths).

    Equations 2 and 3 and "Outer Gradient Norm Rescaling" of section 2.7.
    """
    counts = {p: sizes[p] if recipe.weigh_shards else 1 for p in users}
    scale = math.sqrt(len(users)) if recipe.rescale else 1.0
    total = sum(counts.values())
    return {p: scale * count / total for p, count in counts.items()}


def train(
    recipe: DiPaCoRecipe,
    sequences: Sequences,
    folder: Path,
    *,
    base: PathModel | None = None,
    features: Float[Tensor, "N D"] | None = None,
    resources: Resources = Resources(),
    until: int | None = None,
    on_progress: Callable[[Progress], None] = lambda p: None,
) -> DiPaCoRun:
    """Train to the end (or to outer step ``until``), from where the folder's state stands.

    ``base`` is the pre-trained path that all paths start from and the router's features come from (None:
    a fresh one); ``features`` of all sequences saves computing them again. With equal ``resources.threads``
    training in workers and in this process give the same numbers, killed workers or not.

    Raises:
        UserError: something cannot work; the message names the field.
        TrainingDiverged: a loss or weight is not finite; the state of the last outer step is kept.
    """
    device, workers = resources.device or pick_device(), resources.workers
    folder.mkdir(parents=True, exist_ok=True)
    split = split_documents(sequences, recipe.router_share, recipe.stop_share, recipe.split_seed)
    run = open_run(recipe, sequences, split, folder, base, device, features)
    threads = resources.threads or torch.get_num_threads()
    if workers:
        save_sequences(folder, sequences)
    pool = WorkerPool(recipe, folder, workers, threads, str(device), run.bfloat16) if workers else None
    here = PathWorker(recipe, sequences, folder, device, bfloat16=run.bfloat16)
    clock = _Clock(run, on_progress)
    with pool or nullcontext():
        while run.outer < min(recipe.outer_steps, recipe.outer_steps if until is None else until):
            due = recipe.reshard_at[run.resharded :]
            # Where all paths have stopped, nothing would come of waiting for the iteration of the re-sharding.
            if due and (run.outer == due[0] or all(run.stopped)):
                reshard(run, sequences, split)
            if all(run.stopped):
                break
            try:
                _advance(run, sequences, split, here, pool, clock)
            except PathDiverged as error:
                raise TrainingDiverged(
                    f"{recipe.name}: {error}; the state of outer step {run.outer} is kept in {folder.name}. "
                    f"Lower learning_rate (now {recipe.learning_rate}) and train again"
                ) from None
    return run


class _Clock:
    """Counts inner iterations of all paths and tells the progress bar."""

    def __init__(self, run: DiPaCoRun, on_progress: Callable[[Progress], None]) -> None:
        self.run, self.on_progress = run, on_progress
        recipe = run.recipe
        workers = recipe.model.num_paths * recipe.replicas
        self.total, self.done = recipe.iterations * workers, run.outer * recipe.inner_iterations * workers
        self.started = self.last = time.monotonic()
        self.recent: list[float] = []

    def skip(self, iterations: int) -> None:
        self.done += iterations

    def tick(self, loss: float) -> None:
        now = time.monotonic()
        self.recent = [*self.recent[-99:], now - self.last]
        self.last = now
        self.done += 1
        rate = len(self.recent) / max(sum(self.recent), 1e-9)
        # A worker that died had counted iterations that are done again.
        done = min(self.done, self.total)
        self.on_progress(Progress(done, self.total, loss, rate, f"outer step {self.run.outer + 1}"))


def _advance(
    run: DiPaCoRun, sequences: Sequences, split: Split, here: PathWorker, pool: WorkerPool | None, clock: _Clock
) -> None:
    """All paths' inner iterations, the outer step, early stopping, and the state on disk."""
    started, recipe = time.monotonic(), run.recipe
    active = [p for p in range(recipe.model.num_paths) if not run.stopped[p]]
    tasks = [PathTask(p, run.outer, replica) for p in active for replica in range(recipe.replicas)]
    waiting = [task for task in tasks if not path_file(run.folder, task).exists()]
    clock.skip((recipe.model.num_paths * recipe.replicas - len(waiting)) * recipe.inner_iterations)
    if pool is not None:
        pool.run(waiting, run.shards, lambda task, loss: clock.tick(loss))
    else:
        for task in waiting:
            here.run(task, run.shards, clock.tick)
    losses = apply_outer_step(run, tasks)
    run.outer += 1
    entry: dict[str, Any] = {"outer": run.outer, "train_loss": [round(x, 4) for x in losses], "sizes": run.sizes}
    held_back, counts = stop_losses(run, sequences, split)
    if held_back:
        entry |= {"stop_loss": [None if x is None else round(x, 4) for x in held_back], "stop_count": counts}
    _remember_best(run, held_back)
    if any(run.stopped):
        entry["stopped"] = [p for p, s in enumerate(run.stopped) if s]
    run.seconds += time.monotonic() - started
    run.history.append(entry | {"seconds": round(run.seconds, 1)})
    save_run(run)


def apply_outer_step(run: DiPaCoRun, tasks: list[PathTask]) -> list[float]:
    """Move every module by the weighted mean change of the paths through it; returns the paths' losses.

    One path's file is read at a time. A module whose paths have all stopped stays as it is; one of a
    single path is never averaged, but takes the outer step all the same (footnote 1 of the paper).
    """
    recipe = run.recipe
    active = {task.path for task in tasks}
    users = {name: [p for p in paths if p in active] for name, paths in run.model.paths_through().items()}
    before = {name: p.detach() for name, p in run.model.named_parameters() if name in users}
    change = {name: torch.zeros_like(before[name]) for name, paths in users.items() if paths}
    weights = {name: path_weights(run.sizes, paths, recipe) for name, paths in users.items() if paths}
    losses: dict[int, list[float]] = {task.path: [] for task in tasks}
    for task in tasks:
        tensors = load_file(path_file(run.folder, task), device=str(run.model.device))
        losses[task.path].append(float(tensors["loss"]))
        for mine, name in run.model.path_names(task.path).items():
            change[name] += weights[name][task.path] / recipe.replicas * (before[name] - tensors[f"after.{mine}"])
    for name, delta in change.items():
        after, velocity = outer_step(before[name], delta, run.velocity[name], recipe.outer_rate, recipe.outer_momentum)
        if not torch.isfinite(after).all():
            raise PathDiverged(f"{name} became nan or infinite in outer step {run.outer + 1}")
        before[name].copy_(after)
        run.velocity[name] = velocity
    return [sum(own) / len(own) for own in losses.values()]


def stop_losses(
    run: DiPaCoRun, sequences: Sequences, split: Split, most: int = 64
) -> tuple[list[float | None], list[int]]:
    """Loss behind the prefix of each path on the sequences set aside that are routed to it; of how many predictions.

    At most ``most`` sequences for each path there is are read, the same after every sharding, so that the loss over all
    of them can be compared from one outer step to the next.
    """
    if not len(split.stop):
        return [], []
    count = run.recipe.model.num_paths
    # Evenly spaced: documents lie in the file by their source.
    sample = split.stop[torch.linspace(0, len(split.stop) - 1, min(len(split.stop), most * count)).long()]
    own, paths, prefix = sequences.select(sample), _paths(run, sample)[:, 0], run.recipe.model.prefix
    losses: list[float | None] = []
    counts: list[int] = []
    for p in range(count):
        part = own.select((paths == p).nonzero().squeeze(1))
        counts.append(int((part.length - prefix).sum()))
        if not counts[-1]:
            losses.append(None)
            continue
        scores = path_scores([run.model.path_model(p)], part, bfloat16=run.bfloat16)[:, prefix - 1 :, 0]
        losses.append(float(-scores.sum()) / counts[-1])
    return losses, counts


def _remember_best(run: DiPaCoRun, losses: list[float | None]) -> None:
    """Keep each path's parameters where they were best on what was set aside for it; stop those that wait."""
    for p, loss in enumerate(losses):
        if run.stopped[p]:
            continue
        best = run.best_loss[p]
        if loss is None:
            run.best_outer[p] = run.outer
        elif best is None or loss < best:
            run.best_loss[p], run.best_outer[p] = loss, run.outer
            state = {n: t.detach() for n, t in run.model.path_model(p).named_parameters()}
            save_tensors(run.folder / BEST.format(p), state)
        run.stopped[p] = run.recipe.patience is not None and run.outer - run.best_outer[p] >= run.recipe.patience


def best_path(run: DiPaCoRun, path: int) -> PathModel:
    """The path as it was when it did best on what was set aside for it; as it is now if nothing was."""
    file = run.folder / BEST.format(path)
    if not file.exists():
        return run.model.path_model(path)
    with torch.device("meta"):
        model = new_path(run.recipe.model)
    model.load_state_dict(load_file(file, device=str(run.model.device)), assign=True)
    return model.eval()


def _features(run: DiPaCoRun, sequences: Sequences) -> Float[Tensor, "N D"]:
    """What the router reads of every sequence; a single path has nothing to choose."""
    if run.recipe.model.num_paths == 1:
        return torch.zeros(len(sequences), run.recipe.model.width)
    return document_features(run.model.router, sequences)


def _paths(run: DiPaCoRun, rows: Int[Tensor, " n"], nearest_paths: int = 1) -> Int[Tensor, "n k"]:
    """The present router's paths of some sequences."""
    return nearest(run.model.router.scores(run.features[rows].to(run.model.device)), nearest_paths).cpu()


def fit_first_router(run: DiPaCoRun, features: Float[Tensor, "N D"]) -> LinearScores:
    """The generative router that training starts with."""
    config, recipe = run.recipe.model, run.recipe
    kind = recipe.first_router if config.router == "discriminative" else config.router
    scale = features.std(dim=0, correction=0).clamp(min=1e-6) if recipe.standardise else torch.ones(config.width)
    scores = (
        fit_product(features / scale, config.levels, recipe.seed)
        if kind == "product"
        else fit_kmeans(features / scale, config.num_paths, recipe.seed)
    )
    # (z / s − mean) / 1 is (z − mean · s) / s.
    return replace(scores, mean=scores.mean * scale, scale=scores.scale * scale)


def _shard(run: DiPaCoRun, rows: Int[Tensor, " n"]) -> None:
    """Assign the training sequences by the present router and keep that on disk."""
    paths = _paths(run, rows, run.recipe.overlap)
    run.sizes = check_shards(paths, run.recipe.model, run.recipe.replicas).tolist()
    run.shards = run.outer
    save_tensors(shards_file(run.folder, run.outer), {"rows": rows, "paths": paths})


def reshard(run: DiPaCoRun, sequences: Sequences, split: Split) -> None:
    """Fit the discriminative router on what the paths make of the router documents, and shard again."""
    config = run.recipe.model
    own = sequences.select(split.router)
    scores = path_scores([run.model.path_model(p) for p in range(config.num_paths)], own, bfloat16=run.bfloat16)
    best = scores[:, config.prefix - 1 :].sum(dim=1).argmax(dim=1)
    # A path that is nobody's best would have no documents, and training would end here: it keeps half a fair share.
    counts = torch.bincount(best, minlength=config.num_paths).double()
    counts[counts == 0] = len(best) / config.num_paths / 2
    target = (counts / counts.sum()).float()
    run.model.router.set_scores(fit_discriminative(run.features[split.router], best, config.num_paths, target=target))
    _shard(run, split.train)
    for file in run.folder.glob(BEST.replace("{:03d}", "*")):
        file.unlink()
    # Losses on other shards cannot be compared with the ones before.
    run.best_loss, run.stopped = [None] * config.num_paths, [False] * config.num_paths
    run.resharded += 1
    save_run(run)


def open_run(
    recipe: DiPaCoRecipe,
    sequences: Sequences,
    split: Split,
    folder: Path,
    base: PathModel | None,
    device: torch.device,
    features: Float[Tensor, "N D"] | None = None,
) -> DiPaCoRun:
    """A fresh run, sharded and checked, or the one that the folder holds.

    Raises:
        UserError: the folder holds a run of other settings, or a fresh one cannot work.
    """
    torch.manual_seed(recipe.seed)
    model = DiPaCo(recipe.model).to(device).requires_grad_(False)
    count = recipe.model.num_paths
    parameters = dict(model.named_parameters())
    velocity = {name: torch.zeros_like(parameters[name]) for name in model.paths_through()}
    run = DiPaCoRun(
        recipe, folder, model, velocity, best_loss=[None] * count, best_outer=[0] * count, stopped=[False] * count
    )
    if (folder / STATE).exists():
        resume(run)
        run.features = _features(run, sequences) if features is None else features
        return run
    run.bfloat16 = takes_bfloat16({}, recipe.bfloat16, device)
    model.start_from(base or new_path(recipe.model).to(device))
    documents = sequences.document[split.train].unique()
    if len(documents) < count:
        check_shards(torch.zeros(len(documents), 1, dtype=torch.long), recipe.model)
    apart = len(sequences.document[split.router].unique())
    if recipe.reshard_at and apart < count:
        raise UserError(
            f"router_share {recipe.router_share:g} sets {apart} documents apart: the discriminative router needs at "
            f"least as many as there are paths, {count}",
            field="router_share",
        )
    run.features = _features(run, sequences) if features is None else features
    model.router.set_scores(fit_first_router(run, run.features[split.train]))
    _shard(run, split.train)
    save_run(run)
    return run
