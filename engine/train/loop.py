"""The training loop of a recipe: resumable, seeded, logged; NaN stops it with the last good state kept.

All randomness of iteration i comes from a generator seeded with (recipe seed, i), and a state is one between two
iterations, so a resumed run repeats an uninterrupted one (bit for bit on a CPU with the same thread count).
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel
from torch import Tensor

from tokenpaths.engine.base.device import mixed_precision, pick_device
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.models.checkpoint import save_checkpoint, save_tensors
from tokenpaths.engine.models.family import RoutedModel, family_class
from tokenpaths.engine.models.losses import token_losses
from tokenpaths.engine.train.augment import augment, mix
from tokenpaths.engine.train.corpora import ImageCorpus, TextCorpus
from tokenpaths.engine.train.recipes import Recipe
from tokenpaths.engine.train.resuming import Resumable, indivisible, same_settings, takes_bfloat16

STATE = "state.safetensors"
PROGRESS = "state.json"
LOG = "log.jsonl"


class TrainingDiverged(UserError):
    """The loss became NaN or infinite; the last good state is on disk."""


@dataclass(frozen=True)
class Progress:
    """What a progress bar needs."""

    iteration: int
    iterations: int
    loss: float
    rate_per_s: float
    """iterations a second, mean of the last hundred"""
    note: str = ""

    @property
    def seconds_left(self) -> float:
        return (self.iterations - self.iteration) / max(self.rate_per_s, 1e-9)


@dataclass
class TrainingRun(Resumable):
    """Folder with state and log of one training run."""

    recipe: Recipe
    folder: Path
    model: RoutedModel
    optimizer: torch.optim.AdamW
    bfloat16: bool = False
    """products in bfloat16: chosen when the run began"""
    iteration: int = 0
    seconds: float = 0.0
    last: dict[str, float] = field(default_factory=dict)
    """numbers of the last iteration, where it is one of the log"""
    history: list[dict[str, Any]] = field(default_factory=list)


def learning_rate(recipe: Recipe, iteration: int) -> float:
    """Linear warm-up, then cosine, or constant with a linear fall over the last fifth to η/10.

    A warm-up takes at most half of the iterations: a rate that only rises would never train at its height.
    """
    warmup = min(recipe.warmup, recipe.iterations // 2)
    if iteration < warmup:
        return recipe.start_rate + (recipe.learning_rate - recipe.start_rate) * iteration / warmup
    done = (iteration - warmup) / max(1, recipe.iterations - warmup)
    if recipe.schedule == "cosine":
        return recipe.final_rate + (recipe.learning_rate - recipe.final_rate) * (1 + math.cos(math.pi * done)) / 2
    fall = max(0.0, (iteration / recipe.iterations - 0.8) / 0.2)
    return recipe.learning_rate * (1 - 0.9 * fall)


def make_optimizer(model: RoutedModel, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW; matrices decay, vectors (norms) and positions do not."""
    named = [(p, p.ndim > 1 and name.rsplit(".")[-1] != "positions") for name, p in model.named_parameters()]
    decay, rest = ([p for p, decays in named if decays is group] for group in (True, False))
    groups = [{"params": decay, "weight_decay": recipe.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.eps)


def generator_for(seed: int, iteration: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + iteration)


def image_batch(corpus: ImageCorpus, recipe: Recipe, iteration: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """The augmented batch of one iteration: every image once an epoch, order redrawn."""
    size, count = recipe.batch_size, len(corpus.labels)
    per_epoch = count // size
    epoch, index = divmod(iteration, max(1, per_epoch))
    order = torch.randperm(count, generator=generator_for(recipe.seed + 7919, epoch))
    rows = order[index * size : (index + 1) * size]
    generator = generator_for(recipe.seed, iteration)
    x = augment(corpus.images[rows], recipe.augment, generator)
    labels = corpus.labels[rows]
    if recipe.augment.mix and torch.rand((), generator=generator) < recipe.augment.mix:
        return mix(x, labels, num_classes, recipe.augment, generator)
    return x, labels


def text_batch(corpus: TextCorpus, recipe: Recipe, iteration: int) -> tuple[Tensor, Tensor]:
    """Windows of ``context`` tokens and their successors; offsets are redrawn every pass."""
    context, size = recipe.model.context, recipe.batch_size
    windows = (len(corpus.ids) - context - 1) // context
    epoch, index = divmod(iteration, max(1, windows // size))
    generator = generator_for(recipe.seed + 7919, epoch)
    offset = int(torch.randint(0, context, (), generator=generator))
    chosen = torch.randperm(windows, generator=generator)[index * size : (index + 1) * size]
    starts = chosen * context + offset
    rows = corpus.ids[starts[:, None] + torch.arange(context + 1)].long()
    return rows[:, :-1], rows[:, 1:]


def train(
    recipe: Recipe,
    corpus: ImageCorpus | TextCorpus,
    val: ImageCorpus | TextCorpus,
    folder: Path,
    *,
    device: torch.device | None = None,
    save_every_s: float = 120.0,
    check_every: int = 200,
    on_progress: Callable[[Progress], None] = lambda p: None,
) -> TrainingRun:
    """Train to the end, from where the folder's state stands. Interrupting saves and re-raises.

    Raises:
        UserError: a text is shorter than one window, or the folder holds a run of another recipe.
        TrainingDiverged: the loss or its gradient is no longer finite.
    """
    device = device or pick_device()
    # Windows of a training begin at any of ``context`` offsets, those of an evaluation do not.
    for part, words, windows in ((corpus, "training", 2), (val, "validation", 1)):
        if isinstance(part, TextCorpus) and len(part.ids) < (needed := windows * recipe.model.context + 1):
            raise UserError(
                f"the {words} text has {len(part.ids):,} tokens, and a context of {recipe.model.context:,} needs "
                f"{needed:,} there: give more text, or a smaller context",
                field="context",
            )
    run = open_run(recipe, folder, device)
    if isinstance(corpus, ImageCorpus) and device.type == "cuda":
        corpus = _on_gpu(corpus, device)
    started = last_save = time.monotonic()
    before = run.seconds
    recent: list[float] = []
    try:
        _log_if_due(run, val, check_every)  # makes up for an evaluation that was interrupted
        while run.iteration < recipe.iterations:
            tick = time.monotonic()
            loss = _iterate(run, corpus, check_every)
            recent = [*recent[-99:], time.monotonic() - tick]
            run.seconds = before + time.monotonic() - started
            _log_if_due(run, val, check_every)
            on_progress(Progress(run.iteration, recipe.iterations, loss, len(recent) / sum(recent), _note(run)))
            if time.monotonic() - last_save > save_every_s:
                save_state(run)
                last_save = time.monotonic()
    except TrainingDiverged:
        raise
    except BaseException:
        if run.whole:
            save_state(run)
        raise
    save_state(run)
    return run


def _on_gpu(corpus: ImageCorpus, device: torch.device) -> ImageCorpus:
    """With its images there, if they leave the training three quarters of what is free: one core augments more slowly
    than a GPU trains."""
    free, _ = torch.cuda.mem_get_info(device)
    return replace(corpus, images=corpus.images.to(device)) if corpus.images.nbytes < free / 4 else corpus


def _iterate(run: TrainingRun, corpus: ImageCorpus | TextCorpus, check_every: int) -> float:
    recipe, model = run.recipe, run.model
    device = model.device
    if isinstance(corpus, ImageCorpus):
        inputs, targets = image_batch(corpus, recipe, run.iteration, recipe.model.num_classes)
    else:
        inputs, targets = text_batch(corpus, recipe, run.iteration)
    model.train()
    for group in run.optimizer.param_groups:
        group["lr"] = learning_rate(recipe, run.iteration)
    with mixed_precision(device, run.bfloat16):
        loss, routing = model.training_loss(inputs.to(device), targets.to(device), recipe.label_smoothing)
    value = float(loss.detach())
    if recipe.balance:
        loss = loss + recipe.balance * model.balance_loss(routing)
    if not math.isfinite(value):
        raise _diverged(run, f"the loss became {value}")
    run.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip))
    if not math.isfinite(norm):
        raise _diverged(run, f"the gradient became {norm}")
    model.drop_idle_gradients(routing)  # here, where the norm has been waited for and a GPU has nothing else to do
    with indivisible(run):
        run.optimizer.step()
        model.after_iteration(routing)
        run.iteration += 1
        run.last = {"train_loss": value} | model.training_numbers(routing) if _log_is_due(run, check_every) else {}
    return value


def _diverged(run: TrainingRun, what: str) -> TrainingDiverged:
    return TrainingDiverged(
        f"{run.recipe.name}: {what} at iteration {run.iteration}; the last good state is kept in "
        f"{run.folder.name}. Lower learning_rate (now {run.recipe.learning_rate}) and train again"
    )


def evaluate(
    model: RoutedModel,
    corpus: ImageCorpus | TextCorpus,
    device: torch.device,
    limit: int | None = None,
    bfloat16: bool = False,
) -> dict[str, float]:
    """Loss (nats) and accuracy, in float32 unless ``bfloat16``."""
    total = correct = count = 0.0
    for _, losses, right in scored(model, corpus, device, limit, bfloat16):
        total += float(losses.sum())
        correct += float(right.sum())
        count += len(losses)
    result = {"loss": total / count, "accuracy": correct / count, "count": int(count)}
    if isinstance(corpus, TextCorpus):
        result["perplexity"] = math.exp(result["loss"])
    return result


def scored(
    model: RoutedModel,
    corpus: ImageCorpus | TextCorpus,
    device: torch.device,
    limit: int | None = None,
    bfloat16: bool = False,
) -> Iterator[tuple[Int[Tensor, " n"], Float[Tensor, " n"], Bool[Tensor, " n"]]]:
    """Place, loss (nats) and rightness of each prediction, some at a time; the place is that of an image, or of a
    predicted token in ``corpus.ids``, of which about ``limit`` are read."""
    model.eval()
    for places, inputs, targets in _batches(corpus, model.config.context, limit):
        # Not around the whole loop: whoever reads this would be in the mode as well.
        with torch.inference_mode():
            with mixed_precision(device, bfloat16):
                logits = model(inputs.to(device)).logits
            flat = logits.flatten(0, -2).float()
            goal = targets.to(device).flatten()
            found = places.flatten(), token_losses(flat, goal), flat.argmax(-1) == goal
        yield found


def _batches(
    corpus: ImageCorpus | TextCorpus, context: int, limit: int | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    if isinstance(corpus, ImageCorpus):
        for places in torch.arange(len(corpus.labels)).split(250):
            yield places, normalise(corpus.images[places]), corpus.labels[places]
        return
    windows = (len(corpus.ids) - 1) // context
    if limit is not None:
        windows = min(windows, max(1, limit // context))
    # Spread over the whole corpus when only a part is read; in integers, as float32 cannot count beyond 2²⁴ tokens.
    starts = torch.arange(windows) * (len(corpus.ids) - context - 1) // max(1, windows - 1)
    for part in starts.split(32):
        places = part[:, None] + torch.arange(context + 1)
        rows = corpus.ids[places].long()
        yield places[:, 1:], rows[:, :-1], rows[:, 1:]


def open_run(recipe: Recipe, folder: Path, device: torch.device) -> TrainingRun:
    """A fresh run, or the one that the folder holds.

    Raises:
        UserError: the folder holds a run of another recipe.
    """
    torch.manual_seed(recipe.seed)
    model = family_class(recipe.family)(recipe.model).to(device)
    run = TrainingRun(recipe, folder, model, make_optimizer(model, recipe))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / PROGRESS).exists():
        run.bfloat16 = takes_bfloat16({}, recipe.bfloat16, device)
        save_state(run)  # so that there is a good state to go back to, however early the loss is lost
        return run
    about = _read_progress(folder)
    if not same_settings(about["recipe"], recipe):
        raise UserError(
            f"{folder.name} holds a run of recipe {about['recipe']['name']!r} with other settings; "
            "give another folder with --work, or delete this one to start afresh",
            field="work",
        )
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(folder / f"{about['iteration']:07d}-{STATE}", device=str(device))
    except (OSError, SafetensorError) as error:
        raise _damaged(folder, error) from None
    model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
    names = [n for n, _ in model.named_parameters()]
    by_name = dict(model.named_parameters())
    for name in names:
        if f"step.{name}" in tensors:
            run.optimizer.state[by_name[name]] = {
                "step": tensors[f"step.{name}"].cpu().clone(),
                "exp_avg": tensors[f"m1.{name}"].clone(),
                "exp_avg_sq": tensors[f"m2.{name}"].clone(),
            }
    run.iteration, run.seconds, run.history = about["iteration"], about["seconds"], about["history"]
    run.bfloat16, run.last = takes_bfloat16(about, recipe.bfloat16, device), about.get("last", {})
    return run


def _read_progress(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
        missing = {"recipe", "iteration", "seconds", "history"} - about.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise _damaged(folder, error) from None
    if missing:
        raise _damaged(folder, KeyError(*sorted(missing)))
    return about


def _damaged(folder: Path, error: Exception) -> UserError:
    return UserError(
        f"{folder}: the state of the run is damaged ({type(error).__name__}); delete the folder to start afresh",
        field="work",
    )


def save_state(run: TrainingRun) -> None:
    """Weights, moments and position; the one before is removed only when this one is whole.

    Raises:
        TrainingDiverged: a weight is not finite; the state before stays.
    """
    if not all(torch.isfinite(p).all() for p in run.model.parameters()):
        raise _diverged(run, "a weight became nan or infinite")
    tensors = {f"model.{k}": v.detach() for k, v in run.model.state_dict().items()}
    for name, parameter in run.model.named_parameters():
        state = run.optimizer.state.get(parameter)
        if state:
            # A module that received nothing in an iteration took no step: counts differ.
            tensors[f"step.{name}"] = state["step"]
            tensors[f"m1.{name}"], tensors[f"m2.{name}"] = state["exp_avg"], state["exp_avg_sq"]
    current = f"{run.iteration:07d}-{STATE}"
    save_tensors(run.folder / current, tensors)
    about = {
        "recipe": json.loads(run.recipe.model_dump_json()),
        "iteration": run.iteration,
        "bfloat16": run.bfloat16,
        "seconds": run.seconds,
        "last": run.last,
        "history": run.history,
        "machine": describe_machine(),
    }
    write_atomically(run.folder / PROGRESS, json.dumps(about, indent=1).encode())
    for old in run.folder.glob(f"*-{STATE}"):
        if old.name != current:
            old.unlink()


def _log_is_due(run: TrainingRun, check_every: int) -> bool:
    """Whether the iteration that was done last belongs into the log and is not in it."""
    belongs = run.iteration and (run.iteration % check_every == 0 or run.iteration == run.recipe.iterations)
    return bool(belongs) and (not run.history or run.history[-1]["iteration"] < run.iteration)


def _log_if_due(run: TrainingRun, val: ImageCorpus | TextCorpus, check_every: int) -> None:
    if not _log_is_due(run, check_every):
        return
    device = run.model.device
    validation = evaluate(run.model, val, device, limit=60_000, bfloat16=run.bfloat16)
    entry: dict[str, Any] = {"iteration": run.iteration, "seconds": round(run.seconds, 1)}
    entry |= {name: round(value, 4) for name, value in run.last.items()}
    entry |= {f"val_{name}": round(value, 4) for name, value in validation.items() if name != "count"}
    history = [*run.history, entry]
    # Whole, not one line more: rows behind the state of a run that was killed are written a second time.
    write_atomically(run.folder / LOG, "".join(json.dumps(row) + "\n" for row in history).encode())
    run.history = history


def _note(run: TrainingRun) -> str:
    if not run.history:
        return ""
    last = run.history[-1]
    shown = {k: last[k] for k in ("val_loss", "val_accuracy", "busiest_share", "skipped_share") if k in last}
    return " ".join(f"{k} {v:.3f}" for k, v in shown.items())


def describe_machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} thread(s), torch {torch.__version__}"


def export(run: TrainingRun, folder: Path, classes: tuple[str, ...], validation: dict[str, Any], command: str) -> Path:
    """The checkpoint that ships: weights in bfloat16, configuration, numbers."""
    training = training_record(run.recipe, run.iteration, run.seconds, command, run.history)
    return save_checkpoint(folder, run.model, classes=classes, validation=validation, training=training)


def training_record(
    recipe: BaseModel, iterations: int, seconds: float, command: str, history: list[dict[str, Any]]
) -> dict[str, Any]:
    """What a checkpoint's configuration says about its training."""
    return {
        "recipe": json.loads(recipe.model_dump_json(exclude={"model"})),
        "iterations": iterations,
        "wall_seconds": round(seconds),
        "machine": describe_machine(),
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "history": history,
    }
