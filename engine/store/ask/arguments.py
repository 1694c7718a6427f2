"""Arguments of a question that are of another kind than the method says: a sentence instead of a bare TypeError.

Over REST the routes see to this. A notebook calls the methods themselves: ``run.flow(steps="0:3")``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, TypeVar

from tokenpaths.engine.base.errors import UserError

T = TypeVar("T")


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


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_is_whole, "a whole number"),
    "int | float": (_is_number, "a number"),
    "str": (_is_text, "text"),
    "tuple[int, int]": (_is_pair_of(_is_whole), "two whole numbers such as (0, 3)"),
    "tuple[int | float, int | float]": (_is_pair_of(_is_number), "two numbers such as (0.5, 1)"),
    "Sequence[int]": (_is_list_of(_is_whole), "a list of whole numbers such as [1, 2]"),
    "Sequence[tuple[int, int]]": (
        _is_list_of(_is_pair_of(_is_whole)),
        "a list of pairs of whole numbers such as [(2, 7)]",
    ),
    "Run": (lambda value: hasattr(value, "run_id"), "an opened run, as Run.open gives it"),
}
"""an annotation as it is written → what fits it, and what it is called"""
_OR_NONE = " | None"


def explains_arguments(cls: type[T]) -> type[T]:
    """Class decorator: public methods refuse arguments that their annotations exclude with a UserError.

    The ``field`` is the argument's name. Annotations that ``_KINDS`` does not know are not looked at.
    """
    for name, method in list(vars(cls).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            wanted = {argument.name: argument.annotation for argument in inspect.signature(method).parameters.values()}
            if any(str(kind).removesuffix(_OR_NONE) in _KINDS for kind in wanted.values()):
                setattr(cls, name, _explaining(method, wanted))
    return cls


def _explaining(method: Callable[..., T], wanted: dict[str, Any]) -> Callable[..., T]:
    names = list(wanted)
    checks = {
        name: (*_KINDS[kind], str(wanted[name]).endswith(_OR_NONE))
        for name in names
        if (kind := str(wanted[name]).removesuffix(_OR_NONE)) in _KINDS
    }

    @functools.wraps(method)
    def ask(*args: Any, **kwargs: Any) -> T:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name in checks:
                fits, called, may_be_none = checks[name]
                if not (value is None and may_be_none) and not fits(value):
                    raise UserError(f"{name} is {repr(value)[:60]}, it should be {called}", field=name)
        return method(*args, **kwargs)

    return ask
