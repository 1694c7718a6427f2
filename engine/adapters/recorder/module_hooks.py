"""Hooks of one module: a copy of the module does not record, and a pickle of it holds nothing of ours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn


class ModuleHook:
    """A forward hook or pre-hook that runs for ``module`` alone.

    Hooks go along with every copy and pickle of a module. The copy of an average over the training
    (``copy.deepcopy``) would be recorded as the model itself, and ``torch.save(model)`` would fail at the recorder's
    threads and files. In both, a function of the standard library that does nothing takes the place of this hook.

    Args:
        compiled: whether compiled code may call it. Tracing through it would bake the first batch in.
    """

    def __init__(self, module: nn.Module, function: Callable[..., None], *, compiled: bool = True) -> None:
        self._module = module
        self._function = torch.compiler.disable(function) if compiled else function

    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        # Shallow copies share the hooks as they are.
        if module is self._module:
            self._function(module, *arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")
