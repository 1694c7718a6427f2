"""What the import hook of jaxtyping decorates functions with: the same checks, in less time.

jaxtyping's own decorator binds the arguments of each call and checks them twice, before the call and with what it
returns, also of functions that say no shape: 20 µs, which small functions that are called a million times do not
have. Here beartype checks arguments and result once each, and shapes are held against each other where there are any.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

PLAIN = jaxtyping.jaxtyped
"""jaxtyping's own decorator"""
CHECKS = BeartypeConf(violation_type=jaxtyping.TypeCheckError)
_hints: dict[types.CodeType, dict[str, Any]] = {}
"""what functions say of their types, by their code: functions inside functions are made again and again"""


def jaxtyped(fn: Any = None, *, typechecker: Any = None) -> Any:
    """In the place of ``jaxtyping.jaxtyped``: same arguments, same checks of functions; others are left to it."""
    if fn is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if not isinstance(fn, types.FunctionType) or _suspends(fn):
        return PLAIN(fn, typechecker=typechecker)
    if getattr(fn, "__no_type_check__", False):
        return fn
    if fn.__code__ not in _hints:
        _hints[fn.__code__] = {name: _resolved(hint, fn.__globals__) for name, hint in fn.__annotations__.items()}
    hints = _hints[fn.__code__]
    # A function of the same code whose types are no strings; those of ``fn`` stay as they are read elsewhere.
    twin = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    functools.update_wrapper(twin, fn)
    del twin.__wrapped__
    twin.__kwdefaults__, twin.__annotations__ = fn.__kwdefaults__, dict(hints)
    checked = beartype(conf=CHECKS)(twin)
    if any(map(_has_shape, hints.values())):
        checked = _held_together(checked)
    return functools.wraps(fn)(checked)


def _held_together(checked: Callable[..., Any]) -> Callable[..., Any]:
    """Sizes that have one name are equal within a call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with PLAIN("context"):
            return checked(*args, **kwargs)

    return call


def _suspends(fn: types.FunctionType) -> bool:
    """Whether a call ends before its body does."""
    return inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)


def _resolved(hint: Any, names: dict[str, Any]) -> Any:
    """The type that a string says, or Any where it cannot be known yet, as for jaxtyping."""
    if hint is None:
        return type(None)
    holder = types.SimpleNamespace(__annotations__={"it": hint})
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except Exception:
        return Any


def _has_shape(hint: Any) -> bool:
    """Whether there is a type of jaxtyping in a type."""
    if isinstance(hint, list | tuple):  # the arguments of a Callable
        return any(map(_has_shape, hint))
    if isinstance(hint, type) and "jaxtyping" in (hint.__module__ or "") + type(hint).__module__:
        return True
    return any(map(_has_shape, typing.get_args(hint)))
