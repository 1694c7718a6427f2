"""The job ``gates``: a scan of gates, heads and positions over many texts, or one word of one text.

A scan measures one condition after the other and keeps each finished one, so that a killed job does at most one again;
its artifact grows while it runs. A slice ends behind the forward pass at hand.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.jobs.gates.gates_request import GatesRequest
from tokenpaths.engine.jobs.registry import JobContext, Progress, write_artifact
from tokenpaths.engine.jobs.reroute_data import (
    STATE,
    Reading,
    begun_for,
    check_family,
    check_samples,
    load_state,
    samples_of,
)

if TYPE_CHECKING:
    from tokenpaths.engine.edits.prepared import PreparedSet
    from tokenpaths.engine.models.directional import Directional
    from tokenpaths.engine.models.directional_gates import Interventions
    from tokenpaths.engine.store.ask.run import Run
    from tokenpaths.engine.tracing.loaded_model import LoadedModel

SLICE_SECONDS = 0.6
SCAN, WORD = "gate_scan.json", "gate_word.json"
FAMILY = "directional"


class GatesJob:
    """Entry point of the queue for this kind; ``start`` returns a ``Scan`` or a ``Word``."""

    kind: ClassVar[str] = "gates"
    Request: ClassVar[type[BaseModel]] = GatesRequest

    @classmethod
    def check(cls, request: GatesRequest, context: JobContext) -> None:
        """Refuse a model of another family, missing data, a text that is not there, gates that no run has."""
        outline = context.outline(request.model)
        check_family(request.model, outline, FAMILY, "Directional Routing has gates to measure")
        check_samples(request, context, outline.modality)
        if request.run is not None and request.sample is not None:
            with context.open_run(request.run) as run:
                _check_run(request, run)

    @classmethod
    def start(cls, request: GatesRequest, folder: Path, context: JobContext) -> Scan | Word:
        """Load the model; the samples are read slice by slice."""
        loaded: Any = context.load_model(request.model)
        kind = Scan if request.sample is None else Word
        return kind(request, folder, context, loaded)

    def advance(self) -> Progress:  # pragma: no cover - what ``start`` gives has its own
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to release."""


def _check_run(request: GatesRequest, run: Run) -> None:
    """UserError unless the run has gates of this model, and of the other text."""
    if run.row["model"] != request.model:
        raise UserError(
            f"the run {request.run} is of the model {run.row['model']}; its gates are no condition of {request.model}",
            field="run",
        )
    if "gates" not in run.soft_shapes:
        raise UserError(f"the run {request.run} holds no gates: trace {request.model} again", field="run")
    if request.other is not None and request.other >= run.row["num_samples"]:
        raise UserError(str(run.no_sample(request.other)), field="other")


