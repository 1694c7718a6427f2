"""Scores of routers beside Megatron-LM's trace: ``logits_rank0.bin``, (tokens, experts) numbers for each record.

A record says where its logits lie (``logit_offset``, ``logit_bytes``, ``logit_shape``), not what numbers they are: two
bytes are float16 or bfloat16, which order alike, so their spread decides. They are read only where the recorded experts
have the largest logits; otherwise (a bias or groups entered the choice, or they are of another training) they say
nothing of the weights.

Shapes: t tokens, M experts, K slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tokenpaths.engine.adapters.logs.passes.megatron_lines import RankPass
from tokenpaths.engine.adapters.logs.tensors.router_logits import weights_and_scores
from tokenpaths.engine.base.errors import UserError

USED = (
    "logits beside the trace give the weights, their softmax over all experts, which the model may have divided by "
    "their sum"
)
OTHER = (
    "logits beside the trace are not read: the recorded experts are not those with the largest logits, so a bias or "
    "groups entered the choice, or they are of another training"
)
LEAST_SPREAD, LARGEST = 0.57, 256.0
"""standard deviation of log2 of the size of float16 logits, and size of bfloat16 ones: a normal distribution has a
standard deviation of 1.6, of which reading one kind as the other makes an eighth or eight times as much"""


def sidecar(file: Path, rank: str) -> Path:
    """Where the logits of a rank lie, if they were written."""
    return file.with_name(f"logits_rank{rank}.bin") if rank.isascii() and rank.isalnum() else file


def kind_of_logits(firsts: Sequence[RankPass]) -> tuple[str | None, str]:
    """(the kind of number of all logits, a note); None where there are none that agree with the recorded experts.

    Raises:
        UserError: a record points outside of its file.
    """
    if not all(all(found.logits) and sidecar(found.file, found.rank).is_file() for found in firsts):
        return None, ""
    layers = [(found, layer) for found in firsts for layer in range(len(found.parts))]
    places = [place for found in firsts for place in found.logits if place is not None]
    sizes = {place["bytes"] // (place["tokens"] * place["experts"]) for place in places}
    kinds = ("float32",) if sizes == {4} else ("float16", "bfloat16") if sizes == {2} else ()
    read = {kind: [_logits(found, layer, kind) for found, layer in layers] for kind in kinds}
    if read:
        kind = "float32" if len(read) == 1 else _kind_of_two_bytes(read["bfloat16"], read["float16"])
        if all(_largest(part, found.parts[at]).all() for part, (found, at) in zip(read[kind], layers, strict=True)):
            return kind, USED
    return None, OTHER


def _kind_of_two_bytes(as_bfloat16: Sequence[np.ndarray], as_float16: Sequence[np.ndarray]) -> str:
    """What two bytes a number most likely are, from the same logits read as both."""
    sizes = np.abs(np.concatenate([part.ravel() for part in as_float16]))
    spread = float(np.log2(sizes[(sizes > 0) & np.isfinite(sizes)]).std()) if (sizes > 0).any() else 0.0
    largest = max((float(np.nanmax(np.abs(part))) for part in as_bfloat16), default=0.0)
    return "bfloat16" if spread < LEAST_SPREAD and largest < LARGEST else "float16"


def of_layer(found: RankPass, layer: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights (t, K) and (t, 3) entropy, margin and runner-up at one layer of a pass.

    Raises:
        UserError: the file ends before, or a logit is no number.
    """
    logits, ids = _logits(found, layer, kind), found.parts[layer]
    if not np.isfinite(logits).all():
        token = int(np.argwhere(~np.isfinite(logits))[0, 0])
        raise UserError(f"{found.lines[layer]}, token {token}: a logit is no number", field="file")
    if int(ids.max()) >= logits.shape[1]:
        raise UserError(
            f"{found.lines[layer]}: has the expert {int(ids.max())}, but logits of {logits.shape[1]} experts",
            field="file",
        )
    weights, scored = weights_and_scores(logits, np.maximum(ids, 0))
    weights[ids < 0] = 0
    scored[(ids < 0).any(axis=1) | ~_largest(logits, ids), 1:] = np.nan
    return weights, scored


def _largest(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Whether the experts of each token are those with its largest logits; equal logits count as larger. Bool (t,)."""
    if int(ids.max()) >= logits.shape[1]:
        return np.zeros(len(ids), dtype=bool)
    used = ids >= 0
    own = np.where(used, np.take_along_axis(logits, np.maximum(ids, 0), axis=1), np.inf).min(axis=1)
    largest = -np.sort(-logits, axis=1)
    count = used.sum(axis=1)
    last = np.take_along_axis(largest, np.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
    agree: np.ndarray = (own >= last) | (count == 0)
    return agree


def _logits(found: RankPass, layer: int, kind: str) -> np.ndarray:
    """(t, M) float64."""
    place, file = found.logits[layer], sidecar(found.file, found.rank)
    if place is None:
        raise UserError(f"{found.lines[layer]}: does not say where its logits lie; the records before do", field="file")
    if place["bytes"] != (4 if kind == "float32" else 2) * place["tokens"] * place["experts"]:
        raise UserError(f"{found.lines[layer]}: its logits are no {kind} numbers; those before are", field="file")
    with file.open("rb") as stream:
        stream.seek(place["offset"])
        data = stream.read(place["bytes"])
    if len(data) < place["bytes"]:
        raise UserError(
            f"{file}: is cut off: {found.lines[layer]} has its logits at byte {place['offset']:,}, where the file has "
            "ended",
            field="file",
        )
    if kind == "bfloat16":
        values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(data, "<f4" if kind == "float32" else "<f2")
    return values.reshape(place["tokens"], place["experts"]).astype(np.float64)
