"""A Hugging Face mixture of experts as a ``Traceable``: a step is a gate, a module is an expert of its layer.

Shapes: B windows of T positions, n tokens of texts among them, S steps, K slots, V vocabulary entries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor

from tokenpaths.engine.adapters.expert_runs import FAMILY, shareable_config
from tokenpaths.engine.adapters.huggingface.gate_edits import Frame, GateEdits, check_gates, text_decision
from tokenpaths.engine.adapters.huggingface.gate_hooks import GateRecorder, Recorded
from tokenpaths.engine.adapters.huggingface.gates import Gate, common_semantics, module_table
from tokenpaths.engine.adapters.huggingface.library import HuggingFaceError, first_line, transformers_library
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import Modality, ModuleInfo
from tokenpaths.engine.base.routing import Decision
from tokenpaths.engine.data.confined_tokenizer import ConfinedTokenizer
from tokenpaths.engine.data.tokenizer import Encoded, check_encodable
from tokenpaths.engine.families.edit_plan import RoutePlan, Routers, plan_routes
from tokenpaths.engine.families.family_controls import ExpertControls, read_expert_controls
from tokenpaths.engine.models.family import Traced
from tokenpaths.engine.tracing.traceable import ModelInput

PASS_TOKENS = 512
"""tokens of one forward pass on a CPU, padding included; a longer window is a pass of its own. Small, because a pass
cannot be interrupted"""
DEVICE_PASS_TOKENS = 2048
"""the same on a GPU, which needs larger passes to be fully used"""


TWIN_PARAMS = 50_000_000
"""maximum number of parameters of models whose untrained twin is traced beside every run"""


class TextTokens:
    """A fast tokenizer, in a confined child, that also gives the character span of each id.

    Tokens that a tokenizer adds before a text (``<s>``) are fed to the model before every window, but are not part of
    the run.
    """

    def __init__(self, tokenizer: ConfinedTokenizer) -> None:
        self._tokenizer = tokenizer
        self.before: tuple[int, ...] = tuple(tokenizer.about["before"])

    def encode(self, text: str) -> Encoded:
        """Token ids of a text without special tokens; several tokens of one character share its span.

        Raises:
            UserError: the text holds lone surrogates, or the tokenizer fails.
        """
        check_encodable(text)
        ids, spans = self._tokenizer.encode([text])[0]
        return Encoded(ids, spans[:, 0], spans[:, 1])

    def token_texts(self) -> dict[int, str]:
        """Readable text of every vocabulary entry; bytes that form no character become U+FFFD."""
        return self._tokenizer.texts(skip_special=False)


@dataclass
class HuggingFaceModel:
    """A Hugging Face model and its gates: a ``Traceable``."""

    name: str
    model: Any
    tokenizer: TextTokens
    gates: list[Gate]
    sha256: str
    device: torch.device
    """device of the inputs"""
    context: int
    initialise: Callable[[HuggingFaceModel, int], HuggingFaceModel]
    """makes the untrained twin of a model, given a seed"""
    controls: ExpertControls | None = None
    plan: RoutePlan | None = None
    """edits per gate, from ``controls``"""

    modality: Modality = "text"
    classes: tuple[str, ...] = ()
    image_size: int = 0
    grid: tuple[int, int] = (0, 0)
    first_prediction: int = 0

    def with_controls(self, values: dict[str, Any] | None) -> HuggingFaceModel:
        """See ``Traceable.with_controls``; a share to ban stays unresolved until usage has been counted."""
        if not values:
            return self.without_controls()
        controls = read_expert_controls(values)
        choices = tuple(tuple(range(gate.num_choices)) for gate in self.gates)
        plan = plan_routes(controls.edits, Routers(choices, self.must_leave))
        if plan is not None:
            check_gates(self.gates, plan, self.must_leave)
        return replace(self, controls=controls, plan=plan)

    def without_controls(self) -> HuggingFaceModel:
        return replace(self, controls=None, plan=None)

    @property
    def has_small_twin(self) -> bool:
        return sum(p.numel() for p in self.model.parameters()) <= TWIN_PARAMS

    def untrained(self, seed: int = 0) -> HuggingFaceModel:
        """See ``Traceable.untrained``; needs as much memory as the model itself."""
        return self.initialise(self.without_controls(), seed)

    @property
    def before(self) -> tuple[int, ...]:
        return self.tokenizer.before

    @property
    def edit_kinds(self) -> tuple[str, ...]:
        return ExpertControls.EDITS

    @property
    def num_steps(self) -> int:
        return len(self.gates)

    @property
    def num_modules(self) -> int:
        return max(gate.num_choices for gate in self.gates)

    @property
    def must_leave(self) -> int:
        """The model's own top-k."""
        return self.gates[0].top_k

    @property
    def pass_tokens(self) -> int:
        return PASS_TOKENS if self.device.type == "cpu" else DEVICE_PASS_TOKENS

    @property
    def modules(self) -> list[ModuleInfo]:
        return module_table(self.gates)

    def module_table(self) -> list[ModuleInfo]:
        return self.modules

    def choices(self) -> list[Sequence[int]]:
        return [range(gate.num_choices) for gate in self.gates]

    def run_fields(self) -> dict[str, Any]:
        config = json.loads(self.model.config.to_json_string(use_diff=False))
        about = {
            "transformers": transformers_library().__version__,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "layers": [gate.name for gate in self.gates],
        }
        changed = {} if self.controls is None else {"controls": json.loads(json.dumps(self.controls.given()))}
        return {
            "model": self.name,
            "family": FAMILY,
            "modality": self.modality,
            "num_steps": self.num_steps,
            "num_modules": self.num_modules,
            "top_k": self.must_leave if self.plan is None else self.plan.top_k,
            "weight_semantics": common_semantics(self.gates).as_json(),
            "config": {"huggingface": about} | shareable_config(_finite(config)) | changed,
            "checkpoint_sha256": self.sha256,
            "token_texts": self.token_texts(),
            "predicts_tokens": True,
            "scores": any(gate.probabilities for gate in self.gates),
        }

    def encode(self, text: str) -> Encoded:
        encoded = self.tokenizer.encode(text)
        known = self.model.get_input_embeddings().weight.shape[0]
        if len(encoded.ids) and (highest := int(encoded.ids.max())) >= known:
            raise HuggingFaceError(f"{self.name}: the tokenizer gave id {highest}, the model knows {known} tokens")
        return encoded

    def token_texts(self) -> dict[int, str]:
        return self.tokenizer.token_texts()

    @torch.inference_mode()
    def run(self, batch: ModelInput) -> Traced:
        """See ``Traceable.run``; ``logits`` are those of all positions."""
        assert batch.valid is not None
        if self.plan is None:
            return _traced(*self._pass(batch)[:2], batch.valid)
        frame = Frame(batch.valid, len(self.before))
        unedited = self._pass(batch, frame)[2] if self.plan.needs_unedited else None
        with GateEdits(self.gates, self.plan, self.must_leave, frame, unedited) as edits:
            recorded, logits, _ = self._pass(batch)
        edits.check(recorded.ids)
        return _traced(recorded, logits, batch.valid)

    def choose(self, batch: ModelInput) -> Integer[np.ndarray, "n S K"]:
        """See ``Traceable.choose``."""
        return batch.ribbons(self.run(batch))

    def _pass(self, batch: ModelInput, frame: Frame | None = None) -> tuple[Recorded, Tensor, list[Decision]]:
        """Decisions of the text tokens, logits, and (with ``frame``) the decisions of each gate at every position."""
        assert batch.valid is not None
        attended = batch.valid.clone()
        attended[:, : len(self.before)] = True
        with GateRecorder(self.gates) as recorder:
            logits = forward(self.model, batch.raw.to(self.device), attended.long().to(self.device))
            decisions = []
            if frame is not None:
                decisions = [text_decision(gate, said, frame.rows(said.ids.device)) for gate, said in recorder.calls]
            return recorder.take(batch.valid.flatten()), logits, decisions

    def token_flops(self, traced: Traced, valid: Tensor | None) -> Tensor:
        """FLOPs of the visited experts, from the module table."""
        steps = torch.arange(self.num_steps)
        return self._expert_flops[steps[:, None], traced.module_ids.long()].sum(dim=(2, 3))

    @cached_property
    def _expert_flops(self) -> Tensor:
        table = torch.zeros((self.num_steps, self.num_modules), dtype=torch.float64)
        for module in self.modules:
            table[module.step, module.module] = module.flops_per_token
        return table


