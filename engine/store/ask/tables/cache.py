"""LRU cache of what was read from open runs, bounded for the whole process. A run is any object: this is below them."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
MOST_BYTES = 288 * 2**20
_ENTRIES: OrderedDict[tuple[int, str], tuple[weakref.ref[Any], Any, int]] = OrderedDict()
_LOCK = threading.Lock()


def cached(run: object, name: str, load: Callable[[], T], num_bytes: Callable[[T], int]) -> T:
    """The result of ``load``, cached under ``name`` while ``run`` is open, until evicted by newer entries.

    Two threads may both load it, which is harmless: cached values are never modified.
    """
    hit: T | None = held(run, name)
    if hit is not None:
        return hit
    value = load()
    hold(run, name, value, num_bytes(value))
    return value


def held(run: object, name: str) -> Any:
    """What is cached under ``name``; None if nothing is."""
    key = (id(run), name)
    with _LOCK:
        entry = _ENTRIES.get(key)
        if entry is None or entry[0]() is not run:
            return None
        _ENTRIES.move_to_end(key)
        return entry[1]


def hold(run: object, name: str, value: object, size: int) -> None:
    """Cache ``value`` of ``size`` bytes under ``name``."""
    key = (id(run), name)
    with _LOCK:
        _ENTRIES.pop(key, None)
        for other in [other for other, row in _ENTRIES.items() if row[0]() is None]:
            del _ENTRIES[other]
        if size <= MOST_BYTES:
            _ENTRIES[key] = (weakref.ref(run), value, size)
            while sum(row[2] for row in _ENTRIES.values()) > MOST_BYTES:
                _ENTRIES.popitem(last=False)
