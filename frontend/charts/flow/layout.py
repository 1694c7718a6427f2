"""Positions of circles and ribbons of a flow chart; arithmetic only.

Units: x in steps, y in pixels from the top. Circle area ∝ tokens of the module, ribbon width ∝ tokens of the link. At
the largest circle, of diameter d, all ribbons together are 0.92 d wide; at a circle with a share c of its tokens they
take 0.92 c d, which never exceeds that circle's diameter √c d. Merged modules (“other”) are not to scale.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_LINKS = 2000
"""more links are summed into “other”, which keeps the browser fast; they would be indistinguishable anyway"""
MANY_LINKS = 200
"""with more links the smallest are hidden by default"""
LEAST_SHARES = (0.005, 0.002, 0.001, 0.0005)
"""candidate thresholds, as shares of tokens, for hiding links: the first that hides …"""
MOST_LEFT_OUT = 0.1
"""… at most this share of the moves between named modules is used"""
OTHER = -1
"""module id of the merged small modules of a step"""
_FILL = 0.92
_COLUMNS = 450.0
"""half the width of a typical chart in pixels: with many columns circles and ribbons shrink to fit"""


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
    other: bool = False
    """several small modules merged"""


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
class NotDrawn:
    """Links of one kind that are counted but not drawn."""

    num_links: int = 0
    count: float = 0.0


@dataclass(frozen=True)
class FlowLayout:
    """Everything a flow picture draws."""

    nodes: list[Node]
    links: list[Link]
    other: list[dict[str, Any]]
    """all links not drawn, by step: {step, num_links, count}"""
    steps: list[int]
    height: float
    row_of: dict[int, float] = field(repr=False)
    """y of each module id, equal in every column; empty if each step has its own modules"""
    largest: float
    """tokens of the largest circle"""
    radius: float
    """radius of the largest circle, pixels"""
    own: bool = False
    """each step has its own modules: columns are sorted by load, and equal ids are unrelated"""
    place: dict[tuple[int, int], float] = field(default_factory=dict, repr=False)
    """y of each drawn (step, module)"""
    small: NotDrawn = NotDrawn()
    """of ``other``, links between two modules that are below the threshold"""
    merged: NotDrawn = NotDrawn()
    """of ``other``, links from and to merged modules, whatever their size"""
    unknown: NotDrawn = NotDrawn()
    """of ``other``, links from and to decisions that the source of the run lacks"""
    mixed: NotDrawn = NotDrawn()
    """of ``other``, what the API left out of a response with merged modules: small links, and all of the merged ones"""

    @property
    def more(self) -> NotDrawn:
        """What ``other`` has besides: the smallest of too many links."""
        told = (self.small, self.merged, self.unknown, self.mixed)
        return NotDrawn(
            sum(row["num_links"] for row in self.other) - sum(part.num_links for part in told),
            sum(row["count"] for row in self.other) - sum(part.count for part in told),
        )

    @property
    def several_kinds(self) -> bool:
        """Whether attention and MLP are modules of their own, so that rows say which they are."""
        return {"attention", "mlp"} <= {node.kind for node in self.nodes}

    def row_words(self) -> dict[int, str]:
        """What stands at the left of each row, by module."""
        kinds, several = {node.module: node.kind for node in self.nodes}, self.several_kinds
        word, behind = {"other": "other"}, {"attention": " attn", "mlp": " MLP"} if several else {}
        if list(kinds.values()).count("identity") > 1:  # of several, which
            behind["identity"] = " skip"
        else:
            word["identity"] = "skip"
        return {module: word.get(kind, f"{module}{behind.get(kind, '')}") for module, kind in kinds.items()}

    def y_of(self, module: int, step: int | None = None) -> float:
        """y of a module's row, drawn or not: a merged one is at “other”, an unused one below all."""
        if step is not None and (step, module) in self.place:
            return self.place[step, module]
        if step is not None and (step, OTHER) in self.place:
            return self.place[step, OTHER]
        return self.row_of.get(module, self.height)


def least_share(*flows: Mapping[str, Any]) -> float:
    """The share of tokens below which links of responses of ``/flow`` are hidden by default; 0: none.

    With many links, most are often so small that they only hide the others. Of several flows it is one threshold, by
    which none of them loses more than ``MOST_LEFT_OUT``.
    """
    shares = [
        [float(link["count"]) / (float(flow.get("num_tokens") or 0) or 1.0) for link in _split(flow)[0]]
        for flow in flows
    ]
    if all(len(of_flow) <= MANY_LINKS for of_flow in shares):
        return 0.0
    for least in LEAST_SHARES:
        if all(sum(share for share in one if share < least) <= MOST_LEFT_OUT * sum(one) for one in shares):
            return least
    return 0.0


