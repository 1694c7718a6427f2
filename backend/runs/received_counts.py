"""What is known of a log of received responses: its sizes, its counts, and which responses fit into it.

Shapes: S layers, M experts so far.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import numpy as np

from tokenpaths.backend.runs.received_file import Row
from tokenpaths.engine.adapters.logs.pieces.announced import MOST_EXPERTS, MOST_MODULES, Announced
from tokenpaths.engine.adapters.logs.responses.received import Counted
from tokenpaths.engine.analysis.load import load_entropy, max_violation


def begin(sizes: Announced) -> Row:
    """What is known of a log before its first response."""
    now = time.time()
    empty: Row = {"began": now, "last": now, "responses": 0, "tokens": 0, "bytes": 0, "sizes": said_of(sizes)}
    rest = ("model", "layers", "top_k", "routed", "counts", "file", "target", "job", "not_before")
    return empty | dict.fromkeys(rest)


def said_of(sizes: Announced) -> str:
    """The sizes that clients said, as they are stored."""
    return json.dumps({"layers": sizes.layers, "top_k": sizes.top_k, "experts": sizes.experts})


def misfit(about: Row, one: Counted, counts: np.ndarray) -> str | None:
    """Why a response cannot be in a run with the others of the log, as the import would say; (S, M) ``counts`` so far.

    A log with a response that the import refuses could not be sealed, so it is refused when it comes.
    """
    layers = len(one.counts)
    if about["layers"] is not None and (about["layers"], about["top_k"]) != (layers, one.top_k):
        return (
            f"it has {layers} layers of {one.top_k} experts, the log began with {about['layers']} of {about['top_k']}"
        )
    if about["model"] is not None and one.model is not None and one.model != about["model"]:
        return f"it is of the model {one.model[:80]!r}, the log began with {about['model'][:80]!r}"
    first = one.first
    if about["responses"]:
        first = np.frombuffer(about["routed"] or b"\1" * layers, dtype=bool)
    late = np.flatnonzero(one.routed & ~first)
    if len(late):
        return (
            f"layer {int(late[0])} has decisions here, but zeros only in the first response of the log; a layer is "
            "dense throughout or nowhere, so one of them was not captured whole"
        )
    experts = json.loads(about["sizes"])["experts"] or max(one.counts.shape[1], counts.shape[1])
    routed = int(first.sum())
    if routed * experts > MOST_MODULES or experts + 2 * one.top_k > MOST_EXPERTS:  # 2 K stand for unused slots
        return (
            f"{experts:,} experts at {routed} layers are more than a run holds; a number that marks unused slots needs "
            "`experts`, so that it is no expert"
        )
    return None


def added(counts: np.ndarray, more: np.ndarray) -> np.ndarray:
    """The sum of two counts (S, M) of different M."""
    if not counts.size:
        return more
    width = max(counts.shape[1], more.shape[1])
    wide, total = (np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in (counts, more))
    return total + wide


def load_of(counts: np.ndarray) -> list[Row]:
    """The load of each layer with choices."""
    return [
        {
            "layer": layer,
            "choices": int(of_layer.sum()),
            "load_entropy": load_entropy(of_layer),
            "max_violation": max_violation(of_layer),
            "never": int((of_layer == 0).sum()),
        }
        for layer, of_layer in enumerate(counts)
        if of_layer.any()
    ]


def when(seconds: float) -> str:
    """A time in seconds since 1970, as text."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
