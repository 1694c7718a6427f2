"""What was read of open runs stays in memory for the next question, up to a bound for all of them together."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

T = TypeVar("T")
MOST_BYTES = 192 * 2**20
_HELD: OrderedDict[tuple[int, str], tuple[weakref.ref[Run], Any, int]] = OrderedDict()
_LOCK = threading.Lock()


def held(run: Run, name: str, load: Callable[[], T], num_bytes: Callable[[T], int]) -> T:
    """What ``load`` gives, kept under ``name`` while ``run`` is there and nothing else needs the room.

    Two that ask at once may both load it, which is harmless: what is held is never changed.
    """
    key = (id(run), name)
    with _LOCK:
        found = _HELD.get(key)
        if found is not None and found[0]() is run:
            _HELD.move_to_end(key)
            return found[1]
    value = load()
    size = num_bytes(value)
    with _LOCK:
        _HELD.pop(key, None)
        for other in [other for other, row in _HELD.items() if row[0]() is None]:
            del _HELD[other]
        if size <= MOST_BYTES:
            _HELD[key] = (weakref.ref(run), value, size)
            while sum(row[2] for row in _HELD.values()) > MOST_BYTES:
                _HELD.popitem(last=False)
    return value
