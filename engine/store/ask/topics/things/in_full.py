"""One thing in full: a module at its step, or a path. Each answer is one request of the page's inspector.

*Strongest* examples are the tokens with the largest weight for a module, or the largest product of each step's largest
weight on a path; equal ones stand in reading order. Runs of up to a million tokens are looked at whole, larger ones on
their hash sample of a million tokens (``token_sample``), or, for a rare path, on all or some of its tokens.

Shapes: n tokens, S steps, K slots, V = S·K visits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from tokenpaths.engine.analysis import load
from tokenpaths.engine.base.errors import NoSuchThing, UserError
from tokenpaths.engine.store.ask.question import Argument, RankNumber, Seed, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.excerpts import nested_ribbon, whole_ribbon
from tokenpaths.engine.store.ask.tables.near_paths import nearest_paths
from tokenpaths.engine.store.ask.topics.paths import (
    drawn_places,
    examples_of_paths,
    members_at,
    path_rows,
    with_merged_top,
)
from tokenpaths.engine.store.ask.topics.samples import columns_at, shown_at, weights_recorded
from tokenpaths.engine.store.ask.topics.things.naming import NAMED_PATHS, no_name, summaries
from tokenpaths.engine.store.ask.topics.usage import counts_of_step
from tokenpaths.engine.store.file.columns import MEMBERS, PATHS
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.hash_sample import mix
from tokenpaths.engine.store.file.packed_ids import chooses_sql
from tokenpaths.engine.store.file.schema import ALL_LABELS, EXAMPLE_SEED, SAMPLE_TABLE_ROWS

MOST_EXAMPLES = 60
MOST_LABELS, MOST_NEIGHBOURS = 8, 5
FEW_TOKENS = 1000
"""on a path: all are read, so that a rare path of a large run needs no sample"""
LOOKED_UP = 32
"""tokens of a path that are looked up one by one, 0.3 ms each (and ten blocks each of a file that is not in memory)"""
MOST_JOINED = 20_000_000
"""tokens of a run up to which ``FEW_TOKENS`` are joined instead, which looks at the row of every token"""
MOST_PACKED = 20_000
"""tokens whose packed weights are read"""
NOT_RECORDED = "The source recorded no weights, so no token is the strongest: these are drawn."
ALL_EQUAL = "All weights are equal here, so no token is the strongest: these are drawn."
NOT_LOOKED = "No examples were asked for."
Limit = Annotated[
    int, Argument("Most examples of each kind; 0 leaves them out: the rest is known at once", ge=0, le=MOST_EXAMPLES)
]


@question(
    "modules/{node}",
    "naming_schema.ModuleInFull",
    tag="knowledge",
    route="show_module",
    description="One module at its step in full: load, automatic name, strongest examples, labels, and the modules "
    "that its tokens come from and go to.",
    rows="strongest",
)
def module(
    run: RunFile,
    node: Annotated[str, Argument("`step.module`", max_length=20, examples=("3.4",))],
    limit: Limit = 12,
    seed: Seed = 0,
) -> dict[str, Any]:
    """One module at its step: load, automatic name, strongest examples, labels, and where its tokens come from and go.

    Raises:
        UserError: ``node`` is not ``step.module``.
        NoSuchThing: the step does not offer this module.
    """
    step, number = _node(run, node)
    rows = run.rows(queries.sealed_usage(None))
    offered = run.bank.offered(step)
    counts = counts_of_step(rows, run.bank, run.layout.num_steps)[step]
    place = offered.index(number)
    count = int(counts[place])
    drawn = _strongest_of_module(run, step, number, count, limit, seed) if limit else _none_of(count)
    named = {(row["step"], row["module"]): row for row in summaries(run, "module")["rows"]}
    return {
        "run": run.run_id,
        **run.bank.head(step, number),
        "count": count,
        "share": count / max(run.row["num_tokens"], 1),
        "utilisation": float(load.utilisation(counts)[place]),
        "place": 1 + int((counts > count).sum()),
        "num_modules": len(offered),
        "summary": _summary(named[step, number]),
        **drawn,
        "labels": _labels(run, step, number, count),
        "comes_from": _neighbours(run, step - 1, "target", "source", number),
        "goes_to": _neighbours(run, step, "source", "target", number),
    }


@question(
    "paths/{rank}",
    "naming_schema.PathInFull",
    tag="paths",
    route="show_path",
    description="One path in full: how frequent it is, its automatic name, strongest and drawn examples, and the paths "
    "nearest to it.",
    rows="strongest",
)
def path(run: RunFile, rank: RankNumber, limit: Limit = 12, seed: Seed = 0) -> dict[str, Any]:
    """One path: its row of ``paths``, automatic name, strongest and drawn examples, and the nearest paths.

    Raises:
        NoSuchThing: the run has no path of this rank.
    """
    if not 1 <= rank <= run.row["num_paths"]:
        raise NoSuchThing(f"run {run.run_id!r} has paths of rank 1 to {run.row['num_paths']}, not {rank}", field="rank")
    rows = run.rows(queries.all_paths(run.layout, "rank", 1, rank - 1))
    if run.merged_names:
        rows = with_merged_top(run, rows)
    (row,) = path_rows(run, rows, run.row["num_tokens"])
    own_SK = whole_ribbon(row["ribbon"], run.layout)
    near = nearest_paths(run, own_SK, MOST_NEIGHBOURS + 1)
    heads = {head[0]: head for head in run.rows(queries.some_paths(run.layout, near.ranks.tolist()))}
    named = {}
    if rank <= NAMED_PATHS:
        named = {other["rank"]: other for other in summaries(run, "path")["rows"]}
    return {
        "run": run.run_id,
        **row,
        "summary": _summary(named.get(rank, no_name(_without_name(rank)))),
        **(
            _strongest_of_path(run, rank, row["ribbon"], row["count"], limit, seed) if limit else _none_of(row["count"])
        ),
        "examples": examples_of_paths(run, [rank], limit, seed)[0]["examples"] if limit else [],
        "nearest": [
            {
                "rank": other,
                "ribbon": (ribbon := nested_ribbon(heads[other][1], run.layout)),
                "count": heads[other][2],
                "share": heads[other][2] / run.row["num_tokens"],
                "distance": distance / run.layout.top_k,
                "differs": [s for s, ids in enumerate(ribbon) if set(ids) != set(row["ribbon"][s])],
            }
            for other, distance in zip(near.ranks.tolist(), near.distances.tolist(), strict=True)
            if other != rank
        ][:MOST_NEIGHBOURS],
    }


def _summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of ``summaries`` without what the answer says already."""
    return {name: row[name] for name in no_name("")}


