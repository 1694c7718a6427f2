"""Scores become decisions: which modules a token visits at one step, and with what weight.

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


def route(
    logits: Float[Tensor, "N M"], top_k: int, bias: Float[Tensor, " M"] | None = None
) -> Decision:
    """Choose ``top_k`` modules for every token.

    ``bias`` is added to the probabilities for the choice only; the weights are the plain
    probabilities of the chosen modules, so no gradient and no scale ever passes through it.
    The softmax is computed in float32 whatever the dtype of ``logits``.

    Raises:
        ValueError: ``top_k`` is not between 1 and M.
    """
    num_modules = logits.shape[-1]
    if not 1 <= top_k <= num_modules:
        raise ValueError(
            f"top_k is {top_k}, but a router over {num_modules} modules can choose "
            f"between 1 and {num_modules} of them"
        )
    probs_NM = logits.float().softmax(dim=-1)
    scores_NM = probs_NM.detach() if bias is None else probs_NM.detach() + bias
    ids_NK = scores_NM.topk(top_k, dim=-1).indices
    weights_NK = probs_NM.gather(-1, ids_NK)
    if top_k > 1:
        # The bias may lift a module over a likelier one; slots are ordered by weight all the same.
        weights_NK, order_NK = weights_NK.sort(dim=-1, descending=True, stable=True)
        ids_NK = ids_NK.gather(-1, order_NK)
    return Decision(logits, probs_NM, ids_NK, weights_NK)


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
