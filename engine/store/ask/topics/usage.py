"""Usage of modules: load of every module at every step (shares, entropy, violation, dead modules), kinds of modules.

Definitions: ``tokenpaths.engine.analysis.load``.

Shapes: N samples, S steps, M modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenpaths.engine.analysis import load
from tokenpaths.engine.analysis.contrast import share_interval
from tokenpaths.engine.store.ask.question import LabelFilter, Rows, question
from tokenpaths.engine.store.ask.run_file import ModuleBank, RunFile
from tokenpaths.engine.store.ask.sealed_answers import sealed_labels
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.excerpts import finite
from tokenpaths.engine.store.ask.tables.token_table import tokens_of
from tokenpaths.engine.store.ask.topics.samples import weights_recorded
from tokenpaths.engine.store.file.flow_counter import of_modules


@question(
    "usage",
    "flow_schema.Usage",
    tag="runs",
    description="How much every module is used at every step: load, effective top-k, dead modules.\n\nWith a label of "
    "its tokens alone: a dead module got none of them, and the untrained twin, which is of all tokens, is left out.",
    frames={
        "usage": Rows("usage", "A row for each module at each step: count, share, utilisation, weight."),
        "load": Rows(
            "steps", "A row for each step: effective_top_k, load_entropy, max_violation, gate_entropy, dead …"
        ),
    },
    of_counts=True,
)
def usage(run: RunFile, label: LabelFilter = None) -> dict[str, Any]:
    """Load of every module at every step, all tokens or those of one label.

    Per step the load numbers, per step × module count, share, utilisation and weight. ``share`` is the share of tokens
    that chose the module, so it sums to K at each step, less what slots are ``unused``; of counts that do not say K,
    the share of choices. The untrained twin was counted over all tokens, so it stands beside all of them only.
    A step at which nothing was counted (no decision is known, all tokens were dropped) has no load and no dead modules.
    Of a log of ids only, whose 1/K are stand-ins, there is no weight and no importance.
    """
    label_id = run.label_id(label)
    rows = run.rows(queries.sealed_usage(label_id))
    entropy = dict(run.rows(queries.step_entropy(label_id)))
    untrained = run.rows(queries.null_usage("untrained")) if label_id is None else []
    num_tokens, num_steps = run.num_tokens(label), run.layout.num_steps
    weights = {(step, module): float(weight) for step, module, _, weight in rows}
    weighted = weights_recorded(run)
    counts = counts_of_step(rows, run.bank, num_steps)
    twin = counts_of_step(untrained, run.bank, num_steps) if untrained else None
    steps, cells = [], []
    for step in range(num_steps):
        c = counts[step]
        offered = run.bank.offered(step)
        if run.load_only is not None:  # a step may have been counted more often than another
            num_tokens = int(c.sum()) // run.layout.top_k
        steps.append(
            {
                "step": step,
                **load.balance(c),
                "untrained_effective_top_k": load.effective_top_k(twin[step]) if twin else None,
                "importance_cv2": _importance_cv2([weights.get((step, m), 0.0) for m in offered]) if weighted else None,
                "gate_entropy": finite(entropy.get(step)),
                "unused": _unused(rows, run, step, num_tokens) if run.bank.k_varies else None,
                "dead": [m for m, n in zip(offered, c, strict=True) if n == 0] if c.any() else [],
            }
        )
        for module, count, fair in zip(offered, c, load.utilisation(c), strict=True):
            cells.append(
                {
                    **run.bank.head(step, module),
                    "count": int(count),
                    "share": int(count) / max(num_tokens, 1),
                    "utilisation": float(fair) if c.any() else None,
                    "weight": weights.get((step, module), 0.0) if weighted else None,
                }
            )
    return {"run": run.run_id, "steps": steps, "usage": cells}


@question(
    "usage/kinds",
    "work_schema.KindShares",
    tag="runs",
    name="module_kinds",
    description="Which kinds of modules (attention, MLP, identity …) does each step choose? Shares of its choices, "
    "beside even use and the untrained twin.\n\nShares of all tokens; intervals by sample, of large runs on samples "
    "drawn by a seed.",
    frames={"module_kinds": Rows("shares", "A row for each kind at each step: share, low, high, even, untrained")},
    sealed=lambda run: [{"label": label} for label in sealed_labels(run)],
)
def module_kinds(run: RunFile, label: LabelFilter = None) -> dict[str, Any]:
    """Which kinds of modules does each step choose? Share of its choices, beside even use and the untrained twin.

    ``share`` is of all tokens (or those of one label), from the sealed counts; its 95 % interval takes samples as what
    was drawn.
    """
    label_id = run.label_id(label)
    table = tokens_of(run).of_label(label_id)
    answer = {"run": run.run_id, "counted": table.counted}
    steps = run.layout.num_steps
    kinds = [[run.bank.find(step, module).kind for module in run.bank.offered(step)] for step in range(steps)]
    every = sorted({kind for row in kinds for kind in row})
    if len(every) < 2:
        return {**answer, "shares": [], "reason": f"all modules are of one kind, {every[0]}"}
    counts = counts_of_step(run.rows(queries.sealed_usage(label_id)), run.bank, steps)
    untrained = run.rows(queries.null_usage("untrained")) if label_id is None else []
    twin = counts_of_step(untrained, run.bank, steps) if untrained else None
    rows = []
    for step in range(steps):
        of_kind = np.array(kinds[step])
        offered = np.array(run.bank.offered(step))
        if not counts[step].any():  # no decision is known, or all tokens were dropped
            continue
        of_N = table.chosen_at(step, offered).sum(axis=1)
        for kind in every:
            here = of_kind == kind
            if not here.any():
                continue
            share = float(counts[step][here].sum() / counts[step].sum())
            hits_N1 = table.chosen_at(step, offered[here]).sum(axis=1, keepdims=True)
            low, high = share_interval(hits_N1, of_N, np.array([share]))
            enough = (of_N > 0).sum() >= 2
            rows.append(
                {
                    "step": step,
                    "kind": kind,
                    "num_modules": int(here.sum()),
                    "share": share,
                    "low": float(low[0]) if enough else None,
                    "high": float(high[0]) if enough else None,
                    "even": float(here.mean()),
                    "untrained": None if twin is None else float(twin[step][here].sum() / max(1, twin[step].sum())),
                }
            )
    return {**answer, "shares": rows, "reason": None if rows else "no token here chose a module"}


def _unused(rows: Sequence[tuple[Any, ...]], run: RunFile, step: int, num_tokens: int) -> float:
    """Share of the slots of a step that hold no module."""
    used = sum(row[2] for row in of_modules(rows, run.layout) if row[0] == step)
    slots = num_tokens * run.layout.top_k
    return (slots - used) / slots if slots else 0.0


def counts_of_step(rows: Sequence[tuple[Any, ...]], bank: ModuleBank, num_steps: int) -> list[np.ndarray]:
    """Per step, c_i of every module that it offers, zeros included; rows start with step, module, count."""
    count_of = {(row[0], row[1]): row[2] for row in rows}
    return [np.array([count_of.get((s, m), 0) for m in bank.offered(s)], dtype=np.int64) for s in range(num_steps)]


def _importance_cv2(importance: Sequence[float]) -> float | None:
    """Squared coefficient of variation of the summed weights; None without tokens or weights."""
    return load.importance_cv2(np.array(importance)) if any(importance) else None
