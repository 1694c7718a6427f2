"""Effects of the gates of Directional Routing: ablations, induction, swapped gates, and lookahead of the router.

Every function runs a model on rows of token ids of length T + 1: T inputs and their successors.

Shapes: B sequences, T tokens, S = T + 1, n positions, L layers, H heads, K directions of a head, C vocabulary entries.
Source: "Directional Routing in Transformers", sections 3, 4 and 7; METRICS 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.models.directional import Directional
from tokenpaths.engine.models.directional_gates import FULL, NEUTRAL, OFF, Interventions, mean_gates

BATCH = 32
"""rows of one forward pass"""


def _batches(rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for part in rows.split(BATCH):
        yield part[:, :-1], part[:, 1:]


def row_losses(logits: Float[Tensor, "B T C"], targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Cross-entropy of every position, nats."""
    # As rows: with the vocabulary in the middle it takes three times as long on a CPU.
    rows = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return rows.view(targets.shape)


@torch.inference_mode()
def losses(
    model: Directional, rows: Int[Tensor, "B S"], interventions: Interventions | None = None
) -> Float[Tensor, "B T"]:
    """Cross-entropy at every position of every row, nats (S = T + 1)."""
    parts = [row_losses(model(x, None, interventions).logits, y) for x, y in _batches(rows)]
    return torch.cat(parts)


@torch.inference_mode()
def gates_of(model: Directional, rows: Int[Tensor, "B T"]) -> Float[np.ndarray, "B L H K"]:
    """Gates r of every row, averaged over positions if each position decides for itself."""
    return torch.cat([mean_gates(model(x).gates) for x in rows.split(BATCH)]).cpu().numpy()


@dataclass(frozen=True)
class Effect:
    """Effect of an intervention, relative to the unchanged model on the same rows."""

    name: str
    loss: float
    """nats, mean over all positions"""
    perplexity: float
    delta_loss: float
    kl: float
    """KL(unchanged ‖ changed) of the next-token distribution, nats, mean over all positions"""
    top1_changed: float
    """share of positions whose most likely next token changed"""


@torch.inference_mode()
def effects(model: Directional, rows: Int[Tensor, "B S"], interventions: Mapping[str, Interventions]) -> list[Effect]:
    """One row per intervention, preceded by the unchanged model ("normal")."""
    names = ["normal", *interventions]
    sums = {name: np.zeros(3) for name in names}
    count = 0
    for x, y in _batches(rows):
        before = model(x).logits.float()
        log_p = before.log_softmax(dim=-1)
        count += y.numel()
        for name in names:
            logits = before if name == "normal" else model(x, None, interventions[name]).logits.float()
            log_q = logits.log_softmax(dim=-1)
            loss = -log_q.gather(-1, y[..., None]).sum()
            kl = (log_p.exp() * (log_p - log_q)).sum()
            changed = (logits.argmax(-1) != before.argmax(-1)).sum()
            sums[name] += np.array([float(loss), float(kl), float(changed)])
    normal = sums["normal"][0] / count
    return [
        Effect(name, loss / count, math.exp(loss / count), loss / count - normal, kl / count, changed / count)
        for name, (loss, kl, changed) in sums.items()
    ]


def ablations(model: Directional, mean: Float[Tensor, "L H K"] | None = None) -> dict[str, Interventions]:
    """Ablations of the paper's table: routing off, neutral, full, and off in each layer; and fixed gates.

    ``mean``: gates fixed at these values (for example their mean over a corpus) for every input. The loss that this
    adds is due exactly to decisions that depend on the input. The paper has no such ablation.
    """
    table = {
        "off": Interventions.everywhere(OFF),
        "neutral": Interventions.everywhere(NEUTRAL),
        "full": Interventions.everywhere(FULL),
    }
    if mean is not None:
        table["mean gates"] = fixed_gates(mean)
    return table | {f"off in layer {i}": Interventions.everywhere(OFF, (i,)) for i in range(model.config.layers)}


def fixed_gates(mean: Float[Tensor, "L H K"]) -> Interventions:
    """The same gates for every input and position."""
    return Interventions.swapped(mean[None, None])


# induction


def repeated_rows(
    count: int, period: int, vocab_size: int, *, seed: int = 0, repeats: int = 2, first_id: int = 0
) -> Int[Tensor, "B T"]:
    """Random segments of distinct tokens, each repeated ``repeats`` times.

    Distinct, so that what came after the last occurrence of a token is always what comes next.

    Raises:
        UserError: a period longer than the vocabulary, or nothing repeated.
    """
    if not 2 <= period <= vocab_size - first_id:
        raise UserError(f"period {period} is not between 2 and {vocab_size - first_id}", field="period")
    if repeats < 2:
        raise UserError(f"repeats {repeats}: a segment that is written once repeats nothing; give 2", field="repeats")
    rng = np.random.default_rng(seed)
    segments = np.stack([rng.permutation(vocab_size - first_id)[:period] + first_id for _ in range(count)])
    return torch.from_numpy(np.tile(segments, repeats))


@dataclass(frozen=True)
class Induction:
    """How well a model continues a repeated sequence."""

    accuracy: float
    """share of the predictable tokens of the later copies that are ranked first"""
    loss: float
    """nats, on these tokens"""
    first_loss: float
    """nats, on the unpredictable tokens of the first copy"""