class Scan:
    """Every gate at one value, every head knocked out, and the gain by position, over many texts."""

    def __init__(self, request: GatesRequest, folder: Path, context: JobContext, loaded: LoadedModel) -> None:
        from tokenpaths.engine.edits.gate_scan import conditions, position_edges

        self.request, self.folder = request, folder
        self.model: Directional = loaded.model  # type: ignore[assignment]
        self.reading = Reading(request, context, loaded)
        self.conditions, self.edges = conditions(self.model.config), position_edges(loaded.context)
        self.begun_for = begun_for(request, loaded, self.reading)
        kept: dict[str, Any] = load_state(folder, self.begun_for, "sums") or {}
        self.done = {name: np.array(sums) for name, sums in kept.items()}
        self.sums = self.counts = np.zeros((0, 0))
        self.batch = 0
        """passes done of the current condition"""

    def advance(self) -> Progress:
        """Some passes of the current condition; the first calls read the texts."""
        ends = time.monotonic() + SLICE_SECONDS
        if self.reading.data is None:
            self.reading.advance(ends)
        data = self.reading.data
        if data is None:
            return self.reading.progress("passes")
        if not data.num_targets:
            raise UserError("these texts are single tokens: there is no next word to predict", field="data")
        while len(self.done) < len(self.conditions):
            self._pass(data)
            if time.monotonic() >= ends:
                break
        return self._progress(data)

    def _pass(self, data: PreparedSet) -> None:
        from tokenpaths.engine.edits.gate_scan import add_losses

        if not self.batch:
            self.sums = np.zeros((data.num_samples, len(self.edges) - 1))
            self.counts = np.zeros(self.sums.shape, dtype=np.int64)
        condition = next(one for one in self.conditions if one.name not in self.done)
        batch, samples = data.batches[self.batch], data.samples[self.batch]
        add_losses(self.sums, self.counts, self.model, batch, samples, condition.act, self.edges)
        self.batch += 1
        if self.batch == len(data.batches):
            self.batch = 0
            self.done[condition.name] = self.sums
            self._keep(data)

    def _keep(self, data: PreparedSet) -> None:
        from tokenpaths.engine.edits.gate_scan import scan_answer

        answer = {
            "model": self.request.model,
            "data": self.reading.name,
            "num_samples": data.num_samples,
            "of_samples": self.reading.of_samples,
            "context": self.edges[-1],
            "conditions": len(self.conditions),
            "measured": len(self.done),
        } | scan_answer(self.model.config, self.counts, self.done, self.edges)
        write_artifact(self.folder, SCAN, json.dumps(answer, allow_nan=False).encode())
        sums = {name: sums.tolist() for name, sums in self.done.items()}
        write_atomically(self.folder / STATE, json.dumps(self.begun_for | {"sums": sums}, allow_nan=False).encode())

    def _progress(self, data: PreparedSet) -> Progress:
        passes, finished = len(data.batches), len(self.done) == len(self.conditions)
        total = len(self.conditions) * passes
        if not finished:
            now = next(one.name for one in self.conditions if one.name not in self.done)
            return Progress(len(self.done) * passes + self.batch, total, "passes", now)
        answer = json.loads((self.folder / "artifacts" / SCAN).read_bytes())
        worst = sorted(answer["heads"], key=lambda row: -row["rise"])[:10]
        result = {
            "num_samples": data.num_samples,
            "of_samples": self.reading.of_samples,
            "loss": answer["trained"]["loss"],
            "most_important": [{name: row[name] for name in ("layer", "head", "rise", "error")} for row in worst],
        }
        words = f"{len(answer['heads'])} heads over {data.num_samples:,} texts"
        return Progress(total, total, "passes", words, finished=True, result=result)

    def close(self) -> None:
        """Nothing to release."""