def _traced(recorded: Recorded, logits: Tensor, valid: Tensor) -> Traced:
    """Scatter rows of tokens back to their positions; 0 elsewhere."""

    def placed(values: Tensor) -> Tensor:
        whole = values.new_zeros((*valid.shape, *values.shape[1:]))
        whole[valid] = values
        return whole

    return Traced(
        logits,
        placed(recorded.ids),
        placed(recorded.weights),
        placed(recorded.gate_entropy),
        margin=placed(recorded.margin),
        runner_up=placed(recorded.runner_up),
    )


def _finite(value: Any) -> Any:
    """Replace infinities, which JSON lacks but some configurations hold (``time_step_limit``)."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def forward(model: Any, inputs: Tensor, attended: Tensor) -> Tensor:
    """Logits of one forward pass.

    Raises:
        HuggingFaceError: the model's code failed: out of memory, a kernel that is not installed, a text that holds an
            image placeholder.
    """
    try:
        return model(input_ids=inputs, attention_mask=attended, use_cache=False).logits
    except UserError:
        raise
    except torch.OutOfMemoryError:
        raise HuggingFaceError(
            "there is not enough memory for a batch; give a smaller --batch-size, or --dtype bfloat16",
            field="batch_size",
        ) from None
    except Exception as error:
        raise HuggingFaceError(f"{type(model).__name__} gave up: {first_line(error)}") from error
