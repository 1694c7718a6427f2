"""One training stage of a Ray-Tracing network: Adam on in-memory batches, early stopping, resumable, seeded.

All randomness of an epoch comes from a generator seeded with (seed, epoch), and a state is one between two iterations,
so a resumed run repeats an uninterrupted one (bit for bit on a CPU with the same thread count).

Shapes: N samples.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.models.checkpoint import save_tensors
from tokenpaths.engine.train.loop import PROGRESS, STATE, Progress, TrainingDiverged, generator_for
from tokenpaths.engine.train.resuming import Resumable, indivisible, same_settings, takes_bfloat16

Logits = Callable[[Tensor], Tensor]
CPU = torch.device("cpu")
"""where these small networks are trained, whatever else there is"""


class Plan(BaseModel):
    """How one stage is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    epochs: int = Field(gt=0, description="at most so many passes over the training data")
    patience: int | None = Field(
        default=None, gt=0, description="epochs without a lower validation loss after which it ends; None: never"
    )
    batch_size: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    seed: int = Field(default=0, ge=0, description="of initialisation and order")
    network: str = Field(default="", description="fingerprint of what is trained, so that no other resumes it")
    bfloat16: bool = Field(default=False, description="autocast where bfloat16 products are quicker")


@dataclass(frozen=True)
class Samples:
    """Network inputs and labels, in memory."""

    inputs: Tensor
    """(N, …): images as uint8, or features"""
    labels: Int[Tensor, " N"]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass
class Fit(Resumable):
    """Where a stage stands."""

    plan: Plan
    folder: Path
    network: nn.Module
    optimizer: torch.optim.Adam
    bfloat16: bool = False
    """products in bfloat16: chosen when the stage began"""
    iteration: int = 0
    seconds: float = 0.0
    last_loss: float = math.inf
    """of the last training batch"""
    best_loss: float = math.inf
    """lowest validation loss so far"""
    stale: int = 0
    """epochs since it fell"""
    stopped: bool = False
    best: dict[str, Tensor] = field(default_factory=dict)
    """trained parameters at the lowest validation loss"""
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}


def fit(
    plan: Plan,
    network: nn.Module,
    logits_of: Logits,
    train: Samples,
    val: Samples,
    folder: Path,
    *,
    save_every_s: float = 30.0,
    on_progress: Callable[[Progress], None] = lambda p: None,
) -> Fit:
    """Train to the end or to early stopping, from where the folder's state stands.

    ``network`` ends with the weights of the lowest validation loss. Interrupting saves and re-raises.
    Parameters that require no gradient are left alone and not saved.

    Raises:
        UserError: the data hold NaN, there are none, or the folder holds a run of another plan.
        TrainingDiverged: the loss is no longer finite; the last good state is on disk.
    """
    for what, samples in (("training", train), ("validation", val)):
        if not len(samples):
            raise UserError(f"{plan.name}: there are no {what} samples", field="data")
        if samples.inputs.is_floating_point() and not torch.isfinite(samples.inputs).all():
            raise UserError(f"{plan.name}: the {what} data hold NaN or infinite values", field="data")
    run = open_fit(plan, network, folder)
    per_epoch = -(-len(train) // plan.batch_size)
    before, started = run.seconds, time.monotonic()
    last_save = started
    recent: list[float] = []
    try:
        while True:
            # Asked here, not right after the step: an interrupted measurement is made up for on resuming.
            if len(run.history) < run.iteration // per_epoch:
                _end_epoch(run, logits_of, val)
            if run.stopped or run.iteration == plan.epochs * per_epoch:
                break
            tick = time.monotonic()
            _iterate(run, logits_of, train, per_epoch)
            recent = [*recent[-99:], time.monotonic() - tick]
            run.seconds = before + time.monotonic() - started
            note = f"val_loss {run.history[-1]['val_loss']:.3f}" if run.history else ""
            rate = len(recent) / max(sum(recent), 1e-9)
            on_progress(Progress(run.iteration, plan.epochs * per_epoch, run.last_loss, rate, note))
            if time.monotonic() - last_save > save_every_s:
                save_fit(run)
                last_save = time.monotonic()
    except TrainingDiverged:
        raise
    except BaseException:
        if run.whole:
            save_fit(run)
        raise
    save_fit(run)
    with torch.no_grad():
        for name, parameter in run.trained.items():
            parameter.copy_(run.best[name])
    network.eval()
    return run


def _iterate(run: Fit, logits_of: Logits, train: Samples, per_epoch: int) -> None:
    epoch, index = divmod(run.iteration, per_epoch)
    order = torch.randperm(len(train), generator=generator_for(run.plan.seed + 7919, epoch))
    rows = order[index * run.plan.batch_size : (index + 1) * run.plan.batch_size]
    run.network.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=run.bfloat16):
        logits = logits_of(train.inputs[rows])
    loss = F.cross_entropy(logits.float(), train.labels[rows])
    value = float(loss.detach())
    if not math.isfinite(value):
        raise _diverged(run, f"the loss became {value}")
    run.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    with indivisible(run):
        run.optimizer.step()
        run.iteration += 1
        run.last_loss = value


