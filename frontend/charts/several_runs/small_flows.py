"""Flows of several runs that can be laid side by side: one scale of shares, one order of modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tokenpaths.frontend.charts.flow.layout import OTHER
from tokenpaths.frontend.charts.load_over_time import is_load_only

MANY_MODULES = 48
MANY_SLOTS = 8


def as_maps(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether heat maps of loads are drawn instead of ribbons: with many modules or slots these are a thicket."""
    return any(
        run["num_modules"] > MANY_MODULES or (run["top_k"] or 0) >= MANY_SLOTS or is_load_only(run) for run in runs
    )


def alike_flows(flows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Responses of ``/flow`` that each name the modules of all, so that every chart has the same rows.

    Modules that a run never visits are there with a count of 0; where each step has its own modules, columns are in the
    order of the mean share over all runs (``order_by`` of a node).
    """
    totals = [float(flow.get("num_tokens") or 0) or 1.0 for flow in flows]
    heads: dict[tuple[int, int], Mapping[str, Any]] = {}
    share: dict[tuple[int, int], float] = defaultdict(float)
    for flow, total in zip(flows, totals, strict=True):
        for node in flow["nodes"]:
            key = int(node["step"]), int(node["module"])
            heads.setdefault(key, node)
            share[key] += float(node["count"]) / total / len(flows)
    alike = []
    for flow in flows:
        own = {(int(node["step"]), int(node["module"])): node for node in flow["nodes"]}
        missing = {"count": 0, "share": 0.0}
        nodes = [{**head, **missing, **own.get(key, {}), "order_by": share[key]} for key, head in sorted(heads.items())]
        alike.append({**flow, "nodes": nodes})
    return alike


def largest_circles(flows: Sequence[Mapping[str, Any]]) -> list[float]:
    """For each flow, the tokens that the largest circle of all flows would hold in it: one scale of shares for all."""
    totals = [float(flow.get("num_tokens") or 0) or 1.0 for flow in flows]
    shares = [
        float(node["count"]) / total
        for flow, total in zip(flows, totals, strict=True)
        for node in flow["nodes"]
        if node["module"] != OTHER
    ]
    largest = max(shares, default=0.0) or 1.0
    return [largest * total for total in totals]
