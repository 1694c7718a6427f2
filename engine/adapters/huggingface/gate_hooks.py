"""Forward hooks that record the decisions of a Hugging Face model's gates.

Shapes: n tokens of a forward pass (B·T positions), S gates, K slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from tokenpaths.engine.adapters.huggingface.gates import Gate, Said, called_with, said_by
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.models.family import margins_of

_ROUNDING = 2**-7
"""tolerance for weights above 1 from bfloat16 rounding"""


@dataclass(frozen=True)
class Recorded:
    """The decisions of one forward pass on the host; slot 0 holds the largest weight."""

    ids: Integer[Tensor, "n S K"]
    weights: Float[Tensor, "n S K"]
    """in [0, 1]: the weights applied to the experts, without the scale"""
    gate_entropy: Float[Tensor, "n S"]
    """nats; NaN for a gate without a distribution over all experts"""
    margin: Float[Tensor, "n S"]
    """``family.margins_of``, NaN where the entropy is"""
    runner_up: Integer[Tensor, "n S"]


class GateRecorder:
    """Context manager with hooks on every gate; ``take`` returns the decisions of the last forward pass.

    Hooks only store gate outputs; sorting, entropy and the copy to the host happen once for all layers.
    """

    def __init__(self, gates: Sequence[Gate]) -> None:
        self.gates = list(gates)
        self.calls: list[tuple[Gate, Said]] = []
        """gate outputs since the last ``take``, in call order"""
        self._logits: dict[int, Tensor] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> GateRecorder:
        seen: set[int] = set()
        for gate in self.gates:
            if id(gate.module) in seen:  # reached twice in a pass: one hook, two calls
                continue
            seen.add(id(gate.module))
            self._handles.append(gate.module.register_forward_hook(lambda m, _a, out, g=gate: self._hear(g, m, out)))
            if gate.at_experts:
                self._handles.append(
                    gate.hooked.register_forward_pre_hook(
                        lambda m, args, kwargs, g=gate: self._hear_experts(g, args, kwargs), with_kwargs=True
                    )
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.calls.clear()

    def _hear(self, gate: Gate, module: nn.Module, output: Any) -> None:
        if gate.at_experts:
            self._logits[id(gate.module)] = output
            return
        said = said_by(module, output)
        assert said is not None, "find_gates saw ids and weights"
        self.calls.append((gate, said if gate.probabilities else replace(said, logits=None)))

    def _hear_experts(self, gate: Gate, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        said = called_with(args, kwargs)
        assert said is not None, "find_gates saw ids and weights"
        logits = self._logits.pop(id(gate.module), None)
        self.calls.append((gate, replace(said, logits=logits if isinstance(logits, Tensor) else None)))

    def take(self, keep: Bool[Tensor, " n"]) -> Recorded:
        """The decisions since the last call, at the positions that ``keep`` marks.

        Raises:
            UserError: a gate returned NaN, invalid weights, or another number of tokens.
        """
        calls, self.calls = self.calls, []
        self._logits.clear()
        if [gate.name for gate, _ in calls] != [gate.name for gate in self.gates]:
            raise UserError(
                f"{len(calls)} gates decided in this pass, {len(self.gates)} in the first one: routing that changes "
                "its layers from text to text cannot be traced",
                field="model",
            )
        for gate, said in calls:
            if said.ids.shape[0] != len(keep):
                raise UserError(f"{gate.name} decided for {said.ids.shape[0]} tokens of {len(keep)}", field="model")
        recorded = _stacked(calls, keep)
        _check_weights(recorded, self.gates)
        return recorded


def _stacked(calls: list[tuple[Gate, Said]], keep: Tensor) -> Recorded:
    """Decisions of all gates of a pass, on the host: slots sorted by weight, scale removed, entropy of the gates."""
    device = calls[0][1].ids.device
    ids = torch.stack([said.ids.to(device, torch.int32) for _, said in calls], dim=1)
    weights = torch.stack([_without_scale(gate, said).to(device) for gate, said in calls], dim=1)
    if ids.shape[2] > 1:
        weights, order = weights.sort(dim=2, descending=True, stable=True)
        ids = ids.gather(2, order)
    kept = keep.to(device)
    entropies, margin, runner_up = (part[kept].cpu() for part in _from_scores(calls, device))
    return Recorded(ids[kept].cpu(), weights[kept].cpu(), entropies, margin, runner_up)


def _without_scale(gate: Gate, said: Said) -> Tensor:
    weights = said.weights.float()
    if (learned := getattr(gate.module, "per_expert_scale", None)) is not None:
        weights = weights / learned[said.ids].float()
    if (learned := getattr(gate.module, "global_scale", None)) is not None:
        weights = weights / learned.float()
    return weights / gate.divide if gate.divide != 1 else weights


def _from_scores(calls: list[tuple[Gate, Said]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Entropy, margin and runner-up (n, S) of the decisions; NaN for gates without a distribution."""
    known = [(gate, said.logits) for gate, said in calls if gate.probabilities and said.logits is not None]
    alike = len(known) == len(calls) and len({logits.shape for _, logits in known}) == 1
    if alike and not any(gate.gives_probabilities for gate, _ in known):
        probs = torch.stack([logits.to(device).float() for _, logits in known], dim=1).softmax(dim=2)
        ids = torch.stack([said.ids.to(device) for _, said in calls], dim=1)
        margin, runner_up = margins_of(probs, ids)
        return torch.special.entr(probs).sum(dim=2), margin, runner_up.to(torch.int32)
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    for gate, said in calls:
        if not gate.probabilities or said.logits is None:
            unknown = torch.full(said.ids.shape[:1], float("nan"), device=device)
            columns.append((unknown, unknown, torch.zeros_like(unknown, dtype=torch.int32)))
            continue
        probs = said.logits.float() if gate.gives_probabilities else said.logits.float().softmax(dim=1)
        margin, runner_up = margins_of(probs, said.ids.to(probs.device))
        entropies = torch.special.entr(probs).sum(dim=1)
        columns.append((entropies.to(device), margin.to(device), runner_up.to(device, torch.int32)))
    entropy, margin, runner_up = (torch.stack(part, dim=1) for part in zip(*columns, strict=True))
    return entropy, margin, runner_up


def _check_weights(recorded: Recorded, gates: Sequence[Gate]) -> None:
    weights = recorded.weights
    bad = ~torch.isfinite(weights).all(dim=2).all(dim=0)
    if bad.any():
        raise UserError(
            f"{gates[int(bad.nonzero()[0])].name} gave NaN or infinite weights; the checkpoint or the input is "
            "damaged, nothing of this run was written",
            field="model",
        )
    low, high = weights.amin(dim=(0, 2)), weights.amax(dim=(0, 2))
    outside = (low < -_ROUNDING) | (high > 1 + _ROUNDING)
    if outside.any():
        step = int(outside.nonzero()[0])
        raise UserError(
            f"{gates[step].name} ({type(gates[step].module).__name__}) gave weights from {low[step]:g} to "
            f"{high[step]:g}, and it is not known which scale they hold; weights of a run lie in [0, 1]",
            field="model",
        )
    weights.clamp_(0, 1)
