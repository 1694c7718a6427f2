"""Worth of gates and heads over many texts: every gate at one value, each head knocked out, the gain by position.

Shapes: N texts, G groups of positions, R rows of a pass, T positions, L layers, H heads.
Source: "Directional Routing in Transformers", sections 4 (knock-outs), 7 (fixed gates) and 8 (gain by position).
Every interval takes texts, not tokens, as what was drawn (``engine.analysis.contrast.ratio_error``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokenpaths.engine.analysis.contrast import difference, freedom, ratio_error, student
from tokenpaths.engine.base.device import mixed_precision
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.edits.gate_effects import row_losses
from tokenpaths.engine.edits.prepared import PreparedSet
from tokenpaths.engine.families.directional_config import DirectionalConfig
from tokenpaths.engine.models.directional import Directional
from tokenpaths.engine.models.directional_gates import NEUTRAL, OFF, Interventions
from tokenpaths.engine.tracing.traceable import ModelInput

TRAINED = "as trained"
GRID = tuple(place / 10 for place in range(11))
"""values that every gate takes in turn"""
BY_POSITION = {"off": OFF, "neutral": NEUTRAL}
"""conditions whose loss is compared with the trained model's by position, and the value of their gates"""


@dataclass(frozen=True)
class Condition:
    """One row of a scan: all gates at one value, one head knocked out, or neither (``TRAINED``)."""

    name: str
    act: Interventions
    value: float | None = None
    head: tuple[int, int] | None = None


def conditions(config: DirectionalConfig) -> list[Condition]:
    """The trained model, every gate at each value of ``GRID``, and each head knocked out."""
    uniform = [Condition(uniform_name(value), Interventions.everywhere(value), value=value) for value in GRID]
    places = [(layer, head) for layer in range(config.layers) for head in range(config.heads)]
    heads = [Condition(head_name(*at), Interventions(knocked_out=(at,)), head=at) for at in places]
    return [Condition(TRAINED, Interventions()), *uniform, *heads]


def uniform_name(value: float) -> str:
    return f"every gate {value:g}"


def head_name(layer: int, head: int) -> str:
    return f"without layer {layer}, head {head}"


def position_edges(context: int) -> list[int]:
    """Edges of the groups of positions 0, 1, 2–3, 4–7, … up to ``context``: each twice as wide as the one before it.

    >>> position_edges(10)
    [0, 1, 2, 4, 8, 10]
    """
    edges = [0, 1]
    while edges[-1] < context:
        edges.append(min(2 * edges[-1], context))
    return edges


@torch.inference_mode()
def add_losses(
    sums: Float[np.ndarray, "N G"],
    counts: Int[np.ndarray, "N G"],
    model: Directional,
    batch: ModelInput,
    samples: Int[Tensor, " R"],
    act: Interventions,
    edges: Sequence[int],
) -> None:
    """Add the losses of one pass, in nats, and how many they are, by text and group of positions; in place.

    A position is the place of the token whose successor is predicted, in its window of the model's context.

    Args:
        samples: the text of each token of the batch, padding not counted.

    Raises:
        UserError: a loss is not finite.
    """
    device = model.embed.weight.device
    assert batch.valid is not None, "texts have padding"
    known = (batch.targets >= 0)[batch.valid]
    with mixed_precision(device):
        logits = model(batch.raw.to(device), batch.valid.to(device), act).logits
    losses_BT = row_losses(logits, batch.targets.clamp(min=0).to(device)).cpu()
    loss = losses_BT[batch.valid][known].double().numpy()
    if not np.isfinite(loss).all():
        raise UserError("a loss is NaN or infinite: the checkpoint is damaged, or the change drives it out of range")
    place = torch.arange(batch.raw.shape[1]).expand(batch.raw.shape)[batch.valid][known].numpy()
    group = np.searchsorted(edges, place, side="right") - 1
    where = samples.numpy()[known.numpy()] * sums.shape[1] + group
    sums += np.bincount(where, weights=loss, minlength=sums.size).reshape(sums.shape)
    counts += np.bincount(where, minlength=counts.size).reshape(counts.shape)


def text_losses(
    model: Directional, data: PreparedSet, act: Interventions, edges: Sequence[int]
) -> tuple[Float[np.ndarray, "N G"], Int[np.ndarray, "N G"]]:
    """``add_losses`` over all of ``data``: sums of losses, and how many they are."""
    shape = (data.num_samples, len(edges) - 1)
    sums, counts = np.zeros(shape), np.zeros(shape, dtype=np.int64)
    for batch, samples in zip(data.batches, data.samples, strict=True):
        add_losses(sums, counts, model, batch, samples, act, edges)
    return sums, counts


