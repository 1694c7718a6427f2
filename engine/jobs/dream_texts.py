"""Text dreams as a job: corpus search first, then its best windows are improved by swaps.

Shapes: B texts, L tokens, T tokens of the original, S steps, K slots.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import engine_version
from tokenpaths.engine.dream.corpus import best, scores, windows
from tokenpaths.engine.dream.dream_request import ChoicesTarget, DreamRequest, ModuleTarget, PathTarget
from tokenpaths.engine.dream.dream_state import load_state, save_state
from tokenpaths.engine.dream.objectives import Choices, Connection, Fluency, Module, Objective, Suppression, follow_path
from tokenpaths.engine.dream.observed_pass import Need, look
from tokenpaths.engine.dream.text_loop import TextDreams, reads_back, written
from tokenpaths.engine.jobs.dream_original import members, original_text, wanted_ribbon
from tokenpaths.engine.jobs.dream_source import stretch_of
from tokenpaths.engine.jobs.registry import MOST_REPEATED, Progress, write_artifact
from tokenpaths.engine.tracing.loaded_model import LoadedModel

if TYPE_CHECKING:
    from tokenpaths.engine.jobs.registry import JobContext

SLICE_SECONDS = 0.7
SAVE_SECONDS = 5
"""maximum interval between saved states, where rounds are slow"""
LISTED = 20


class TextWork:
    """Text dreams; resumes from the folder. The search of the corpus is short and restarts."""

    def __init__(self, request: DreamRequest, folder: Path, context: JobContext, loaded: LoadedModel) -> None:
        assert loaded.tokenizer is not None, "load_model gives every text model its tokenizer"
        self.request, self.folder, self.loaded, self.tokenizer = request, folder, loaded, loaded.tokenizer
        self.settings = request.text
        self.original_ids: Tensor | None = None
        self.targets: list[int] | None = None
        """positions whose decisions count; None: all positions"""
        self.objective = self._objective(context)
        self.made_for = {"request": json.loads(request.model_dump_json()), "checkpoint": loaded.sha256}
        self.corpus = "bundled:languages" if "languages" in loaded.name else "bundled:texts"
        self.windows = windows(self.corpus, self.tokenizer, self._length(), self.settings.corpus_windows)
        self.values: list[float] = []
        self._scores = scores(loaded.model, self.objective, self.windows)
        self.found: list[dict[str, Any]] = []
        self.dreams: TextDreams | None = None
        kept = load_state(folder, self.made_for)
        if kept is not None:
            tensors, about = kept
            self.found, self.spread = about["found"], about["spread"]
            self.dreams = self._dreams(tensors["starts"])
            self.starts = tensors.pop("starts")
            self.dreams.load(tensors)
        self.round: Iterator[None] | None = None
        """the current round"""
        self.saved_at = time.monotonic()
        self.finished = False

    def _length(self) -> int:
        return self.settings.length if self.original_ids is None else len(self.original_ids)

    def advance(self) -> Progress:
        started = time.monotonic()
        while self.dreams is None and time.monotonic() - started < SLICE_SECONDS:
            part = next(self._scores, None)
            if part is None:
                self._begin()
            else:
                self.values += part
        if self.dreams is None:
            return self._progress("")
        dreams = self.dreams
        while not dreams.finished and time.monotonic() - started < SLICE_SECONDS:
            self._go_on(dreams)
        if not dreams.finished:
            return self._progress(f"best so far {float(dreams.wanted.max()):.3f}: {self._best_text(dreams)}")
        self._keep(dreams)
        self.finished = True
        return self._progress("done", self._finish(dreams))

    def _go_on(self, dreams: TextDreams) -> None:
        """Run a part of a round."""
        if self.round is None:
            self.round = dreams.round_in_parts()
        for _ in self.round:
            return
        self.round = None
        if dreams.iteration % min(MOST_REPEATED, 16) == 0 or time.monotonic() - self.saved_at > SAVE_SECONDS:
            self._keep(dreams)

    def close(self) -> None:
        """Release the work; rounds since the last saved state are repeated later."""

    def _progress(self, message: str, result: dict[str, Any] | None = None) -> Progress:
        """Progress of the corpus search, then of the rounds; the message names the phase."""
        if self.dreams is None:
            looking = f"first part of two: looking through the bundled texts, then {self.settings.iterations:,} rounds"
            return Progress(len(self.values), len(self.windows), "stretches", looking)
        done, rounds = self.dreams.iteration, self.settings.iterations
        if self.finished:
            early = f"no swap helped any more after {done:,} of {rounds:,} rounds"
            return Progress(done, done, "rounds", early if done < rounds else message, True, result or {})
        return Progress(done, rounds, "rounds", f"swapping words: {message}")

    def _best_text(self, dreams: TextDreams) -> str:
        return repr(written(self.tokenizer, dreams.ids[int(dreams.wanted.argmax())]).strip())

    def _begin(self) -> None:
        """Initialise with the best stretches of the corpus, and the original if there is one."""
        kept = best(self.windows, self.values, self.tokenizer, max(LISTED, self.settings.starts))
        values = np.array(self.values or [float("nan")])
        self.spread = {
            "corpus": self.corpus,
            "windows": len(self.windows),
            "mean": float(values.mean()),
            "p99": float(np.quantile(values, 0.99)),
            "best": float(values.max()),
        }
        self.found = [
            {"objective": s.value, "label": s.window.label, "source": s.window.source, **self._shown(s.window.ids)}
            for s in kept[:LISTED]
        ]
        starts = [torch.tensor(s.window.ids) for s in kept[: self.settings.starts]]
        if not starts:
            raise UserError(
                f"No stretch of {self._length()} tokens of {self.corpus} can start a dream; give a smaller length",
                field="text.length",
            )
        self.starts = torch.stack(starts)
        self.dreams = self._dreams(self.starts)
        self._keep(self.dreams)

    def _dreams(self, starts: Tensor) -> TextDreams:
        return TextDreams(self.loaded.model, self.tokenizer, self.objective, starts, self.settings, self.request.seed)

    def _keep(self, dreams: TextDreams) -> None:
        series = [
            {"name": _name(b), "x": list(range(len(ys))), "y": [round(y, 5) for y in ys]}
            for b, ys in enumerate(dreams.curves().T.tolist())
        ]
        curve = {"x": "round of swaps", "y": "objective (mean over the wanted decisions)", "series": series}
        write_artifact(self.folder, "curve.json", json.dumps(curve).encode())
        about = self.made_for | {"found": self.found, "spread": self.spread}
        save_state(self.folder, dreams.state() | {"starts": self.starts}, about)
        self.saved_at = time.monotonic()

    def _finish(self, dreams: TextDreams) -> dict[str, Any]:
        texts = []
        with torch.no_grad():
            for b in dreams.wanted.argsort(descending=True).tolist():
                (seen,) = look(self.loaded.model, dreams.ids[b : b + 1], [self._whole_need()])
                matched = self.objective.matched(seen) if isinstance(self.objective, Choices | Module) else (None, None)
                texts.append(
                    {
                        "name": _name(b),
                        "objective": float(dreams.wanted[b]),
                        "matched_choices": matched[0],
                        "matched_tokens": matched[1],
                        "mean_log_prob": float(Fluency().value(seen)),
                        "reads_back": reads_back(self.tokenizer, dreams.ids[b]),
                        **self._shown(dreams.ids[b].tolist()),
                        "start": {"objective": float(dreams.curve[0][b]), **self._shown(self.starts[b].tolist())},
                    }
                )
        original = None
        if self.original_ids is not None:
            (seen,) = look(self.loaded.model, self.original_ids[None].to(dreams.device), [self._whole_need()])
            value = float(self.objective.value(seen)) / self.objective.terms
            original = {"objective": value, **self._shown(self.original_ids.tolist())}
        answer = {"original": original, "dreams": texts, "corpus": self.spread | {"examples": self.found}}
        result = {
            "model": self.loaded.name,
            "checkpoint_sha256": self.loaded.sha256,
            "engine_version": engine_version(),
            "torch": torch.__version__,
            "request": self.made_for["request"],
            **answer,
        }
        write_artifact(self.folder, "result.json", json.dumps(result, indent=1, ensure_ascii=False).encode())
        return answer

    def _whole_need(self) -> Need:
        return Need(self.objective.need.steps, output=True)

    def _shown(self, ids: Any) -> dict[str, Any]:
        text, texts = self.tokenizer.decode(list(ids)), self.tokenizer.token_texts
        return {
            "text": text,
            "tokens": [texts[i] for i in ids],
            "spans": self.tokenizer.spans(list(ids)),
            "targets": self.targets,
        }

    def _objective(self, context: JobContext) -> Objective:
        """Paths and modules are sought at the last token (or the group), connections and directions over the text."""
        target, config, device = self.request.target, self.loaded.checkpoint.config, self.loaded.device
        if target.of == "connection":
            return Connection(target.iteration, target.source, target.target)
        if target.of == "direction":
            return Suppression(target.layer, target.head, target.direction)
        if target.of == "choices":
            return self._choices(context)
        assert isinstance(target, ModuleTarget | PathTarget), "check_request refuses what a text has not"
        length = self.settings.length
        self.targets = members(target.group, None, length, self.request.seed) or [length - 1]
        tokens = torch.tensor(self.targets, device=device)
        if target.of == "module":
            steps = target.steps or tuple(range(config.num_steps))
            return Module(target.module, steps, tokens, length, target.scores)
        ribbon = wanted_ribbon(self.request, self.folder, context).to(device)
        return follow_path(ribbon, length, tokens=tokens, of=target.scores)

    def _choices(self, context: JobContext) -> Objective:
        """A text whose tokens take the paths of a stretch of the original in its context."""
        target, config = self.request.target, self.loaded.checkpoint.config
        assert isinstance(target, ChoicesTarget), "called for these alone"
        every = torch.from_numpy(self.tokenizer.encode(original_text(self.request, self.folder, context)).ids).long()
        stretch = stretch_of(self.request, len(every))
        ids = every[stretch.start : stretch.stop]
        own = self._own_paths(every, stretch)
        self.original_ids, self.first = ids, stretch.start
        self.targets = members(target.group, own.cpu(), len(ids), self.request.seed, stretch.start)
        s = (target.until or (config.num_steps,))[0]
        steps = range(s) if target.form == "cumulative" else range(s - 1, s)
        tokens = None if self.targets is None else torch.tensor(self.targets, device=self.loaded.device)
        return Choices(own, steps, tokens, target.scores)

    def _own_paths(self, every: Int[Tensor, " T"], stretch: range) -> Int[Tensor, "t S K"]:
        """The paths of a stretch as a run has them: a text is traced in windows of the model's context."""
        size = self.loaded.checkpoint.config.context
        first, last = stretch.start // size, (stretch.stop - 1) // size
        with torch.no_grad():
            parts = [
                self.loaded.model.trace(every[None, w * size : (w + 1) * size].to(self.loaded.device)).module_ids[0]
                for w in range(first, last + 1)
            ]
        return torch.cat(parts)[stretch.start - first * size : stretch.stop - first * size].long()


def _name(start: int) -> str:
    """What a dreamed text is called, in its curve and in the result, whose texts are in the order of their worth."""
    return f"text {start + 1}"
