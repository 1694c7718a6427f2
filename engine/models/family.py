"""Interface of every model family: `RoutedModel`, the trace of one forward pass, and families by name.

A trace holds decisions over steps, whether hard or soft, made per token, per chunk or per sequence.
A hard reading of them fills ``Traced.module_ids`` for every family, so that flows, paths, samples and
usage work for all; soft, gated and threshold routers keep their weights beside it in ``edges``,
``gates`` and ``blocks``.

Shapes: B samples, T tokens, S steps, K slots; I iterations, A sources, Z targets; L layers, H heads,
D directions; R threshold steps, P blocks; C classes or vocabulary entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Integer
from pydantic import BaseModel
from torch import Tensor, nn

from tokenpaths.engine.base.plugins import PluginError
from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.base.routing import Decision
from tokenpaths.engine.families.controls import ControlsBase, read_controls_of
from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS, controls_class, declared_model


def family_class(name: str) -> type[RoutedModel]:
    """The model class of a family.

    Raises:
        UserError: no family has this name; or it is a plugin's whose model cannot be used.
    """
    model_class = declared_model(name)
    if not (isinstance(model_class, type) and issubclass(model_class, RoutedModel)):
        raise PluginError(
            f"the model {controls_class(name).MODEL} of the family {name!r} is no class derived from RoutedModel"
        )
    missing = [part for part in ("family", "Config", "Controls", "WEIGHT_SEMANTICS") if part not in vars(model_class)]
    if name not in FAMILY_CONTROLS.own and missing:
        raise PluginError(f"the model {controls_class(name).MODEL} of the family {name!r} lacks {', '.join(missing)}")
    return model_class


@dataclass(frozen=True)
class Traced:
    """One forward pass as every trace keeps it."""

    logits: Float[Tensor, "B *T C"]
    """class logits (B, C), or next-token logits (B, T, C)"""
    module_ids: Integer[Tensor, "B T S K"]
    """slot 0 holds the largest weight"""
    weights: Float[Tensor, "B T S K"]
    """in [0, 1]"""
    gate_entropy: Float[Tensor, "B T S"]
    """nats; NaN where a router has no distribution over modules"""
    flops: Float[Tensor, "B T"] | None = None
    """what the visited modules spent on each token; None: ``RoutedModel.token_flops`` works it out"""
    edges: Float[Tensor, "B I A Z"] | None = None
    """soft routers: weight of each connection, by iteration, source and target"""
    gates: Float[Tensor, "B L H D"] | None = None
    """gated routers: weight of each direction of each head"""
    margin: Float[Tensor, "B T S"] | None = None
    """``margins_of`` of each decision; NaN where unknown"""
    runner_up: Integer[Tensor, "B T S"] | None = None
    """module of the next score"""
    blocks: Float[Tensor, "B R P"] | None = None
    """threshold routers: firing rate of each block at each threshold step, 0 where it was silent"""


def narrow_ids(num_modules: int) -> torch.dtype:
    """The smallest kind of integer that holds a module's number."""
    return torch.uint8 if num_modules <= 256 else torch.int16


def compact_decisions(
    decisions: list[Decision], batch: int
) -> tuple[Integer[Tensor, "B T S K"], Float[Tensor, "B T S K"], Float[Tensor, "B T S"]]:
    """Ids, weights and gate entropy of a forward pass, small, still on the device; not the full probabilities.

    Ids are uint8 up to 256 modules, else int16; weights and entropies float16: 11 bits, three more
    than the store keeps.
    """
    ids, weights, entropies = [], [], []
    narrow = narrow_ids(decisions[0].probs.shape[1])
    for decision in decisions:
        ids.append(decision.module_ids.to(narrow))
        weights.append(decision.weights.to(torch.float16))
        entropies.append(entropy(decision.probs).to(torch.float16))
    stacked = (torch.stack(part, dim=1) for part in (ids, weights, entropies))
    ids_BTSK, weights_BTSK, entropy_BTS = (t.view(batch, -1, *t.shape[1:]) for t in stacked)
    return ids_BTSK, weights_BTSK, entropy_BTS


def margins_of(
    scores: Float[Tensor, "*n M"], ids: Integer[Tensor, "*n K"]
) -> tuple[Float[Tensor, "*n"], Integer[Tensor, "*n"]]:
    """Margin of each choice, the smallest chosen score less the next one, and the module of the next.

    NaN where no other module could be chosen, and where another one had a larger score: it was no top-k of these.
    Naive twin: ``analysis.distribution.margin_and_runner_up``.
    """
    chosen = ids.long()
    best, runner_up = scores.scatter(-1, chosen, float("-inf")).max(dim=-1)
    margin = scores.gather(-1, chosen).amin(dim=-1) - best
    return margin.masked_fill(~((margin >= 0) & torch.isfinite(best)), float("nan")), runner_up


