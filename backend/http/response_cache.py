"""Maps request addresses to the ETags of their responses, so that repeated requests skip routing and validation.

Routing, parameter checks and dependencies take about a millisecond, most of the time of a request whose response is in
memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from tokenpaths.backend.problems import Problem

MOST = 4096
"""maximum number of addresses"""
LONGEST = 1000
"""longest address that is cached, in bytes"""
Address = tuple[bytes, bytes]


@dataclass(frozen=True)
class Target:
    """The target of an address: the run and its file, the ETag of the response, and the route for the metrics."""

    run_id: str
    identity: str
    etag: str
    route: Any


def address_of(scope: Scope) -> Address | None:
    """Raw path and query; None for requests that are not cached (other methods, very long addresses)."""
    if scope["method"] != "GET":
        return None
    address = (scope.get("raw_path") or scope["path"].encode(), scope["query_string"])
    return address if len(address[0]) + len(address[1]) <= LONGEST else None


class ResponseCache:
    """LRU map from addresses to targets; ``identity`` returns the identity of a run's current file (Problem if there is
    none).
    """

    def __init__(self, identity: Callable[[str], str]) -> None:
        self.identity = identity
        self._targets: OrderedDict[Address, Target] = OrderedDict()

    def remember(self, scope: Scope, run_id: str, identity: str, etag: str) -> None:
        """Record that the request ``scope`` passed validation and led to the answer ``etag``."""
        address = address_of(scope)
        if address is None:
            return
        self._targets[address] = Target(run_id, identity, etag, scope.get("route"))
        self._targets.move_to_end(address)
        while len(self._targets) > MOST:
            self._targets.popitem(last=False)

    def find(self, scope: Scope) -> Target | None:
        """The target of the address, if the run is still the same file."""
        address = address_of(scope)
        target = self._targets.get(address) if address is not None else None
        if address is None or target is None:
            return None
        try:
            same = self.identity(target.run_id) == target.identity
        except Problem:
            same = False
        if not same:
            self._targets.pop(address, None)
            return None
        self._targets.move_to_end(address)
        return target
