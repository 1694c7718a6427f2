"""One thing in full: a module at its step, or a path. Each answer is one request of the page's inspector.

Runs of up to a million tokens are looked at whole, larger ones on their hash sample of a million tokens
(``token_sample``), or, for a rare path, on all or some of its tokens (``strongest``).

Shapes: n tokens, S steps, K slots, V = S·K visits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis import load
from tokenpaths.engine.base.errors import NoSuchThing, UserError
from tokenpaths.engine.store.ask.question import Argument, RankNumber, Seed, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.excerpts import nested_ribbon, whole_ribbon
from tokenpaths.engine.store.ask.tables.near_paths import nearest_paths
from tokenpaths.engine.store.ask.tables.path_ribbons import rows_with_ribbons
from tokenpaths.engine.store.ask.topics.paths import (
    drawn_pairs,
    excerpts_of,
    in_reading_order,
    path_rows,
    sealed_examples,
    with_merged_top,
)
from tokenpaths.engine.store.ask.topics.samples import weights_recorded
from tokenpaths.engine.store.ask.topics.things.naming import NAMED_PATHS, no_name, summaries
from tokenpaths.engine.store.ask.topics.things.strongest import Strongest, best, no_order, strongest_of_path
from tokenpaths.engine.store.ask.topics.usage import counts_of_step
from tokenpaths.engine.store.file.columns import PATHS
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.flow_counter import CHUNK_ROWS, bytes_of
from tokenpaths.engine.store.file.packed_ids import chooses_sql, ids_at
from tokenpaths.engine.store.file.schema import ALL_LABELS, SAMPLE_TABLE_ROWS

MOST_EXAMPLES = 60
MOST_OF_MODULE = 4096
"""tokens of a module whose packed weights are compared"""
STRETCHES = 16
"""of the rows of a table, evenly spread"""
MOST_LABELS, MOST_NEIGHBOURS = 8, 5
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
    strongest = _strongest_of_module(run, step, number, count, limit, seed) if limit else Strongest.none(count)
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
        **strongest.shown(run),
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
    rows = rows_with_ribbons(run, queries.all_paths(run.layout, "rank", 1, rank - 1))
    if run.merged_names:
        rows = with_merged_top(run, rows)
    (row,) = path_rows(run, rows, run.row["num_tokens"])
    own_SK = whole_ribbon(row["ribbon"], run.layout)
    with ThreadPoolExecutor(1, "nearest") as beside:  # on another core, if there is one: each takes about half
        nearest = beside.submit(nearest_paths, run, own_SK, MOST_NEIGHBOURS + 1)
        examples = _examples_of_path(run, row, limit, seed)
        near = nearest.result()
    named = {}
    if rank <= NAMED_PATHS:
        named = {other["rank"]: other for other in summaries(run, "path")["rows"]}
    return {
        "run": run.run_id,
        **row,
        "summary": _summary(named.get(rank, no_name(_without_name(rank)))),
        **examples,
        "compared_paths": near.num_compared,
        "nearest": [
            {
                "rank": other,
                "ribbon": (ribbon := nested_ribbon(flat, run.layout)),
                "count": count,
                "share": count / run.row["num_tokens"],
                "distance": distance / run.layout.top_k,
                "differs": [s for s, ids in enumerate(ribbon) if set(ids) != set(row["ribbon"][s])],
            }
            for other, flat, count, distance in zip(
                near.ranks.tolist(),
                near.ribbons_nV.tolist(),
                run.shares.counts_of(near.ranks).tolist(),
                near.distances.tolist(),
                strict=True,
            )
            if other != rank
        ][:MOST_NEIGHBOURS],
    }


def _examples_of_path(run: RunFile, row: Mapping[str, Any], limit: int, seed: int) -> dict[str, Any]:
    """Strongest and drawn examples of a path; a text of both is read once."""
    rank, count = row["rank"], row["count"]
    if not limit:
        return Strongest.none(count).answer({}) | {"examples": []}
    strongest = strongest_of_path(run, rank, row["ribbon"], count, limit, seed)
    drawn = sealed_examples(run, [rank], limit, seed).get(rank)
    pairs = drawn_pairs(run, [rank], limit, seed)[rank] if drawn is None else []
    excerpts = excerpts_of(run, [*strongest.unread, *pairs])
    drawn = [excerpts[pair] for pair in pairs] if drawn is None else drawn
    return strongest.answer(excerpts) | {"examples": in_reading_order(drawn)}


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


def _strongest_of_module(run: RunFile, step: int, number: int, count: int, limit: int, seed: int) -> Strongest:
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
        reason = no_order(run, 0, len(other))
    else:
        ((num, low, high),) = run.rows(Query(f"SELECT count(*), min(level), max(level) FROM {chosen}", parameters))
        reason = no_order(run, low, high)
        rows = first(by_weight) if reason is None else []
    if reason is not None:
        rows = first(f"hash(sample, token, {int(seed)})")
    weights_n = layout.weights.decode(np.array([row[2] for row in rows], dtype=np.uint8)).round(layout.weights.digits)
    shown = [(*row[:2], weight) for row, weight in zip(rows, weights_n.tolist(), strict=True)]
    return Strongest(shown, reason, num, count)


def _strongest_of_packed(
    run: RunFile, source: str, step: int, number: int, count: int, limit: int, seed: int
) -> Strongest:
    """As ``_strongest_of_module``, of about ``MOST_OF_MODULE`` tokens at most, in even stretches: SQL cannot look into
    BLOBs of weights, and finds a module in words of ids no faster than it reads them."""
    layout = run.layout
    ((num_rows,),) = run.rows(Query(f"SELECT count(*) FROM r.main.{source}"))
    wanted = min(num_rows, MOST_OF_MODULE * run.row["num_tokens"] // max(count, 1) + 1)
    edges = [num_rows * part // STRETCHES for part in range(STRETCHES + 1)]
    size = -(-wanted // STRETCHES)
    columns, only = "sample, token, ids", ""
    chosen: tuple[int, ...] = ()
    if weights_recorded(run):  # those of other tokens need not be read
        columns, only, chosen = f"{columns}, weights", f" AND {chooses_sql(layout, step)}", (number,) * layout.top_k
    # By its full name: where labels are merged it is a view, which has no rowid.
    one = f"SELECT {columns} FROM r.main.{source} WHERE rowid >= ? AND rowid < ?{only}"
    places, levels = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.uint8)]
    with run.cursor() as cursor:
        for first, end in pairwise(edges):
            for batch in cursor.execute(one, [first, min(first + size, end), *chosen]).to_arrow_reader(CHUNK_ROWS):
                chosen_nK = ids_at(batch.column("ids"), layout, step) == number
                if not len(here := np.flatnonzero(chosen_nK.any(axis=1))):
                    continue
                places.append(np.stack([batch.column(name).to_numpy()[here] for name in ("sample", "token")], axis=1))
                if batch.num_columns == 3:
                    levels.append(np.full(len(here), layout.even_level, np.uint8))
                    continue
                own_nK = bytes_of(batch.column("weights").take(pa.array(here)), layout.visits).reshape(
                    -1, layout.visits
                )
                own_nK = own_nK[:, step * layout.top_k : (step + 1) * layout.top_k]
                levels.append(np.where(chosen_nK[here], own_nK, 0).max(axis=1))
    places_n, level_n = np.concatenate(places), np.concatenate(levels)
    return best(run, places_n, level_n.astype(np.float64), layout.weights.decode(level_n), count, limit, seed)
