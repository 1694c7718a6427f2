"""Every route of the OpenAPI document as addresses that can be asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

PLACES = {
    "run": "vision",
    "rank": "1",
    "sample": "0",
    "measure": "compute",
    "table": "path",
    "format": "csv",
    "model": "tiny-vision",
    "step": "0",
    "module": "0",
}
"""what stands for a path parameter, unless the caller knows better"""


@dataclass(frozen=True)
class Route:
    """One method at one template."""

    method: str
    template: str
    queries: dict[str, dict[str, Any]] = field(default_factory=dict)
    """query parameters by name, with their schemas"""

    @property
    def places(self) -> list[str]:
        """Names of the path parameters."""
        return re.findall(r"\{(\w+)\}", self.template)

    def address(self, **places: str) -> str:
        """The path with ``places`` filled in."""
        known = PLACES | places
        return re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], "1"), self.template)


def routes(client: httpx.Client, **options: Any) -> Iterator[Route]:
    """All routes that the document at ``/openapi.json`` names."""
    document = client.get("/openapi.json", **options).json()
    for template, methods in document["paths"].items():
        for method, about in methods.items():
            queries = {one["name"]: one["schema"] for one in about.get("parameters", []) if one["in"] == "query"}
            yield Route(method.upper(), template, queries)