def _end_epoch(run: Fit, logits_of: Logits, val: Samples) -> None:
    """Measure, keep the best weights, and say whether it is time to stop."""
    run.network.eval()
    numbers = measure(logits_of, val)
    if not math.isfinite(numbers["loss"]):
        raise _diverged(run, f"the validation loss became {numbers['loss']}")
    entry = {
        "epoch": len(run.history) + 1,
        "iteration": run.iteration,
        "train_loss": round(run.last_loss, 4),
        "val_loss": round(numbers["loss"], 4),
        "val_accuracy": round(numbers["accuracy"], 4),
    }
    with indivisible(run):
        run.stale += 1
        if numbers["loss"] < run.best_loss:
            run.best_loss, run.stale = numbers["loss"], 0
            run.best = {name: p.detach().clone() for name, p in run.trained.items()}
        run.stopped = run.plan.patience is not None and run.stale >= run.plan.patience
        run.history.append(entry)


@torch.inference_mode()
def measure(logits_of: Logits, samples: Samples, batch: int = 500) -> dict[str, float]:
    """Mean cross-entropy in nats and top-1 accuracy."""
    logits = torch.cat([logits_of(part).float() for part in samples.inputs.split(batch)])
    return {
        "loss": float(F.cross_entropy(logits, samples.labels)),
        "accuracy": float((logits.argmax(dim=1) == samples.labels).float().mean()),
        "count": len(samples),
    }


def open_fit(plan: Plan, network: nn.Module, folder: Path) -> Fit:
    """A fresh stage, saved once so that there is always a good state, or the one that the folder holds.

    Raises:
        UserError: the folder holds a stage of another plan or network.
    """
    trained = [p for p in network.parameters() if p.requires_grad]
    run = Fit(plan, folder, network, torch.optim.Adam(trained, lr=plan.learning_rate))
    if not (folder / PROGRESS).exists():
        folder.mkdir(parents=True, exist_ok=True)
        run.bfloat16 = takes_bfloat16({}, plan.bfloat16, CPU)
        run.best = {name: p.detach().clone() for name, p in run.trained.items()}
        save_fit(run)
        return run
    about = json.loads((folder / PROGRESS).read_text())
    tensors = load_file(folder / f"{about['iteration']:07d}-{STATE}")
    shapes = {f"model.{name}": p.shape for name, p in run.trained.items()}
    if not same_settings(about["plan"], plan) or shapes != {
        name: t.shape for name, t in tensors.items() if name.startswith("model.")
    }:
        raise UserError(
            f"{folder.name} holds a run of {about['plan']['name']!r} with other settings; "
            "give another folder, or delete this one to start afresh",
            field="out",
        )
    with torch.no_grad():
        for name, parameter in run.trained.items():
            parameter.copy_(tensors[f"model.{name}"])
            run.best[name] = tensors[f"best.{name}"]
            if f"step.{name}" in tensors:
                run.optimizer.state[parameter] = {
                    "step": tensors[f"step.{name}"],
                    "exp_avg": tensors[f"m1.{name}"],
                    "exp_avg_sq": tensors[f"m2.{name}"],
                }
    for name in ("iteration", "seconds", "stale", "stopped", "history"):
        setattr(run, name, about[name])
    run.bfloat16 = takes_bfloat16(about, plan.bfloat16, CPU)
    for name in ("last_loss", "best_loss"):
        setattr(run, name, math.inf if about[name] is None else about[name])
    return run


def save_fit(run: Fit) -> None:
    """Weights, the best ones, moments and position; the state before goes only when this one is whole.

    Raises:
        TrainingDiverged: a weight is not finite; the state before stays.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in run.trained.items():
        if not torch.isfinite(parameter).all():
            raise _diverged(run, f"{name} became NaN or infinite")
        tensors |= {f"model.{name}": parameter.detach(), f"best.{name}": run.best[name]}
        state = run.optimizer.state.get(parameter)
        if state:
            moments = {"step": state["step"], "m1": state["exp_avg"], "m2": state["exp_avg_sq"]}
            tensors |= {f"{kind}.{name}": value for kind, value in moments.items()}
    current = f"{run.iteration:07d}-{STATE}"
    save_tensors(run.folder / current, {name: t.clone() for name, t in tensors.items()})
    about = {
        "plan": json.loads(run.plan.model_dump_json()),
        "iteration": run.iteration,
        "bfloat16": run.bfloat16,
        "seconds": run.seconds,
        "last_loss": run.last_loss if math.isfinite(run.last_loss) else None,
        "best_loss": run.best_loss if math.isfinite(run.best_loss) else None,
        "stale": run.stale,
        "stopped": run.stopped,
        "history": run.history,
    }
    write_atomically(run.folder / PROGRESS, json.dumps(about, indent=1).encode())
    for old in run.folder.glob(f"*-{STATE}"):
        if old.name != current:
            old.unlink()


def _diverged(run: Fit, what: str) -> TrainingDiverged:
    return TrainingDiverged(
        f"{run.plan.name}: {what} at iteration {run.iteration}; the last good state is kept in {run.folder.name}. "
        f"Lower learning_rate (now {run.plan.learning_rate}) and train again"
    )
