"""The job ``attention``: one sample of a run goes through its DNA again, and who attends to whom is written down.

``attention.json`` has a row for each token and module with attention that it visited: how many tokens of the sample the
module had, and to whom the token attends (mean over heads), without shares below ``LEAST``. A killed job starts anew:
it takes about a second.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from tokenpaths.engine.base.files import NAME_PATTERN
from tokenpaths.engine.edits.reroute_request import SamplesWanted
from tokenpaths.engine.jobs.registry import JobContext, Progress, write_artifact
from tokenpaths.engine.jobs.reroute_data import check_family, check_same_weights, check_samples, samples_of

if TYPE_CHECKING:
    import numpy as np
    import torch

    from tokenpaths.engine.tracing.loaded_model import LoadedModel

FILE = "attention.json"
FAMILY = "dna"
LEAST = 0.01
"""smallest share of a token's attention that is written down"""


class AttentionRequest(BaseModel):
    """Which sample of which run, and its model."""

    model_config = ConfigDict(extra="forbid")

    model: StrictStr = Field(description="Name of a model of GET /models, of the family DNA")
    run: StrictStr = Field(description="Name of the run", pattern=NAME_PATTERN)
    sample: StrictInt = Field(ge=0, description="Number of the sample in the run")


class AttentionJob:
    """A running job of this kind."""

    kind: ClassVar[str] = "attention"
    Request: ClassVar[type[BaseModel]] = AttentionRequest

    def __init__(self, request: AttentionRequest, folder: Path, context: JobContext, loaded: LoadedModel) -> None:
        self.request, self.folder, self.context, self.loaded = request, folder, context, loaded

    @classmethod
    def check(cls, request: AttentionRequest, context: JobContext) -> None:
        """Refuse a model of another family, a missing run or sample, one of the other modality."""
        outline = context.outline(request.model)
        check_family(request.model, outline, FAMILY, "modules of a DNA attend")
        check_samples(_wanted(request), context, outline.modality)

    @classmethod
    def start(cls, request: AttentionRequest, folder: Path, context: JobContext) -> AttentionJob:
        """Load the model."""
        loaded: Any = context.load_model(request.model)
        check_same_weights(_wanted(request), context, loaded)
        return cls(request, folder, context, loaded)

    def advance(self) -> Progress:
        """Everything: one forward pass for each window of the sample."""
        answer = self._answer()
        write_artifact(self.folder, FILE, json.dumps(answer, allow_nan=False).encode())
        result = {name: answer[name] for name in ("num_tokens", "same_choices")}
        return Progress(1, 1, "samples", f"{answer['num_tokens']:,} tokens", finished=True, result=result)

    def _answer(self) -> dict[str, Any]:
        from tokenpaths.engine.models.dna import DNA
        from tokenpaths.engine.models.dna_attention import attention_within

        request, model = self.request, self.loaded.model
        assert isinstance(model, DNA), "check refuses other families"
        rows: list[dict[str, Any]] = []
        chosen: list[np.ndarray] = []
        for first, inputs in self._windows():
            found, ids_TSK = attention_within(model, inputs.to(self.loaded.device))
            for part in found:
                tokens, weights = (part.tokens + first).tolist(), part.weights.cpu().numpy()
                for token, weights_n in zip(tokens, weights, strict=True):
                    kept = sorted((w, t) for w, t in zip(weights_n.tolist(), tokens, strict=True) if w >= LEAST)
                    rows.append(
                        {
                            "token": token,
                            "step": part.step,
                            "module": part.module,
                            "met": len(tokens),
                            "attends_to": [[t, round(w, 3)] for w, t in reversed(kept)],
                        }
                    )
            chosen.append(ids_TSK.cpu().numpy())
        num_tokens = sum(map(len, chosen))
        rows.sort(key=lambda row: (row["token"], row["step"], row["module"]))
        return {
            "model": request.model,
            "run": request.run,
            "sample": request.sample,
            "num_tokens": num_tokens,
            "num_heads": model.config.heads,
            "least": LEAST,
            "same_choices": self._same(chosen) / max(num_tokens, 1),
            "rows": rows,
        }

    def _windows(self) -> list[tuple[int, torch.Tensor]]:
        """Position of the first token of each window, and the model's input (a batch of 1)."""
        import torch

        from tokenpaths.engine.data.normalisation import normalise
        from tokenpaths.engine.tracing.text_windows import cut, encoded_text
        from tokenpaths.engine.tracing.trace_batches import image_input

        loaded = self.loaded
        sample = next(samples_of(_wanted(self.request), self.context, loaded.modality).samples)
        if loaded.modality == "vision":
            return [(0, normalise(image_input(loaded, [sample]).raw))]
        windows = cut(encoded_text(loaded, sample).ids, loaded.context)
        return [(n * loaded.context, torch.from_numpy(w.ids).long()[None]) for n, w in enumerate(windows)]

    def _same(self, chosen: list[np.ndarray]) -> int:
        """Tokens whose choices are those of the run, which may be of an edited model, or of kept pictures."""
        with self.context.open_run(self.request.run) as run:
            kept = [token["ribbon"] for token in run.sample(self.request.sample)["tokens"]]
        now = [row for part in chosen for row in part.tolist()]
        return sum(
            [set(ids) for ids in ours] == [set(ids) for ids in theirs] for ours, theirs in zip(now, kept, strict=False)
        )

    def close(self) -> None:
        """Nothing to release."""


def _wanted(request: AttentionRequest) -> SamplesWanted:
    return SamplesWanted.model_validate(request.model_dump())
