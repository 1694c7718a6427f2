"""Which earlier pass a forward pass continues: what its cache of keys and values, or its position, says.

A decoding loop with a cache gives the model one token of a text at a time. A pass continues an earlier one where it is
given the cache that the earlier one left, or, for models that keep their cache inside, where its tokens begin behind
those of the pass before. How many tokens stand in a cache is read where that costs no wait for a GPU, and compared when
the decisions have arrived (``joined_texts``).

Shapes: B samples, T tokens each.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokenpaths.engine.adapters.recorder.routers.router_outputs import tensors_of

_CACHE_NAME = re.compile(r"(^|_)(past|kv|caches?)(_|$)")
"""past_key_values, cache, kv_cache, layer_past, cache_params …"""
_POSITIONS = ("start_pos", "input_pos", "cache_position")
"""inputs that say where the tokens of a pass begin in their text: a number, or the positions of all its tokens (T,)"""
_MOST_CACHES = 8


@dataclass(frozen=True)
class Continued:
    """What a pass says of the tokens before its own."""

    of: int | None
    """forward pass that left the cache it was given; None: the cache, if there is one, is inside the model"""
    past: int | Tensor | None
    """tokens before those of this pass, in every sample, padding included (on the host, once copies have arrived);
    None: as many as the earlier pass left"""
    order: tuple[int, ...] | None = None
    """sample of the earlier pass that each sample continues, where the cache was reordered (beam search)"""
    unread: str | None = None
    """what is the matter with a cache in which something stands, although the earlier pass cannot be told"""


@dataclass(frozen=True)
class GivenCache:
    """The cache that a pass was given, as it was when the pass began."""

    cache: Any
    """None: it was given none"""
    tensors: tuple[weakref.ref[Tensor], ...]
    continued: Continued | None
    """None: it continues no pass"""


@dataclass(frozen=True)
class _Left:
    """The cache as a pass left it, without keeping it alive."""

    number: int
    """of the forward pass"""
    holder: weakref.ref[Any] | None
    """the cache, where it is an object"""
    inside: tuple[weakref.ref[Tensor], ...]
    """tensors in it"""
    fixed: bool
    """whether these stood there before the pass, so that they do not tell whose they are"""
    outputs: tuple[weakref.ref[Tensor], ...]
    """tensors that came out of the pass, perhaps a new cache among them"""
    length: int | Tensor | None
    one_sample: bool
    last: Tensor | None
    """(B, F) features of the last token, by which reordered samples are found"""

    @property
    def alive(self) -> bool:
        held = self.holder is not None and self.holder() is not None
        return held or any(reference() is not None for reference in (*self.inside, *self.outputs))


class PassCaches:
    """The caches that recorded passes left and that a later one may be given."""

    def __init__(self, parameters: Collection[str]) -> None:
        """``parameters``: names of the model's inputs."""
        self._left: deque[_Left] = deque(maxlen=_MOST_CACHES)
        self._may_give_back = any(_CACHE_NAME.search(name) for name in parameters)

    def begin(self, named: Mapping[str, Any]) -> GivenCache:
        """What the inputs of a pass that begins say of earlier passes."""
        cache = _cache_of(named)
        return GivenCache(cache, _weak_all(_tensors_in(cache)), self._continued(cache, _position_of(named)))

    def _continued(self, cache: Any, position: int | Tensor | None) -> Continued | None:
        if cache is None:
            return None if position is None else Continued(None, position)
        length = _length_of(cache)
        past = position if length is None else length
        left, (first, *_) = self._find(cache), [*_tensors_in(cache), None]
        if isinstance(past, int) and past == 0:
            return None
        if left is None:
            return None if past is None else Continued(None, past, unread="was left by no pass of this recording")
        inside = _is_among(first, left.inside)
        if past is None and left.fixed and (inside or not _is_among(first, left.outputs)):
            return Continued(None, None, unread="does not say how many tokens stand in it")
        if inside or left.one_sample or not left.inside or _is_among(first, left.outputs):
            return Continued(left.number, past)
        if isinstance(past, int) and isinstance(left.length, int) and past < left.length:
            return Continued(left.number, past)  # shortened
        order = _order(left.last, _last_token(cache, past))
        if order is None:
            return Continued(None, past, unread="was changed after the pass that left it")
        return Continued(left.number, past, order)

    def end(self, number: int, given: GivenCache, output: Any) -> None:
        """Remember the cache that pass ``number`` left, in its inputs or in its output."""
        cache = _cache_in(output) if given.cache is None else given.cache
        inside = _tensors_in(cache)
        outputs = [] if _is_counted(cache) or not self._may_give_back else tensors_of(output)[1:]
        if cache is None and not outputs:
            return
        length = _length_of(cache)
        left = _Left(
            number,
            _weak(cache),
            _weak_all(inside),
            not inside or _is_among(inside[0], given.tensors),
            _weak_all(outputs),
            length,
            (keys := _keys_of(cache)) is not None and keys.shape[0] == 1,
            _last_token(cache, length),
        )
        before = None if given.continued is None else given.continued.of
        self._left = deque((old for old in self._left if old.alive and old.number != before), maxlen=_MOST_CACHES)
        self._left.append(left)

    def may_go_on(self, number: int) -> bool:
        """Whether what pass ``number`` left can still be given to a pass."""
        return any(left.number == number and left.alive for left in self._left)

    def _find(self, cache: Any) -> _Left | None:
        tensors = [] if _is_counted(cache) else _tensors_in(cache)
        for left in reversed(self._left):
            if left.holder is not None and left.holder() is cache:
                return left
            if tensors and _is_among(tensors[0], (*left.inside, *left.outputs)):
                return left
        return None


