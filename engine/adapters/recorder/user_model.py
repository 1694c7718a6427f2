"""What the recorder reads of the user's model besides its routers: the core inside wrappers, its name, its inputs."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tokenpaths.engine.adapters.expert_runs import shareable_config
from tokenpaths.engine.base.errors import UserError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def core(model: nn.Module) -> nn.Module:
    """The author's model without wrappers, so that it is recorded however it is called.

    Raises:
        UserError: not a module, or run in several threads.
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
        elif (base := _base_of(model)) is not None:
            model = base
        else:
            return model


def _base_of(model: nn.Module) -> nn.Module | None:
    """The model inside an adapter (PEFT) or beside a value head (TRL), whose ``generate`` calls it directly.

    Models of other authors may have attributes of these names, so what else PEFT and TRL leave is looked for, too.
    """
    get = getattr(model, "get_base_model", None)
    if inspect.ismethod(get) and hasattr(model, "peft_config"):
        try:
            base = get()
        except Exception:  # a method of the same name that does something else
            return None
    elif hasattr(model, "v_head"):
        base = getattr(model, "pretrained_model", None)
    else:
        return None
    inside = isinstance(base, nn.Module) and base is not model and any(base is module for module in model.modules())
    return base if inside else None


def tuners_of(model: nn.Module, base: nn.Module) -> list[nn.Module]:
    """Modules inside ``model`` that call ``base.forward``, so that hooks of ``base`` do not run (PEFT's tuners)."""
    return [
        m for m in model.modules() if m is not base and hasattr(m, "peft_config") and m._modules.get("model") is base
    ]


def is_compiled(model: nn.Module) -> bool:
    """Whether the model or a part of it is compiled: as a module, by its call, or by its ``forward`` alone."""
    return any(
        hasattr(m, "_orig_mod")
        or getattr(m, "_compiled_call_impl", None) is not None
        or _is_compiled_function(getattr(m, "forward", None))
        for m in model.modules()
    )


def in_backward() -> bool:
    """Whether autograd is running: a forward pass is then a recomputation for the gradient."""
    return bool(torch._C._current_graph_task_id() != -1)


def name_of(model: nn.Module) -> str:
    """The name in the model's configuration, of a folder without its path; by default the model's class.

    A run is sent to others, whom the folders of this machine are no business of.
    """
    named = getattr(getattr(model, "config", None), "name_or_path", None)
    if not isinstance(named, str) or not named.strip("/\\. "):
        return type(model).__name__
    if _HUB_NAME.fullmatch(named) and not Path(named).exists():
        return named
    return re.split(r"[/\\]", named.rstrip("/\\"))[-1]


def config_of(model: nn.Module) -> dict[str, Any]:
    """The model's own configuration, as far as it can be written as JSON and shown to others."""
    config = getattr(model, "config", None)
    as_dict = getattr(config, "to_dict", None) or getattr(config, "model_dump", None)
    values = as_dict() if callable(as_dict) else getattr(config, "__dict__", {})
    return shareable_config(values)


def composition_of(model: nn.Module) -> str:
    """Digest of the names of the model's parameters, which are equal in processes that run copies of one model.

    Not those of experts, of which each process may hold its own.
    """
    names = sorted(name for name, _ in model.named_parameters() if "expert" not in name.lower())
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest()


@dataclass
class BatchInfo:
    """Description of the next forward pass, from ``Recorder.batch``."""

    input_ids: Any = None
    texts: Sequence[str] | None = None
    labels: Sequence[Any] | None = None
    mask: Any = None
    continues: bool | None = None


def signature_of(model: nn.Module) -> inspect.Signature | None:
    """Signature of ``model``; None if Python cannot determine it (scripted modules)."""
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):
        return None


def named_inputs(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The inputs of a call by name, whether positional, by keyword, or as one mapping."""
    named: dict[str, Any] = {}
    for value in args:
        if isinstance(value, Mapping):
            named.update(value)
    if signature is not None:
        try:
            bound = signature.bind_partial(*args, **kwargs).arguments
        except TypeError:  # the model will say so itself
            bound = {}
        for name, value in bound.items():
            if signature.parameters[name].kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                named[name] = value
    return named | dict(kwargs)


def _is_compiled_function(function: Any) -> bool:
    # torch.compiler.disable leaves the same mark, and one that says so.
    return hasattr(function, "_torchdynamo_orig_callable") and not getattr(function, "_torchdynamo_disable", False)
