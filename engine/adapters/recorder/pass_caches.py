"""Which earlier pass a forward pass continues: what its cache of keys and values, or its position, says.

A decoding loop with a cache gives the model one token of a text at a time. A pass continues an earlier one where it is
given the cache that the earlier one left and nothing but methods of the cache changed it since (``cache_moves``); for
models that keep their cache inside, where its tokens begin exactly behind those of the pass before. How many tokens
stand in a cache is read where that costs no wait for a GPU, and compared when the decisions have arrived
(``joined_texts``).

Shapes: B samples, T tokens each.
"""

from __future__ import annotations

import inspect
import re
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tokenpaths.engine.adapters.recorder.cache_moves import CacheMoves, is_counted, keys_of
from tokenpaths.engine.adapters.recorder.routers.router_outputs import tensors_of

_CACHE_NAME = re.compile(r"(^|_)(past|kv|caches?)(_|$)")
"""past_key_values, cache, kv_cache, layer_past, cache_params …"""
_POSITIONS = ("start_pos", "input_pos", "cache_position")
"""inputs that say where the tokens of a pass begin in their text: a number, or the positions of all its tokens (T,)"""
_KEPT_INSIDE = re.compile(
    r"(^|_)kv_?caches?$|^(k|v|keys?|values?)_caches?$|^caches?_(k|v|keys?|values?)$|^past_(kv|keys?|key_values?)$"
)
"""attributes of modules: not those of rotary embeddings, which are called caches too"""
_MOST_CACHES = 256


@dataclass(frozen=True)
class Continued:
    """What a pass says of the tokens before its own."""

    of: int | None
    """forward pass that left the cache it was given; None: the cache, if there is one, is inside the model"""
    past: int | Tensor | None
    """tokens before those of this pass, in every sample, padding included (on the host, once copies have arrived);
    None: as many as the earlier pass left"""
    order: Tensor | None = None
    """(B,) sample of the earlier pass that each one continues, where the cache was reordered; on the host likewise"""
    selected: bool = False
    """whether samples were taken out or doubled, which ends those that are left out; False: they were given up"""
    unread: str | None = None
    """what is the matter with a cache in which something stands, although the earlier pass cannot be told"""


@dataclass(frozen=True)
class GivenCache:
    """The cache that a pass was given, as it was when the pass began."""

    cache: Any
    """None: it was given none"""
    tensors: tuple[tuple[weakref.ref[Tensor], int | None], ...]
    """those in it, and how often each had been written to"""
    continued: Continued | None
    """None: it continues no pass"""
    past: int | Tensor | None
    """tokens in it; None: unknown"""


NOTHING_GIVEN = GivenCache(None, (), None, None)


@dataclass
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
    written: bool
    """whether the pass wrote into them"""
    outputs: tuple[weakref.ref[Tensor], ...]
    """new tensors that came out of the pass, perhaps a new cache among them"""
    order: Tensor | None = None
    """as in ``Continued``, of what methods of the cache did since"""
    selected: bool = False

    @property
    def alive(self) -> bool:
        held = self.holder is not None and self.holder() is not None
        return held or any(reference() is not None for reference in (*self.inside, *self.outputs))


