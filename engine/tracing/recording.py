"""The result of a forward pass, moved to the host and checked."""

from __future__ import annotations

from dataclasses import replace

import torch

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.models.family import Traced


def to_host(traced: Traced) -> Traced:
    """The same on the host, logits excepted: they stay where the losses are worked out.

    Raises:
        UserError: a router gave NaN or infinite values (top-k would silently pick them first).
    """
    names = ("module_ids", "weights", "gate_entropy", "flops", "edges", "gates", "blocks")
    given = {name: value for name in names if (value := getattr(traced, name)) is not None}
    # Copies from a GPU run beside the next batch; one synchronisation for all of them.
    host = {name: value.to("cpu", non_blocking=True) for name, value in given.items()}
    if traced.module_ids.is_cuda:
        torch.cuda.current_stream().synchronize()
    moved = replace(traced, **host)
    _check_finite(moved)
    return moved


def _check_finite(traced: Traced) -> None:
    # A NaN weight is a broken router. An entropy may be undefined (NaN), but is never infinite, and a
    # softmax that broke has a NaN weight too.
    bad_BTSK = ~torch.isfinite(traced.weights)
    if bad_BTSK.any():
        step = int(bad_BTSK.any(dim=-1).flatten(0, 1).any(dim=0).nonzero()[0])
        raise UserError(
            f"router {step} gave NaN or infinite scores; the checkpoint or the input is damaged, "
            "nothing of this run was written"
        )
    for name in ("edges", "gates", "blocks"):
        values = getattr(traced, name)
        if values is not None and not torch.isfinite(values).all():
            raise UserError(
                f"the {name} of this model hold NaN or infinite values; the checkpoint or the input is "
                "damaged, nothing of this run was written"
            )
