"""Rows become answers in the shapes of the REST API: pure functions, no database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenpaths.engine.analysis import load
from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.store.ask.excerpts import finite, nested_ribbon
from tokenpaths.engine.store.file.schema import Layout

if TYPE_CHECKING:
    from tokenpaths.engine.analysis.power_law import Histogram, Verdict

CARD_FIELDS = (
    "model",
    "family",
    "modality",
    "dataset",
    "split",
    "num_samples",
    "num_tokens",
    "num_steps",
    "num_modules",
    "top_k",
    "num_paths",
    "accuracy",
    "loss",
    "created_at",
)

TWIN_ASSOCIATION = ("nmi", "null_mean", "null_std", "p_value")


def card(
    run_id: str, row: Mapping[str, Any] | None, problem: str | None = None, samples_are: str | None = None
) -> dict[str, Any]:
    """The card of a run; of an unreadable one everything but its name and problem is None."""
    fields = {name: row[name] if row else None for name in CARD_FIELDS}
    for name in ("accuracy", "loss"):
        fields[name] = finite(fields[name])
    if fields["modality"] == "vision" and fields["accuracy"] is None:
        fields["loss"] = None  # of the few labels that the model knows; older runs keep it
    status = "sealed" if row else "unreadable"
    return {"run": run_id, **fields, "samples_are": samples_are, "status": status, "problem": problem}


def associations(rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows of ``queries.association_rows``: one of each attribute, with the numbers of the untrained twin beside.

    A file before schema version 4 knows no twin, and shuffled single tokens of what differs inside a sample.
    """
    names = ("attribute", "nmi", "null_mean", "null_std", "p_value", "shuffles", "num_tokens", "shuffled", "whose")
    found: dict[str, dict[str, Any]] = {}
    for row in sorted((dict(zip(names, row, strict=False)) for row in rows), key=lambda row: row.get("whose") or ""):
        if row.get("whose") == "untrained":
            found[row["attribute"]] |= {f"untrained_{name}": row[name] for name in TWIN_ASSOCIATION}
            continue
        found[row["attribute"]] = {
            **{name: row[name] for name in names[:7]},
            "shuffled": row.get("shuffled") or ("samples" if row["attribute"] == "label" else "tokens"),
            **{f"untrained_{name}": None for name in TWIN_ASSOCIATION},
        }
    return [found[attribute] for attribute in sorted(found)]


class ModuleBank:
    """Names and kinds of what each step offers."""

    def __init__(self, modules: Sequence[ModuleInfo], available: np.ndarray) -> None:
        self.available = available
        shared = {m.module: m for m in modules if m.step is None}
        self._of_step = {(m.step, m.module): m for m in modules if m.step is not None}
        self._shared = shared
        self.own_modules = bool(self._of_step)
        """whether modules belong to their step: equal ids at two steps are different modules then"""

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


OTHER = -1
"""module id of what was merged"""


def kept_modules(
    usage: Sequence[tuple[int, int, int, float]],
    steps: tuple[int, int],
    num_tokens: int,
    merge_share: float,
    most_modules: int | None,
) -> list[tuple[int, int]] | None:
    """(step, module) of those that stay themselves; None where nothing is to be merged.

    A module is merged when its share of the tokens lies below ``merge_share``, or when ``most_modules`` of its step
    have more (ties: the smaller id stays). A module that would be merged with nothing but itself stays.
    """
    if not merge_share and most_modules is None:
        return None
    of_step: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for step, module, count, _ in usage:
        if steps[0] <= step < steps[1]:
            of_step[step].append((-count, module))
    kept = []
    for step, found in sorted(of_step.items()):
        ordered = sorted(found)
        stays = [
            module
            for place, (count, module) in enumerate(ordered)
            if -count / max(num_tokens, 1) >= merge_share and (most_modules is None or place < most_modules)
        ]
        if len(stays) == len(ordered) - 1:
            stays = [module for _, module in ordered]
        kept += [(step, module) for module in sorted(stays)]
    return kept


def merge_links(
    links: Mapping[str, np.ndarray], kept: Sequence[tuple[int, int]], num_modules: int
) -> dict[str, np.ndarray]:
    """Columns of links with all modules that are not ``kept`` merged into ``OTHER``; sums are conserved."""
    width = num_modules + 1
    stays = np.zeros((max([step for step, _ in kept], default=0) + 1, num_modules), dtype=bool)
    stays[tuple(np.array(kept, dtype=np.int64).reshape(-1, 2).T)] = True

    def place(step: np.ndarray, module: np.ndarray) -> np.ndarray:
        inside = step < len(stays)
        return np.where(inside & stays[np.where(inside, step, 0), module], module + 1, 0)

    step = links["step"].astype(np.int64)
    source = place(step, links["source"].astype(np.int64))
    target = place(step + 1, links["target"].astype(np.int64))
    kinds, kind = np.unique((step * width + source) * width + target, return_inverse=True)
    return {
        "step": kinds // width**2,
        "source": kinds // width % width - 1,
        "target": kinds % width - 1,
        "count": np.bincount(kind, links["count"], len(kinds)),
        "weight": np.bincount(kind, links["weight"], len(kinds)),
    }