@torch.inference_mode()
def induction(
    model: Directional, rows: Int[Tensor, "B T"], period: int, interventions: Interventions | None = None
) -> Induction:
    """Accuracy on repeated random sequences (``repeated_rows``).

    From the first repeated token on, the next one is determined: those T − period − 1 predictions count.

    Raises:
        UserError: rows shorter than two tokens beyond one period.
    """
    if rows.shape[1] < period + 2:
        raise UserError(f"rows of {rows.shape[1]} tokens hold no repetition of period {period}", field="period")
    hits, nats_later, first = 0.0, 0.0, 0.0
    for x, y in _batches(rows):
        logits = model(x, None, interventions).logits
        nats = row_losses(logits, y)
        hits += float((logits[:, period:].argmax(-1) == y[:, period:]).sum())
        nats_later += float(nats[:, period:].sum())
        first += float(nats[:, : period - 1].sum())
    count, before = rows.shape[0] * (rows.shape[1] - 1 - period), rows.shape[0] * (period - 1)
    return Induction(hits / count, nats_later / count, first / before)


def knockout_accuracies(model: Directional, rows: Int[Tensor, "B T"], period: int) -> Float[np.ndarray, "L H"]:
    """Induction accuracy with each head knocked out, one at a time."""
    config = model.config
    table = np.zeros((config.layers, config.heads))
    for layer in range(config.layers):
        for head in range(config.heads):
            table[layer, head] = induction(model, rows, period, Interventions(knocked_out=((layer, head),))).accuracy
    return table


# swaps


@torch.inference_mode()
def swap_effects(
    model: Directional, first: Int[Tensor, "B S"], second: Int[Tensor, "B2 S2"], layers: Sequence[int] | None = None
) -> Float[Tensor, " B"]:
    """Increase of the loss (nats) when row i of one set runs with the gates of row i of the other, mean of both.

    Raises:
        UserError: the sets differ in shape.
    """
    if first.shape != second.shape:
        raise UserError(
            f"rows to swap are {tuple(first.shape)} and {tuple(second.shape)}: give as many, as long", field="second"
        )
    chosen = None if layers is None else tuple(layers)
    rises = []
    for own, other in ((first, second), (second, first)):
        for (x, y), (z, _) in zip(_batches(own), _batches(other), strict=True):
            swapped = model(x, None, Interventions.swapped(model(z).gates, chosen)).logits
            rises.append((row_losses(swapped, y) - row_losses(model(x).logits, y)).mean(dim=1))
    return torch.cat(rises).view(2, -1).mean(dim=0)


# what a router sees ahead


@torch.inference_mode()
def prefix_losses(model: Directional, rows: Int[Tensor, "B S"], positions: Sequence[int]) -> Float[Tensor, "B n"]:
    """Loss at some positions when the model sees no later tokens, as in generation.

    One pass per position t, over tokens 0 … t only; the loss is that of token t + 1. For a causal model it equals
    ``losses(model, rows)[:, positions]``.

    Raises:
        UserError: a position is out of range.
    """
    last = rows.shape[1] - 2
    columns = []
    for t in positions:
        if not 0 <= t <= last:
            raise UserError(f"position {t} is not one of 0 to {last}", field="positions")
        parts = [row_losses(model(p[:, : t + 1]).logits[:, -1:], p[:, t + 1 : t + 2]) for p in rows.split(BATCH)]
        columns.append(torch.cat(parts)[:, 0])
    return torch.stack(columns, dim=1)


@torch.inference_mode()
def held_losses(model: Directional, rows: Int[Tensor, "B S"], prompt: int) -> Float[Tensor, "B n"]:
    """Losses after a prompt whose tokens alone determine the gates, which then stay fixed.

    This is how a sequence-pooled model generates: no lookahead. n = T − prompt; the first loss is that of predicting
    token ``prompt + 1``.

    Raises:
        UserError: the prompt leaves nothing to predict.
    """
    if not 1 <= prompt < rows.shape[1] - 1:
        raise UserError(f"prompt {prompt} is not between 1 and {rows.shape[1] - 2}", field="prompt")
    parts = []
    for x, y in _batches(rows):
        gates = mean_gates(model(x[:, :prompt]).gates)[:, None]
        parts.append(row_losses(model(x, None, Interventions.swapped(gates)).logits, y)[:, prompt:])
    return torch.cat(parts)


@dataclass(frozen=True)
class Lookahead:
    """Losses of the same model and targets with and without the later tokens in view."""

    positions: tuple[int, ...]
    in_view: Float[np.ndarray, " n"]
    """loss at each position given the whole row (the usual validation loss)"""
    hidden: Float[np.ndarray, " n"]
    """loss given no later tokens"""
    gain: float
    """mean of hidden − in_view over all positions, nats. Combines two effects: information about the targets in later
    tokens, and a router that averages over fewer tokens than in training"""
    standard_error: float
    """of the gain, over rows"""


def lookahead(model: Directional, rows: Int[Tensor, "B S"], positions: Sequence[int]) -> Lookahead:
    """Increase in loss when the target tokens and all later ones are hidden from the model."""
    in_view = losses(model, rows)[:, list(positions)]
    hidden = prefix_losses(model, rows, positions)
    gains = (hidden - in_view).mean(dim=1)
    return Lookahead(
        tuple(positions),
        in_view.mean(dim=0).numpy(),
        hidden.mean(dim=0).numpy(),
        float(gains.mean()),
        float(gains.std() / math.sqrt(len(rows))),
    )
