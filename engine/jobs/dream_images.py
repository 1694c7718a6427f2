"""Image dreams as a job: preparation of the request, optimisation, frames and files.

Shapes: B dreams, N pixels a side, T tokens, S steps, K slots.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import engine_version
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.dream.dream_request import (
    MOST_DREAMS,
    BlockTarget,
    ChoicesTarget,
    ClassTarget,
    DreamRequest,
    ModuleTarget,
    PathTarget,
)
from tokenpaths.engine.dream.dream_state import load_state, save_state
from tokenpaths.engine.dream.image_loop import Dream, ImageDreams, examine
from tokenpaths.engine.dream.objectives import Answer, Block, Choices, Module, Objective, follow_path
from tokenpaths.engine.dream.pictures import outlined, patch_mask, to_image, to_png
from tokenpaths.engine.jobs.dream_original import members, original_choices, original_image, wanted_ribbon
from tokenpaths.engine.jobs.registry import MOST_REPEATED, Progress, write_artifact
from tokenpaths.engine.tracing.loaded_model import LoadedModel

if TYPE_CHECKING:
    from tokenpaths.engine.jobs.registry import JobContext

SLICE_SECONDS = 0.7
SAVE_SECONDS = 5
"""maximum interval between saved states, where iterations are slow"""
SHOWN_SIDE = 192
CURVE_POINTS = 512
MOST_TOLD = 12
"""maximum number of dreams named in a progress message"""


@dataclass(frozen=True)
class Item:
    """One dream of the request, with its display name."""

    name: str
    dream: Dream
    group: tuple[int, ...] | None
    """tokens whose decisions count; None: all"""
    steps: tuple[int, int] | None = None
    """half-open range of steps, if any"""


class ImageWork:
    """Image dreams; resumes from the folder and repeats at most ``MOST_REPEATED`` iterations."""

    def __init__(self, request: DreamRequest, folder: Path, context: JobContext, loaded: LoadedModel) -> None:
        self.request, self.folder, self.loaded = request, folder, loaded
        self.original = original_image(request, folder, context, loaded) if request.has_original else None
        self.items = _items(request, folder, context, loaded, self.original)
        self.made_for = {"request": json.loads(request.model_dump_json()), "checkpoint": loaded.sha256}
        kept = load_state(folder, self.made_for)
        state = None if kept is None else kept[0]
        self.dreams = ImageDreams(loaded.model, [item.dream for item in self.items], request.image, state)
        if kept is None:
            self.history: list[dict[str, Any]] = [{"iteration": 0, "items": self.dreams.examine()}]
            self._write_original()
        else:
            self.history = kept[1]["history"]
        self.finished = False
        self.saved_at = time.monotonic()

    def advance(self) -> Progress:
        """Iterate for about a second, up to the next save point."""
        dreams, started = self.dreams, time.monotonic()
        if not dreams.finished:
            stop = dreams.iteration + MOST_REPEATED - dreams.iteration % MOST_REPEATED
            while dreams.iteration < stop and not dreams.finished and time.monotonic() - started < SLICE_SECONDS:
                dreams.run(1)
            if dreams.iteration == stop or dreams.finished:
                self._keep()
            elif time.monotonic() - self.saved_at > SAVE_SECONDS:
                self._save()
            return self._progress()
        self.finished = True
        return self._progress(self._finish())

    def close(self) -> None:
        """Release the work; iterations since the last saved state are repeated later."""

    def _progress(self, result: dict[str, Any] | None = None) -> Progress:
        last, total = self.history[-1], self.request.image.iterations
        pairs = zip(self.items, last["items"], strict=True)
        named = [f"{item.name}: {found['objective']:.3g}" for item, found in pairs]
        if len(named) == 1:
            named = [f"{last['items'][0]['objective']:.3g}"]
        more = f" … and {len(named) - MOST_TOLD} more" if len(named) > MOST_TOLD else ""
        message = f"objective {'; '.join(named[:MOST_TOLD])}{more} at iteration {last['iteration']:,}"
        return Progress(self.dreams.iteration, total, "iterations", message, self.finished, result or {})

    def _keep(self) -> None:
        """Save the frames first and the state that counts them last."""
        dreams, iteration = self.dreams, self.dreams.iteration
        pictures = dreams.pictures()
        self.history = [h for h in self.history if h["iteration"] < iteration]
        self.history.append({"iteration": iteration, "items": dreams.examine(pictures)})
        if iteration % self.request.frame_every == 0 or dreams.finished:
            for index, picture in enumerate(pictures):
                name = f"frame-{iteration:06d}" + (f"-{index}" if len(self.items) > 1 else "")
                write_artifact(self.folder, f"{name}.png", to_png(self._shown(picture, self.items[index]), SHOWN_SIDE))
        write_artifact(self.folder, "curve.json", json.dumps(self._curve()).encode())
        self._save()

    def _save(self) -> None:
        save_state(self.folder, self.dreams.state(), self.made_for | {"history": self.history})
        self.saved_at = time.monotonic()

    def _shown(self, picture: Tensor, item: Item):
        """The image with the group outlined in red, if there is a group."""
        image = to_image(picture)
        grid = getattr(self.loaded.checkpoint.config, "grid", None)
        return image if item.group is None or grid is None else outlined(image, item.group, grid)

    def _curve(self) -> dict[str, Any]:
        values = self.dreams.curves()
        every = -(-len(values) // CURVE_POINTS)
        x = list(range(1, len(values) + 1, every))
        series = [
            {"name": item.name, "x": x, "y": [round(v, 5) for v in values[::every, i].tolist()]}
            for i, item in enumerate(self.items)
        ]
        return {"x": "iteration", "y": "objective (mean over the wanted decisions)", "series": series}

    def _write_original(self) -> None:
        if self.original is None:
            return
        groups = [item.group for item in self.items if item.group is not None]
        shown = self._shown(self.original, self.items[-1]) if groups else to_image(self.original)
        write_artifact(self.folder, "original.png", to_png(shown, SHOWN_SIDE))

    def _finish(self) -> dict[str, Any]:
        pictures = self.dreams.pictures()
        items = []
        for index, (item, picture) in enumerate(zip(self.items, pictures, strict=True)):
            write_artifact(self.folder, f"dream-{index}.png", to_png(self._shown(picture, item), SHOWN_SIDE))
            start, end = self.history[0]["items"][index], self.history[-1]["items"][index]
            items.append(
                {
                    "name": item.name,
                    "image": f"dream-{index}.png",
                    "steps": item.steps,
                    "group": item.group,
                    "context": item.dream.context is not None,
                    **self._named(end),
                    "at_start": self._named(start),
                }
            )
        original = None
        if self.original is not None:
            objectives = [item.dream.objective for item in self.items]
            images = self.original.to(self.dreams.device).expand(len(objectives), -1, -1, -1)
            measured = examine(self.loaded.model, normalise(images), objectives)
            original = {
                "image": "original.png",
                "top": self._named(measured[0])["top"],
                "objective": [m["objective"] for m in measured],
            }
        result = {
            "model": self.loaded.name,
            "checkpoint_sha256": self.loaded.sha256,
            "engine_version": engine_version(),
            "torch": torch.__version__,
            "request": self.made_for["request"],
            "original": original,
            "dreams": items,
        }
        write_artifact(self.folder, "result.json", json.dumps(result, indent=1).encode())
        return {"original": original, "dreams": items}

    def _named(self, found: dict[str, Any]) -> dict[str, Any]:
        """Class numbers as names."""
        classes = self.loaded.classes
        named = [[classes[c] if classes else str(c), round(p, 4)] for c, p in found.get("top", [])]
        return found | {"top": named}


def _items(
    request: DreamRequest, folder: Path, context: JobContext, loaded: LoadedModel, original: Tensor | None
) -> list[Item]:
    target, config = request.target, loaded.checkpoint.config
    num_tokens = getattr(config, "num_tokens", 1)
    ids = None
    if original is not None and loaded.checkpoint.family == "dna":
        ids = original_choices(request, folder, context, loaded, original)
    chosen = getattr(target, "group", None)
    group = None if chosen is None else members(chosen, ids, num_tokens, request.seed)
    tokens = None if group is None else torch.tensor(group, device=loaded.device)
    kept = None if group is None else tuple(group)
    if isinstance(target, ChoicesTarget):
        assert ids is not None, "check_request asks for an original"
        assert original is not None, "check_request asks for an original"
        return _choices(request, target, loaded, ids.to(loaded.device), original, kept, tokens)
    objective: Objective
    if isinstance(target, ClassTarget):
        objective = Answer(target.index)
    elif isinstance(target, BlockTarget):
        objective = Block(target.layer * config.blocks + target.block)
    elif isinstance(target, ModuleTarget):
        steps = target.steps or tuple(range(config.num_steps))
        objective = Module(target.module, steps, tokens, num_tokens, target.scores)
    else:
        assert isinstance(target, PathTarget), "check_request refuses what an image has not"
        ribbon = wanted_ribbon(request, folder, context).to(loaded.device)
        objective = follow_path(ribbon, num_tokens, tokens=tokens, of=target.scores)
    return [Item(target.of, Dream(objective, request.seed), kept)]


def _choices(
    request: DreamRequest,
    target: ChoicesTarget,
    loaded: LoadedModel,
    ids: Tensor,
    original: Tensor,
    group: tuple[int, ...] | None,
    tokens: Tensor | None,
) -> list[Item]:
    config = loaded.checkpoint.config
    every = tuple(range(1, config.num_steps + 1))
    keep = patch_mask(group or (), config.grid, config.patch_size)
    if target.context != "without" and bool(keep.all()):
        raise UserError(
            "Every patch of the image is in the group, so with its pixels nothing is left to dream",
            field="target.context",
        )
    items = []
    for s in dict.fromkeys(target.until or every):
        steps = range(s) if target.form == "cumulative" else range(s - 1, s)
        objective = Choices(ids, steps, tokens, target.scores)
        for with_pixels in {"without": (False,), "with": (True,), "both": (False, True)}[target.context]:
            name = f"S = {s}" if target.form == "cumulative" else f"step {s - 1} alone"
            name += ", with its pixels" if with_pixels else ""
            dream = Dream(objective, request.seed, 0, original if with_pixels else None, keep if with_pixels else None)
            items.append(Item(name, dream, group, (steps.start, steps.stop)))
    assert len(items) <= MOST_DREAMS, "at most two dreams a step"
    return items
