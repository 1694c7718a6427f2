"""Paths of a run: the list by rank, rank–frequency fit, power law, and examples of tokens on a path."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from tokenpaths.engine.analysis.path_statistics import Histogram
from tokenpaths.engine.base.errors import NoSuchThing
from tokenpaths.engine.store.ask.question import (
    MAX_INT,
    Argument,
    Interval,
    LabelFilter,
    PageLimit,
    Points,
    RankNumber,
    Rows,
    Seed,
    question,
    within,
)
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.excerpts import nested_ribbon
from tokenpaths.engine.store.ask.tables.lookups import members_of
from tokenpaths.engine.store.ask.tables.path_ribbons import ribbons_of_ranks, rows_with_ribbons
from tokenpaths.engine.store.ask.topics.samples import shown_at
from tokenpaths.engine.store.file.columns import PATHS
from tokenpaths.engine.store.file.filters import (
    Filters,
    Query,
    check_bounds,
    check_page,
    next_offset,
    path_condition,
    token_condition,
)
from tokenpaths.engine.store.file.pages.path_pages import TOP_ROWS
from tokenpaths.engine.store.file.schema import EXAMPLE_RANKS, EXAMPLE_SEED, EXAMPLES, EXAMPLES_EACH

if TYPE_CHECKING:
    from tokenpaths.engine.analysis.power_law import Verdict

MOST_ROWS = 1000
MOST_EXAMPLES = 200
PATHS_AT_ONCE = 64
"""whose tokens one query looks up"""
KINDS = ("observed", "untrained", "independent")
"""the run, its untrained twin, and independent steps"""


@question(
    "paths",
    "path_schema.PathList",
    tag="paths",
    route="list_paths",
    description="The paths that tokens take, with their ribbons and how many take them.",
    rows="paths",
)
def paths(
    run: RunFile,
    *,
    order: Annotated[
        Literal["rank", "compute", "reuse"], Argument("`rank`: of the whole run; `compute`, `reuse`: largest first")
    ] = "rank",
    label: LabelFilter = None,
    paths: Sequence[int] = (),
    through: Points = (),
    compute: Annotated[Interval, within("compute", "paths whose compute")] = None,
    limit: PageLimit = 100,
    offset: int = 0,
) -> dict[str, Any]:
    """A page of paths; ``order`` compute and reuse list the largest first.

    Under filters ``count``, ``share``, ``num_paths`` and ``num_tokens`` are those of the filtered
    tokens; rank, cdf and top_label stay those of the whole run.
    """
    check_page(limit, offset, MOST_ROWS)
    check_bounds(compute, "compute")
    filters, label_id = run.filters(label, paths, through)
    if label_id is None and not filters.need_tokens and compute is None:
        num_paths, num_tokens = run.row["num_paths"], run.row["num_tokens"]
        sealed = order != "rank" or run.layout.unique
        top = _top_paths(order, None, limit, offset) if sealed else None
        rows = run.rows(top) if top else rows_with_ribbons(run, queries.all_paths(run.layout, order, limit, offset))
    elif compute is None and (page := _page_of_label(run, order, label, label_id, filters, limit, offset)) is not None:
        num_paths, num_tokens, rows = page
    elif label_id is None and (run.layout.by_path or not filters.need_tokens):
        condition = path_condition(filters, compute)
        num_paths, num_tokens = run.rows(queries.path_totals(condition))[0]
        rows = rows_with_ribbons(run, queries.chosen_paths(run.layout, condition, order, limit, offset))
    else:
        condition = token_condition(filters, label_id, run.layout, compute)
        ((num_paths, num_tokens),) = run.rows(queries.filtered_path_totals(condition))
        rows = rows_with_ribbons(run, queries.filtered_paths(run.layout, condition, order, limit, offset))
    if run.merged_names:
        rows = with_merged_top(run, rows)
    return {
        "run": run.run_id,
        "num_paths": num_paths,
        "num_tokens": num_tokens,
        "paths": path_rows(run, rows, num_tokens),
        "next": next_offset(offset, limit, num_paths),
    }


def with_merged_top(run: RunFile, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows of ``queries.all_paths`` with ``top_label`` and its share counted over merged labels, as at sealing."""
    ranks = [row[0] for row in rows]
    top = Query(
        "SELECT path.rank, label.label, count(*) / any_value(path.count) AS share "
        f"FROM token JOIN {PATHS} AS path USING (path_id) "
        f"JOIN label USING (label_id) WHERE path.rank IN ({', '.join('?' * len(ranks))}) GROUP BY 1, 2 "
        "QUALIFY row_number() OVER (PARTITION BY path.rank ORDER BY count(*) DESC, label.label) = 1",
        tuple(ranks),
    )
    shares = {rank: (label, share) for rank, label, share in run.rows(top)} if ranks else {}
    return [(*row[:-2], *shares.get(row[0], (None, None))) for row in rows]


