"""Models whose routing is imposed, so that routed and dense do the same work however the routers feel.

"uniform": every token draws its modules; "skewed": every sample strongly prefers a few; others for each call.
"trained": what a shipped checkpoint chose for the bundled samples, laid over the larger model: patches by nearest
neighbour, texts one behind the other, steps in turn; another start for each call. The router's own cost is paid in all;
the drawing is not: choices are drawn beforehand, and a call takes the next of ``DRAWS``.

Shapes: B samples, T tokens, S steps, K choices, M modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokenpaths.engine.base.model_folders import models_folders
from tokenpaths.engine.base.routing import Decision
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.models.dna import DNA, DNAConfig
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_batches import image_batches, text_batches

How = Literal["uniform", "skewed", "trained"]
HOW_ALL: tuple[How, ...] = ("uniform", "skewed", "trained")
SHIPPED = {
    ("vision", 1): ("dna-vision-top1", "bundled:scenes"),
    ("vision", 2): ("dna-vision-top2-skip", "bundled:scenes"),
    ("text", 1): ("dna-text-top1", "bundled:texts"),
    ("text", 2): ("dna-text-top2-skip", "bundled:texts"),
}


DRAWS = 12
"""more than the rounds of a benchmark: a routing that is met again finds its products compiled"""


RECORDED_TOKENS = 4096


class ImposedDNA(DNA):
    """A DNA whose choices are imposed; its routers still run and weigh."""

    how: How = "uniform"

    def draw(self, hows: Sequence[How], batch: int, tokens: int) -> None:
        """Draw choices for so many samples; to be done before a pass."""
        steps = range(self.config.steps)
        self.calls = 0
        self.drawn = {
            how: [[imposed(self.config, how, batch, tokens, s).flatten(0, 1) for s in steps] for _ in range(DRAWS)]
            for how in hows
        }

    def decide(self, h: Tensor, step: int, *rest: Any) -> Decision:
        decision = super().decide(h, step, *rest)
        self.calls += step == 0
        ids_NK = self.drawn[self.how][self.calls % DRAWS][step]
        return replace(decision, module_ids=ids_NK, weights=decision.probs.gather(-1, ids_NK))


def imposed(config: DNAConfig, how: How, batch: int, tokens: int, step: int) -> Int[Tensor, "B T K"]:
    """Modules of every token at one step."""
    if how == "trained":
        return trained(config, batch, tokens, step)
    working = config.num_modules - config.identities
    scores_BTM = torch.rand(batch, tokens, working)
    if how == "skewed":
        scores_BTM = scores_BTM + 3 * torch.rand(batch, 1, working).pow(3)
    ids_BTK = scores_BTM.topk(config.top_k).indices
    if config.identities:
        # The wanted share of slots does nothing; two slots of a token take two identities.
        skip_BTK = torch.rand(ids_BTK.shape) < config.skip_ratio
        ids_BTK = torch.where(skip_BTK, working + torch.arange(config.top_k) % config.identities, ids_BTK)
    return ids_BTK


def trained(config: DNAConfig, batch: int, tokens: int, step: int) -> Int[Tensor, "B T K"]:
    """What a checkpoint chose, laid over ``config``; its identities become those of ``config``."""
    samples, shipped = recorded(config.modality, config.top_k)
    ids = samples[:, :, step % shipped.steps]
    first, working = torch.randint(len(ids), ()).item(), shipped.num_modules - shipped.identities
    if config.modality == "vision":
        side, (rows, cols) = int(tokens**0.5), shipped.grid
        place = torch.arange(side)
        nearest = ((place * rows // side)[:, None] * cols + place * cols // side).flatten()
        ids = ids[(first + torch.arange(batch)) % len(ids)][:, nearest]
    else:
        flat = ids.flatten(0, 1)
        ids = flat[(first * shipped.context + torch.arange(batch * tokens)) % len(flat)].view(batch, tokens, -1)
    here = config.num_modules - config.identities
    if working > here or shipped.identities > config.identities:
        raise ValueError(f"the checkpoint has {working} working modules, the model only {here}")
    return torch.where(ids < working, ids, ids - working + here)


@lru_cache
def recorded(modality: str, top_k: int) -> tuple[Int[Tensor, "N T S K"], DNAConfig]:
    """Choices of a shipped checkpoint on the first bundled samples: images, or whole windows of texts."""
    name, data = SHIPPED[modality, top_k]
    loaded = load_model(name, models_folders(), "cpu")
    dataset = open_dataset(data, loaded.modality)
    if modality == "vision":
        made = image_batches(loaded, None, dataset, 16, 64)
    else:
        made = text_batches(loaded, None, dataset, 16)
    parts: list[Tensor] = []
    for batch, _ in made:
        parts.append(torch.from_numpy(batch.module_ids).long())
        if sum(len(part) for part in parts) >= RECORDED_TOKENS:
            break
    ids_NSK = torch.cat(parts)
    config: DNAConfig = loaded.model.config
    each = config.num_tokens
    return ids_NSK[: len(ids_NSK) // each * each].view(-1, each, *ids_NSK.shape[1:]), config


def active_share(config: DNAConfig, how: How) -> float:
    """Blocks that a token really visits under a routing, over those that the dense twin has."""
    if not config.identities:
        return 1.0
    torch.manual_seed(0)
    working = config.num_modules - config.identities
    shares = [(imposed(config, how, 16, config.num_tokens, s) < working).float().mean() for s in range(config.steps)]
    active = config.backbone + config.steps * config.top_k * float(torch.stack(shares).mean())
    return active / config.dense_twin().backbone


def make_inputs(config: DNAConfig, batch: int) -> tuple[Tensor, Tensor]:
    """Random images and classes, or random texts that are their own targets."""
    if config.modality == "vision":
        return torch.randn(batch, 3, config.image_size, config.image_size), torch.randint(1000, (batch,))
    ids = torch.randint(config.vocab_size, (batch, config.context))
    return ids, ids


def forward(model: DNA, inputs: Tensor) -> None:
    with torch.inference_mode():
        model(inputs)


def training_step(model: DNA, inputs: Tensor, targets: Tensor) -> Float[Tensor, ""]:
    model.zero_grad(set_to_none=True)
    loss, _ = model.training_loss(inputs, targets)
    loss.backward()
    return loss.detach()
