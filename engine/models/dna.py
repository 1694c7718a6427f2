"""Distributed Neural Architectures (DNA): every token picks its own modules, step by step.

input node (patchify or embed) → backbone modules that every token passes → routed steps →
output node (vision: mean over patches, no class token; text: unembedding, not tied).

Shapes: B samples, T tokens or patches, S steps, M modules, K choices, D width, C outputs.
Source: "Distributed Neural Architectures", section 2, tables 1, 2, 4, 5 and appendix A.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.base.routing import Decision, module_counts, route, route_expert_choice, updated_bias
from tokenpaths.engine.families.dna_config import DNAConfig, DNAControls, dna_plan
from tokenpaths.engine.families.edit_plan import RoutePlan
from tokenpaths.engine.models.apply_edits import allowed_modules, edited, pushed, turned_away
from tokenpaths.engine.models.bank.bank import grouped_step, naive_step
from tokenpaths.engine.models.bank.device_step import device_step, fits_step
from tokenpaths.engine.models.bank.modules import Block
from tokenpaths.engine.models.bank.stacked_bank import StackedBank, stack_bank
from tokenpaths.engine.models.family import RoutedModel, Traced, compact_decisions, compact_margins, narrow_ids
from tokenpaths.engine.models.flops import dna_module_table, token_flops
from tokenpaths.engine.models.losses import balance_loss, linear_cross_entropy
from tokenpaths.engine.models.typed_containers import ModuleListOf

EXECUTIONS = {"grouped": grouped_step, "naive": naive_step}
"""of modules as they are; ``device_step`` runs stacked ones"""


@dataclass(frozen=True)
class DNAOutput:
    """Logits and what the routers decided on the way."""

    logits: Float[Tensor, "B ... C"]
    decisions: list[Decision]
    """one for each step, tokens flattened to N = B·T, row-major"""


class ConvStem(nn.Module):
    """Strided 3×3 convolutions down to one position a patch; trains faster on little data.

    The idea is that of "Early Convolutions Help Transformers See Better" (Xiao et al., 2021).
    Group norm instead of batch norm, so that a sample never depends on its neighbours.
    """

    def __init__(self, channels: int, width: int, patch_size: int) -> None:
        super().__init__()
        halvings = patch_size.bit_length() - 1
        widths = [channels, *(max(24, width // 2 ** (halvings - i)) for i in range(1, halvings + 1))]
        layers: list[nn.Module] = []
        for source, target in zip(widths[:-1], widths[1:], strict=True):
            layers += [
                nn.Conv2d(source, target, 3, stride=2, padding=1, bias=False),
                nn.GroupNorm(1, target),
                nn.GELU(),
            ]
        self.layers = nn.Sequential(*layers)
        self.out = nn.Conv2d(widths[-1], width, 1)

    def forward(self, images: Float[Tensor, "B channels H W"]) -> Float[Tensor, "B D h w"]:
        return self.out(self.layers(images))


class DNA(RoutedModel):
    """A distributed neural architecture for images or for text.

    ``execution`` is "grouped" (fast), "device" (for a GPU: no host synchronisation) or "naive" (readable); all give
    the same numbers.
    """

    bias: Tensor

    family = "dna"
    has_margins = True
    Config = DNAConfig
    Controls = DNAControls
    KEEP_FLOAT32 = ("bias",)
    WEIGHT_SEMANTICS = {
        "score_function": "softmax over all modules",
        "order": "softmax, then top-k of probability + bias",
        "renormalised": False,
        "bias": "identity modules only; moves the choice, not the weight",
        "shared_experts": 0,
        "decision": "hard",
        "unit": "token",
        "reading": "the modules that each token was sent to",
    }

    @property
    def weight_semantics(self) -> dict[str, Any]:
        """What the weights mean under this configuration."""
        config = self.config
        changed: dict[str, Any] = {}
        if config.choices is not None:
            changed = {"score_function": "softmax over the modules that the step may choose"}
        if config.renormalise:
            changed |= {"renormalised": True}
        if config.router == "expert":
            changed |= {
                "score_function": f"{config.score} over the working modules of the step",
                "order": f"each module takes the {config.capacity:.0%} of a sample's tokens that score highest",
                "reading": "the modules that took the token; an identity stands for each one that did not",
            }
        return self.WEIGHT_SEMANTICS | changed

    def __init__(self, config: DNAConfig, execution: Literal["grouped", "device", "naive"] = "grouped") -> None:
        super().__init__()
        self.config = config
        self.execution = execution
        block = lambda kind: Block(kind, config.width, config.heads, config.mlp_width)  # noqa: E731
        self.backbone = ModuleListOf[Block](block("transformer") for _ in range(config.backbone))
        self.bank = ModuleListOf[Block](block(kind) for kind in config.kinds)
        self.routers = ModuleListOf[nn.Linear](
            nn.Linear(config.width, config.num_modules, bias=False) for _ in range(config.steps)
        )
        if config.before_step != "none":
            self.before_step = ModuleListOf[Block](block(config.before_step) for _ in range(config.steps))
        self.norm = nn.LayerNorm(config.width, bias=False)
        if config.modality == "vision":
            self.patchify: nn.Module
            if config.stem == "conv":
                self.patchify = ConvStem(config.channels, config.width, config.patch_size)
            else:
                self.patchify = nn.Conv2d(config.channels, config.width, config.patch_size, stride=config.patch_size)
            outputs = config.num_classes
        else:
            self.embed = nn.Embedding(config.vocab_size, config.width)
            outputs = config.vocab_size
        self.positions = nn.Parameter(torch.zeros(config.num_tokens, config.width))
        self.head = nn.Linear(config.width, outputs, bias=False)
        self.register_buffer("bias", torch.zeros(config.steps, config.num_modules))
        self._initialise()

    def _initialise(self) -> None:
        # Appendix A.1: truncated normal, 0.02, for all but the patch embedding.
        stem = set(self.patchify.modules()) if self.config.modality == "vision" else set()
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)) and module not in stem:
                nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.trunc_normal_(self.positions, std=0.02)

    @cached_property
    def identity(self) -> list[bool]:
        """Which modules do nothing, in module order."""
        return [kind == "identity" for kind in self.config.kinds]

    def start(self, inputs: Tensor) -> Float[Tensor, "B T D"]:
        """The input node: images (B, channels, size, size) or token ids (B, T)."""
        if self.config.modality == "vision":
            # Contiguous rows: every gather below reads whole rows.
            h = self.patchify(inputs).flatten(2).transpose(1, 2).contiguous()
            return h + self.positions.to(h.dtype)
        tokens = inputs.shape[1]
        if tokens > self.config.context:
            raise ValueError(
                f"{tokens} tokens do not fit the model's context of {self.config.context}; "
                "split the text into windows first"
            )
        return self.embed(inputs) + self.positions[:tokens]

    def decide(
        self,
        h: Float[Tensor, "B T D"],
        step: int,
        valid: Bool[Tensor, "B T"] | None = None,
        edits: RoutePlan | None = None,
        unedited: list[Decision] | None = None,
    ) -> Decision:
        """The router of one step on every token (B·T rows); ``valid`` keeps padding out of an expert's choice.

        ``edits`` change what is chosen, ``unedited`` the decisions of a pass without them, where they ask for it.
        """
        config = self.config
        logits = self.routers[step](h.reshape(-1, h.shape[-1]))
        plan = None if edits is None else edits.steps[step]
        if config.router == "expert":
            working, idle = config.sides_of(step)
            decision = route_expert_choice(
                logits.view(*h.shape[:2], -1), config.capacity, working, idle, score=config.score, valid=valid
            )
            if plan is not None:
                decision = turned_away(decision, dict(zip(working, idle, strict=True)), plan.banned)
        else:
            allowed, bias, top_k = None, self.bias[step], config.top_k
            if plan is not None:
                assert edits is not None
                allowed = allowed_modules(
                    config.choices_of(step),
                    config.num_modules,
                    plan,
                    logits.device,
                    (h.shape[0], h.shape[1]),
                    valid,
                    unedited,
                )
                bias, top_k = pushed(bias, plan), edits.top_k
            elif config.choices is not None:
                allowed = torch.zeros(config.num_modules, dtype=torch.bool, device=logits.device)
                allowed[list(config.choices[step])] = True
            decision = route(logits, top_k, bias, allowed=allowed, renormalise=config.renormalise)
        if plan is None:
            return decision
        return edited(decision, plan, step, (h.shape[0], h.shape[1]), valid, unedited)

    def finish(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B ... C"]:
        """The output node: class logits (B, C) or next-token logits (B, T, C)."""
        h = self.norm(h)
        return self.head(h.mean(dim=1) if self.config.modality == "vision" else h)

    def enter(self, inputs: Tensor) -> Float[Tensor, "B T D"]:
        """Input node and backbone: the residual stream before the first routed step."""
        causal = self.config.modality == "text"
        h = self.start(inputs)
        for block in self.backbone:
            h = block(h, causal=causal)
        return h

    def approach(
        self,
        h: Float[Tensor, "B T D"],
        step: int,
        valid: Tensor | None = None,
        edits: RoutePlan | None = None,
        unedited: list[Decision] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Decision]:
        """The router of ``step``, behind the module of its own that may stand before it; no module is visited yet."""
        if self.config.before_step != "none":
            h = self.before_step[step](h, causal=self.config.modality == "text")
        return h, self.decide(h, step, valid, edits, unedited)

    def ready_bank(self, h: Float[Tensor, "B T D"]) -> ModuleListOf[Block] | StackedBank:
        """The modules as the steps of one pass over ``h`` read them: a GPU's step wants their weights stacked."""
        on_device = self.execution == "device" or (self.execution == "grouped" and fits_step(self.bank, h))
        return stack_bank(self.bank, h) if on_device else self.bank

    def visit(
        self, h: Float[Tensor, "B T D"], decision: Decision, bank: ModuleListOf[Block] | StackedBank | None = None
    ) -> Float[Tensor, "B T D"]:
        """Every token through the modules that it was sent to; ``bank`` is ``ready_bank`` of this pass, if it is at
        hand."""
        ids_BTK, weights_BTK = (x.view(*h.shape[:2], -1) for x in (decision.module_ids, decision.weights))
        bank = self.ready_bank(h) if bank is None else bank
        causal = self.config.modality == "text"
        if isinstance(bank, StackedBank):
            return device_step(bank, h, ids_BTK, weights_BTK, causal=causal)
        return EXECUTIONS[self.execution](bank, h, ids_BTK, weights_BTK, causal=causal)

    def run_trunk(
        self, inputs: Tensor, valid: Tensor | None = None, edits: RoutePlan | None = None
    ) -> tuple[Float[Tensor, "B T D"], list[Decision]]:
        """Everything between input node and output node, and what the routers decided (``edits``: otherwise)."""
        unedited = self.run_trunk(inputs, valid)[1] if edits is not None and edits.needs_unedited else None
        h = self.enter(inputs)
        bank, decisions = self.ready_bank(h), []
        for step in range(self.config.steps):
            h, decision = self.approach(h, step, valid, edits, unedited)
            decisions.append(decision)
            h = self.visit(h, decision, bank)
        return h, decisions

    def choose(self, inputs: Tensor, valid: Tensor | None = None) -> Integer[Tensor, "B T S K"]:
        """See ``RoutedModel.choose``: no module of the last step is visited."""
        h, ids = self.enter(inputs), []
        bank = self.ready_bank(h)
        for step in range(self.config.steps):
            h, decision = self.approach(h, step, valid)
            ids.append(decision.module_ids.view(*h.shape[:2], -1))
            if step < self.config.steps - 1:
                h = self.visit(h, decision, bank)
        return torch.stack(ids, dim=2).to(narrow_ids(self.config.num_modules))

    def forward(self, inputs: Tensor, valid: Tensor | None = None, edits: RoutePlan | None = None) -> DNAOutput:
        h, decisions = self.run_trunk(inputs, valid, edits)
        return DNAOutput(self.finish(h), decisions)

    def training_loss(
        self, inputs: Tensor, targets: Tensor, label_smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], list[Decision]]:
        """Mean cross-entropy. Vision targets: class ids (B,) or probabilities (B, C); text: (B, T)."""
        h, decisions = self.run_trunk(inputs)
        if self.config.modality == "text":
            rows = self.norm(h).flatten(0, 1)
            return linear_cross_entropy(rows, self.head.weight, targets.flatten()), decisions
        logits = self.finish(h).float()
        return F.cross_entropy(logits, targets, label_smoothing=label_smoothing), decisions

    def trace(self, inputs: Tensor, valid: Tensor | None = None, edits: RoutePlan | None = None) -> Traced:
        """Logits, ribbons, weights and gate entropy; padding behind a causal text changes nothing before it."""
        output = self(inputs, valid, edits)
        batch = inputs.shape[0]
        decided = compact_decisions(output.decisions, batch)
        return Traced(output.logits, *decided, **compact_margins(output.decisions, batch))

    def trace_with(self, inputs: Tensor, valid: Tensor | None, controls: DNAControls) -> Traced:
        """``trace`` with the edits of ``controls``."""
        return self.trace(inputs, valid, self.plan(controls))

    def plan(self, controls: DNAControls) -> RoutePlan | None:
        """What each step does differently under ``controls``; None where nothing is to be.

        Raises:
            UserError: an edit that does not fit this model; see ``tokenpaths.engine.families.edit_plan``.
        """
        return dna_plan(self.config, getattr(controls, "edits", None))

    def top_k_under(self, controls: DNAControls) -> int:
        """K of the ribbons that ``controls`` lead to."""
        plan = self.plan(controls)
        return self.config.top_k if plan is None else plan.top_k

    def token_flops(self, module_ids: Tensor, valid: Tensor | None = None) -> Tensor:
        """See ``tokenpaths.engine.models.flops.token_flops``."""
        return token_flops(module_ids, self.config, valid)

    @property
    def must_leave(self) -> int:
        return 0 if self.identities_stay else super().must_leave

    @property
    def identities_stay(self) -> bool:
        return self.config.router == "expert"

    def module_table(self) -> list[ModuleInfo]:
        """The modules of the bank; any step can choose any of them."""
        return dna_module_table(self.config, [sum(p.numel() for p in block.parameters()) for block in self.bank])

    def training_numbers(self, routing: list[Decision]) -> dict[str, float]:
        """Shares of module slots: those of the busiest module, and those that were skipped; means over the steps."""
        if not routing:
            return {}
        identity = torch.tensor(self.identity)
        counts = [module_counts(d.module_ids, self.config.num_modules).cpu() for d in routing]
        numbers = {"busiest_share": fmean(float(c[~identity].max() / c.sum()) for c in counts)}
        if any(self.identity):
            numbers["skipped_share"] = fmean(float(c[identity].sum() / c.sum()) for c in counts)
        return numbers

    def balance_loss(self, routing: list[Decision]) -> Float[Tensor, ""]:
        """``losses.balance_loss``, mean over the steps: what a recipe with ``balance`` adds to the loss."""
        working = ~torch.tensor(self.identity, device=self.device)
        return torch.stack([balance_loss(d.logits, d.module_ids, working) for d in routing]).mean()

    @torch.no_grad()
    def drop_idle_gradients(self, routing: list[Decision]) -> None:
        """See ``RoutedModel.drop_idle_gradients``: weights that were stacked have zeros, a step to AdamW."""
        if not routing:
            return
        ids = torch.cat([decision.module_ids.flatten() for decision in routing])
        # No bincount: on a GPU it waits for the largest id, and then the flags would be waited for as well.
        visited_M = torch.zeros(len(self.bank), dtype=torch.bool, device=ids.device).index_fill_(0, ids, True)
        for module, visited in zip(self.bank, visited_M.tolist(), strict=True):
            if not visited:
                for parameter in module.parameters():
                    parameter.grad = None

    def after_iteration(self, routing: list[Decision]) -> None:
        """Move the selection bias (equation 5)."""
        self.update_bias(routing)

    @torch.no_grad()
    def update_bias(self, decisions: list[Decision]) -> None:
        """Move the selection bias once, after a training iteration (equation 5)."""
        config = self.config
        if not config.skip_speed:
            return
        identity_M = torch.tensor(self.identity, device=self.device)
        for step, decision in enumerate(decisions):
            self.bias[step] = updated_bias(
                self.bias[step],
                module_counts(decision.module_ids, config.num_modules),
                identity_M,
                top_k=config.top_k,
                skip_ratio=config.skip_ratio,
                skip_speed=config.skip_speed,
                reference=config.skip_reference,
            )
