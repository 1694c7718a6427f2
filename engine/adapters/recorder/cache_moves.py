"""What the methods of a cache do to its samples between two passes: reordered by beam search, shortened, taken out.

A cache tells nobody, and its keys do not show it for certain (those of a single layer hang on the last token alone). So
its class's methods are wrapped while a recording runs; they do what they did, and say which samples stand where.

Shapes: B samples.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_REORDERS, _SELECTS, _REPEATS = "reorder_cache", "batch_select_indices", "batch_repeat_interleave"
_METHODS = (_REORDERS, _SELECTS, _REPEATS, "crop")


def is_counted(cache: Any) -> bool:
    """Whether a cache is an object that knows how many tokens it holds, as those of transformers."""
    return callable(getattr(cache, "get_seq_length", None))


def keys_of(cache: Any) -> Tensor | None:
    """Keys (B, heads, T, width) of the last layer of a cache of transformers that has some."""
    if not is_counted(cache):
        return None
    inner = getattr(cache, "self_attention_cache", cache)
    layers = getattr(inner, "layers", None)
    for layer in reversed(layers if isinstance(layers, (list, tuple)) else ()):
        keys = getattr(layer, "keys", None)
        if isinstance(keys, Tensor) and keys.dim() == 4 and keys.numel():
            return keys
    return None


Moved = Callable[[Any, Tensor | None, bool], None]
"""hears of (cache, order, selected): ``order`` (B,) is the sample that stood where each stands now, None where none has
moved; ``selected`` as in ``Continued``"""

_listening: list[Moved] = []
_own_methods: dict[tuple[type, str], Any] = {}
"""what stood in the class itself before a method was wrapped; None: it was inherited"""
_lock = threading.Lock()
_calls = threading.local()
"""caches whose methods run at this moment, in each thread"""


class CacheMoves:
    """Tells ``moved`` what methods of caches do, from ``watch`` to ``close``."""

    def __init__(self, moved: Moved) -> None:
        self._moved = moved

    def watch(self, cache: Any) -> None:
        """Wrap the methods of the class of ``cache``."""
        kind = type(cache)
        if not is_counted(cache):
            return
        with _lock:
            if self._moved not in _listening:
                _listening.append(self._moved)
            for name in _METHODS:
                if (kind, name) not in _own_methods and callable(method := getattr(kind, name, None)):
                    _own_methods[kind, name] = vars(kind).get(name)
                    setattr(kind, name, _wrapper(name, method))

    def close(self) -> None:
        """Hear no more; the last one puts the methods back."""
        with _lock:
            if self._moved in _listening:
                _listening.remove(self._moved)
            if not _listening:
                for (kind, name), own in _own_methods.items():
                    if own is None:
                        delattr(kind, name)
                    else:
                        setattr(kind, name, own)
                _own_methods.clear()


def _wrapper(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(cache: Any, *args: Any, **kwargs: Any) -> Any:
        busy: set[int] = vars(_calls).setdefault("busy", set())
        if id(cache) in busy:  # a method that calls that of the class around: one move
            return method(cache, *args, **kwargs)
        keys = keys_of(cache)
        before = None if keys is None else len(keys)
        busy.add(id(cache))
        try:
            result = method(cache, *args, **kwargs)
        finally:
            busy.discard(id(cache))
        try:
            order = _order(name, [*args, *kwargs.values()], before)
            for moved in tuple(_listening):
                moved(cache, order, name in (_SELECTS, _REPEATS))
        except Exception:  # the model must not hear of it; a cache with unknown changes is not gone on from
            return result
        return result

    return called


def _order(name: str, given: list[Any], samples: int | None) -> Tensor | None:
    """Which sample stands where, on the device where it was said."""
    if name == _REPEATS and samples is not None:
        return torch.arange(samples).repeat_interleave(int(given[0]))
    if name in (_REORDERS, _SELECTS):
        order = torch.as_tensor(given[0]).detach()
        return (order.nonzero() if order.dtype == torch.bool else order).flatten().to(torch.int64, copy=True)
    return None
