"""Inner loop of DiPaCo training: one path for τ iterations, in this process or in a pool.

A task reads files and writes one file, all its randomness derives from (seed, path, epoch), and its precision is the
run's: neither who runs it, nor when, nor how often a worker dies changes its numbers.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
from safetensors.torch import load_file

from tokenpaths.engine.base.device import mixed_precision
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.models.checkpoint import save_tensors
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.models.dipaco_path import PathModel
from tokenpaths.engine.train.dipaco.dipaco_recipe import DiPaCoRecipe, learning_rate
from tokenpaths.engine.train.dipaco.documents import Sequences, shard_batch

DEATHS = 3
"""workers that one task may cost before training gives up"""


class PathDiverged(UserError):
    """The loss of one path became NaN or infinite; nothing of its task was written."""


@dataclass(frozen=True)
class PathTask:
    """τ inner iterations of one replica of a path, from the global parameters of an outer step."""

    path: int
    outer: int
    replica: int = 0


def global_file(folder: Path, outer: int) -> Path:
    """Parameters and outer velocity after ``outer`` outer steps."""
    return folder / f"outer-{outer:04d}.safetensors"


def path_file(folder: Path, task: PathTask) -> Path:
    """What a task leaves: the path's parameters and moments after its inner iterations."""
    return folder / f"path-{task.path:03d}-{task.replica:02d}-{task.outer:04d}.safetensors"


def shards_file(folder: Path, version: int) -> Path:
    """The paths that each training sequence trains, from outer step ``version`` on."""
    return folder / f"shards-{version:04d}.safetensors"


class PathWorker:
    """What runs tasks: recipe, sequences and shards in memory, parameters from files."""

    def __init__(
        self, recipe: DiPaCoRecipe, sequences: Sequences, folder: Path, device: torch.device, *, bfloat16: bool
    ) -> None:
        self.recipe, self.sequences, self.folder, self.device = recipe, sequences, folder, device
        self.bfloat16 = bfloat16
        with torch.device("meta"):
            self.skeleton = DiPaCo(recipe.model)
        self._shards: tuple[int, torch.Tensor, torch.Tensor] | None = None

    def shard(self, task: PathTask, version: int) -> torch.Tensor:
        """Rows of the sequences that train a replica of a path."""
        if self._shards is None or self._shards[0] != version:
            tensors = load_file(shards_file(self.folder, version))
            self._shards = (version, tensors["rows"], tensors["paths"])
        _, rows, paths = self._shards
        return rows[(paths == task.path).any(dim=1)][task.replica :: self.recipe.replicas]

    def run(self, task: PathTask, version: int, on_iteration: Callable[[float], None]) -> float:
        """Do a task and save its file; returns the mean loss.

        Raises:
            PathDiverged: a loss or a weight is not finite.
        """
        recipe, tau = self.recipe, self.recipe.inner_iterations
        model = self._load(task)
        optimizer = make_inner_optimizer(model, recipe)
        self._load_moments(task, model, optimizer)
        shard = self.shard(task, version)
        losses = []
        for iteration in range(task.outer * tau, (task.outer + 1) * tau):
            inputs, targets = shard_batch(self.sequences, shard, recipe.batch_size, recipe.seed, task.path, iteration)
            if not recipe.learn_prefix:
                targets[:, : recipe.model.prefix - 1] = -100
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, iteration)
            with mixed_precision(self.device, self.bfloat16):
                loss = model.training_loss(inputs.to(self.device), targets.to(self.device))
            value = float(loss.detach())
            if not math.isfinite(value):
                raise PathDiverged(f"the loss of path {task.path} became {value} at iteration {iteration}")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
            losses.append(value)
            on_iteration(value)
        self._save(task, model, optimizer, sum(losses) / tau)
        return sum(losses) / tau

    def _load(self, task: PathTask) -> PathModel:
        names = self.skeleton.path_names(task.path)
        tensors = load_file(global_file(self.folder, task.outer), device=str(self.device))
        # A path of its own: a meta skeleton's modules are shared between paths.
        with torch.device("meta"):
            model = DiPaCo(self.recipe.model).path_model(task.path)
        model.load_state_dict({mine: tensors[f"model.{name}"] for mine, name in names.items()}, assign=True)
        return model.requires_grad_(True).train()

    def _load_moments(self, task: PathTask, model: PathModel, optimizer: torch.optim.AdamW) -> None:
        """Inner moments live on from one outer step to the next, as in DiLoCo.

        A path that had stopped and trains again after re-sharding starts with fresh ones.
        """
        file = path_file(self.folder, replace(task, outer=task.outer - 1))
        if not file.exists():
            return
        tensors = load_file(file, device=str(self.device))
        for name, parameter in model.named_parameters():
            if f"step.{name}" in tensors:
                optimizer.state[parameter] = {
                    "step": tensors[f"step.{name}"].cpu(),
                    "exp_avg": tensors[f"m1.{name}"],
                    "exp_avg_sq": tensors[f"m2.{name}"],
                }

    def _save(self, task: PathTask, model: PathModel, optimizer: torch.optim.AdamW, loss: float) -> None:
        tensors = {"loss": torch.tensor(loss, dtype=torch.float64)}
        for name, parameter in model.named_parameters():
            if not torch.isfinite(parameter).all():
                last = (task.outer + 1) * self.recipe.inner_iterations
                raise PathDiverged(f"a weight of path {task.path} became nan or infinite by iteration {last}")
            tensors[f"after.{name}"] = parameter.detach()
            if state := optimizer.state.get(parameter):
                tensors[f"step.{name}"] = state["step"]
                tensors[f"m1.{name}"], tensors[f"m2.{name}"] = state["exp_avg"], state["exp_avg_sq"]
        save_tensors(path_file(self.folder, task), tensors)