class Word:
    """The logit and the probability of one word behind one position of a text."""

    def __init__(self, request: GatesRequest, folder: Path, context: JobContext, loaded: LoadedModel) -> None:
        self.request, self.folder, self.context, self.loaded = request, folder, context, loaded

    def advance(self) -> Progress:
        """Everything: a few passes over one text."""
        answer = self._answer()
        write_artifact(self.folder, WORD, json.dumps(answer, allow_nan=False).encode())
        chances = {row["name"]: row["probability"] for row in answer["conditions"]}
        result = {"word": answer["word"], "probability": chances}
        return Progress(1, 1, "texts", repr(answer["word"]), finished=True, result=result)

    def _answer(self) -> dict[str, Any]:
        from tokenpaths.engine.edits.gate_words import first_order, logit_parts, word_chances
        from tokenpaths.engine.models.directional import Directional

        request, loaded = self.request, self.loaded
        model, texts = loaded.model, loaded.token_texts()
        assert isinstance(model, Directional), "check refuses other families"
        ids, place, follows = self._window()
        here = ids.to(loaded.device)
        word = self._word_id(model, here, place, follows)
        parts, plain = (logit_parts(model, here, place, word, centred=centred) for centred in (True, False))
        slopes = first_order(model, here, place, word)
        chances = word_chances(model, here, place, word, self._conditions())
        directions = [
            {
                "layer": layer,
                "head": head,
                "direction": k,
                "gate": float(parts.gates[layer, head, k]),
                "logit": float(parts.removed[layer, head, k]),
                "uncentred": float(plain.removed[layer, head, k]),
                "first_order": float(slopes[layer, head, k]),
            }
            for layer, head, k in np.ndindex(*parts.removed.shape)
        ]
        return {
            "model": request.model,
            "run": request.run,
            "sample": request.sample,
            "position": request.position,
            "window_tokens": len(ids),
            "token": texts.get(int(ids[place]), ""),
            "word": texts.get(word, ""),
            "token_id": word,
            "follows": None if follows is None else texts.get(follows, ""),
            "pooling": model.config.pooling,
            "logit": {
                "all": parts.logit,
                "embedding": parts.embedding,
                "heads": float(parts.heads.sum()),
                "removed": float(parts.removed.sum()),
                "mlps": float(parts.mlps.sum()),
            },
            "directions": directions,
            "conditions": [asdict(chance) | {"best": texts.get(chance.best, "")} for chance in chances],
        }

    def _window(self) -> tuple[Any, int, int | None]:
        """Tokens of the window that the position lies in, its place there, and the token that follows it."""
        import torch

        from tokenpaths.engine.tracing.text_windows import cut, encoded_text

        sample = next(samples_of(self.request, self.context, self.loaded.modality).samples)
        ids, position = encoded_text(self.loaded, sample).ids, int(self.request.position or 0)
        if position >= len(ids):
            raise UserError(
                f"position {position}: text {self.request.sample} has {len(ids):,} tokens, so 0 to {len(ids) - 1}",
                field="position",
            )
        number, place = divmod(position, self.loaded.context)
        window = cut(ids, self.loaded.context)[number]
        follows = int(ids[position + 1]) if position + 1 < len(ids) else None
        return torch.from_numpy(window.ids).long(), place, follows

    def _word_id(self, model: Directional, ids: Any, place: int, follows: int | None) -> int:
        """The token asked for: of a word with and without a space before it, the one that is likelier here."""
        from tokenpaths.engine.edits.gate_words import word_chances
        from tokenpaths.engine.models.directional_gates import Interventions

        word = self.request.word
        if word is None:
            if follows is None:
                raise UserError("this is the last token of the text: name the word to look at", field="word")
            return follows
        found = [self.loaded.encode(text).ids for text in (word, f" {word}")]
        single = {int(ids_n[0]) for ids_n in found if len(ids_n) == 1}
        if not single:
            pieces = ", ".join(repr(self.loaded.token_texts().get(int(i), "")) for i in found[0][:8])
            raise UserError(
                f"{word!r} is {len(found[0])} tokens of this model ({pieces}); give one token", field="word"
            )
        alone = {"as trained": Interventions()}
        return max(sorted(single), key=lambda token: word_chances(model, ids, place, token, alone)[0].probability)

    def _conditions(self) -> dict[str, Interventions]:
        """As trained, off, neutral, full, the mean gates of the run, and those of the other text."""
        import torch

        from tokenpaths.engine.edits.gate_effects import fixed_gates
        from tokenpaths.engine.models.directional_gates import FULL, NEUTRAL, OFF, Interventions

        def taken(run: Run, sample: int | None) -> Interventions:
            values = run.soft("gates", sample=sample)["values"]
            return fixed_gates(torch.tensor(values, dtype=torch.float32, device=self.loaded.device))

        found = {"as trained": Interventions()}
        found |= {
            name: Interventions.everywhere(value)
            for name, value in (("off", OFF), ("neutral", NEUTRAL), ("full", FULL))
        }
        with self.context.open_run(str(self.request.run)) as run:
            _check_run(self.request, run)
            found["mean gates"] = taken(run, None)
            if self.request.other is not None:
                found[f"gates of text {self.request.other}"] = taken(run, self.request.other)
        return found

    def close(self) -> None:
        """Nothing to release."""
