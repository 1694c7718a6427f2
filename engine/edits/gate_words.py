"""One word at one position of a text: its logit as a sum of what each direction took away, and its probability under
other gates.

Shapes: T tokens, D width, L layers, H heads, K directions of a head, W width of a head, C vocabulary entries.
Source: "Directional Routing in Transformers", equation 2 (what is removed) and section 4 (gates off, neutral, full).
Direct logit attribution: Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.models.bank.modules import attend
from tokenpaths.engine.models.directional import Directional
from tokenpaths.engine.models.directional_gates import Interventions, suppress


@dataclass(frozen=True)
class LogitParts:
    """The logit of a word as a sum over everything that was written into the residual stream at the position.

    ``embedding`` + Σ ``heads`` + Σ ``removed`` + Σ ``mlps`` = ``logit``, exactly: the scale of the final norm is held
    at its value there, which makes the readout linear.
    """

    logit: float
    embedding: float
    heads: Float[Tensor, "L H"]
    """by the heads before anything is removed from them"""
    removed: Float[Tensor, "L H K"]
    """by the removal −r (o·d) d of each direction; above 0: the removal raises the logit"""
    mlps: Float[Tensor, " L"]
    gates: Float[Tensor, "L H K"]
    """r at the position"""


@dataclass(frozen=True)
class WordChance:
    """The next token behind a position under one condition."""

    name: str
    probability: float
    """of the word that was asked for"""
    rank: int
    """1: the likeliest of all words"""
    best: int
    """token id of the likeliest word"""
    best_probability: float


@torch.inference_mode()
def logit_parts(
    model: Directional, ids: Int[Tensor, " T"], position: int, token_id: int, *, centred: bool = True
) -> LogitParts:
    """Direct attribution of the logit of ``token_id`` behind ``position``.

    Direct: what later layers read of a part, and what they make of it, counts as theirs.

    Args:
        centred: of the logit minus the mean logit of all words. A shift of all logits alike changes no probability.

    Raises:
        UserError: a position or word that the text or the vocabulary does not have.
    """
    _check(model, ids, position, token_id)
    config = model.config
    h = model.embed(ids[None]) + model.positions[: len(ids)]
    embedding, whole, taken, mlps, gates = h[0, position], [], [], [], []
    for layer in model.layers:
        r_BPHK, d_HKW = layer.decide(h), layer.unit_directions()
        mixed = attend(layer.attention.project_in(h), config.heads, causal=True)
        o_HW = mixed[0, position].unflatten(0, (config.heads, config.head_width))
        r_HK = r_BPHK[0, position if r_BPHK.shape[1] > 1 else 0]
        gates.append(r_HK)
        along_HK = torch.einsum("hw,hkw->hk", o_HW, d_HKW)
        out_DHW = layer.attention.proj.weight.unflatten(1, (config.heads, config.head_width))
        whole.append(torch.einsum("dhw,hw->hd", out_DHW, o_HW))
        taken.append(torch.einsum("dhw,hkw->hkd", out_DHW, -(r_HK * along_HK)[:, :, None] * d_HKW))
        h = h + layer.attention.project_out(suppress(mixed, d_HKW, r_BPHK))
        written = layer.mlp(h)
        mlps.append(written[0, position])
        h = h + written
    w_D = _readout(model, h[0, position], token_id, centred)
    heads, removed, from_mlps = ((torch.stack(parts) @ w_D).cpu() for parts in (whole, taken, mlps))
    logit, first = float(h[0, position] @ w_D), float(embedding @ w_D)
    return LogitParts(logit, first, heads, removed, from_mlps, torch.stack(gates).cpu())


def first_order(
    model: Directional, ids: Int[Tensor, " T"], position: int, token_id: int, *, centred: bool = True
) -> Float[Tensor, "L H K"]:
    """What each removal adds to the logit by way of all later layers and positions, to first order: Σ r ∂logit/∂r.

    The sum is over the decisions of the text. Routers of later layers are held at what they decided. Exact only for
    small gates; beside ``LogitParts.removed`` it says how much of an effect is not direct.

    Raises:
        UserError: as ``logit_parts``.
    """
    _check(model, ids, position, token_id)
    with torch.inference_mode():
        own = model(ids[None]).gates
    r = own.clone().requires_grad_()
    with torch.enable_grad():
        logits_C = model(ids[None], None, Interventions.swapped(r)).logits[0, position]
        logit = logits_C[token_id] - (logits_C.mean() if centred else 0.0)
        (slope,) = torch.autograd.grad(logit, r)
    return (r.detach() * slope).sum(dim=(0, 1)).cpu()


@torch.inference_mode()
def word_chances(
    model: Directional, ids: Int[Tensor, " T"], position: int, token_id: int, interventions: Mapping[str, Interventions]
) -> list[WordChance]:
    """The probability of ``token_id`` behind ``position`` under each of ``interventions``.

    Raises:
        UserError: as ``logit_parts``, or an intervention that does not fit the model.
    """
    _check(model, ids, position, token_id)
    found = []
    for name, act in interventions.items():
        p_C = model(ids[None], None, act).logits[0, position].float().softmax(dim=-1)
        best = int(p_C.argmax())
        rank = 1 + int((p_C > p_C[token_id]).sum())
        found.append(WordChance(name, float(p_C[token_id]), rank, best, float(p_C[best])))
    return found


def _readout(model: Directional, h: Float[Tensor, " D"], token_id: int, centred: bool) -> Float[Tensor, " D"]:
    """The vector whose dot product with each part of the residual stream ``h`` is what the part adds to the logit.

    LayerNorm subtracts the mean, divides by √(variance + ε), here that of ``h``, and multiplies by its weights.
    """
    row_D = model.unembedding[token_id]
    if centred:
        row_D = row_D - model.unembedding.mean(dim=0)
    weighted_D = row_D * model.norm.weight
    return (weighted_D - weighted_D.mean()) * (h.var(correction=0) + model.norm.eps).rsqrt()


def _check(model: Directional, ids: Int[Tensor, " T"], position: int, token_id: int) -> None:
    if not model.config.directions:
        raise UserError("directions is 0: the unrouted twin removes nothing", field="model")
    if not 0 <= position < len(ids):
        raise UserError(f"position {position} is not one of 0 to {len(ids) - 1}", field="position")
    if not 0 <= token_id < model.config.vocab_size:
        raise UserError(f"token {token_id} is not one of 0 to {model.config.vocab_size - 1}", field="word")