def _page_of_label(
    run: RunFile, order: str, label: str | None, label_id: int | None, filters: Filters, limit: int, offset: int
) -> tuple[int, int, list[tuple[Any, ...]]] | None:
    """num_paths, num_tokens and rows of a label's page, if computed at sealing."""
    if label_id is None or filters.need_tokens or order != "rank":
        return None
    top = _top_paths(order, label_id, limit, offset)
    ((num_paths, listed),) = run.rows(
        Query(
            "SELECT num_paths, EXISTS (SELECT 1 FROM path_top WHERE label_id = label_path.label_id) FROM label_path "
            "WHERE label_id = ?",
            (label_id,),
        )
    )
    return (num_paths, run.num_tokens(label), run.rows(top)) if top and listed else None


def _top_paths(order: str, label_id: int | None, limit: int, offset: int) -> Query | None:
    """As ``queries.all_paths``, with ribbons, from the sealed list; None past its end."""
    if offset + limit > TOP_ROWS:
        return None
    return Query(
        "SELECT rank, ribbon, count, cdf, compute, reuse, top_label, top_label_share FROM path_top "
        "WHERE list = ? AND label_id IS NOT DISTINCT FROM ? AND place BETWEEN ? AND ? ORDER BY place",
        (order, label_id, offset, offset + limit - 1),
    )


def path_rows(run: RunFile, rows: Sequence[tuple[Any, ...]], num_tokens: int) -> list[dict[str, Any]]:
    """Rows of ``queries.all_paths`` with the ribbon nested and the share of ``num_tokens``."""
    return [
        {
            "rank": rank,
            "ribbon": nested_ribbon(ribbon, run.layout),
            "count": count,
            "share": count / num_tokens,
            "cdf": cdf,
            **ink,
            "compute": compute,
            "reuse": reuse,
            "top_label": top_label,
            "top_label_share": top_label_share,
        }
        for (rank, ribbon, count, cdf, compute, reuse, top_label, top_label_share), ink in zip(
            rows, run.shares.ink_of([row[0] for row in rows]), strict=True
        )
    ]


@question(
    "paths/fit",
    "path_schema.PathFit",
    tag="paths",
    description="The rank–frequency curve beside the untrained twin and independent steps.",
    frames={
        "fit": Rows(
            lambda answer: _by_kind(answer, "points"),
            "A row for the run and for each null: num_paths, num_tokens, effective_paths, slope, r2.",
        ),
        "fit_points": Rows(
            lambda answer: _points(answer, "points"),
            "The points of the rank–frequency curves: kind, rank, count, share …",
        ),
    },
)
def fit(run: RunFile) -> dict[str, Any]:
    """Rank–frequency of the run, of its untrained twin (None without one) and of independent steps."""
    fit_rows, point_rows = run.rows(queries.path_fits()), run.rows(queries.path_points())
    points: dict[str, list[dict[str, Any]]] = defaultdict(list)
    totals = {row[0]: row[2] for row in fit_rows}
    for kind, rank, count in point_rows:
        points[kind].append({"rank": rank, "count": count, "share": count / totals[kind]})
    observed = points["observed"]
    ranks = np.array([point["rank"] for point in observed], dtype=np.int64)
    for point, cdf, ink in zip(observed, run.shares.cdf(ranks).tolist(), run.shares.ink_of(ranks), strict=True):
        point |= {"cdf": cdf, **ink}
    names = ("num_paths", "num_tokens", "effective_paths", "slope", "r2")
    fits = {row[0]: {**dict(zip(names, row[1:], strict=True)), "points": points[row[0]]} for row in fit_rows}
    return {"run": run.run_id, **{kind: fits.get(kind) for kind in KINDS}}