def make_inner_optimizer(model: PathModel, recipe: DiPaCoRecipe) -> torch.optim.AdamW:
    """AdamW; matrices decay, norms and positions do not."""
    decay = [p for n, p in model.named_parameters() if p.ndim > 1 and n != "ends.positions"]
    rest = [p for n, p in model.named_parameters() if p.ndim <= 1 or n == "ends.positions"]
    groups = [{"params": decay, "weight_decay": recipe.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.eps)


SEQUENCES = "sequences.safetensors"


def save_sequences(folder: Path, sequences: Sequences) -> None:
    """Put the sequences where worker processes find them."""
    columns = ("ids", "start", "length", "document", "label")
    save_tensors(folder / SEQUENCES, {name: getattr(sequences, name) for name in columns})


@dataclass
class _Member:
    """One process of the pool."""

    process: multiprocessing.process.BaseProcess
    pipe: Connection
    task: PathTask | None = None


@dataclass
class WorkerPool:
    """Processes that fetch tasks from a queue; a task whose worker dies goes back to the queue.

    ``threads`` are those of each process: equal counts here and there give equal bits.
    """

    recipe: DiPaCoRecipe
    folder: Path
    size: int
    threads: int
    device: str
    bfloat16: bool
    members: list[_Member] = field(default_factory=list)

    def __enter__(self) -> WorkerPool:
        self.members = [self._start() for _ in range(self.size)]
        return self

    def __exit__(self, *error: object) -> None:
        for member in self.members:
            member.process.terminate()
        for member in self.members:
            member.process.join()
            member.pipe.close()
        self.members = []

    def _start(self) -> _Member:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        recipe = self.recipe.model_dump_json()
        arguments = (theirs, recipe, str(self.folder), self.threads, self.device, self.bfloat16)
        process = context.Process(target=serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _Member(process, mine)

    def run(
        self, tasks: Iterable[PathTask], version: int, on_iteration: Callable[[PathTask, float], None]
    ) -> dict[PathTask, float]:
        """Do all tasks; returns their mean losses.

        Raises:
            PathDiverged: as the task said; the others may have finished and left their files.
            UserError: a task cost ``DEATHS`` workers.
        """
        queue = deque(tasks)
        results: dict[PathTask, float] = {}
        deaths: dict[PathTask, int] = {}
        total = len(queue)
        while len(results) < total:
            for member in self.members:
                if member.task is None and queue:
                    member.task = queue.popleft()
                    self._send(member, version)
            ready = wait([m.pipe for m in self.members] + [m.process.sentinel for m in self.members])
            for i, member in enumerate(self.members):
                if member.pipe in ready or member.process.sentinel in ready:
                    try:
                        self._hear(member, results, on_iteration)
                    except (EOFError, OSError):
                        self._bury(i, queue, deaths)
        return results

    def _send(self, member: _Member, version: int) -> None:
        # One that died idle hears nothing; its sentinel is ready and puts the task back.
        with contextlib.suppress(OSError):
            member.pipe.send((member.task, version))

    def _hear(
        self, member: _Member, results: dict[PathTask, float], on_iteration: Callable[[PathTask, float], None]
    ) -> None:
        if not member.pipe.poll():
            raise EOFError
        kind, value = member.pipe.recv()
        assert member.task is not None, "one without a task says nothing"
        if kind == "iteration":
            on_iteration(member.task, value)
        elif kind == "diverged":
            raise PathDiverged(value)
        elif kind == "failed":
            raise RuntimeError(f"a worker failed on path {member.task.path}: {value}")
        else:
            results[member.task] = value
            member.task = None

    def _bury(self, index: int, queue: deque[PathTask], deaths: dict[PathTask, int]) -> None:
        """Replace a dead worker and give its task to the next one that is free."""
        member = self.members[index]
        member.process.join()
        member.pipe.close()
        if member.task is not None:
            deaths[member.task] = deaths.get(member.task, 0) + 1
            if deaths[member.task] >= DEATHS:
                raise UserError(
                    f"path {member.task.path} cost {DEATHS} workers (exit code {member.process.exitcode}); "
                    "give it more memory or fewer workers",
                    field="workers",
                )
            queue.appendleft(member.task)
        self.members[index] = self._start()


def serve(pipe: Connection, recipe_json: str, folder: str, threads: int, device: str, bfloat16: bool) -> None:
    """The life of one worker process: task in, file and mean loss out."""
    torch.set_num_threads(threads)
    recipe, where = DiPaCoRecipe.model_validate_json(recipe_json), Path(folder)
    columns = load_file(where / SEQUENCES)
    worker = PathWorker(recipe, Sequences(**columns, labels=()), where, torch.device(device), bfloat16=bfloat16)
    while True:
        try:
            task, version = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send(("done", worker.run(task, version, lambda loss: pipe.send(("iteration", loss)))))
        except PathDiverged as error:
            pipe.send(("diverged", str(error)))
        except BrokenPipeError:
            return
        except Exception as error:
            pipe.send(("failed", f"{type(error).__name__}: {error}"))