def cut_links(links: Mapping[str, np.ndarray], least: float, limit: int) -> list[tuple]:
    """The rows of ``queries.largest_links``, from columns."""
    step, source, target = (links[name].astype(np.int64) for name in ("step", "source", "target"))
    count, weight = links["count"].astype(np.float64), links["weight"].astype(np.float64)
    large = np.flatnonzero(count >= least)
    nameless = np.minimum(source, target) < 0
    keys = (target, source, step, -count, nameless)
    order = large[np.lexsort([key[large] for key in keys])[:limit]]
    columns = (step[order], source[order], target[order], count[order], weight[order])
    rows: list[tuple] = [(*row, None) for row in zip(*(column.tolist() for column in columns), strict=True)]
    for one in np.unique(step).tolist():
        here = step == one
        rows.append((one, None, None, float(count[here].sum()), float(weight[here].sum()), int(here.sum())))
    return rows


def flow(
    links: Sequence[tuple],
    usage: Sequence[tuple[int, int, int, float]],
    *,
    bank: ModuleBank,
    steps: tuple[int, int],
    num_tokens: int,
    top_k: int,
    kept: Sequence[tuple[int, int]] | None,
) -> dict[str, Any]:
    """nodes, the largest links, and per step what is hidden in ``other``; ``links`` as of ``queries.largest_links``.

    At every step, the counts of ``links`` and of ``other`` sum to ``num_tokens``.
    """
    first, stop = steps
    shown = sorted(row[:5] for row in links if row[5] is None)
    hidden = {row[0]: [row[5], row[3]] for row in links if row[5] is not None}
    for step, _, _, count, _ in shown:
        hidden[step][0] -= 1
        hidden[step][1] -= count
    return {
        "num_tokens": num_tokens,
        "steps": list(range(first, stop)),
        "own_modules": bank.own_modules,
        "nodes": _nodes(usage, bank, steps, num_tokens, kept),
        "links": [
            {
                "step": step,
                "source": source,
                "target": target,
                "count": _number(count, top_k),
                "weight": round(float(weight), 6),
                "share": count / num_tokens,
            }
            for step, source, target, count, weight in shown
        ],
        "other": [
            {"step": step, "num_links": num, "count": _number(max(0.0, count), top_k)}
            for step, (num, count) in sorted(hidden.items())
            if num
        ],
    }


def _nodes(
    usage: Sequence[tuple[int, int, int, float]],
    bank: ModuleBank,
    steps: tuple[int, int],
    num_tokens: int,
    kept: Sequence[tuple[int, int]] | None,
) -> list[dict[str, Any]]:
    """Modules with tokens, step by step; what is not ``kept`` as one node of its step, the last one."""
    stays, merged = None if kept is None else set(kept), defaultdict(list)
    nodes = []
    for step, module, count, _ in sorted(usage):
        if not steps[0] <= step < steps[1]:
            continue
        if stays is None or (step, module) in stays:
            nodes.append({**bank.head(step, module), "count": int(count), "share": count / num_tokens})
        else:
            merged[step].append((module, int(count)))
    for step, members in merged.items():
        total = sum(count for _, count in members)
        kinds = {bank.find(step, module).kind for module, _ in members}
        what = "experts" if kinds == {"expert"} else "modules"
        nodes.append(
            {
                "step": step,
                "module": OTHER,
                "name": f"other ({len(members)} {what})",
                "kind": "other",
                "count": total,
                "share": total / num_tokens,
                "num_modules": len(members),
            }
        )
    return sorted(nodes, key=lambda node: (node["step"], node["module"] == OTHER, node["module"]))


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
    for kind, rank, count, cdf in point_rows:
        point = {"rank": rank, "count": count, "share": count / totals[kind]}
        points[kind].append(point if cdf is None else {**point, "cdf": cdf})
    names = ("num_paths", "num_tokens", "effective_paths", "slope", "r2")
    found = {row[0]: {**dict(zip(names, row[1:], strict=True)), "points": points[row[0]]} for row in fit_rows}
    return {kind: found.get(kind) for kind in ("observed", "untrained", "independent")}


def law(verdict: Verdict, histogram: Histogram) -> dict[str, Any]:
    """A fitted power law in plain numbers; ``reason`` says why where there is none."""
    num_paths, num_tokens = int(histogram.paths.sum()), int(histogram.values @ histogram.paths)
    found, beside = verdict.law, verdict.beside
    if found is None or beside is None:
        return {"num_paths": num_paths, "reason": verdict.reason}
    from tokenpaths.engine.analysis.power_law import rank_curve

    return {
        "num_paths": num_paths,
        **asdict(found),
        "p_value": verdict.p_value,
        "lognormal": asdict(beside),
        # A path that is rarer than once in the run has no place on the curve.
        "curve": [
            {"rank": float(rank), "share": int(count) / num_tokens}
            for rank, count in zip(*rank_curve(found, int(histogram.values[-1])), strict=True)
            if rank >= 0.5
        ],
    }


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
    weights = {(step, module): float(weight) for step, module, _, weight in rows}
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
                "importance_cv2": _importance_cv2([weights.get((step, m), 0.0) for m in offered]),
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
                    "weight": weights.get((step, module), 0.0),
                }
            )
    return {"steps": steps, "usage": cells}


def _importance_cv2(importance: Sequence[float]) -> float | None:
    """None where no token came, or nothing was weighted."""
    return load.importance_cv2(np.array(importance)) if any(importance) else None
