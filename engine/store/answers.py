"""Rows become answers in the shapes of the REST API: pure functions, no database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.analysis import load
from engine.store.hydrate import finite, nested_ribbon
from engine.store.schema import Layout
from engine.trace import ModuleInfo

CARD_FIELDS = (
    "model", "family", "modality", "dataset", "split", "num_samples", "num_tokens", "num_steps",
    "num_modules", "top_k", "num_paths", "accuracy", "loss", "created_at",
)  # fmt: skip


def card(run_id: str, row: Mapping[str, Any] | None, problem: str | None = None) -> dict[str, Any]:
    """The card of a run; of an unreadable one everything but its name and problem is None."""
    fields = {name: row[name] if row else None for name in CARD_FIELDS}
    for name in ("accuracy", "loss"):
        fields[name] = finite(fields[name])
    return {"run": run_id, **fields, "status": "sealed" if row else "unreadable", "problem": problem}


class ModuleBank:
    """Names and kinds of what each step offers."""

    def __init__(self, modules: Sequence[ModuleInfo], available: np.ndarray) -> None:
        self.available = available
        shared = {m.module: m for m in modules if m.step is None}
        self._of_step = {(m.step, m.module): m for m in modules if m.step is not None}
        self._shared = shared

    def find(self, step: int, module: int) -> ModuleInfo:
        return self._of_step.get((step, module)) or self._shared[module]

    def offered(self, step: int) -> list[int]:
        """Module ids that ``step`` can pick."""
        return [int(i) for i in np.flatnonzero(self.available[step])]

    def head(self, step: int, module: int) -> dict[str, Any]:
        found = self.find(step, module)
        return {"step": step, "module": module, "name": found.name, "kind": found.kind}


def _number(count: float, top_k: int) -> float | int:
    """Counts of top-1 flows are whole numbers; pairs of more slots count in fractions."""
    return int(count) if top_k == 1 else float(count)


def flow(
    links: Sequence[tuple[int, int, int, float, float]],
    usage: Sequence[tuple[int, int, int, float]],
    *,
    bank: ModuleBank,
    steps: tuple[int, int],
    num_tokens: int,
    top_k: int,
    min_share: int | float,
    limit: int,
) -> dict[str, Any]:
    """nodes, the largest links, and per step what is hidden in ``other``.

    At every step, the counts of ``links`` and of ``other`` sum to ``num_tokens``.
    """
    first, stop = steps
    nodes = [
        {**bank.head(step, module), "count": int(count), "share": count / num_tokens}
        for step, module, count, _ in sorted(usage)
        if first <= step < stop
    ]
    # Largest first; ties by step and ids, so that the same question has one answer.
    ordered = sorted(links, key=lambda link: (-link[3], link[:3]))
    kept = [link for link in ordered if link[3] / max(num_tokens, 1) >= min_share][:limit]
    shown = {link[:3] for link in kept}
    hidden: dict[int, list[float]] = defaultdict(list)
    for link in ordered:
        if link[:3] not in shown:
            hidden[link[0]].append(link[3])
    return {
        "num_tokens": num_tokens,
        "steps": list(range(first, stop)),
        "nodes": nodes,
        "links": [
            {
                "step": step,
                "source": source,
                "target": target,
                "count": _number(count, top_k),
                "weight": round(float(weight), 6),
                "share": count / num_tokens,
            }
            for step, source, target, count, weight in sorted(kept)
        ],
        "other": [
            {"step": step, "num_links": len(counts), "count": _number(sum(counts), top_k)}
            for step, counts in sorted(hidden.items())
        ],
    }


def path_rows(rows: Sequence[tuple], num_tokens: int, layout: Layout) -> list[dict[str, Any]]:
    """Rows of ``queries.all_paths`` with the ribbon nested and the share of ``num_tokens``."""
    return [
        {
            "rank": rank,
            "ribbon": nested_ribbon(ribbon, layout),
            "count": count,
            "share": count / num_tokens,
            "cdf": cdf,
            "compute": compute,
            "reuse": reuse,
            "top_label": top_label,
            "top_label_share": top_label_share,
        }
        for rank, ribbon, count, cdf, compute, reuse, top_label, top_label_share in rows
    ]


def fits(fit_rows: Sequence[tuple], point_rows: Sequence[tuple]) -> dict[str, Any]:
    """Rank–frequency of the run and of its two nulls; ``untrained`` is None without a twin."""
    points: dict[str, list[dict[str, Any]]] = defaultdict(list)
    totals = {row[0]: row[2] for row in fit_rows}
    for kind, rank, count in point_rows:
        points[kind].append({"rank": rank, "count": count, "share": count / totals[kind]})
    names = ("num_paths", "num_tokens", "effective_paths", "slope", "r2")
    found = {row[0]: {**dict(zip(names, row[1:], strict=True)), "points": points[row[0]]} for row in fit_rows}
    return {kind: found.get(kind) for kind in ("observed", "untrained", "independent")}


def counts_of_step(rows: Sequence[tuple], bank: ModuleBank, num_steps: int) -> list[np.ndarray]:
    """Per step, c_i of every module it offers, zeros included; rows start with step, module, count."""
    found = {(row[0], row[1]): row[2] for row in rows}
    return [np.array([found.get((s, m), 0) for m in bank.offered(s)], dtype=np.int64) for s in range(num_steps)]


def usage(
    rows: Sequence[tuple[int, int, int, float]],
    *,
    entropy: Mapping[int, float | None],
    untrained: Sequence[tuple[int, int, int]],
    bank: ModuleBank,
    num_steps: int,
    num_tokens: int,
) -> dict[str, Any]:
    """Per step the load numbers, per step × module count, share, utilisation and weight.

    ``share`` is the share of tokens that chose the module, so it sums to K at each step.
    """
    weights = {(step, module): weight for step, module, _, weight in rows}
    counts = counts_of_step(rows, bank, num_steps)
    twin = counts_of_step(untrained, bank, num_steps) if untrained else None
    steps, cells = [], []
    for step in range(num_steps):
        c = counts[step]
        offered = bank.offered(step)
        steps.append(
            {
                "step": step,
                "effective_top_k": load.effective_top_k(c),
                "untrained_effective_top_k": load.effective_top_k(twin[step]) if twin else None,
                "load_entropy": load.load_entropy(c),
                "max_violation": load.max_violation(c),
                "gate_entropy": finite(entropy.get(step)),
                "dead": [m for m, n in zip(offered, c, strict=True) if n == 0],
            }
        )
        for module, count, fair in zip(offered, c, load.utilisation(c), strict=True):
            cells.append(
                {
                    **bank.head(step, module),
                    "count": int(count),
                    "share": int(count) / max(num_tokens, 1),
                    "utilisation": float(fair),
                    "weight": float(weights.get((step, module), 0.0)),
                }
            )
    return {"steps": steps, "usage": cells}
