"""What the recorder asks of the user's model besides its routers: what is inside its wrappers, and its name."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

from tokenpaths.engine.base.errors import UserError


def core(model: nn.Module) -> nn.Module:
    """The author's model inside wrappers, so that it is recorded however it is called.

    Raises:
        UserError: it is no module, or runs in threads.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"the model is {type(model).__name__}, it should be a torch.nn.Module", field="model")
    while True:
        if isinstance(model, nn.DataParallel):
            raise UserError(
                "nn.DataParallel runs copies of the model in threads, which cannot be recorded: use "
                "DistributedDataParallel, or record the model inside",
                field="model",
            )
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def is_compiled(model: nn.Module) -> bool:
    return any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None for m in model.modules())


def in_backward() -> bool:
    """Whether autograd is at work: a forward pass then is one computed again for its gradient."""
    return bool(torch._C._current_graph_task_id() != -1)


def name_of(model: nn.Module) -> str:
    named = getattr(getattr(model, "config", None), "name_or_path", None)
    return named if isinstance(named, str) and named else type(model).__name__


def config_of(model: nn.Module) -> dict[str, Any]:
    """The model's own configuration, where it can be written as JSON."""
    config = getattr(model, "config", None)
    as_dict = getattr(config, "to_dict", None) or getattr(config, "model_dump", None)
    values = as_dict() if callable(as_dict) else getattr(config, "__dict__", {})
    plain = {}
    for name, value in dict(values).items():
        try:
            plain[str(name)] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue
    return plain
