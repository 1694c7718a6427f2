"""State of a DiPaCo training in its folder: saved after each outer step, gone on with, branched.

The folder holds, after outer step t: ``outer-t`` (all parameters, router and velocity), ``path-p-(t−1)`` (inner
moments), the shards, and ``run.json``. A finished ``path-p-t`` is not repeated.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.models.checkpoint import save_tensors
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.train.dipaco.dipaco_recipe import DiPaCoRecipe
from tokenpaths.engine.train.dipaco.path_workers import global_file
from tokenpaths.engine.train.resuming import same_settings, takes_bfloat16

STATE = "run.json"


@dataclass
class DiPaCoRun:
    """A run in its folder; ``model`` holds the global parameters, ``features`` those of all sequences."""

    recipe: DiPaCoRecipe
    folder: Path
    model: DiPaCo
    velocity: dict[str, Tensor]
    bfloat16: bool = False
    """products in bfloat16, of every path and whoever trains it: chosen when the run began"""
    features: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    outer: int = 0
    """outer steps done"""
    seconds: float = 0.0
    shards: int = 0
    """outer step from which the present shards hold"""
    resharded: int = 0
    """how often the discriminative router was fitted"""
    sizes: list[int] = field(default_factory=list)
    best_loss: list[float | None] = field(default_factory=list)
    best_outer: list[int] = field(default_factory=list)
    stopped: list[bool] = field(default_factory=list)
    """paths that had not become better for ``patience`` outer steps: they train no more"""
    history: list[dict[str, Any]] = field(default_factory=list)


SAVED = (
    "bfloat16",
    "outer",
    "seconds",
    "shards",
    "resharded",
    "sizes",
    "best_loss",
    "best_outer",
    "stopped",
    "history",
)
"""what ``run.json`` keeps of a run beside its recipe"""


def resume(run: DiPaCoRun) -> None:
    """Take over the state that the run's folder holds.

    Raises:
        UserError: it is of other settings.
    """
    about = json.loads((run.folder / STATE).read_text(encoding="utf-8"))
    if not same_settings(about["recipe"], run.recipe):
        raise UserError(
            f"{run.folder.name} holds a run of recipe {about['recipe']['name']!r} with other settings; "
            "give another folder, or delete this one to start afresh",
            field="out",
        )
    about["bfloat16"] = takes_bfloat16(about, run.recipe.bfloat16, run.model.device)
    for name in SAVED:
        setattr(run, name, about[name])
    tensors = load_file(global_file(run.folder, run.outer), device=str(run.model.device))
    run.model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
    run.velocity = {name: tensors[f"velocity.{name}"] for name in run.velocity}


def save_run(run: DiPaCoRun) -> None:
    """Parameters, velocity and position; what came before is removed only when this is whole."""
    tensors = {f"model.{k}": v.detach() for k, v in run.model.state_dict().items()}
    tensors |= {f"velocity.{k}": v for k, v in run.velocity.items()}
    save_tensors(global_file(run.folder, run.outer), tensors)
    about = {"recipe": json.loads(run.recipe.model_dump_json()), **{name: getattr(run, name) for name in SAVED}}
    write_atomically(run.folder / STATE, json.dumps(about, indent=1).encode())
    for file in run.folder.glob("outer-*.safetensors"):
        if file != global_file(run.folder, run.outer):
            file.unlink()
    for file in run.folder.glob("path-*.safetensors"):
        if int(file.stem.rsplit("-", 1)[1]) < run.outer - 1:
            file.unlink()
    # Nobody writes at this moment: what a killed worker had begun can go.
    for file in run.folder.glob(".path-*.tmp"):
        file.unlink()


def branch(source: Path, target: Path, recipe: DiPaCoRecipe) -> None:
    """Go on from a generative run's state with a discriminative router: copies the folder once.

    Raises:
        UserError: the runs would have differed before the branch, or it lies behind the re-sharding.
    """
    if (target / STATE).exists():
        return
    about = json.loads((source / STATE).read_text(encoding="utf-8"))
    old = DiPaCoRecipe(**about["recipe"])
    same = old.model_copy(
        update=dict(
            name=recipe.name,
            model=old.model.model_copy(update={"router": "discriminative"}),
            first_router=old.model.router,
            reshard_at=recipe.reshard_at,
        )
    )
    if same != recipe:
        raise UserError(f"{recipe.name} is not {old.name} with a discriminative router", field="recipe")
    if about["outer"] > recipe.reshard_at[0]:
        raise UserError(
            f"{source.name} has done {about['outer']} outer steps, {recipe.name} re-shards at {recipe.reshard_at[0]}: "
            "branch earlier",
            field="reshard_at",
        )
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=lambda folder, names: [n for n in names if n == STATE])
    about["recipe"] = json.loads(recipe.model_dump_json())
    write_atomically(target / STATE, json.dumps(about, indent=1).encode())
