"""Checks the arguments of questions: one of the wrong kind gets a sentence instead of a bare TypeError.

Over REST the routes see to this. A notebook calls the methods themselves: ``run.flow(steps="0:3")``.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, TypeVar

import numpy as np

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run_file import RunFile

T = TypeVar("T")
Check = tuple[Callable[[Any], bool], str]
"""predicate and description of the accepted values"""
Bounds = Mapping[str, tuple[int | float, int | float | None]]


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral)  # NumPy's too


def _is_number(value: Any) -> bool:
    return isinstance(value, Real)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_pair_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: _is_list(value) and hasattr(value, "__len__") and len(value) == 2 and all(map(fits, value))


def _is_list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    # What comes one by one would be used up by looking at it.
    return lambda value: _is_list(value) and (not hasattr(value, "__len__") or all(map(fits, value)))


def _is_list(value: Any) -> bool:
    return hasattr(value, "__iter__") and not isinstance(value, (str, bytes, dict))


KINDS: dict[Any, Check] = {
    int: (_is_whole, "a whole number"),
    int | float: (_is_number, "a number"),
    str: (_is_text, "text"),
    tuple[int, int]: (_is_pair_of(_is_whole), "two whole numbers such as (0, 3)"),
    tuple[int | float, int | float]: (_is_pair_of(_is_number), "two numbers such as (0.5, 1)"),
    Sequence[int]: (_is_list_of(_is_whole), "a list of whole numbers such as [1, 2]"),
    Sequence[tuple[int, int]]: (
        _is_list_of(_is_pair_of(_is_whole)),
        "a list of pairs of whole numbers such as [(2, 7)]",
    ),
    RunFile: (lambda value: hasattr(value, "run_id"), "an opened run, as Run.open gives it"),
}
"""argument types that are checked; other types are not"""


def checked(
    function: Callable[..., T], own: Mapping[str, Any] | None = None, bounds: Bounds | None = None
) -> Callable[..., T]:
    """Wrap ``function`` so that arguments of the wrong type or size raise a UserError that names the argument.

    Args:
        function: a method, or a function whose first argument is the run.
        own: names that its annotations may use in addition to those of its module.
        bounds: least and greatest value of arguments; None: no such bound.
    """
    names = list(inspect.signature(function).parameters)
    hints = typing.get_type_hints(inspect.unwrap(function), localns=dict(own or {}))
    checks = {name: check for name in names[1:] if (check := _check_of(hints.get(name))) is not None}

    @functools.wraps(function)
    def ask(*args: Any, **kwargs: Any) -> T:
        args, kwargs = tuple(map(_plain, args)), {name: _plain(value) for name, value in kwargs.items()}
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name in checks:
                (fits, called), may_be_none = checks[name]
                if not (value is None and may_be_none) and not fits(value):
                    shown = repr(value[:40] if isinstance(value, str) else value)[:60]
                    raise UserError(f"{name} is {shown}, it should be {called}", field=name)
            if bounds and name in bounds and value is not None:
                low, high = bounds[name]
                if not low <= value or (high is not None and not value <= high):
                    inside = f"at least {low}" if high is None else f"{low} to {high}"
                    raise UserError(f"{name} is {value}, it should be {inside}", field=name)
        return function(*args, **kwargs)

    return ask


def _plain(value: Any) -> Any:
    """Numbers of NumPy and pandas, also in lists, as Python's: DuckDB and JSON take no others."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value] if isinstance(value, list) else tuple(map(_plain, value))
    return value.tolist() if isinstance(value, np.ndarray) else value


def check_opened(value: Any, name: str) -> None:
    """Refuse what is no opened run.

    Raises:
        UserError: it names the argument ``name`` and what was given.
    """
    if not isinstance(value, RunFile):
        raise UserError(f"{name} is {repr(value)[:60]}, it should be {KINDS[RunFile][1]}", field=name)


def _check_of(hint: Any) -> tuple[Check, bool] | None:
    """The check for an annotation, and whether None is allowed."""
    kinds = [kind for kind in typing.get_args(hint) if kind is not NoneType]
    optional = NoneType in typing.get_args(hint) and typing.get_origin(hint) is not Literal
    if optional:
        hint = functools.reduce(lambda a, b: a | b, kinds)
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return (lambda value: value in choices, f"one of {', '.join(choices)}"), optional
    try:
        check = next((check for kind, check in KINDS.items() if kind == hint), None)
    except TypeError:
        return None
    if check is None and inspect.isclass(hint) and issubclass(hint, RunFile):
        check = KINDS[RunFile]
    return None if check is None else (check, optional)


def explains_arguments(cls: type[T]) -> type[T]:
    """Class decorator: every public method is ``checked``."""
    for name, method in list(vars(cls).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(cls, name, checked(method, {cls.__name__: cls}))
    return cls
