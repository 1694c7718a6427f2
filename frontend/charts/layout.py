"""Where circles and ribbons of a flow picture stand. Pure arithmetic, shared by chart and page.

Units: x in steps, y in pixels from the top, so that a circle and the ribbons at it fit together:
circle area ∝ tokens of the module; ribbon width ∝ tokens that go that way. The width of all ribbons at
the largest circle is 0.92 of its diameter d; at a circle with a share c of it they take 0.92·c·d, which
is never more than its own diameter √c·d.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_LINKS = 2000
"""more are summed as “other”: the browser stays quick and the eye could not tell them apart"""
_FILL = 0.92


@dataclass(frozen=True)
class Node:
    """One circle."""

    key: str
    """``step.module``, as the API's ``through`` takes it"""
    step: int
    module: int
    name: str
    kind: str
    count: float
    share: float
    y: float
    radius: float


@dataclass(frozen=True)
class Link:
    """One ribbon, from (step, source) to (step+1, target)."""

    key: str
    """``step.source>step+1.target``"""
    step: int
    source: int
    target: int
    count: float
    share: float
    y0: float
    y1: float
    width: float


@dataclass(frozen=True)
class FlowLayout:
    """Everything a flow picture draws."""

    nodes: list[Node]
    links: list[Link]
    other: list[dict[str, Any]]
    """per step what is not drawn: {step, num_links, count}"""
    steps: list[int]
    height: float
    row_of: dict[int, float] = field(repr=False)
    """y of each module id; the same id keeps its row in every column"""
    largest: float
    """tokens of the largest circle"""
    radius: float
    """radius of the largest circle, pixels"""

    def y_of(self, module: int) -> float:
        """Row of a module, drawn or not (a module that no token chose stands below all)."""
        return self.row_of.get(module, self.height)


def flow_layout(flow: Mapping[str, Any], *, height: float | None = None, most_links: int = MOST_LINKS) -> FlowLayout:
    """Lay out an answer of ``/flow`` ({steps, nodes, links, other}).

    Rows are modules: working ones by id from the top, identity modules below them, so that a ribbon
    that stays level visits the same module again. Of the links, the ``most_links`` largest are kept and
    the rest is added to ``other``, so tokens are conserved per step.
    """
    nodes = list(flow.get("nodes") or [])
    kinds = {int(node["module"]): str(node.get("kind") or "") for node in nodes}
    modules = sorted(kinds, key=lambda module: (kinds[module] == "identity", module))
    if height is None:
        height = float(min(620, max(240, 26 * len(modules))))
    gap = height / max(1, len(modules))
    row_of = {module: gap * (place + 0.5) for place, module in enumerate(modules)}
    largest = max((float(node["count"]) for node in nodes), default=0.0) or 1.0
    radius = min(24.0, max(0.55 * gap, 9.0))
    steps = [int(step) for step in flow.get("steps") or sorted({int(node["step"]) for node in nodes})]
    drawn = [
        Node(
            f"{int(n['step'])}.{int(n['module'])}",
            int(n["step"]),
            int(n["module"]),
            str(n.get("name") or n["module"]),
            str(n.get("kind") or ""),
            float(n["count"]),
            float(n.get("share") or 0.0),
            row_of[int(n["module"])],
            radius * math.sqrt(max(0.0, float(n["count"])) / largest),
        )
        for n in nodes
    ]
    kept, other = _cap(list(flow.get("links") or []), list(flow.get("other") or []), most_links)
    links = _place(kept, row_of, _FILL * 2 * radius / largest)
    return FlowLayout(drawn, links, other, steps, height, row_of, largest, radius)


def ribbon_points(link: Link) -> list[tuple[float, float, float]]:
    """Four points (x, y, y2) of a ribbon; a basis spline through them leaves and arrives level."""
    half = link.width / 2
    return [
        (link.step + dx, round(y - half, 2), round(y + half, 2))
        for dx, y in ((0.0, link.y0), (0.38, link.y0), (0.62, link.y1), (1.0, link.y1))
    ]


def _cap(
    links: list[Mapping[str, Any]], other: list[Mapping[str, Any]], most: int
) -> tuple[list[Mapping[str, Any]], list[dict[str, Any]]]:
    """The largest ``most`` links, and the rest summed per step into ``other``."""
    links = sorted((link for link in links if link["count"] > 0), key=lambda link: -link["count"])
    rest: dict[int, list[float]] = defaultdict(lambda: [0, 0.0])
    for row in other:
        rest[int(row["step"])][0] += int(row["num_links"])
        rest[int(row["step"])][1] += float(row["count"])
    for link in links[most:]:
        rest[int(link["step"])][0] += 1
        rest[int(link["step"])][1] += float(link["count"])
    return links[:most], [
        {"step": step, "num_links": num, "count": count} for step, (num, count) in sorted(rest.items()) if num
    ]


def _place(links: Sequence[Mapping[str, Any]], row_of: Mapping[int, float], unit: float) -> list[Link]:
    """Stack the ribbons at both ends, centred on the circle, in the order of where they go."""
    starts: dict[tuple[int, int], list[int]] = defaultdict(list)
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, link in enumerate(links):
        starts[int(link["step"]), int(link["source"])].append(index)
        ends[int(link["step"]), int(link["target"])].append(index)
    y0, y1 = [0.0] * len(links), [0.0] * len(links)
    for places, far, near, ys in ((starts, "target", "source", y0), (ends, "source", "target", y1)):
        for members in places.values():
            members.sort(key=lambda index: row_of.get(int(links[index][far]), 0.0))
            total = sum(float(links[index]["count"]) for index in members) * unit
            y = row_of.get(int(links[members[0]][near]), 0.0) - total / 2
            for index in members:
                width = float(links[index]["count"]) * unit
                ys[index] = y + width / 2
                y += width
    return [
        Link(
            f"{int(k['step'])}.{int(k['source'])}>{int(k['step']) + 1}.{int(k['target'])}",
            int(k["step"]),
            int(k["source"]),
            int(k["target"]),
            float(k["count"]),
            float(k.get("share") or 0.0),
            y0[index],
            y1[index],
            float(k["count"]) * unit,
        )
        for index, k in enumerate(links)
    ]
