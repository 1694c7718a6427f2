"""What the recorder reads of the user's model besides its routers: the core inside wrappers, its name, its inputs.

Shapes: B samples, T tokens each.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tokenpaths.engine.adapters.recorder.router_outputs import tensors_of
from tokenpaths.engine.base.errors import UserError

_ID_NAMES = ("input_ids", "tokens", "token_ids", "inputs", "idx", "x")
_MASK = "attention_mask"
_MASKED_BELOW = -1000.0
"""threshold of padding in an additive mask; −10,000 is common, and becomes −9,984 in bfloat16"""


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
        else:
            return model


def is_compiled(model: nn.Module) -> bool:
    return any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None for m in model.modules())


def in_backward() -> bool:
    """Whether autograd is running: a forward pass is then a recomputation for the gradient."""
    return bool(torch._C._current_graph_task_id() != -1)


def name_of(model: nn.Module) -> str:
    named = getattr(getattr(model, "config", None), "name_or_path", None)
    return named if isinstance(named, str) and named else type(model).__name__


def config_of(model: nn.Module) -> dict[str, Any]:
    """The model's own configuration, if it can be written as JSON."""
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


@dataclass
class BatchInfo:
    """Description of the next forward pass, from ``Recorder.batch``."""

    input_ids: Any = None
    texts: Sequence[str] | None = None
    labels: Sequence[Any] | None = None
    mask: Any = None


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


def tokens_of(
    info: BatchInfo, args: tuple[Any, ...], named: Mapping[str, Any], batch_first: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Vocabulary ids (B, T) and the mask (B, T) as given or found, if known.

    Raises:
        UserError: values given to ``Recorder.batch`` have another type or shape.
    """
    ids = _as_tensor(info.input_ids, "input_ids") if info.input_ids is not None else _find_ids(args, named)
    if ids is not None and (ids.is_floating_point() or ids.dim() not in (1, 2)):
        raise UserError(f"input_ids is {ids.dtype} {tuple(ids.shape)}, it should be integers (B, T)", field="input_ids")
    model_mask = named.get(_MASK)
    mask = (
        _as_tensor(info.mask, "mask")
        if info.mask is not None
        else (model_mask if isinstance(model_mask, Tensor) and model_mask.dim() == 2 else None)
    )
    ids, mask = (None if t is None else t[None] if t.dim() == 1 else t for t in (ids, mask))
    if not batch_first:
        ids = None if ids is None else ids.T
        mask = None if mask is None or info.mask is None else mask.T
    return ids, mask


def _find_ids(args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """The model's integer input (B, T): by name, else its first argument."""
    for value in (*(named.get(name) for name in _ID_NAMES), *args[:1]):
        if (
            isinstance(value, Tensor)
            and value.dim() in (1, 2)
            and not value.is_floating_point()
            and (value.dtype != torch.bool and not value.is_complex())
        ):
            return value
    return None


def _as_tensor(values: Any, name: str) -> Tensor:
    try:
        return values if isinstance(values, Tensor) else torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"{name} is {type(values).__name__}, it should be a tensor or nested lists of equal length", field=name
        ) from None


def first_size(args: tuple[Any, ...], kwargs: Mapping[str, Any], axis: int) -> int:
    """Length of ``axis`` of the first input with at least two axes; 1 without one."""
    first = next((t for t in tensors_of([*args, *kwargs.values()]) if t.dim() >= 2), None)
    return 1 if first is None else first.shape[axis]


def kept_positions(mask: Tensor) -> Tensor | str:
    """Mask of the tokens that are kept, or a message why it cannot be determined.

    Supported are booleans, 0 and 1 of any type, and additive masks: 0 keeps, very negative values do not.
    """
    if mask.dtype == torch.bool:
        return mask
    if mask.is_complex():
        return "it is complex"
    zero, one = mask == 0, mask == 1
    if bool((zero | one).all()):
        if mask.is_floating_point() and bool(zero.all()):
            return "it is a float mask of zeros, which would keep all if it is added to scores, and none if it is not"
        return one
    if mask.is_floating_point() and bool((zero | (mask <= _MASKED_BELOW)).all()):
        return zero
    return f"it holds values from {float(mask.min()):g} to {float(mask.max()):g}"


def read_mask(mask: Tensor, was_given: bool, say: Callable[[str], None]) -> Tensor | None:
    """``kept_positions``; for a found mask that cannot be read, None and a note that all positions count.

    Raises:
        UserError: a mask given by the caller cannot be read.
    """
    keep = kept_positions(mask)
    if isinstance(keep, Tensor):
        return keep
    if was_given:
        raise UserError(f"mask cannot be read: {keep}; give booleans, or 1 for tokens and 0 for padding", field="mask")
    say(
        f"the model's {_MASK} cannot be read: {keep}; padding, if there is any, was recorded too: say which it is "
        "with rec.batch(mask=…)"
    )
    return None