def _split(flow: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Links between two modules, and those from or to merged ones, which are never drawn."""
    links = [link for link in flow.get("links") or [] if link["count"] > 0]
    named = [link for link in links if min(link["source"], link["target"]) != OTHER]
    return named, [link for link in links if min(link["source"], link["target"]) == OTHER]


def _left_out(flow: Mapping[str, Any], nameless: Sequence[Mapping[str, Any]]) -> dict[str, NotDrawn]:
    """Links from and to merged modules and unknown decisions, by field of ``FlowLayout``.

    A response that could have held more links lacks those of unknown decisions only. One that is full has the links
    between two modules first, so that with merged modules most of what it lacks is theirs.
    """
    filters, other = flow.get("filters") or {}, flow.get("other") or []
    lacking = NotDrawn(sum(int(row["num_links"]) for row in other), math.fsum(float(row["count"]) for row in other))
    merged = _sum(nameless)
    if not filters.get("min_share") and len(flow.get("links") or []) < (filters.get("limit") or 0):
        return {"merged": merged, "unknown": lacking}
    if nameless:
        return {"merged": NotDrawn(merged.num_links + lacking.num_links, merged.count + lacking.count)}
    return {"mixed": lacking} if any(node["module"] == OTHER for node in flow.get("nodes") or []) else {}


def _sum(links: Iterable[Mapping[str, Any]]) -> NotDrawn:
    counts = [float(link["count"]) for link in links]
    return NotDrawn(len(counts), math.fsum(counts))


def flow_layout(
    flow: Mapping[str, Any],
    *,
    height: float | None = None,
    most_links: int = MOST_LINKS,
    least: float = 0.0,
    largest: float | None = None,
) -> FlowLayout:
    """Lay out a response of ``/flow`` ({steps, nodes, links, other}).

    Rows are modules: working ones by id from the top, identity modules below them, so that a horizontal ribbon visits
    the same module again. The ``most_links`` largest links, those of each step in turn, with at least a share
    ``least`` of the tokens are kept. The rest and all links of merged modules are added to ``other``, so tokens are
    conserved per step. ``largest`` is the count of the largest circle of several flows that are drawn to one scale.
    """
    nodes = list(flow.get("nodes") or [])
    own = bool(flow.get("own_modules"))
    place, row_of, height = _rows(nodes, own, height)
    gap = height / max(1, len(set(place.values())))
    largest = largest or max((float(node["count"]) for node in nodes if node["module"] != OTHER), default=0.0) or 1.0
    steps = [int(step) for step in flow.get("steps") or sorted({int(node["step"]) for node in nodes})]
    smallest = 3.0 if own else 9.0  # columns with their own modules are dense: larger circles would overlap
    radius = min(24.0, max(0.55 * gap, smallest), max(5.0, _COLUMNS / max(1, len(steps))))
    drawn = [
        Node(
            f"{int(n['step'])}.{int(n['module'])}",
            int(n["step"]),
            int(n["module"]),
            str(n.get("name") or n["module"]),
            str(n.get("kind") or ""),
            float(n["count"]),
            float(n.get("share") or 0.0),
            place[int(n["step"]), int(n["module"])],
            radius * (0.5 if n["module"] == OTHER else math.sqrt(max(0.0, float(n["count"])) / largest)),
            n["module"] == OTHER,
        )
        for n in nodes
    ]
    floor = least * float(flow.get("num_tokens") or 0)
    named, nameless = _split(flow)
    largest_links, other = _cap(named, nameless, list(flow.get("other") or []), most_links, floor)
    slots = _slots(nodes, flow.get("num_tokens"))
    links = _place(largest_links, place, _FILL * 2 * radius * slots / largest)
    small = _sum(link for link in named if link["count"] < floor)
    return FlowLayout(
        drawn, links, other, steps, height, row_of, largest, radius, own, place, small, **_left_out(flow, nameless)
    )


def _rows(
    nodes: Sequence[Mapping[str, Any]], own: bool, height: float | None
) -> tuple[dict[tuple[int, int], float], dict[int, float], float]:
    """y of each (step, module); y of each module id (empty if each step has its own modules); the height."""
    kinds = {int(node["module"]): str(node.get("kind") or "") for node in nodes}
    keys = {(int(node["step"]), int(node["module"])): float(node.get("order_by", node["count"])) for node in nodes}
    order: dict[tuple[int, int], int] = {}
    if own:
        columns: dict[int, list[int]] = defaultdict(list)
        for step, module in sorted(keys, key=lambda key: (-keys[key], key)):
            if module != OTHER:
                columns[step].append(module)
        order = {(step, module): row for step, column in columns.items() for row, module in enumerate(column)}
        last = max(order.values(), default=-1) + 1
        order |= {key: last for key in keys if key[1] == OTHER}
        names: list[int] = []
    else:
        names = sorted(kinds, key=lambda module: (kinds[module] == "other", kinds[module] == "identity", module))
        row = {module: place for place, module in enumerate(names)}
        order = {key: row[key[1]] for key in keys}
    count = max(order.values(), default=-1) + 1
    if height is None:
        height = float(min(620, max(240, 26 * count)))
    gap = height / max(1, count)
    return (
        {key: gap * (row + 0.5) for key, row in order.items()},
        {module: gap * (row + 0.5) for row, module in enumerate(names)},
        height,
    )


def _slots(nodes: Sequence[Mapping[str, Any]], num_tokens: Any) -> float:
    """K, the number of modules a token visits per step. A circle counts visits, a ribbon tokens (each pair 1/K²)."""
    per_step: dict[int, float] = defaultdict(float)
    for node in nodes:
        per_step[int(node["step"])] += float(node["count"])
    return max(1.0, max(per_step.values(), default=0.0) / num_tokens) if num_tokens else 1.0


def ribbon_outline(link: Link) -> str:
    """The outline of a ribbon as an SVG path from (0, 0), the middle of its left end; y in pixels.

    The chart's width is known only in the browser: ``a`` stands for half the distance between two columns and ``b`` for
    all of it. The ribbon follows a cubic curve with horizontal ends and constant height.
    """
    half, rise = link.width / 2, link.y1 - link.y0
    up, down = (f"{round(y, 2):g}" for y in (-half, half))
    far_up, far_down = (f"{round(rise + y, 2):g}" for y in (-half, half))
    return f"M0,{up}Ca,{up},a,{far_up},b,{far_up}Lb,{far_down}Ca,{far_down},a,{down},0,{down}Z"


def _cap(
    named: list[Mapping[str, Any]],
    nameless: list[Mapping[str, Any]],
    other: list[Mapping[str, Any]],
    most: int,
    floor: float,
) -> tuple[list[Mapping[str, Any]], list[dict[str, Any]]]:
    """The largest ``most`` links of at least ``floor`` tokens, those of each step in turn, and the rest, with all links
    of merged modules, summed per step into ``other``.
    """
    turns: dict[int, int] = defaultdict(int)
    ordered: list[tuple[bool, int, int, Mapping[str, Any]]] = []
    for link in sorted(named, key=lambda link: -link["count"]):  # each step in turn, or the cap would empty whole steps
        ordered.append((link["count"] < floor, turns[int(link["step"])], len(ordered), link))
        turns[int(link["step"])] += 1
    links = [link for *_, link in sorted(ordered, key=lambda row: row[:3])] + nameless
    most = min(most, sum(link["count"] >= floor for link in named))
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


def _place(links: Sequence[Mapping[str, Any]], place: Mapping[tuple[int, int], float], unit: float) -> list[Link]:
    """Stack the ribbons at both ends, centred on the circle, ordered by target."""
    starts: dict[tuple[int, int], list[int]] = defaultdict(list)
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, link in enumerate(links):
        starts[int(link["step"]), int(link["source"])].append(index)
        ends[int(link["step"]), int(link["target"])].append(index)
    y0, y1 = [0.0] * len(links), [0.0] * len(links)
    for places, far, near_step, far_step, ys in ((starts, "target", 0, 1, y0), (ends, "source", 1, 0, y1)):
        for (step, module), members in places.items():
            members.sort(key=lambda index: place.get((step + far_step, int(links[index][far])), 0.0))
            total = sum(float(links[index]["count"]) for index in members) * unit
            y = place.get((step + near_step, module), 0.0) - total / 2
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