@question(
    "paths/law",
    "path_schema.PathLaw",
    tag="paths",
    description="Do path counts follow a power law? Discrete maximum likelihood, goodness of fit, and a lognormal "
    "beside it.",
    frames={
        "law": Rows(
            lambda answer: _by_kind(answer, "curve"),
            "A row for the run and for each null: alpha, x_min, ks, p_value, lognormal_ratio …",
        ),
        "law_curve": Rows(
            lambda answer: _points(answer, "curve"), "The fitted laws as curves: kind, rank, share.", {"draws": 0}
        ),
    },
    sealed=lambda run: [{"draws": 0}, {}],
)
def law(
    run: RunFile,
    draws: Annotated[int, Argument("Data sets drawn for each p-value; 0: no p-value", ge=0, le=1000)] = 100,
    seed: Annotated[int, Argument("Of the draws", ge=0, le=MAX_INT)] = 0,
) -> dict[str, Any]:
    """A power law fitted to the counts of paths, of the untrained twin's and of independent steps'.

    ``draws`` data sets are drawn from the law for its p-value (0: none); QueryTimeout where they take too long.
    """
    ends = time.monotonic() + 1.5 * run.time_limit_s  # REST gives up, less helpfully, at twice the limit
    laws = {kind: _law(run, kind, draws, seed, ends) for kind in KINDS}
    return {"run": run.run_id, "draws": draws, "seed": seed, **laws}


@question(
    "paths/slopes",
    "path_schema.PathSlopes",
    tag="paths",
    description="Slopes of the rank–frequency curve that can be compared: within ranks 10 to 1,000, at equal numbers "
    "of tokens, beside the untrained twin and independent steps.",
    frames={
        "slopes": Rows(
            lambda answer: [{"kind": kind, **point} for kind in KINDS for point in answer[kind] or []],
            "A row for each kind and number of tokens: num_paths, slope, window_slope and their deviations.",
        )
    },
    sealed=lambda run: [{}],
)
def slopes(
    run: RunFile,
    draws: Annotated[int, Argument("Thinned runs of each size", ge=2, le=50)] = 5,
    seed: Annotated[int, Argument("Of the draws", ge=0, le=MAX_INT)] = 0,
) -> dict[str, Any]:
    """Slopes of the run, its untrained twin and independent steps, thinned to equal numbers of tokens.

    The largest number is that of the kind with the fewest tokens (at most 4 million).
    """
    from tokenpaths.engine.analysis.slope_growth import WINDOW, sizes_up_to, slope_growth

    histograms = {kind: histogram for kind in KINDS if (histogram := path_histogram(run, kind)) is not None}
    sizes = sizes_up_to(min(int(one.values @ one.paths) for one in histograms.values()))
    points = {
        kind: [asdict(point) for point in slope_growth(one, sizes, draws, seed)] for kind, one in histograms.items()
    }
    answer = {kind: points.get(kind) for kind in KINDS}
    return {"run": run.run_id, "draws": draws, "seed": seed, "window": list(WINDOW), **answer}


def _by_kind(answer: Mapping[str, Any], without: str) -> list[dict[str, Any]]:
    """A row for the run and for each available null, without the list ``without``."""
    rows = []
    for kind in KINDS:
        if answer[kind] is not None:
            plain = {name: value for name, value in answer[kind].items() if name != without}
            beside = plain.pop("lognormal", None) or {}
            rows.append({"kind": kind, **plain, **{f"lognormal_{name}": value for name, value in beside.items()}})
    return rows


