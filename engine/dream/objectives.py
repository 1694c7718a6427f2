"""Objectives of dreams: small terms that add up and scale.

    Choices(ids_TSK, steps=range(3)) + 0.1 * Fluency()

A new objective is a dataclass with ``value`` and, where it reads routers or outputs, ``need``.

Shapes: T tokens, S steps, M modules, K slots.
Source: Distributed Neural Architectures, equations 6 and 8.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from tokenpaths.engine.dream.observed_pass import Need, Seen

Of = Literal["probs", "logits"]


class Objective:
    """A number to make large, read off one input's forward pass."""

    @property
    def need(self) -> Need:
        """How far the forward pass must go."""
        return Need()

    @property
    def terms(self) -> int:
        """How many decisions are summed: value / terms is the mean over them."""
        return 1

    def value(self, seen: Seen) -> Float[Tensor, ""]:
        """The objective, with its gradient."""
        raise NotImplementedError

    def __add__(self, other: Objective) -> Objective:
        return Total((self, other))

    def __mul__(self, factor: int | float) -> Objective:
        return Scaled(self, factor)

    __rmul__ = __mul__


@dataclass(frozen=True)
class Choices(Objective):
    """O_S^T = Σ_{s in steps} Σ_{t in tokens} Σ_{i in module_ids[t, s]} ρ_i: that tokens choose as they once did.

    ``steps`` = range(S) is the cumulative objective, range(S − 1, S) the single step; ``of`` "logits" takes the
    router's logits in place of ρ. ``tokens`` None: all.
    """

    module_ids: Int[Tensor, "T S K"]
    steps: range
    tokens: Int[Tensor, " N"] | None = None
    of: Of = "probs"
    _chosen: tuple[Tensor, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        ids = self.module_ids if self.tokens is None else self.module_ids[self.tokens]
        object.__setattr__(self, "_chosen", tuple(ids[:, step].long() for step in self.steps))

    @property
    def need(self) -> Need:
        return Need(steps=self.steps.stop)

    @property
    def terms(self) -> int:
        return sum(chosen.numel() for chosen in self._chosen)

    def value(self, seen: Seen) -> Float[Tensor, ""]:
        parts = []
        for step, chosen_NK in zip(self.steps, self._chosen, strict=True):
            scores_TM = getattr(seen, self.of)[step]
            scores_NM = scores_TM if self.tokens is None else scores_TM[self.tokens]
            parts.append(scores_NM.gather(-1, chosen_NK).float().sum())
        return torch.stack(parts).sum()

    def matched(self, seen: Seen) -> tuple[float, float]:
        """Of the wanted choices the share that this pass makes; share of tokens for which it makes all of them."""
        right = []
        for step, chosen_NK in zip(self.steps, self._chosen, strict=True):
            now_NK = seen.module_ids[step] if self.tokens is None else seen.module_ids[step][self.tokens]
            right.append((chosen_NK[:, :, None] == now_NK[:, None, :]).any(dim=2))
        right_NSK = torch.stack(right, dim=1)
        return float(right_NSK.float().mean()), float(right_NSK.flatten(1).all(dim=1).float().mean())


def follow_path(
    ribbon: Int[Tensor, "S K"],
    num_tokens: int,
    *,
    steps: range | None = None,
    tokens: Tensor | None = None,
    of: Of = "probs",
) -> Choices:
    """All tokens (or some) take one path, for example the path of rank r."""
    return Choices(ribbon.expand(num_tokens, -1, -1), steps or range(len(ribbon)), tokens, of)


@dataclass(frozen=True)
class Module(Objective):
    """Σ over steps and tokens of the probability (or logit) of one module."""

    module: int
    steps: tuple[int, ...]
    tokens: Int[Tensor, " N"] | None = None
    num_tokens: int = 1
    """T, where ``tokens`` is None"""
    of: Of = "probs"

    @property
    def need(self) -> Need:
        return Need(steps=max(self.steps) + 1)

    @property
    def terms(self) -> int:
        return len(self.steps) * (self.num_tokens if self.tokens is None else len(self.tokens))

    def value(self, seen: Seen) -> Float[Tensor, ""]:
        rows = [getattr(seen, self.of)[step][:, self.module] for step in self.steps]
        return torch.stack([row if self.tokens is None else row[self.tokens] for row in rows]).sum()

    def matched(self, seen: Seen) -> tuple[float, float]:
        """Share of the wanted tokens and steps that take the module, in any slot; of tokens that do at each step."""
        taken = [(seen.module_ids[step] == self.module).any(dim=1) for step in self.steps]
        taken_NS = torch.stack([row if self.tokens is None else row[self.tokens] for row in taken], dim=1)
        return float(taken_NS.float().mean()), float(taken_NS.all(dim=1).float().mean())


@dataclass(frozen=True)
class Connection(Objective):
    """c of one connection of an H-Model; iteration 0 is the input step."""

    iteration: int
    source: int
    target: int

    def value(self, seen: Seen) -> Float[Tensor, ""]:
        assert seen.edges is not None, "of an H-Model"
        return seen.edges[self.iteration, self.source, self.target]


@dataclass(frozen=True)
class Block(Objective):
    """Firing rate of one block of a RayTracing network when the threshold has fallen to its end."""

    block: int
    """number over all layers"""

    @property
    def need(self) -> Need:
        return Need(rates=True)

    def value(self, seen: Seen) -> Float[Tensor, ""]:
        assert seen.rates is not None, "need asks for it"
        return seen.rates[self.block]


@dataclass(frozen=True)
class Suppression(Objective):
    """How much of one direction a Directional Routing model removes, mean over its decisions; in (0, 1)."""

    layer: int
    head: int
    direction: int

    def value(self, seen: Seen) -> Float[Tensor, ""]:
        assert seen.gates is not None, "of a Directional model"
        return seen.gates[:, self.layer, self.head, self.direction].mean()


@dataclass(frozen=True)
class Answer(Objective):
    """The logit of one class: plain activation maximisation, to compare with."""

    index: int

    @property
    def need(self) -> Need:
        return Need(output=True)

    def value(self, seen: Seen) -> Float[Tensor, ""]:
        assert seen.output is not None, "need asks for it"
        return seen.output[..., self.index].sum()


@dataclass(frozen=True)
class Fluency(Objective):
    """Mean log probability that a text model gives to each token after the first: how much it reads like a text."""

    @property
    def need(self) -> Need:
        return Need(output=True)

    def value(self, seen: Seen) -> Float[Tensor, ""]:
        assert seen.output is not None, "need asks for it"
        if len(seen.inputs) < 2:
            return seen.output.sum() * 0
        return -F.cross_entropy(seen.output[:-1].float(), seen.inputs[1:].long())


@dataclass(frozen=True)
class Total(Objective):
    """The sum of its parts."""

    parts: tuple[Objective, ...]

    @property
    def need(self) -> Need:
        needs = [part.need for part in self.parts]
        return Need(max(n.steps for n in needs), any(n.output for n in needs), any(n.rates for n in needs))

    @property
    def terms(self) -> int:
        return sum(part.terms for part in self.parts)

    def value(self, seen: Seen) -> Float[Tensor, ""]:
        return torch.stack([part.value(seen) for part in self.parts]).sum()


@dataclass(frozen=True)
class Scaled(Objective):
    """An objective times a number."""

    part: Objective
    factor: int | float

    @property
    def need(self) -> Need:
        return self.part.need

    @property
    def terms(self) -> int:
        return self.part.terms

    def value(self, seen: Seen) -> Float[Tensor, ""]:
        return self.part.value(seen) * self.factor