def compact_margins(decisions: list[Decision], batch: int) -> dict[str, Tensor]:
    """``margin`` (B, T, S) float32 and ``runner_up`` (B, T, S) of a forward pass, still on the device."""
    narrow = narrow_ids(decisions[0].probs.shape[1])
    parts: list[tuple[Tensor, Tensor]] = []
    for decision in decisions:
        if decision.scores is None:
            unknown = torch.full_like(decision.weights[:, 0], float("nan"), dtype=torch.float32)
            parts.append((unknown, torch.zeros_like(unknown, dtype=narrow)))
            continue
        margin, runner_up = margins_of(decision.scores, decision.module_ids)
        parts.append((margin.float(), runner_up.to(narrow)))
    stacked = (torch.stack(part, dim=1).view(batch, -1, len(decisions)) for part in zip(*parts, strict=True))
    return dict(zip(("margin", "runner_up"), stacked, strict=True))


def entropy(probs: Float[Tensor, "N M"]) -> Float[Tensor, " N"]:
    """−Σ p ln p of each row, in nats; a probability of 0 adds nothing, NaN stays NaN.

    ``torch.special.entr`` says the same, but takes its logarithms one by one: three quarters of all recording.
    """
    logarithms = probs.clamp(min=torch.finfo(probs.dtype).tiny).log_()
    return logarithms.mul_(probs).sum(dim=-1).neg_()


class RoutedModel(nn.Module):
    """Base of every family: what training, checkpoints and traces ask of a model."""

    family: ClassVar[str]
    Config: ClassVar[type[BaseModel]]
    WEIGHT_SEMANTICS: ClassVar[dict[str, Any]]
    """score_function, order, renormalised, bias, shared_experts; decision (hard | soft | gated |
    threshold), unit (token | chunk | sequence), reading: how the ribbon is read off the decisions"""
    KEEP_FLOAT32: ClassVar[tuple[str, ...]] = ()
    """names of tensors that a checkpoint never rounds"""

    has_margins: ClassVar[bool] = False
    """whether ``trace`` gives margins"""

    Controls: ClassVar[type[ControlsBase]] = ControlsBase

    config: Any

    @property
    def weight_semantics(self) -> dict[str, Any]:
        """``WEIGHT_SEMANTICS`` as it holds for this model's configuration."""
        return self.WEIGHT_SEMANTICS

    @classmethod
    def read_controls(cls, values: dict[str, Any] | None) -> ControlsBase:
        """ControlsBase from plain values.

        Raises:
            UserError: a control that this family has not, or a value outside its bounds; ``field`` names it.
        """
        controls: ControlsBase = read_controls_of(cls.Controls, values, cls.family)
        return controls

    def trace(self, inputs: Tensor, valid: Bool[Tensor, "B T"] | None = None) -> Traced:
        """Run the model and say what its routers decided; ``valid`` False marks padding behind a text."""
        raise NotImplementedError

    def trace_with(self, inputs: Tensor, valid: Bool[Tensor, "B T"] | None, controls: Any) -> Traced:
        """``trace`` under ``controls``, whose field names are keywords of the family's ``trace``."""
        return self.trace(inputs, valid, **{name: getattr(controls, name) for name in controls.given()})

    def choose(self, inputs: Tensor, valid: Bool[Tensor, "B T"] | None = None) -> Integer[Tensor, "B T S K"]:
        """``module_ids`` of ``trace``, bit for bit. Families leave out what no router reads: the output node, which is
        a quarter of a small text model, and modules behind the last decision."""
        return self.trace(inputs, valid).module_ids

    def top_k_under(self, controls: Any) -> int:
        """K of the ribbons that ``controls`` lead to.

        Raises:
            UserError: controls that do not fit this model.
        """
        return int(self.config.top_k)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def first_prediction(self) -> int:
        """The first position of a sequence whose prediction counts for losses: before it, what is to be predicted was
        already read to decide the route."""
        return 0

    @property
    def must_leave(self) -> int:
        """How many modules of a step a ban has to leave, so that no token is without one."""
        return int(self.config.top_k)

    @property
    def identities_stay(self) -> bool:
        """Whether identities stand for the tokens that no module takes, so that none of them can be banned."""
        return False

    def module_table(self) -> list[ModuleInfo]:
        """Everything that a router can pick."""
        raise NotImplementedError

    def axis_names(self) -> dict[str, tuple[str, ...]]:
        """Names along the axes of ``edges``, ``gates`` or ``blocks``: source, target, layer, threshold_step …"""
        return {}

    def findings(self, token_texts: dict[int, str]) -> dict[str, Any]:
        """What a run should carry of the model itself, by name, ready for JSON; ``token_texts`` by vocabulary id."""
        return {}

    def token_flops(
        self, module_ids: Integer[Tensor, "B T S K"], valid: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T"]:
        """Floating-point operations that the visited modules spent on each token (host tensors)."""
        raise NotImplementedError

    def training_loss(
        self, inputs: Tensor, targets: Tensor, label_smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Any]:
        """The loss of one batch in nats, and whatever ``after_iteration`` wants to know of it."""
        raise NotImplementedError

    def balance_loss(self, routing: Any) -> Float[Tensor, ""]:
        """What a recipe's ``balance`` weighs; only a family that such recipes are for has it."""
        raise NotImplementedError

    def drop_idle_gradients(self, routing: Any) -> None:
        """Called before each optimiser step: a module that no token reached has no gradient, so that neither weight
        decay nor an old momentum moves it."""

    def after_iteration(self, routing: Any) -> None:
        """Called once after each optimiser step, outside autograd."""

    def training_numbers(self, routing: Any) -> dict[str, float]:
        """What the training log notes beside the losses."""
        return {}
