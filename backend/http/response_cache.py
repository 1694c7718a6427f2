"""Answers that need no routing: the same address was asked before, and the run is still the same file.

Routing, checking parameters and looking up what a route depends on cost about a millisecond, which is most of a
request whose answer lies in memory. So the addresses of answers about runs are remembered, with the ETag that they
led to: who asks such an address again gets the answer before anything else is done.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from tokenpaths.backend.problems import Problem

MOST = 4096
"""addresses that are remembered"""
LONGEST = 1000
"""bytes of an address that is remembered"""
Address = tuple[bytes, bytes]


@dataclass(frozen=True)
class Place:
    """Where an address led: the run and its file, the ETag of the answer, the route for the metrics."""

    run_id: str
    identity: str
    etag: str
    route: Any


def address_of(scope: Scope) -> Address | None:
    """Path and query as they came; None for what is not remembered (another method, very long)."""
    if scope["method"] != "GET":
        return None
    address = (scope.get("raw_path") or scope["path"].encode(), scope["query_string"])
    return address if len(address[0]) + len(address[1]) <= LONGEST else None


class AtHand:
    """Remembers where addresses led; ``identity`` tells which file a run is now (Problem where there is none)."""

    def __init__(self, identity: Callable[[str], str]) -> None:
        self.identity = identity
        self._places: OrderedDict[Address, Place] = OrderedDict()

    def remember(self, scope: Scope, run_id: str, identity: str, etag: str) -> None:
        """The route that got ``scope`` found everything right with it, and this is the ETag of its answer."""
        address = address_of(scope)
        if address is None:
            return
        self._places[address] = Place(run_id, identity, etag, scope.get("route"))
        self._places.move_to_end(address)
        while len(self._places) > MOST:
            self._places.popitem(last=False)

    def find(self, scope: Scope) -> Place | None:
        """Where the address led, if the run is still the same file."""
        address = address_of(scope)
        place = self._places.get(address) if address is not None else None
        if address is None or place is None:
            return None
        try:
            same = self.identity(place.run_id) == place.identity
        except Problem:
            same = False
        if not same:
            self._places.pop(address, None)
            return None
        self._places.move_to_end(address)
        return place
