"""Flow of a run: tokens from module to module between steps, for all tokens or for those that filters select.

Without path filters the sealed summaries answer. With them tokens are counted, exactly or on a sample:

- With one slot, by path: each path counts as often as it is taken. A hundred million tokens have eleven million paths,
  so this reads a tenth, and of a filter without a label nothing but ``path``. The naive twin counts tokens
  (``flow_counter.FlowCounter``).
- On ``token_sample``, a hash sample of a million tokens drawn independently, so the interval of a share is Wilson's,
  over the sampled tokens that pass the filter. It bounds the share in this run, not in other samples. A run of up to a
  million tokens is its own sample.

Shapes: p paths, S steps, M modules.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from tokenpaths.engine.analysis.contrast import wilson
from tokenpaths.engine.store.ask.question import Argument, LabelFilter, Points, Ranks, Rows, question
from tokenpaths.engine.store.ask.run_file import ModuleBank, RunFile
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.file.filters import (
    Filters,
    Query,
    check_steps,
    parse_steps,
    path_condition,
    token_condition,
)
from tokenpaths.engine.store.file.flow_counter import FlowCounter, countable_in_sql, of_modules, read_chunks, ribbons_of
from tokenpaths.engine.store.file.schema import SAMPLE_TABLE_ROWS, Layout

MOST_LINKS = 2000
OTHER = -1
"""module id of merged modules"""
PATHS_AT_ONCE = 262_144
SAMPLE_TABLE = "token_sample"
Counted = tuple[int, dict[str, np.ndarray], list[tuple[Any, ...]]]
"""num_tokens; columns step, source, target, count, weight of the links; rows step, module, count, weight (NaN where it
was not read)"""


@question(
    "flow",
    "flow_schema.Flow",
    tag="runs",
    description="Where tokens go: modules as nodes, flows between consecutive steps as links.",
    frames={
        "flow": Rows("links", "Links: step, source, target, count, weight, share."),
        "nodes": Rows("nodes", "The circles of the flow: step, module, name, kind, count, share."),
    },
)
def flow(
    run: RunFile,
    *,
    steps: Annotated[
        tuple[int, int] | None,
        Argument("`first:end` for the steps first … end − 1", max_length=20, examples=("0:5",), read=parse_steps),
    ] = None,
    label: LabelFilter = None,
    min_share: Annotated[int | float, Argument("Smaller links are summed in `other`", ge=0, le=1)] = 0.0,
    paths: Ranks = (),
    through: Points = (),
    limit: Annotated[int, Argument("Most links; the rest is summed in `other`", ge=1, le=MOST_LINKS)] = MOST_LINKS,
    merge_share: Annotated[
        int | float,
        Argument("Modules with a smaller share of the tokens become one node of their step, module −1", ge=0, le=1),
    ] = 0.0,
    most_modules: Annotated[
        int | None, Argument("Maximum number of modules a step; the smaller ones are merged too", ge=1, le=65536)
    ] = None,
    sampled: Annotated[
        bool, Argument("With `paths` or `through`: of a hash sample of a million tokens, or of all if that is as quick")
    ] = False,
) -> dict[str, Any]:
    """Nodes and links of the filtered tokens between ``steps`` (half open: (0, 5) = steps 0 … 4).

    Links below ``min_share`` of the filtered tokens, and past the ``limit`` largest, are summed
    in ``other``. Modules below ``merge_share`` of the filtered tokens, and past the ``most_modules``
    largest of their step, become one node of the step: module −1, named “other (n experts)”, with the
    choices of all of them, of which a token may have made several; at every
    step, links and ``other`` still sum to the number of tokens. Without ``paths`` and ``through`` the
    sealed summaries answer. With them and ``sampled`` a hash sample of a million tokens does, at once:
    counts are scaled to the run, shares have both ends of a 95 % interval, ``counted`` says of how many,
    and whether they are all (``exact``), as in small runs and where ``paths`` are counted as quickly.
    """
    first, stop = check_steps(steps, run.layout)
    filters, label_id = run.filters(label, paths, through)
    merging, counted = (float(merge_share), most_modules), None
    if not filters.need_tokens:
        num_tokens = run.num_tokens(label)
        usage = of_modules(run.rows(queries.sealed_usage(label_id)), run.layout)
        unknown = _unknown(run.bank, usage)
        modules = kept_modules(usage, unknown, (first, stop), num_tokens, *merging)
        links = run.rows(queries.largest_links(label_id, first, stop, modules, unknown, min_share * num_tokens, limit))
    else:
        counted, (num_tokens, columns, visits) = _count(run, filters, label_id, first, stop, sampled=sampled)
        usage = of_modules(visits, run.layout)
        unknown = _unknown(run.bank, usage)
        modules = kept_modules(usage, unknown, (first, stop), num_tokens, *merging)
        if modules is not None:
            columns = merge_links(columns, modules, run.layout.num_modules)
        links = cut_links(columns, unknown, min_share * num_tokens, limit)
    shown = {
        "steps": [first, stop],
        **filters.as_json(),
        "min_share": min_share,
        "limit": limit,
        "merge_share": merge_share,
        "most_modules": most_modules,
    }
    answer = _answer(run, links, usage, (first, stop), num_tokens, modules)
    if counted is not None:
        answer = with_error_bars(answer, counted, run.row["num_tokens"])
    return {"run": run.run_id, "filters": shown, **answer}


def _count(
    run: RunFile, filters: Filters, label_id: int | None, first: int, stop: int, *, sampled: bool
) -> tuple[dict[str, Any] | None, Counted]:
    """How tokens were counted (None: exactly, no sample was requested), and the counts."""
    by_path = run.layout.by_path and label_id is None
    # Of listed paths all tokens are counted in less time than those of the sample: a thousand ribbons are read at most.
    if sampled and run.row["num_tokens"] > SAMPLE_TABLE_ROWS and not (by_path and filters.paths):
        return sampled_flow(run, filters, label_id, first, stop)
    if by_path:
        counts = count_paths(run, filters, first, stop)
    else:
        counts = count_tokens(run, token_condition(filters, label_id, run.layout), first, stop)
    whole = {"num_tokens": counts[0], "of_tokens": run.row["num_tokens"], "exact": True}
    return whole if sampled else None, counts


def count_tokens(run: RunFile, condition: Query, first: int, stop: int) -> Counted:
    """Counts over the tokens of ``condition``, between the steps ``first`` … ``stop`` − 1."""
    if run.layout.by_path:
        return count_tokens_by_path(run, condition, first, stop)
    return _count_table(run, run.layout, condition, first, stop, "token")


def _count_table(run: RunFile, layout: Layout, condition: Query, first: int, stop: int, table: str) -> Counted:
    """Counts over the rows of ``table``, which hold their own ids."""
    if countable_in_sql(layout):
        return (
            run.rows(queries.count_tokens(condition, table))[0][0],
            run.arrays(queries.token_flow(layout, condition, first, stop, table)),
            run.rows(queries.token_usage(layout, condition, table)),
        )
    counter = FlowCounter(layout, range(first, stop - 1))
    query = queries.token_ribbons(layout, condition, table)
    with run.cursor() as cursor:
        for columns in read_chunks(cursor, query.sql, layout, query.parameters):
            counter.add(*ribbons_of(layout, columns))
    return counter.num_tokens, counter.flow_arrays(), counter.usage_rows()


def count_paths(run: RunFile, filters: Filters, first: int, stop: int) -> Counted:
    """Counts over the tokens of ``filters`` without a label, between the steps ``first`` … ``stop`` − 1."""
    condition = path_condition(filters)
    query = Query(f"SELECT count, ribbon FROM path WHERE {condition.sql}", condition.parameters)

    def parts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        with run.cursor() as cursor:
            for batch in cursor.execute(query.sql, list(query.parameters)).to_arrow_reader(PATHS_AT_ONCE):
                if batch.num_rows:
                    flat = batch.column("ribbon").flatten().to_numpy(zero_copy_only=False)
                    yield batch.column("count").to_numpy(), flat.reshape(batch.num_rows, run.layout.num_steps)

    return _sum_paths(run, parts(), first, stop)


def count_tokens_by_path(run: RunFile, condition: Query, first: int, stop: int) -> Counted:
    """Counts over the tokens of ``condition``, in a layout of one slot."""
    columns = run.arrays(
        Query(f"SELECT path_id, count(*) AS n FROM token WHERE {condition.sql} GROUP BY path_id", condition.parameters)
    )
    path_ids, times = columns["path_id"].astype(np.int64), columns["n"].astype(np.int64)

    def parts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = np.argsort(path_ids, kind="stable")  # a page of paths is read once, whatever comes of it
        for start in range(0, len(order), PATHS_AT_ONCE):
            part = order[start : start + PATHS_AT_ONCE]
            yield times[part], run.look_up(path_ids[part])[1]

    return _sum_paths(run, parts(), first, stop)


def _sum_paths(run: RunFile, parts: Iterator[tuple[np.ndarray, np.ndarray]], first: int, stop: int) -> Counted:
    """Sum over ``parts``: frequency of each path (p,), and its ribbon (p, S)."""
    num_steps, size, num_tokens = run.layout.num_steps, run.layout.num_modules, 0
    links = np.zeros((num_steps, size * size))
    used = np.zeros((num_steps, size))
    for times, ribbons in parts:
        num_tokens += int(times.sum())
        columns = np.ascontiguousarray(ribbons.T).astype(np.int64)
        for step in range(num_steps):
            # Sums of whole numbers in float64 are exact below 2**53.
            used[step] += np.bincount(columns[step], times, minlength=size)
            if first <= step < stop - 1:
                pairs = columns[step] * size + columns[step + 1]
                if run.layout.unused_from is not None:
                    both = np.maximum(columns[step], columns[step + 1]) < run.layout.unused_from
                    links[step] += np.bincount(pairs[both], times[both], minlength=size * size)
                    continue
                links[step] += np.bincount(pairs, times, minlength=size * size)
    steps, link = np.nonzero(links)
    count = links[steps, link]
    flows = {"step": steps, "source": link // size, "target": link % size, "count": count, "weight": count}
    usage = [(int(s), int(m), int(used[s, m]), math.nan) for s, m in np.argwhere(used)]
    return num_tokens, flows, usage


def sampled_flow(
    run: RunFile, filters: Filters, label_id: int | None, first: int, stop: int
) -> tuple[dict[str, Any], Counted]:
    """How tokens were counted (``num_tokens`` of ``of_tokens`` sampled ones), and the counts of sampled tokens."""
    layout = replace(run.layout, by_path=False)  # the sample holds the ids, whatever the tokens hold
    ((size,),) = run.rows(Query(f"SELECT count(*) FROM {SAMPLE_TABLE}"))
    condition = token_condition(filters, label_id, layout)
    counts = _count_table(run, layout, condition, first, stop, SAMPLE_TABLE)
    return {"num_tokens": int(counts[0]), "of_tokens": int(size), "exact": size == run.row["num_tokens"]}, counts


def with_error_bars(answer: dict[str, Any], counted: dict[str, Any], num_tokens: int) -> dict[str, Any]:
    """Scale an answer over sampled tokens to the run: estimated counts, and shares with both ends of their interval."""
    scale = num_tokens / counted["of_tokens"]
    scaled: dict[str, Any] = {**answer, "counted": counted, "num_tokens": round(answer["num_tokens"] * scale)}
    for name in ("nodes", "links", "other"):
        for row in scaled[name]:
            row["count"] *= scale
            if row.get("weight") is not None:
                row["weight"] *= scale
    if counted["exact"]:
        return scaled
    for name in ("nodes", "links"):
        # What merged modules got per token is no share: one token may have chosen several of them.
        rows = [row for row in scaled[name] if row.get("module") != OTHER]
        if not rows:
            continue
        shares = np.array([row["share"] for row in rows])
        low, high = wilson(shares, np.full(len(rows), float(counted["num_tokens"])))
        for row, lower, upper in zip(rows, low, high, strict=True):
            row |= {"low": float(lower), "high": float(upper)}
    return scaled


def _unknown(bank: ModuleBank, usage: Sequence[tuple[int, int, int, float]]) -> list[tuple[int, int]]:
    """(step, module) of what stands for decisions that are not known, of those that ``usage`` counts."""
    return [(step, module) for step, module, *_ in usage if bank.is_stand_in(step, module)]


def kept_modules(
    usage: Sequence[tuple[int, int, int, float]],
    unknown: Sequence[tuple[int, int]],
    steps: tuple[int, int],
    num_tokens: int,
    merge_share: float,
    most_modules: int | None,
) -> list[tuple[int, int]] | None:
    """(step, module) of the modules that are not merged; None if none is merged.

    A module is merged when its share of the tokens lies below ``merge_share``, or when ``most_modules`` of its step
    have more (ties: the smaller id stays). A module that would be merged with nothing but itself stays. What is
    ``unknown`` is no module: it is neither counted nor merged.
    """
    if not merge_share and most_modules is None:
        return None
    modules = [(step, module) for step, module in unknown if steps[0] <= step < steps[1]]
    stand_ins = set(modules)
    of_step: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for step, module, count, _ in usage:
        if steps[0] <= step < steps[1] and (step, module) not in stand_ins:
            of_step[step].append((-count, module))
    for step, members in sorted(of_step.items()):
        ordered = sorted(members)
        stays = [
            module
            for place, (count, module) in enumerate(ordered)
            if -count / max(num_tokens, 1) >= merge_share and (most_modules is None or place < most_modules)
        ]
        if len(stays) == len(ordered) - 1:
            stays = [module for _, module in ordered]
        modules += [(step, module) for module in sorted(stays)]
    return modules


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


def cut_links(
    links: Mapping[str, np.ndarray], unknown: Sequence[tuple[int, int]], least: float, limit: int
) -> list[tuple[Any, ...]]:
    """The rows of ``queries.largest_links``, from columns."""
    step, source, target = (links[name].astype(np.int64) for name in ("step", "source", "target"))
    count, weight = links["count"].astype(np.float64), links["weight"].astype(np.float64)
    stand_ins = np.array([(at << 32) + module for at, module in unknown], dtype=np.int64)
    ends = [np.isin((at << 32) + module, stand_ins) for at, module in ((step, source), (step + 1, target))]
    large = np.flatnonzero((count >= least) & ~ends[0] & ~ends[1])
    nameless = np.minimum(source, target) < 0
    keys = (step, target, source, -count, nameless)
    order = large[np.lexsort([key[large] for key in keys])[:limit]]
    columns = (step[order], source[order], target[order], count[order], weight[order])
    rows: list[tuple[Any, ...]] = [(*row, None) for row in zip(*(column.tolist() for column in columns), strict=True)]
    for number in np.unique(step).tolist():
        here = step == number
        rows.append((number, None, None, float(count[here].sum()), float(weight[here].sum()), int(here.sum())))
    return rows


def _answer(
    run: RunFile,
    links: Sequence[tuple[Any, ...]],
    usage: Sequence[tuple[int, int, int, float]],
    steps: tuple[int, int],
    num_tokens: int,
    kept: Sequence[tuple[int, int]] | None,
) -> dict[str, Any]:
    """nodes, the largest links, and the remainder per step in ``other``; ``links`` as from ``queries.largest_links``.

    At every step, the counts of ``links`` and of ``other`` sum to ``num_tokens``, less the tokens that use no module at
    one of its two steps. Links from and to a decision that is not known are part of ``other``; what stands for it is
    no node.
    """
    (first, stop), top_k = steps, run.layout.top_k
    shown = sorted(row[:5] for row in links if row[5] is None)
    hidden = {row[0]: [row[5], row[3]] for row in links if row[5] is not None}
    for step, _, _, count, _ in shown:
        hidden[step][0] -= 1
        hidden[step][1] -= count
    return {
        "num_tokens": num_tokens,
        "steps": list(range(first, stop)),
        "own_modules": run.bank.own_modules,
        "nodes": _nodes(usage, run.bank, steps, num_tokens, kept),
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
    """Modules with tokens, step by step; modules not in ``kept`` are one node, the last of its step."""
    stays, merged = None if kept is None else set(kept), defaultdict(list)
    nodes = []
    for step, module, count, _ in sorted(usage):
        if not steps[0] <= step < steps[1] or bank.is_stand_in(step, module):
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


def _number(count: float, top_k: int) -> float | int:
    """Counts of top-1 flows are integers; with more slots, pairs count in fractions."""
    return int(count) if top_k == 1 else float(count)