def _cache_of(named: Mapping[str, Any]) -> Any:
    """The input that is a cache; None without one."""
    for name, value in named.items():
        if _CACHE_NAME.search(name) and value is not None and not isinstance(value, (bool, int, float, str)):
            if isinstance(value, Tensor) and (value.dim() < 4 or not value.is_floating_point()):
                continue  # positions in a cache, values of the past of a time series
            return value
    return None


def _cache_in(output: Any) -> Any:
    """The cache object among the outputs of a pass that was given none; None without one."""
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return next((part for part in parts if _is_counted(part)), None)


def _is_counted(cache: Any) -> bool:
    """Whether a cache is an object that knows how many tokens it holds, as those of transformers."""
    return callable(getattr(cache, "get_seq_length", None))


def _length_of(cache: Any) -> int | Tensor | None:
    """Tokens that stand in a cache; None where it does not say."""
    if not _is_counted(cache):
        return None
    try:
        return _number(cache.get_seq_length())
    except Exception:  # a cache of states without length says so by whatever error it likes
        return None


def _position_of(named: Mapping[str, Any]) -> int | Tensor | None:
    for name in _POSITIONS:
        if (value := named.get(name)) is not None:
            if isinstance(value, Tensor):
                value = value.flatten()[:1] if value.numel() else None
            return _number(value)
    return None


def _number(value: Any) -> int | Tensor | None:
    """A number, of a GPU as a tensor that is on its way to the host."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    if not isinstance(value, Tensor) or value.numel() != 1 or value.is_floating_point():
        return None
    if value.device.type == "cpu":
        return int(value)
    return value.detach().to("cpu", non_blocking=value.is_cuda, copy=True)


def _tensors_in(cache: Any) -> list[Tensor]:
    """The tensors by which it is told whether a cache was changed between two passes."""
    if cache is None:
        return []
    if not _is_counted(cache):
        return [tensor for tensor in tensors_of(cache) if tensor.is_floating_point()]
    keys = _keys_of(cache)
    return [] if keys is None else [keys]


def _keys_of(cache: Any) -> Tensor | None:
    """Keys (B, heads, T, width) of the last layer of a cache of transformers that has some."""
    if not _is_counted(cache):
        return None
    inner = getattr(cache, "self_attention_cache", cache)
    layers = getattr(inner, "layers", None)
    for layer in reversed(layers if isinstance(layers, (list, tuple)) else ()):
        keys = getattr(layer, "keys", None)
        if isinstance(keys, Tensor) and keys.dim() == 4 and keys.numel():
            return keys
    return None


def _last_token(cache: Any, length: int | Tensor | None) -> Tensor | None:
    """(B, F) keys of the last token in the last layer, which depend on all tokens before it; None for one sample."""
    keys = _keys_of(cache)
    if keys is None or keys.shape[0] < 2 or not isinstance(length, int) or length < 1:
        return None
    return keys.detach()[:, :, min(length, keys.shape[2]) - 1].flatten(1).clone()


def _order(before: Tensor | None, after: Tensor | None) -> tuple[int, ...] | None:
    """The row of ``before`` that each row of ``after`` is equal to; None where one has none."""
    if before is None or after is None or after.shape != before.shape or after.device != before.device:
        return None
    equal = (after[:, None] == before[None]).all(dim=-1)
    if not bool(equal.any(dim=1).all()):
        return None
    itself = torch.arange(len(after), device=equal.device)
    stays = equal[itself, itself]
    return tuple(torch.where(stays, itself, equal.int().argmax(dim=1)).tolist())


def _is_among(tensor: Tensor | None, kept: tuple[weakref.ref[Tensor], ...]) -> bool:
    return tensor is not None and any(reference() is tensor for reference in kept)


def _weak(value: Any) -> weakref.ref[Any] | None:
    try:
        return None if value is None else weakref.ref(value)
    except TypeError:  # tuples, lists, slots
        return None


def _weak_all(tensors: list[Tensor]) -> tuple[weakref.ref[Tensor], ...]:
    return tuple(weakref.ref(tensor) for tensor in tensors)