class PassCaches:
    """The caches that recorded passes left and that a later one may be given."""

    def __init__(self, model: nn.Module, signature: inspect.Signature | None) -> None:
        self._left: deque[_Left] = deque(maxlen=_MOST_CACHES)
        inputs = () if signature is None else signature.parameters.values()
        self._may_give_back = signature is None or any(
            _CACHE_NAME.search(one.name) or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in inputs
        )
        self._keeps_inside = _holds_cache(model)
        self._moves = CacheMoves(self._moved)

    def begin(self, named: Mapping[str, Any]) -> GivenCache:
        """What the inputs of a pass that begins say of earlier passes."""
        cache, position = _cache_of(named), _position_of(named)
        if cache is None:
            inside = position is not None and self._keeps_inside
            return GivenCache(None, (), Continued(None, position) if inside else None, None)
        self._moves.watch(cache)
        left, tensors = self._find(cache), _tensors_in(cache)
        length = _length_of(cache)
        if isinstance(length, int) and length == 0 and keys_of(cache) is not None and not (left and left.fixed):
            length = None  # a layer without a length stands first
        past = position if length is None else length
        written = tuple((weakref.ref(tensor), _version(tensor)) for tensor in tensors)
        return GivenCache(cache, written, self._continued(left, tensors[0] if tensors else None, past), past)

    def _continued(self, left: _Left | None, first: Tensor | None, past: int | Tensor | None) -> Continued | None:
        if isinstance(past, int) and past == 0:
            return None
        if left is None:
            return None if past is None else Continued(None, past, unread="was left by no pass of this recording")
        if _is_among(first, left.outputs):
            return Continued(left.number, past)
        if past is None and left.fixed:
            known = "does not say how many tokens stand in it"
            return Continued(None, None, unread=known) if left.written else None  # else it is no cache
        if left.inside and not _is_among(first, left.inside):
            return Continued(None, past, unread="was changed after the pass that left it")
        order = None if left.order is None else left.order.to("cpu", non_blocking=left.order.is_cuda)
        return Continued(left.number, past, order, left.selected)

    def end(self, number: int, given: GivenCache, output: Any) -> None:
        """Remember the cache that pass ``number`` left, in its inputs or in its output."""
        cache = _cache_in(output) if given.cache is None else given.cache
        if cache is not None:
            self._moves.watch(cache)
        inside = _tensors_in(cache)
        before = {id(tensor): version for reference, version in given.tensors if (tensor := reference()) is not None}
        outputs = tensors_of(output) if self._may_give_back and not is_counted(cache) else []
        outputs = [tensor for tensor in outputs if tensor.dim() > 1 and id(tensor) not in before]
        if cache is None and not outputs:
            return
        left = _Left(
            number,
            _weak(cache),
            _weak_all(inside),
            not inside or id(inside[0]) in before,
            not inside or _version(inside[0]) is None or before.get(id(inside[0])) != _version(inside[0]),
            _weak_all(outputs),
        )
        kept = (old for old in self._left if old.alive and not _holds(old, cache))
        self._left = deque(kept, maxlen=_MOST_CACHES)
        self._left.append(left)

    def may_go_on(self, number: int) -> bool:
        """Whether what pass ``number`` left can still be given to a pass."""
        return any(left.number == number and left.alive for left in self._left)

    def close(self) -> None:
        """Leave the caches' methods as they were; passes that are not written yet can still be told apart."""
        self._moves.close()

    def _moved(self, cache: Any, order: Tensor | None, selected: bool) -> None:
        """A method of the cache changed it: what it holds now is still what the pass left."""
        if (left := self._find(cache)) is None:
            return
        left.inside = _weak_all(_tensors_in(cache))
        if order is not None:
            left.order = order if left.order is None else left.order.to(order.device)[order]
            left.selected = left.selected or selected

    def _find(self, cache: Any) -> _Left | None:
        first = next(iter([] if is_counted(cache) else _tensors_in(cache)), None)
        newest_first = tuple(reversed(self._left))
        for left in newest_first:
            if _holds(left, cache) or _is_among(first, left.outputs):
                return left
        return next((left for left in newest_first if _is_among(first, left.inside)), None)


def _holds(left: _Left, cache: Any) -> bool:
    return cache is not None and left.holder is not None and left.holder() is cache


def _holds_cache(model: nn.Module) -> bool:
    """Whether a model keeps keys and values in its modules."""
    return any(
        value is not None and not isinstance(value, (bool, int, float, str)) and _KEPT_INSIDE.search(name) is not None
        for module in model.modules()
        for name, value in (*vars(module).items(), *module._buffers.items(), *module._modules.items())
    )


def _cache_of(named: Mapping[str, Any]) -> Any:
    """The input that is a cache, first of all one that knows its length; None without one."""
    found = []
    for name, value in named.items():
        if not _CACHE_NAME.search(name) or value is None or isinstance(value, (bool, int, float, str)):
            continue
        if isinstance(value, Tensor) and (value.dim() < 4 or not value.is_floating_point()):
            continue  # positions in a cache, values of the past of a time series
        if isinstance(value, (list, tuple, Mapping)) and value and not _tensors_in(value):
            continue  # lengths of a cache
        found.append(value)
    return next((cache for cache in found if is_counted(cache)), found[0] if found else None)


def _cache_in(output: Any) -> Any:
    """The cache object among the outputs of a pass that was given none; None without one."""
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return next((part for part in parts if is_counted(part)), None)


def _length_of(cache: Any) -> int | Tensor | None:
    """Tokens that stand in a cache; None where it does not say."""
    if not is_counted(cache):
        return None
    try:
        return _number(cache.get_seq_length())
    except Exception:  # a cache of states without length says so by whatever error it likes
        return None


def _position_of(named: Mapping[str, Any]) -> int | Tensor | None:
    """Where the tokens of a pass begin, if that is one place for all samples."""
    for name in _POSITIONS:
        value = named.get(name)
        if isinstance(value, Tensor) and value.dim():
            length = next((t.shape[1] for t in named.values() if isinstance(t, Tensor) and t.dim() in (2, 3)), None)
            value = value[0] if value.dim() == 1 and len(value) == length else None
        if value is not None:
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
    if not is_counted(cache):
        return [tensor for tensor in tensors_of(cache) if tensor.is_floating_point()]
    keys = keys_of(cache)
    return [] if keys is None else [keys]


def _version(tensor: Tensor) -> int | None:
    """How often a tensor was written to; None where autograd does not count that."""
    return None if tensor.is_inference() else tensor._version


def _is_among(tensor: Tensor | None, kept: tuple[weakref.ref[Tensor], ...]) -> bool:
    return tensor is not None and any(reference() is tensor for reference in kept)


def _weak(value: Any) -> weakref.ref[Any] | None:
    try:
        return None if value is None else weakref.ref(value)
    except TypeError:  # tuples, lists, slots
        return None


def _weak_all(tensors: list[Tensor]) -> tuple[weakref.ref[Tensor], ...]:
    return tuple(weakref.ref(tensor) for tensor in tensors)