def _points(answer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The items of the list ``name`` of the run and of each null."""
    return [{"kind": kind, **point} for kind in KINDS for point in (answer[kind] or {}).get(name, [])]


def _law(run: RunFile, kind: str, draws: int, seed: int, ends: float) -> dict[str, Any] | None:
    from tokenpaths.engine.analysis import power_law  # SciPy's optimisers, only for who asks

    if (histogram := path_histogram(run, kind)) is None:
        return None
    asked = ", after ".join(KINDS[KINDS.index(kind) :: -1])
    return _law_answer(power_law.judge(histogram, draws, seed, ends, asked), histogram)


def path_histogram(run: RunFile, kind: str) -> Histogram | None:
    """How many paths were taken how often; None for a null that the run does not have."""
    rows = run.rows(queries.sealed_counts(kind))
    if not rows:
        return None
    values, num_paths = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return Histogram(values, num_paths)


def _law_answer(verdict: Verdict, histogram: Histogram) -> dict[str, Any]:
    """A fitted power law as plain numbers; ``reason`` explains a missing fit."""
    num_paths, num_tokens = int(histogram.paths.sum()), int(histogram.values @ histogram.paths)
    fitted, beside = verdict.law, verdict.beside
    if fitted is None or beside is None:
        return {"num_paths": num_paths, "reason": verdict.reason}
    from tokenpaths.engine.analysis.power_law import rank_curve

    return {
        "num_paths": num_paths,
        **asdict(fitted),
        "p_value": verdict.p_value,
        "lognormal": asdict(beside),
        # A path that is rarer than once in the run has no place on the curve.
        "curve": [
            {"rank": float(rank), "share": int(count) / num_tokens}
            for rank, count in zip(*rank_curve(fitted, int(histogram.values[-1])), strict=True)
            if rank >= 0.5
        ],
    }


@question(
    "paths/{rank}/examples",
    "path_schema.PathExamples",
    tag="paths",
    route="list_examples",
    description="Tokens that take one path: patches of images, or tokens between their neighbours.",
    rows="examples",
)
def examples(
    run: RunFile,
    rank: RankNumber,
    limit: Annotated[int, Argument("Most examples", ge=1, le=MOST_EXAMPLES)] = 60,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Patches or tokens in context of one path, a seeded draw when there are more than ``limit``."""
    if not 1 <= rank <= run.row["num_paths"]:
        raise NoSuchThing(f"run {run.run_id!r} has paths of rank 1 to {run.row['num_paths']}, not {rank}", field="rank")
    return {"run": run.run_id, **examples_of_paths(run, [rank], limit, seed)[0]}


def examples_of_paths(
    run: RunFile, ranks: list[int], limit: int, seed: int, ribbons: Mapping[int, Sequence[int]] | None = None
) -> list[dict[str, Any]]:
    """Each of these paths with tokens on it, in the order of ``ranks``; reads each text and picture once.

    ``ribbons``: of these paths by rank, V ids each, where they are known.
    """
    if ribbons is None:
        ribbons = ribbons_of_ranks(run, ranks)
    asked = np.array(ranks)
    shown = sealed_examples(run, ranks, limit, seed)
    shown |= drawn_examples(run, [rank for rank in ranks if rank not in shown], limit, seed)
    return [
        {
            "rank": rank,
            "ribbon": nested_ribbon(ribbons[rank], run.layout),
            "count": count,
            "share": count / run.row["num_tokens"],
            "cdf": cdf,
            **ink,
            "examples": in_reading_order(shown[rank]),
        }
        for rank, count, cdf, ink in zip(
            ranks,
            run.shares.counts_of(asked).tolist(),
            run.shares.cdf(asked).tolist(),
            run.shares.ink_of(ranks),
            strict=True,
        )
    ]


Example = dict[str, Any]
"""one token of a path, see ``samples.shown_at``"""


def in_reading_order(examples: Sequence[Example]) -> list[Example]:
    """By sample and token."""
    return sorted(examples, key=lambda row: (row["sample"], row["token"]))


def drawn_examples(run: RunFile, ranks: Sequence[int], limit: int, seed: int) -> dict[int, list[Example]]:
    """At most ``limit`` tokens of each path in the order of a seeded draw."""
    pairs_of = drawn_pairs(run, ranks, limit, seed)
    excerpts = excerpts_of(run, [pair for of_path in pairs_of.values() for pair in of_path])
    return {rank: [excerpts[pair] for pair in of_path] for rank, of_path in pairs_of.items()}


def drawn_pairs(run: RunFile, ranks: Sequence[int], limit: int, seed: int) -> dict[int, list[tuple[int, int]]]:
    """(sample, token) of at most ``limit`` tokens of each path, in the order of a seeded draw."""
    counts = run.shares.counts_of(np.array(ranks, dtype=np.int64)).tolist()
    places = {rank: drawn_places(rank, count, limit, seed) for rank, count in zip(ranks, counts, strict=True)}
    return members_at(run, places)


def excerpts_of(run: RunFile, pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Example]:
    """These tokens, by sample and position."""
    return {(row["sample"], row["token"]): row for row in shown_at(run, sorted(set(pairs)))}


def drawn_places(rank: int, count: int, limit: int, seed: int) -> np.ndarray:
    """At most ``limit`` of the places 0 … count − 1 of a path's tokens, in the order of a seeded draw.

    A shorter draw is the beginning of a longer one, up to ``EXAMPLES_EACH``.
    """
    size = min(count, max(limit, EXAMPLES_EACH))
    places: np.ndarray = np.random.default_rng([abs(seed), rank]).choice(count, size, replace=False)[:limit]
    return places


def sealed_examples(run: RunFile, ranks: list[int], limit: int, seed: int) -> dict[int, list[Example]]:
    """``drawn_examples`` of those of these paths whose examples the file holds together."""
    ranks = [rank for rank in ranks if rank <= EXAMPLE_RANKS]
    if not ranks or limit > EXAMPLES_EACH or seed != EXAMPLE_SEED or EXAMPLES not in run.tables_there:
        return {}
    columns = "rank, sample, token, token_id, label, before, text, after"
    marks = ", ".join("?" * len(ranks))
    found: dict[int, list[Example]] = {}
    query = Query(f"SELECT {columns} FROM {EXAMPLES} WHERE rank IN ({marks}) AND place < ?", (*ranks, limit))
    for rank, sample, token, token_id, label, *context in run.rows(query):
        example = {"sample": sample, "token": token, "token_id": token_id, "label": run.merged_names.get(label, label)}
        example |= zip(("before", "text", "after"), context, strict=True)
        found.setdefault(rank, []).append(example)
    return found


def members_at(run: RunFile, places: Mapping[int, np.ndarray]) -> dict[int, list[tuple[int, int]]]:
    """(sample, token) of some tokens of paths, by rank; ``places`` are 0 … count − 1 in the order of ``member``.

    Uses the first rows of all samples from ``RunFile``; the view would sort them.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for start in range(0, len(places), PATHS_AT_ONCE):
        ranks = list(places)[start : start + PATHS_AT_ONCE]
        firsts = run.shares.first_members(np.array(ranks)).tolist()
        wanted = {rank: (places[rank] + first).tolist() for rank, first in zip(ranks, firsts, strict=True)}
        row_at = dict(run.rows(members_of(wanted)))
        for rank, numbers in wanted.items():
            rows = np.array([row_at[number] for number in numbers], dtype=np.int64)
            samples = np.searchsorted(run.first_rows, rows, side="right") - 1
            found[rank] = list(zip(samples.tolist(), (rows - run.first_rows[samples]).tolist(), strict=True))
    return found
