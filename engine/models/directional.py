"""Directional Routing: each attention head has a few directions, and a router decides how much of each to remove.

token ids → embedding → L layers (Pre-LN attention, with the suppressed directions removed from the head outputs,
then a GELU MLP) → unembedding. With ``directions=0`` the network is the unrouted twin: no directions and no routers,
otherwise identical.

Shapes: B sequences, T tokens, P decisions of a sequence (1, or T if every position decides), L layers,
H heads, K directions of a head, W width of a head, D = H·W width of the residual stream, S = L steps.
Source: "Directional Routing in Transformers", section 2 and appendix B.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.families.directional_config import DirectionalConfig, Pooling
from tokenpaths.engine.models.bank.modules import MLP, SelfAttention, attend
from tokenpaths.engine.models.directional_gates import EXECUTIONS, DirectionalControls, Interventions, mean_gates, pool
from tokenpaths.engine.models.family import RoutedModel, Traced, narrow_ids
from tokenpaths.engine.models.losses import linear_cross_entropy
from tokenpaths.engine.models.typed_containers import ModuleListOf


@dataclass(frozen=True)
class DirectionalOutput:
    """Logits, and how much of each direction was removed."""

    logits: Float[Tensor, "B T C"]
    gates: Float[Tensor, "B P L H K"]
    """r in (0, 1), interventions included; P = 1 with ``pooling="sequence"``, else T"""


class Router(nn.Module):
    """A perceptron of four layers from the pooled residual stream to the gates of a layer's heads.

    The paper's parameter count (1 339 952 a layer) is that of hidden width D/3, biases, and one
    LayerNorm of width D with bias: that is this network. It is initialised as the framework does
    (section 2.2: no special initialisation).
    """

    def __init__(self, width: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        widths = (width, hidden, hidden, hidden)
        self.hidden = ModuleListOf[nn.Linear](nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True))
        self.out = nn.Linear(hidden, outputs)

    def forward(self, pooled: Float[Tensor, "B P D"]) -> Float[Tensor, "B P G"]:
        """Logits of all G = H·K gates."""
        x = self.norm(pooled)
        for layer in self.hidden:
            x = F.gelu(layer(x))
        return self.out(x)


class Layer(nn.Module):
    """Attention with suppressed directions, then a perceptron."""

    def __init__(self, config: DirectionalConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = SelfAttention(config.width, config.heads)
        self.mlp = MLP(config.width, config.mlp_width)
        if config.directions:
            self.router = Router(config.width, config.router_width, config.top_k)
            raw = torch.randn(config.heads, config.directions, config.head_width)
            self.directions = nn.Parameter(F.normalize(raw, dim=-1))

    def unit_directions(self) -> Float[Tensor, "H K W"]:
        """The directions, of unit length whatever the optimiser made of them."""
        return F.normalize(self.directions, dim=-1)

    def decide(
        self, h: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None = None, pooling: Pooling | None = None
    ) -> Float[Tensor, "B P H K"]:
        """r = sigmoid(router(pooled residual stream) / τ) (equation 1), in float32."""
        config = self.config
        if not config.directions:
            return h.new_empty(h.shape[0], 1, config.heads, 0)
        logits = self.router(pool(h, pooling or config.pooling, valid)).float()
        return (logits / config.temperature).sigmoid().unflatten(-1, (config.heads, config.directions))


class Directional(RoutedModel):
    """A transformer with directional routing, or its unrouted twin (``directions=0``).

    ``execution`` is "fused" (fast) or "naive" (readable); both give the same numbers.
    """

    family = "directional"
    Config = DirectionalConfig
    Controls = DirectionalControls
    WEIGHT_SEMANTICS = {
        "score_function": "sigmoid of router logits over the temperature, each gate for itself",
        "order": "no top-k: every gate acts",
        "renormalised": False,
        "bias": "none beyond the router's own",
        "shared_experts": 0,
        "decision": "gated",
        "unit": "sequence",
        "reading": "a gate above 0.5 is its direction, any other the direction's identity twin; "
        "slots in order of the gates",
    }

    def __init__(self, config: DirectionalConfig, execution: Literal["fused", "naive"] = "fused") -> None:
        super().__init__()
        self.config = config
        self.execution = execution
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Parameter(torch.zeros(config.context, config.width))
        self.layers = ModuleListOf[Layer](Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, bias=False)
        if not config.tied:
            self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self._initialise()

    def _initialise(self) -> None:
        routers = {part for m in self.modules() if isinstance(m, Router) for part in m.modules()}
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)) and module not in routers:
                nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.trunc_normal_(self.positions, std=0.02)

    @property
    def weight_semantics(self) -> dict[str, Any]:
        """One decision a sequence, or one a token where the pooling is causal."""
        return self.WEIGHT_SEMANTICS | {"unit": "token" if self.config.pooling == "prefix" else "sequence"}

    @property
    def unembedding(self) -> Float[Tensor, "C D"]:
        """A row for each vocabulary entry."""
        return self.embed.weight if self.config.tied else self.head.weight

    def run_trunk(
        self,
        inputs: Tensor,
        valid: Bool[Tensor, "B T"] | None = None,
        interventions: Interventions | None = None,
        *,
        to_the_end: bool = True,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B P L H K"]]:
        """The residual stream after the last layer (before it without ``to_the_end``), and every gate on the way.

        Raises:
            UserError: more tokens than positions, or an intervention that does not fit this model.
        """
        config, tokens = self.config, inputs.shape[1]
        if tokens > config.context:
            raise UserError(
                f"{tokens} tokens do not fit the model's context of {config.context}; "
                "split the text into windows first",
                field="inputs",
            )
        act = interventions or Interventions()
        act.check(config)
        h = self.embed(inputs) + self.positions[:tokens]
        gates = []
        for index, layer in enumerate(self.layers):
            r_BPHK = act.apply(layer.decide(h, valid, act.pooling), index)
            gates.append(r_BPHK)
            if not to_the_end and index == len(self.layers) - 1:
                break
            mixed = attend(layer.attention.project_in(h), config.heads, causal=True)
            if config.directions:
                mixed = EXECUTIONS[self.execution](mixed, layer.unit_directions(), r_BPHK)
            silent = [head for at, head in act.knocked_out if at == index]
            if silent:
                mixed = mixed.unflatten(-1, (config.heads, config.head_width)).clone()
                mixed[:, :, silent] = 0
                mixed = mixed.flatten(-2)
            h = h + layer.attention.project_out(mixed)
            h = h + layer.mlp(h)
        longest = max(r.shape[1] for r in gates)
        return h, torch.stack([r.expand(-1, longest, -1, -1) for r in gates], dim=2)

    def forward(
        self, inputs: Tensor, valid: Bool[Tensor, "B T"] | None = None, interventions: Interventions | None = None
    ) -> DirectionalOutput:
        """Token ids (B, T) to next-token logits; ``valid`` False marks padding behind a text."""
        h, gates = self.run_trunk(inputs, valid, interventions)
        return DirectionalOutput(F.linear(self.norm(h), self.unembedding), gates)

    def training_loss(
        self, inputs: Tensor, targets: Tensor, label_smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B P L H K"]]:
        """Mean next-token cross-entropy and the gates; no routing loss of any kind (section 2.2).

        Raises:
            UserError: label smoothing, which the cache-sized loss does not do.
        """
        if label_smoothing:
            raise UserError(f"label_smoothing {label_smoothing} is not for text models; 0 is", field="label_smoothing")
        h, gates = self.run_trunk(inputs)
        rows = self.norm(h).flatten(0, 1)
        return linear_cross_entropy(rows, self.unembedding, targets.flatten()), gates.detach()

    def training_numbers(self, routing: Float[Tensor, "B P L H K"]) -> dict[str, float]:
        """Mean gate, and how far the gates of a batch's sequences lie apart (mean standard deviation)."""
        if not self.config.directions:
            return {}
        r_BLHK = mean_gates(routing)
        return {"mean_gate": float(r_BLHK.mean()), "gate_spread": float(r_BLHK.std(dim=0).mean())}

    def trace(
        self, inputs: Tensor, valid: Bool[Tensor, "B T"] | None = None, interventions: Interventions | None = None
    ) -> Traced:
        """Every gate read as on (its direction) or off (the direction's identity twin), and the gates themselves.

        Gate entropy is the mean entropy of the gates as coins: 0 = all decided, ln 2 = none.

        Raises:
            UserError: the unrouted twin, which has no decisions.
        """
        if not self.config.directions:
            raise UserError("directions is 0: the unrouted twin has no decisions to trace", field="directions")
        output = self(inputs, valid, interventions)
        r_BTSM = output.gates.detach().flatten(-2).expand(*inputs.shape, -1, -1)
        weights, module_ids = self._ribbon(r_BTSM)
        entropy = (torch.special.entr(r_BTSM) + torch.special.entr(1 - r_BTSM)).mean(dim=-1)
        return Traced(
            output.logits,
            module_ids,
            weights.to(torch.float16),
            entropy.to(torch.float16),
            flops=self._flops((weights > 0.5).sum(dim=(2, 3)), output.gates.shape[1], valid),
            gates=mean_gates(output.gates, valid),
        )

    def choose(self, inputs: Tensor, valid: Bool[Tensor, "B T"] | None = None) -> Integer[Tensor, "B T S K"]:
        """See ``RoutedModel.choose``; raises as ``trace``."""
        if not self.config.directions:
            return self.trace(inputs, valid).module_ids
        gates = self.run_trunk(inputs, valid, to_the_end=False)[1]
        return self._ribbon(gates.flatten(-2))[1].expand(*inputs.shape, -1, -1)

    def _ribbon(self, r_BPSM: Float[Tensor, "B P S M"]) -> tuple[Float[Tensor, "B P S M"], Integer[Tensor, "B P S M"]]:
        """Gates in descending order, and the module that each is read as."""
        weights, order = r_BPSM.sort(dim=-1, descending=True, stable=True)
        module_ids = torch.where(weights > 0.5, order, order + self.config.top_k)
        return weights, module_ids.to(narrow_ids(self.config.num_modules))

    def trace_with(self, inputs: Tensor, valid: Tensor | None, controls: DirectionalControls) -> Traced:
        """``trace`` under what the page or the API asked for."""
        act, plan = controls.interventions(self.config), controls.plan(self.config)
        if plan is not None and plan.frozen:
            unedited = self(inputs, valid, Interventions(pooling=act.pooling)).gates
            act = replace(act, gates=unedited, gate_layers=plan.frozen)
        return self.trace(inputs, valid, act)

    def top_k_under(self, controls: DirectionalControls) -> int:
        """A slot for each direction; refuses edits that do not fit."""
        controls.plan(self.config)
        return self.config.top_k

    @property
    def must_leave(self) -> int:
        """A direction that is never removed is left alone: none has to be left."""
        return 0

    def _flops(self, removed_BT: Tensor, decisions: int, valid: Tensor | None) -> Float[Tensor, "B T"]:
        """Layers, routers and the directions read as on; a router's one decision is shared by its tokens."""
        config = self.config
        tokens = removed_BT.shape[1]
        real = torch.ones_like(removed_BT) if valid is None else valid.long()
        keys_T = torch.arange(1, tokens + 1, device=removed_BT.device)
        fixed = 8 * config.width**2 + 4 * config.width * config.mlp_width
        router = 2.0 * sum(p.numel() for p in self.layers[0].router.parameters() if p.ndim == 2)
        deciding = router if decisions == tokens else router / real.sum(dim=1, keepdim=True).clamp(min=1)
        total = config.layers * (fixed + 4 * config.width * keys_T + deciding) + 4 * config.head_width * removed_BT
        return (total * real).float()

    def axis_names(self) -> dict[str, tuple[str, ...]]:
        """Names along the axes of ``Traced.gates``."""
        sizes = {"layer": self.config.layers, "head": self.config.heads, "direction": self.config.directions}
        return {axis: tuple(f"{axis} {i}" for i in range(size)) for axis, size in sizes.items()}

    def findings(self, token_texts: dict[int, str]) -> dict[str, Any]:
        """The ten words that each direction writes most."""
        if not self.config.directions or not token_texts:
            return {}
        best = direction_vocabulary(self, top=min(10, self.config.vocab_size)).token_ids
        words = [
            {"layer": layer, "head": head, "direction": k, "tokens": [token_texts.get(int(i), "") for i in ids]}
            for layer, of_layer in enumerate(best)
            for head, of_head in enumerate(of_layer)
            for k, ids in enumerate(of_head)
        ]
        return {"gates": {"vocabulary": words}}

    def module_table(self) -> list[ModuleInfo]:
        """For every layer its directions, head by head, then their identity twins."""
        config, rows = self.config, []
        for layer in range(config.num_steps):
            for kind, shift in (("direction", 0), ("identity", config.top_k)):
                for i in range(config.top_k):
                    head, k = divmod(i, config.directions)
                    on = kind == "direction"
                    rows.append(
                        ModuleInfo(
                            step=layer,
                            module=shift + i,
                            kind=kind,
                            name=f"L{layer}H{head}K{k}" + ("" if on else " left alone"),
                            num_params=config.head_width if on else 0,
                            flops_per_token=4 * config.head_width if on else 0,
                        )
                    )
        return rows


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary entries that each direction writes most, largest score first."""

    token_ids: Integer[np.ndarray, "L H K top"]
    scores: Float[np.ndarray, "L H K top"]


@torch.inference_mode()
def direction_vocabulary(
    model: Directional, top: int = 10, allowed: Bool[np.ndarray, " C"] | None = None
) -> Vocabulary:
    """Each unit direction, padded to the model's width, through W_O, against every unembedding row.

    The final LayerNorm is left out, as in the paper (section 6.1): scores compare words of one
    direction, not directions with one another. ``allowed`` leaves entries out: rows that training
    hardly touched point anywhere, and would fill the lists of a small model.

    Raises:
        UserError: the unrouted twin, or more words than the vocabulary has (of those allowed).
    """
    config = model.config
    if not config.directions:
        raise UserError("directions is 0: the unrouted twin has no directions to read", field="directions")
    usable = config.vocab_size if allowed is None else int(allowed.sum())
    if not 1 <= top <= usable:
        raise UserError(f"top is {top}; the vocabulary has {usable} entries to choose from", field="top")
    left_out = None if allowed is None else torch.from_numpy(~allowed).to(model.unembedding.device)
    ids, scores = [], []
    for layer in model.layers:
        padded_GD = torch.block_diag(*[d.reshape(-1, config.head_width) for d in layer.unit_directions()])
        scores_GC = layer.attention.project_out(padded_GD) @ model.unembedding.T
        if left_out is not None:
            scores_GC = scores_GC.masked_fill(left_out, float("-inf"))
        best = scores_GC.topk(top, dim=-1)
        shape = (config.heads, config.directions, top)
        ids.append(best.indices.view(shape))
        scores.append(best.values.view(shape))
    return Vocabulary(torch.stack(ids).cpu().numpy(), torch.stack(scores).float().cpu().numpy())


@torch.inference_mode()
def direction_angles(model: Directional, *, signed: bool = False) -> Float[Tensor, "L H"]:
    """Mean angle in degrees between the lines of a head's directions (0 = the same line, 90 = orthogonal).

    ``signed``: between the directions themselves, up to 180, as the paper counts; a direction and its opposite remove
    the same part of a head's output.
    """
    angles = []
    for layer in model.layers:
        d_HKW = layer.unit_directions()
        cosines = (d_HKW @ d_HKW.transpose(1, 2)).clamp(-1, 1)
        cosines = cosines if signed else cosines.abs()
        upper = torch.triu(torch.ones(cosines.shape[1:], dtype=torch.bool), diagonal=1)
        angles.append(torch.rad2deg(cosines.arccos())[:, upper].mean(dim=-1))
    return torch.stack(angles)