def _without_name(rank: int) -> str:
    if rank > NAMED_PATHS:
        return f"only the {NAMED_PATHS} most frequent paths get a name, this is number {rank:,}"
    return "none of its tokens is among those that were counted"


def _node(run: RunFile, node: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,6})", node)
    if match is None:
        raise UserError(f"node is {node[:40]!r}, it should be step.module, like 3.4", field="node")
    step, number = int(match[1]), int(match[2])
    if step >= run.layout.num_steps:
        raise NoSuchThing(
            f"run {run.run_id!r} has steps 0 to {run.layout.num_steps - 1}, so no module {node}", field="node"
        )
    if number not in run.bank.offered(step):
        raise NoSuchThing(f"step {step} of run {run.run_id!r} does not offer module {number}", field="node")
    return step, number


def _labels(run: RunFile, step: int, number: int, count: int) -> list[dict[str, Any]]:
    """The most frequent labels of the tokens that choose a module, from the sealed usage."""
    rows = run.rows(
        Query(
            "SELECT label_id, count FROM usage WHERE step = ? AND module = ? AND label_id <> ? "
            "ORDER BY count DESC, label_id LIMIT ?",
            (step, number, ALL_LABELS, MOST_LABELS),
        )
    )
    named = {row[0]: (row[1], row[3]) for row in run.labels}
    answer = []
    for label_id, tokens in rows:
        label, of_all = named[label_id]
        share, base = tokens / count, of_all / run.row["num_tokens"]
        answer.append({"label": label, "count": tokens, "share": share, "base": base, "lift": share / base})
    return answer


def _neighbours(run: RunFile, step: int, own: str, other: str, number: int) -> list[dict[str, Any]]:
    """The modules at the other end of the largest flows of a module; shares of its tokens whose decision is known."""
    if not 0 <= step < run.layout.num_steps - 1:
        return []
    at = step + (other == "target")
    rows = run.rows(
        Query(
            f"SELECT {other}, count, sum(count) OVER () FROM flow WHERE label_id = ? AND step = ? AND {own} = ? "
            f"AND {other} IN (SELECT unnest(?::INTEGER[])) ORDER BY count DESC, {other} LIMIT ?",
            (ALL_LABELS, step, number, run.bank.offered(at), MOST_NEIGHBOURS),
        )
    )
    return [
        {**run.bank.head(at, module), "count": float(count), "share": float(count / total)}
        for module, count, total in rows
    ]


