"""Plugins: what installed distributions add to this program by entry points.

The name of an entry point is the name under which its thing is asked for: names are listed, and names that are taken
are seen, without importing anything. A plugin is imported when its thing is asked for; one that cannot be used is a
sentence there and in ``tokenpaths doctor``, and the others are not affected.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from tokenpaths.engine.base.errors import UserError

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class PluginError(UserError):
    """A plugin that cannot be used; the message names the entry point, its distribution and the reason."""

    status = 503


def where_from(point: EntryPoint) -> str:
    """An entry point in words: name and distribution."""
    return f"{point.name[:80]!r} of {point.dist.name if point.dist is not None else 'an unknown distribution'}"


def load(point: EntryPoint) -> Any:
    """The object of an entry point; its module is imported now.

    Raises:
        PluginError: it cannot be imported, whatever it raised.
    """
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything; Ctrl-C is no fault of it
        reason = " ".join(str(error).split())[:300]
        raise PluginError(f"it cannot be imported ({type(error).__name__}: {reason})") from error


class PluginRegistry(Mapping[str, T], Generic[T]):
    """Things by name: this program's own first, then those of plugins, which are imported when they are taken.

    ``name in registry`` and iteration import nothing. ``registry[name]`` raises PluginError where a plugin has this
    name but cannot be used, and KeyError where nothing has it.

    Args:
        group: of the entry points, such as ``tokenpaths.importers``.
        what: one of its things in messages, such as ``importer``.
        own: the things of this program.
        check: takes the name and the object of an entry point, returns the thing or raises UserError.
    """

    def __init__(self, group: str, what: str, own: Mapping[str, T], check: Callable[[str, Any], T]) -> None:
        self.group, self.what, self.own, self._check = group, what, dict(own), check
        self._loaded: dict[str, T | PluginError] = {}
        self._points: tuple[dict[str, EntryPoint], list[PluginError]] | None = None
        self._lock = threading.RLock()

    def __getitem__(self, name: str) -> T:
        if name in self.own:
            return self.own[name]
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._load(self._usable_points()[0][name])
            thing = self._loaded[name]
        if isinstance(thing, PluginError):
            raise thing.with_traceback(None)
        return thing

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self._usable_points()[0]

    def __iter__(self) -> Iterator[str]:
        return iter([*self.own, *self._usable_points()[0]])

    def __len__(self) -> int:
        return len(self.own) + len(self._usable_points()[0])

    def plugin_names(self) -> list[str]:
        """Names that plugins add; nothing is imported."""
        return list(self._usable_points()[0])

    def plugins(self) -> Iterator[tuple[str, T | PluginError]]:
        """Each plugin, imported: its name, and its thing or why it cannot be used; last, those whose name is taken."""
        points, refused = self._usable_points()
        for name in points:
            try:
                yield name, self[name]
            except PluginError as error:
                yield name, error
        for problem in refused:
            yield "", problem

    def usable(self) -> dict[str, T]:
        """Everything that can be used; all plugins are imported."""
        return self.own | {name: thing for name, thing in self.plugins() if not isinstance(thing, PluginError)}

    def _usable_points(self) -> tuple[dict[str, EntryPoint], list[PluginError]]:
        """Entry points by name, and why others are left out."""
        with self._lock:
            if self._points is None:
                points: dict[str, EntryPoint] = {}
                refused = []
                found = entry_points(group=self.group)
                for point in sorted(found, key=lambda point: (point.name, where_from(point))):
                    if point.name in self.own:
                        refused.append(self._refusal(point, f"Tokenpaths has its own {self.what} of this name"))
                    elif point.name in points:
                        taken = where_from(points[point.name])
                        refused.append(self._refusal(point, f"the name is taken by {taken}"))
                    elif not NAME.fullmatch(point.name):
                        refused.append(self._refusal(point, "a name has letters, digits, '.', '_' and '-'"))
                    else:
                        points[point.name] = point
                self._points = points, refused
            return self._points

    def _load(self, point: EntryPoint) -> T | PluginError:
        try:
            return self._check(point.name, load(point))
        except UserError as error:
            return self._refusal(point, str(error))

    def _refusal(self, point: EntryPoint, reason: str) -> PluginError:
        return PluginError(f"the {self.what} {where_from(point)} cannot be used: {reason}")
