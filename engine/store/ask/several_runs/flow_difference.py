"""Difference of the flows of two runs over the same samples, and of their loads.

What stands for unknown decisions and unused slots is no module: a node has a share of the tokens whose decision is
known at its step, a link one of those that use known modules at both of its steps.

Shapes: S steps, M modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenpaths.engine.analysis import load
from tokenpaths.engine.analysis.paired_runs import load_difference
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs.sample_matching import Matched
from tokenpaths.engine.store.ask.several_runs.series import relation_note, same_numbering
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.topics.flow import count_tokens
from tokenpaths.engine.store.ask.topics.usage import counts_of_step
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.flow_counter import of_modules


def flow_difference(a: RunFile, b: RunFile, matched: Matched, limit: int) -> dict[str, Any]:
    """Difference of the flows of the paired samples, and of the load of each step regardless of module names."""
    usages = [_usage(run, matched, side) for run, side in ((a, "a"), (b, "b"))]
    num_steps = [run.layout.num_steps for run in (a, b)]
    reason = _bank_differs(a, b)
    answer: dict[str, Any] = {
        "difference": None,
        "reason": reason,
        "same_numbering": reason is None and same_numbering(a, b),
        "note": None,
        "num_tokens": [],
        "steps": [],
        "own_modules": a.bank.own_modules,
        "nodes": [],
        "links": [],
        "loads": _loads(*(counts for counts, _ in usages)),
    }
    if reason is not None:
        return answer
    before, after = (_links(run, matched, side) for run, side in ((a, "a"), (b, "b")))
    modules = a.num_modules
    known = np.intersect1d(before[0] // modules**2, after[0] // modules**2)
    if not len(known):
        return answer | {"same_numbering": False, "reason": "no step has links that are known in both runs"}
    answer["note"] = relation_note(a, b)
    totals = [int(matched.pairs[f"num_tokens_{side}"].sum()) for side in "ab"]
    answer |= {"num_tokens": totals, "steps": list(range(num_steps[0])), "nodes": _nodes(a, usages)}
    keys = np.unique(np.concatenate([before[0], after[0]]))
    shares = np.zeros((2, len(keys)))
    for row, (key, share) in zip(shares, (before, after), strict=True):
        row[np.searchsorted(keys, key)] = share
    in_both = np.isin(keys // modules**2, known)
    keys, change = keys[in_both], (shares[1] - shares[0])[in_both]
    shares = shares[:, in_both]
    answer["difference"] = float(np.abs(change).sum() / 2 / len(known))
    answer["links"] = [
        {
            "step": int(keys[i] // modules**2),
            "source": int(keys[i] // modules % modules),
            "target": int(keys[i] % modules),
            "before": float(shares[0, i]),
            "after": float(shares[1, i]),
            "change": float(change[i]),
        }
        for i in np.argsort(-np.abs(change), kind="stable")[:limit]
        if change[i] != 0
    ]
    return answer


def _bank_differs(a: RunFile, b: RunFile) -> str | None:
    """Why the flows of two runs have no common links by name; None: they can be subtracted."""
    steps = [run.layout.num_steps for run in (a, b)]
    for noun, (one, other) in (("steps", steps), ("modules", [a.num_modules, b.num_modules])):
        if one != other:
            return f"{a.run_id} has {one} {noun}, {b.run_id} has {other}"
    if any(_kinds(a, step) != _kinds(b, step) for step in range(steps[0])):
        return "the two models have modules of different kinds"
    return "one step has no flow" if steps[0] == 1 else None


def _kinds(run: RunFile, step: int) -> list[tuple[int, int | None, str]]:
    """The modules of a step, whether they are its own, and their kinds."""
    modules = [run.bank.find(step, module) for module in run.bank.offered(step)]
    return [(module.module, module.step, module.kind) for module in modules]


def _loads(*usages: list[np.ndarray]) -> list[dict[str, Any]]:
    """Measures of the load of each step, of the runs that count something at it."""
    rows = []
    for step in range(max(map(len, usages))):
        counted = {side: c[step] for side, c in zip("ab", usages, strict=True) if step < len(c) and c[step].any()}
        row: dict[str, Any] = {"step": step, "difference": None}
        for side, counts in counted.items():
            row[f"load_entropy_{side}"] = load.load_entropy(counts)
            row[f"effective_top_k_{side}"] = load.effective_top_k(counts)
        if len(counted) == 2:
            row["difference"] = load_difference(*counted.values())
        rows.append(row)
    return rows


def _condition(matched: Matched, side: str) -> Query | None:
    """SQL condition for the tokens of the paired samples; None: all tokens."""
    if not (matched.only_a if side == "a" else matched.only_b):
        return None
    return Query("sample IN (SELECT unnest(?::INTEGER[]))", (matched.pairs[f"sample_{side}"].tolist(),))


def _usage(run: RunFile, matched: Matched, side: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Token counts of each module, step by step, and how many tokens have a known decision there (S,)."""
    condition = _condition(matched, side)
    num_steps = run.layout.num_steps
    rows = run.rows(queries.sealed_usage(None)) if condition is None else count_tokens(run, condition, 0, num_steps)[2]
    known_S = np.full(num_steps, float(matched.pairs[f"num_tokens_{side}"].sum()))
    for step, module, count, *_ in of_modules(rows, run.layout):
        if run.bank.is_stand_in(step, module):
            known_S[step] -= count / run.layout.top_k
    return counts_of_step(rows, run.bank, num_steps), known_S


def _nodes(a: RunFile, usages: Sequence[tuple[list[np.ndarray], np.ndarray]]) -> list[dict[str, Any]]:
    """Share of the tokens at each module of each step in both runs, for modules used by at least one of them, at steps
    that both know."""
    (counts_a, known_a), (counts_b, known_b) = usages
    rows = []
    for step in range(a.layout.num_steps):
        if min(known_a[step], known_b[step]) < 0.5:
            continue
        for module, n, m in zip(a.bank.offered(step), counts_a[step], counts_b[step], strict=True):
            if n or m:
                before, after = float(n / known_a[step]), float(m / known_b[step])
                rows.append(a.bank.head(step, module) | {"before": before, "after": after, "change": after - before})
    return rows


def _links(run: RunFile, matched: Matched, side: str) -> tuple[np.ndarray, np.ndarray]:
    """A numeric key for each link between modules, and its share of all such links of its step; sorted by key."""
    condition, layout = _condition(matched, side), run.layout
    if condition is None:
        columns = run.arrays(queries.sealed_flow(None, 0, layout.num_steps))
    else:
        columns = count_tokens(run, condition, 0, layout.num_steps)[1]
    step, source, target = (columns[name].astype(np.int64) for name in ("step", "source", "target"))
    count = columns["count"].astype(np.float64)
    offered = np.zeros((layout.num_steps, layout.num_modules), dtype=bool)
    for at in range(layout.num_steps):
        offered[at, run.bank.offered(at)] = True
    known = offered[step, source] & offered[step + 1, target]
    key = ((step * run.num_modules + source) * run.num_modules + target)[known]
    share = count[known] / np.bincount(step[known], count[known])[step[known]]
    order = np.argsort(key)
    return key[order], share[order]
