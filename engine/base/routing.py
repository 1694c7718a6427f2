"""Routing rules: from router logits to the modules that a token visits at one step, and their weights.

Shapes: N tokens (batch and position flattened), M modules, K choices a token.

The rules are those of Distributed Neural Architectures (section 2, equations 3 to 5):
the probabilities are a softmax over all M modules, the K largest of *probability + bias*
are chosen, and the chosen probabilities are used as they are, without renormalising.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Decision:
    """What one router decided at one step for N tokens.

    Slots are ordered by weight: slot 0 holds the largest of a token's K weights.
    """

    logits: Float[Tensor, "N M"]
    probs: Float[Tensor, "N M"]
    module_ids: Int[Tensor, "N K"]
    weights: Float[Tensor, "N K"]
    scores: Float[Tensor, "N M"] | None = None
    """by which the largest K were chosen, −inf where a module was not allowed; None if the choice is no top-k"""


def route(
    logits: Float[Tensor, "N M"],
    top_k: int,
    bias: Float[Tensor, " M"] | None = None,
    *,
    allowed: Bool[Tensor, " M"] | Bool[Tensor, "N M"] | None = None,
    renormalise: bool = False,
) -> Decision:
    """Choose ``top_k`` modules for every token.

    ``bias`` is added to the probabilities for the choice only; the weights are the plain
    probabilities of the chosen modules, so no gradient and no scale ever passes through it.
    The softmax is computed in float32 whatever the dtype of ``logits``.

    ``allowed`` is a connectivity mask, the same for all tokens or one for each: the other modules have probability 0
    and are never chosen.
    With ``renormalise`` the K weights are divided by their sum, as in Mixtral (Jiang et al., 2024),
    where a softmax over the K largest logits is the same thing; without, it is Switch (Fedus et al., 2022).

    Raises:
        ValueError: ``top_k`` is not between 1 and the number of modules that may be chosen.
    """
    num_modules = logits.shape[-1] if allowed is None else int(allowed.sum(dim=-1).min())
    if not 1 <= top_k <= num_modules:
        raise ValueError(
            f"top_k is {top_k}, but a router over {num_modules} modules can choose between 1 and {num_modules} of them"
        )
    open_NM = logits if allowed is None else logits.masked_fill(~allowed, float("-inf"))
    probs_NM = open_NM.softmax(dim=-1, dtype=torch.float32)
    scores_NM = probs_NM.detach() if bias is None else probs_NM.detach() + bias
    if allowed is not None:
        scores_NM = scores_NM.masked_fill(~allowed, float("-inf"))
    # On a GPU topk takes several times as long as argmax. On a CPU it does not, and breaks ties otherwise, which
    # bfloat16 has three of in a thousand tokens.
    single = top_k == 1 and scores_NM.is_cuda
    ids_NK = scores_NM.argmax(dim=-1, keepdim=True) if single else scores_NM.topk(top_k, dim=-1).indices
    weights_NK = probs_NM.gather(-1, ids_NK)
    if top_k > 1:
        # The bias may lift a module over a likelier one; slots are ordered by weight all the same.
        weights_NK, order_NK = weights_NK.sort(dim=-1, descending=True, stable=True)
        ids_NK = ids_NK.gather(-1, order_NK)
    if renormalise:
        weights_NK = weights_NK / weights_NK.sum(dim=-1, keepdim=True)
    return Decision(logits, probs_NM, ids_NK, weights_NK, scores_NM)


def route_expert_choice(
    logits: Float[Tensor, "B T M"],
    capacity: float,
    working: list[int],
    idle: list[int],
    *,
    score: Literal["softmax", "sigmoid"] = "softmax",
    valid: Bool[Tensor, "B T"] | None = None,
) -> Decision:
    """Every working module takes the tokens of each sample that score highest with it.

    A module takes C = max(1, round(capacity · tokens of the sample)) of them; ties go to the earlier
    token. A token has one slot for each working module: the module with its score as weight where it
    was taken, else that module's identity in ``idle`` with weight 0. With several modules and a
    softmax over them this is expert choice (Zhou et al., 2022); with one block and its identity it is
    Mixture-of-Depths (Raposo et al., 2024), whose unbounded router weight is a sigmoid here.

    Which tokens are taken depends on the whole sample, later tokens included: a language model that
    routes so is not causal when it is traced over whole texts.
    """
    batch, tokens, num_modules = logits.shape
    taking = logits[..., working].float()
    scores_BTW = taking.softmax(dim=-1) if score == "softmax" else taking.sigmoid()
    rank_by = scores_BTW.detach()
    if valid is not None:
        rank_by = rank_by.masked_fill(~valid.unsqueeze(-1), -1.0)
        counts_B = valid.sum(dim=1)
    else:
        counts_B = torch.full((batch,), tokens, device=logits.device)
    take_B = (capacity * counts_B).round().clamp(min=1)
    place_BTW = rank_by.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    taken_BTW = place_BTW < take_B[:, None, None]
    ids_W, idle_W = (torch.tensor(side, device=logits.device) for side in (working, idle))
    ids_NW = torch.where(taken_BTW, ids_W, idle_W).flatten(0, 1)
    weights_NW = (scores_BTW * taken_BTW).flatten(0, 1)
    probs_NM = torch.zeros(batch * tokens, num_modules, device=logits.device)
    probs_NM = probs_NM.index_copy(1, ids_W, scores_BTW.detach().flatten(0, 1))
    weights_NK, order_NK = weights_NW.sort(dim=-1, descending=True, stable=True)
    return Decision(logits.flatten(0, 1), probs_NM, ids_NW.gather(-1, order_NK), weights_NK)


def module_counts(module_ids: Int[Tensor, "N K"], num_modules: int) -> Int[Tensor, " M"]:
    """How many tokens chose each module; sums to N·K."""
    return torch.bincount(module_ids.reshape(-1), minlength=num_modules)


def updated_bias(
    bias: Float[Tensor, " M"],
    counts: Int[Tensor, " M"],
    identity: Bool[Tensor, " M"],
    *,
    top_k: int,
    skip_ratio: float,
    skip_speed: float,
    reference: Literal["tokens", "modules"] = "tokens",
) -> Float[Tensor, " M"]:
    """The selection bias after one training iteration (equation 5): identity modules only.

    ``b += u · sign(r·K·c̄ − Σ_{i in identity} c_i)``. With ``reference="tokens"`` c̄ is the number
    of tokens of the step, so that r is the share of all N·K slots that do no work; with
    ``"modules"`` it is the mean count over the M modules, the equation to the letter, which
    asks for M/K times fewer skips. ``docs/decisions.md`` says why the first is the default.
    """
    slots = counts.sum()
    mean_count = slots / top_k if reference == "tokens" else slots / counts.numel()
    missing = skip_ratio * top_k * mean_count - counts[identity].sum()
    return bias + skip_speed * torch.sign(missing) * identity