def _strongest_of_module(run: RunFile, step: int, number: int, count: int, limit: int, seed: int) -> dict[str, Any]:
    layout = run.layout
    sampled = run.row["num_tokens"] > SAMPLE_TABLE_ROWS
    source = "token_sample" if sampled else "token"
    if layout.packed:
        return _strongest_of_packed(run, source, step, number, count, limit, seed)
    modules, weights = (
        [name(step, slot) for slot in range(layout.top_k)] for name in (layout.module_column, layout.weight_column)
    )
    if layout.by_path and not sampled:
        where = f"path_id IN (SELECT path_id FROM {PATHS} WHERE ribbon[{step + 1}] = ?)"
        level = weights[0]
    else:
        where = f"({' OR '.join(f'{column} = ?' for column in modules)})"
        pairs = zip(modules, weights, strict=True)
        level = f"CASE {' '.join(f'WHEN {m} = {number} THEN {w}' for m, w in pairs)} END"
    parameters = (number,) * layout.top_k
    chosen = f"(SELECT sample, token, {level} AS level FROM {source} WHERE {where})"
    by_weight = "level DESC"

    def first(order: str) -> list[Any]:
        ask = f"SELECT sample, token, level FROM {chosen} ORDER BY {order}, sample, token LIMIT ?"
        return run.rows(Query(ask, (*parameters, limit)))

    if layout.top_k == 1 and not sampled:
        # Their number is known, and a scan that stops at the first other weight replaces one for both extremes.
        num, rows = count, first(by_weight)
        ask = f"SELECT level FROM {chosen} WHERE level <> ? LIMIT 1"
        other = run.rows(Query(ask, (*parameters, rows[0][2]))) if rows else []
        reason = _no_order(run, 0, len(other))
    else:
        ((num, low, high),) = run.rows(Query(f"SELECT count(*), min(level), max(level) FROM {chosen}", parameters))
        reason = _no_order(run, low, high)
        rows = first(by_weight) if reason is None else []
    if reason is not None:
        rows = first(f"hash(sample, token, {int(seed)})")
    weights_n = layout.weights.decode(np.array([row[2] for row in rows], dtype=np.uint8)).round(layout.weights.digits)
    shown = [(*row[:2], weight) for row, weight in zip(rows, weights_n.tolist(), strict=True)]
    return _shown(run, shown, reason, num, count)


def _no_order(run: RunFile, low: Any, high: Any) -> str | None:
    """Why the tokens have no order by weight; None if they have one."""
    if not weights_recorded(run):
        return NOT_RECORDED
    return ALL_EQUAL if low == high else None


def _strongest_of_packed(
    run: RunFile, source: str, step: int, number: int, count: int, limit: int, seed: int
) -> dict[str, Any]:
    """As ``_strongest_of_module``, of at most ``MOST_PACKED`` drawn tokens: SQL cannot look into BLOBs of weights."""
    layout = run.layout
    rows = run.rows(
        Query(
            f"SELECT sample, token, ids, weights FROM {source} WHERE {chooses_sql(layout, step)} "
            "ORDER BY hash(sample, token) LIMIT ?",
            (*(number,) * layout.top_k, MOST_PACKED),
        )
    )
    if not rows:
        return _shown(run, [], _no_order(run, 0, 0), 0, count)
    ids, levels = run.ribbons_of([[row[2] for row in rows], [row[3] for row in rows]])
    level = np.where(ids[:, step] == number, levels[:, step], 0).max(axis=1)
    return _best(
        run,
        np.array([row[:2] for row in rows]),
        level.astype(np.float64),
        layout.weights.decode(level),
        count,
        limit,
        seed,
    )


