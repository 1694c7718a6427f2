"""Measured questions among those that were measured before, and the slowest of them."""

from __future__ import annotations

from typing import Any

from benchmarks.queries_asked import QUESTIONS


def with_others(before: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """Some questions asked anew, among the others as they were measured before."""
    results = {**results, "refused": sorted({*before.get("refused", []), *results["refused"]})}
    for part in {"warm", "cold", "sampled"} & results.keys():
        results[part] = before.get(part, {}) | results[part]
    for part in {"warm", "cold"} & results.keys():
        page = [one.name for one in QUESTIONS if not one.free and one.name in results[part]]
        results[f"worst_{part}"] = worst(results[part], page)
    return results


def worst(found: dict[str, Any], names: list[str]) -> dict[str, Any]:
    name = max(names, key=lambda one: found[one]["p95"])
    return {"question": name, "p95": found[name]["p95"]}
