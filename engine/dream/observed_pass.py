"""A forward pass that records what objectives read, with gradients, and stops at the depth that they need.

A dream of the first S decisions needs S routers and the modules of S − 1 steps: the pass of each dream of a batch
stops there, and shallower dreams leave the batch on the way.

Shapes: B dreams, T tokens, M modules, K slots; I iterations, A sources, Z targets; P decisions, L layers, H heads,
D directions; Q blocks; C classes or vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.routing import Decision
from tokenpaths.engine.models.directional import Directional
from tokenpaths.engine.models.dna import DNA
from tokenpaths.engine.models.family import RoutedModel
from tokenpaths.engine.models.hmodel.hmodel import HModel
from tokenpaths.engine.models.raytracing import RayTracing


@dataclass(frozen=True)
class Need:
    """How far one dream must look."""

    steps: int = 0
    """routers that must have spoken"""
    output: bool = False
    """the model's answer is wanted too"""
    rates: bool = False
    """the firing rates of all blocks at the last threshold step are wanted, of a RayTracing network"""


@dataclass(frozen=True)
class Seen:
    """One input's part of a forward pass; what its family does not have, or nobody asked for, is empty or None."""

    inputs: Tensor
    """the input itself: an image, or token ids"""
    probs: tuple[Float[Tensor, "T M"], ...] = ()
    """by step; after the softmax over all modules"""
    logits: tuple[Float[Tensor, "T M"], ...] = ()
    module_ids: tuple[Int[Tensor, "T K"], ...] = ()
    """what this pass chose"""
    output: Float[Tensor, "*T C"] | None = None
    edges: Float[Tensor, "I A Z"] | None = None
    gates: Float[Tensor, "P L H D"] | None = None
    rates: Float[Tensor, " Q"] | None = None
    """firing rate of every block when the threshold has fallen to its end, silent ones included"""


def look(model: RoutedModel, inputs: Tensor, needs: Sequence[Need]) -> list[Seen]:
    """Run the model on B inputs (images as the model wants them, or token ids) and say what each objective may see.

    Raises:
        UserError: a family whose decisions have no gradient to dream along.
    """
    for family, reader in READERS.items():
        if isinstance(model, family):
            return reader(model, inputs, needs)
    families = ", ".join(sorted(family.family for family in READERS))
    raise UserError(
        f"A {model.family} model cannot be dreamed with: its decisions are made once for a whole text, "
        f"without a gradient; families that can: {families}",
        field="model",
    )


def _look_dna(model: DNA, inputs: Tensor, needs: Sequence[Need]) -> list[Seen]:
    if model.config.router == "expert":
        raise UserError(
            "With router 'expert' modules choose tokens, not tokens modules; such a model cannot be dreamed with",
            field="model",
        )
    h = model.enter(inputs)
    tokens = h.shape[1]
    probs: list[list[Tensor]] = [[] for _ in needs]
    logits: list[list[Tensor]] = [[] for _ in needs]
    ids: list[list[Tensor]] = [[] for _ in needs]
    outputs: list[Tensor | None] = [None] * len(needs)
    alive = list(range(len(needs)))
    bank = model.ready_bank(h)
    for step in range(model.config.steps):
        h, alive, _ = _keep(h, alive, [needs[b].output or needs[b].steps > step for b in alive])
        if not alive:
            break
        h, decision = model.approach(h, step)
        for column, of_decision in ((probs, decision.probs), (logits, decision.logits), (ids, decision.module_ids)):
            for b, part in zip(alive, of_decision.split(tokens), strict=True):
                column[b].append(part)
        stay = [needs[b].output or needs[b].steps > step + 1 for b in alive]
        h, alive, remaining = _keep(h, alive, stay, decision)
        if not alive:
            break
        assert remaining is not None, "a decision was given"
        h = model.visit(h, remaining, bank)
    if alive:
        for b, answer in zip(alive, model.finish(h), strict=True):
            outputs[b] = answer
    return [
        Seen(x, tuple(p), tuple(z), tuple(i), out)
        for x, p, z, i, out in zip(inputs, probs, logits, ids, outputs, strict=True)
    ]


def _keep(
    h: Tensor, alive: list[int], stay: list[bool], decision: Decision | None = None
) -> tuple[Tensor, list[int], Decision | None]:
    """Only the dreams that must go on; their part of the decision too."""
    if all(stay):
        return h, alive, decision
    rows = torch.tensor([i for i, on in enumerate(stay) if on], dtype=torch.long, device=h.device)
    if decision is not None:
        of_rows = lambda x: x.view(len(alive), -1, x.shape[-1])[rows].flatten(0, 1)  # noqa: E731
        parts = {part.name: getattr(decision, part.name) for part in fields(decision)}
        decision = replace(decision, **{name: of_rows(x) for name, x in parts.items() if x is not None})
    return h[rows], [b for b, on in zip(alive, stay, strict=True) if on], decision


def _look_hmodel(model: HModel, inputs: Tensor, needs: Sequence[Need]) -> list[Seen]:
    output = model(inputs)
    return [Seen(x, output=y, edges=e) for x, y, e in zip(inputs, output.logits, output.edges, strict=True)]


def _look_directional(model: Directional, inputs: Tensor, needs: Sequence[Need]) -> list[Seen]:
    output = model(inputs)
    return [Seen(x, output=y, gates=g) for x, y, g in zip(inputs, output.logits, output.gates, strict=True)]


def _look_raytracing(model: RayTracing, inputs: Tensor, needs: Sequence[Need]) -> list[Seen]:
    features = model.convolutions(inputs)
    outputs: list[Tensor | None] = [None] * len(needs)
    rates: list[Tensor | None] = [None] * len(needs)
    if answering := [b for b, need in enumerate(needs) if need.output]:
        for b, logits in zip(answering, model.relax(features[answering]).logits, strict=True):
            outputs[b] = logits
    if firing := [b for b, need in enumerate(needs) if need.rates]:
        # The threshold falls to the cap, whatever reaches the output: signals have come to every layer by then.
        to_the_cap = model.relax(features[firing], theta_out=float("inf"), attached=True)
        for b, of_blocks in zip(firing, to_the_cap.last_rates, strict=True):
            rates[b] = of_blocks
    return [Seen(x, output=y, rates=r) for x, y, r in zip(inputs, outputs, rates, strict=True)]


READERS: dict[type[RoutedModel], Callable[..., list[Seen]]] = {
    DNA: _look_dna,
    HModel: _look_hmodel,
    Directional: _look_directional,
    RayTracing: _look_raytracing,
}