def _strongest_of_path(
    run: RunFile, rank: int, ribbon: list[list[int]], count: int, limit: int, seed: int
) -> dict[str, Any]:
    """Strength is the product over the steps of each step's largest weight: no step of it was in doubt. (All weights of
    a step multiplied would prefer even splits.) Steps at which the path uses no module do not count."""
    layout = run.layout
    steps = [s for s, ids in enumerate(ribbon) if not all(run.bank.is_stand_in(s, module) for module in ids)]
    sampled = run.row["num_tokens"] > SAMPLE_TABLE_ROWS
    columns = ["weights"] if layout.packed else layout.weight_columns()
    condition, parameters = f"path_id = (SELECT path_id FROM {PATHS} WHERE rank = ?)", (rank,)
    source = "token_sample" if sampled else "token"
    joined = sampled and LOOKED_UP < count <= FEW_TOKENS and run.row["num_tokens"] <= MOST_JOINED
    if joined:
        source, condition = "token", f"rowid IN (SELECT row FROM {MEMBERS} WHERE rank = ?)"
    # Fewer of its tokens than are looked up are in the sample.
    rare = sampled and not joined and 0 < count * SAMPLE_TABLE_ROWS < LOOKED_UP * run.row["num_tokens"]
    few = _rows_of_path(run, rank, columns) if rare else None
    fetched = Query(f"SELECT sample, token, {', '.join(columns)} FROM {source} WHERE {condition}", parameters)
    if layout.packed:
        drawn = Query(f"{fetched.sql} ORDER BY hash(sample, token) LIMIT {MOST_PACKED}", parameters)
        rows = run.rows(drawn) if few is None else few
        places = np.array([row[:2] for row in rows], dtype=np.int64).reshape(-1, 2)
        flat = np.frombuffer(b"".join(row[2] for row in rows), dtype=np.uint8)
        levels_nV = flat.reshape(len(rows), layout.visits)
    elif few is not None:
        places = np.array([row[:2] for row in few], dtype=np.int64)
        levels_nV = np.array([row[2:] for row in few], dtype=np.uint8)
    else:
        arrays = run.arrays(fetched)
        places = np.stack([arrays.pop("sample"), arrays.pop("token")], axis=1).astype(np.int64)
        levels_nV = np.stack(list(arrays.values()), axis=1)
    top_nS = levels_nV.reshape(len(places), layout.num_steps, layout.top_k).max(axis=2)
    with np.errstate(divide="ignore"):
        logs = np.log(layout.weights.decode(np.arange(256)))
    strength = logs[top_nS[:, steps]].sum(axis=1)
    return _best(run, places, strength, np.exp(strength / max(len(steps), 1)), count, limit, seed)


def _rows_of_path(run: RunFile, rank: int, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """sample, token and ``columns`` of the tokens of a path, at most ``LOOKED_UP`` of them, in reading order.

    Always the same ones are drawn: which are the strongest is no matter of a seed.
    """
    ((_, _, count, _, first),) = run.rows(queries.some_paths(run.layout, [rank]))
    pairs = sorted(members_at(run, (drawn_places(rank, count, LOOKED_UP, EXAMPLE_SEED) + first).tolist(), rank))
    return [(*pair, *row) for pair, row in zip(pairs, columns_at(run, pairs, columns), strict=True)]


def _best(
    run: RunFile, places: np.ndarray, strength: np.ndarray, shown: np.ndarray, of_tokens: int, limit: int, seed: int
) -> dict[str, Any]:
    """The ``limit`` tokens (n, 2: sample, token) of the largest ``strength``, equal ones in reading order."""
    low, high = (strength.min(), strength.max()) if len(strength) else (0.0, 0.0)
    reason = _no_order(run, low, high)
    key = -strength if reason is None else mix(places[:, 0] * 2**31 + places[:, 1], seed)
    order = np.lexsort((places[:, 1], places[:, 0], key))[:limit]
    weights_n = shown[order].round(run.layout.weights.digits)
    rows = [(*place, weight) for place, weight in zip(places[order].tolist(), weights_n.tolist(), strict=True)]
    return _shown(run, rows, reason, len(places), of_tokens)


def _none_of(of_tokens: int) -> dict[str, Any]:
    """What stands in place of examples that nobody asked for."""
    return {
        "strongest": [],
        "strongest_reason": NOT_LOOKED,
        "compared": {"num_tokens": 0, "of_tokens": int(of_tokens), "exact": False},
    }


def _shown(run: RunFile, rows: list[Any], reason: str | None, num: int, of_tokens: int) -> dict[str, Any]:
    """Rows (sample, token, weight) with their excerpts, in this order."""
    excerpts = {(row["sample"], row["token"]): row for row in shown_at(run, sorted((row[0], row[1]) for row in rows))}
    return {
        "strongest": [excerpts[sample, token] | {"weight": weight} for sample, token, weight in rows],
        "strongest_reason": reason,
        "compared": {"num_tokens": int(num), "of_tokens": int(of_tokens), "exact": int(num) == int(of_tokens)},
    }