def paired_rise(
    changed: Float[np.ndarray, " N"], trained: Float[np.ndarray, " N"], count: Int[np.ndarray, " N"], tests: int = 1
) -> dict[str, Any]:
    """Rise of the mean loss over all tokens, from sums by text: ``rise``, standard ``error``, 95 % ``low`` to ``high``.

    The half width is the t-quantile of the texts (``contrast.freedom``) times the error. ``clear``: whether the
    interval excludes 0 when ``tests`` such intervals are to hold together (Bonferroni). Without two texts there is no
    error, and nothing is clear.
    """
    here = count > 0
    rest, count = (changed - trained)[here], count[here]
    if not len(count):
        return {"rise": None, "error": None, "low": None, "high": None, "clear": False}
    rise, error = float(rest.sum() / count.sum()), ratio_error(rest, count)
    if error is None:
        return {"rise": rise, "error": None, "low": None, "high": None, "clear": False}
    half, wide = (student(freedom(count), many) * error for many in (1, tests))
    return {"rise": rise, "error": error, "low": rise - half, "high": rise + half, "clear": abs(rise) > wide}


def scan_answer(
    config: DirectionalConfig,
    counts: Int[np.ndarray, "N G"],
    done: Mapping[str, Float[np.ndarray, "N G"]],
    edges: Sequence[int],
) -> dict[str, Any]:
    """A scan, finished or not, as plain JSON; ``done`` has the sums of the conditions measured so far.

    ``trained``: loss in nats. ``uniform``: by value of every gate. ``heads``: by knocked-out head. ``positions``: by
    group ``first`` to ``last``, the trained loss and the gain over each of ``BY_POSITION`` (their loss minus the
    trained one). ``trend``: ``gain_trend`` of each of these.
    """
    if TRAINED not in done:
        return {"trained": None, "uniform": [], "heads": [], "positions": [], "trend": {}}
    trained, count = done[TRAINED], counts.sum(axis=1)
    total, tokens = float(trained.sum()), int(count.sum())
    answer: dict[str, Any] = {"trained": {"loss": total / tokens, "num_targets": tokens}, "uniform": [], "heads": []}
    for condition in conditions(config):
        if condition.name not in done or condition.name == TRAINED:
            continue
        of_heads = condition.head is not None
        tests = config.layers * config.heads if of_heads else len(GRID)
        changed = paired_rise(done[condition.name].sum(axis=1), trained.sum(axis=1), count, tests)
        row = {"loss": total / tokens + changed["rise"]} | changed
        if condition.head is not None:
            answer["heads"].append({"layer": condition.head[0], "head": condition.head[1]} | row)
        else:
            answer["uniform"].append({"value": condition.value} | row)
    measured = {name: uniform_name(value) for name, value in BY_POSITION.items() if uniform_name(value) in done}
    trend = {name: gain_trend(done[key] - done[TRAINED], counts, edges) for name, key in measured.items()}
    return answer | {"positions": _by_position(counts, done, edges, measured), "trend": trend}


def gain_trend(
    rises: Float[np.ndarray, "N G"], counts: Int[np.ndarray, "N G"], edges: Sequence[int]
) -> dict[str, Any] | None:
    """Gain at the first positions (at most 16) minus that of the last group that two texts reach, 95 % interval.

    Both gains are means over tokens. Texts are what was drawn, so that a text's early and late tokens need not be
    independent; the interval is as wide as the fewer texts of the two groups make it (``contrast.difference``). None
    where texts are too short or too few.
    """
    late = max((int(group) for group in np.flatnonzero((counts > 0).sum(axis=0) >= 2)), default=0)
    most = min(16, edges[late + 1] // 2, edges[late])
    early = len([edge for edge in edges[1:] if edge <= most])
    if not early or not late:
        return None
    groups = slice(early), slice(late, late + 1)
    parts = [(rises[:, at].sum(axis=1), counts[:, at].sum(axis=1).astype(np.float64)) for at in groups]
    change = difference(*parts[0], *parts[1])
    assert change is not None, "both groups have tokens"
    gains = [float(rise_N.sum() / count_N.sum()) for rise_N, count_N in parts]
    return {
        "early": {"first": 0, "last": edges[early] - 1, "rise": gains[0]},
        "late": {"first": edges[late], "last": edges[late + 1] - 1, "rise": gains[1]},
        "difference": change.mean,
        "low": change.low,
        "high": change.high,
    }


def _by_position(
    counts: Int[np.ndarray, "N G"],
    done: Mapping[str, Float[np.ndarray, "N G"]],
    edges: Sequence[int],
    measured: Mapping[str, str],
) -> list[dict[str, Any]]:
    groups = []
    for group, (first, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        count = counts[:, group]
        if not count.any():
            continue
        trained = done[TRAINED][:, group]
        gains = {name: paired_rise(done[key][:, group], trained, count) for name, key in measured.items()}
        groups.append(
            {
                "first": first,
                "last": end - 1,
                "num_targets": int(count.sum()),
                "num_texts": int((count > 0).sum()),
                "loss": float(trained.sum() / count.sum()),
            }
            | {name: {part: value for part, value in gain.items() if part != "clear"} for name, gain in gains.items()}
        )
    return groups
