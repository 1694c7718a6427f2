"""The load of two runs, step by step: what was sealed of each, so runs without tokens are compared like others."""

from __future__ import annotations

from typing import Any

from tokenpaths.engine.analysis.load import load_overlap
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs.compare import NotComparable
from tokenpaths.engine.store.ask.several_runs.series import relation_note
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.topics.load_over_time import balance
from tokenpaths.engine.store.ask.topics.usage import counts_of_step


def compare_load(a: RunFile, b: RunFile, *, limit: int = 20) -> dict[str, Any]:
    """Balance of each step in both runs, how far their loads overlap, and the modules whose share differs most.

    Args:
        limit: Most modules.

    Raises:
        NotComparable: the runs have different numbers of steps, or are one.
    """
    if a.run_id == b.run_id:
        raise NotComparable(f"{a.run_id!r} is compared with itself: give two runs", field="b")
    steps = a.layout.num_steps
    if steps != b.layout.num_steps:
        raise NotComparable(
            f"{a.run_id!r} has {steps} steps, {b.run_id!r} has {b.layout.num_steps}: a load is compared step by step",
            field="b",
        )
    counts_a, counts_b = (counts_of_step(run.rows(queries.sealed_usage(None)), run.bank, steps) for run in (a, b))
    rows: list[dict[str, Any]] = []
    modules: list[dict[str, Any]] = []
    for step, (of_a, of_b) in enumerate(zip(counts_a, counts_b, strict=True)):
        same = a.bank.offered(step) == b.bank.offered(step)
        overlap = load_overlap(of_a, of_b) if same else None
        rows.append({"step": step, "a": balance(of_a), "b": balance(of_b), "overlap": overlap})
        if overlap is None:
            continue
        shares = zip(a.bank.offered(step), of_a / of_a.sum(), of_b / of_b.sum(), strict=True)
        modules += [
            {**a.bank.head(step, module), "a": float(one), "b": float(other), "difference": float(other - one)}
            for module, one, other in shares
            if one != other
        ]
    modules.sort(key=lambda row: (-abs(row["difference"]), row["step"], row["module"]))
    return {"a": a.run_id, "b": b.run_id, "steps": rows, "modules": modules[:limit], "note": relation_note(a, b)}
