"""Search of tokens by word, kind, label, path, module, rank, compute or reuse; their paths and modules beside others.

Exact up to ``token_table.MOST_TOKENS`` tokens, else over whole samples drawn by a seed; ``counted`` says which.

Shapes: n tokens, N samples, P paths by rank, S steps, K slots, M modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np

from tokenpaths.engine.analysis.contrast import Contrast, clear_of_all, contrast, share_interval, shares_apart
from tokenpaths.engine.analysis.words import KINDS, Words, check_pattern
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.question import (
    MAX_INT,
    Argument,
    Interval,
    LabelFilter,
    Points,
    Rows,
    Seed,
    question,
    within,
)
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.excerpts import used_modules
from tokenpaths.engine.store.ask.tables.patch_kinds import PATCH_KINDS, measured, patches_of_kind
from tokenpaths.engine.store.ask.tables.token_table import TokenTable, tokens_of
from tokenpaths.engine.store.ask.topics.samples import shown_at
from tokenpaths.engine.store.file.checks import check_text
from tokenpaths.engine.store.file.filters import (
    Filters,
    check_bounds,
    check_choice,
    check_filters,
    parse_paths,
    parse_ranks,
)

MOST_ROWS = 100
MOST_EXAMPLES = 200
MOST_WORDS = 12
COMPARED = 32
"""modules of a step that are compared in full, those with the largest difference in share"""


@dataclass(frozen=True)
class Conditions:
    """Search conditions on tokens, combined by AND; None and () impose none."""

    q: str | None = None
    kind: str | None = None
    reading: str = "word"
    label: str | None = None
    paths: tuple[int, ...] = ()
    """ranks"""
    through: tuple[tuple[int, int], ...] = ()
    """(step, module)"""
    ranks: tuple[int, int] | None = None
    """lowest and highest rank"""
    compute: Interval = None
    """minimum and maximum"""
    reuse: Interval = None

    def as_json(self) -> dict[str, Any]:
        """The conditions as repeated in the answer."""
        shown = {**asdict(self), "through": [f"{step}.{module}" for step, module in self.through]}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in shown.items()}


Word = Annotated[
    str | None,
    Argument(
        "A word, case ignored; `*` stands for any letters, `?` for one", max_length=200, examples=("dinner", "dinn*")
    ),
]
Kind = Annotated[
    str | None,
    Argument(
        "Kind of word (`ends_in_s`: most plural nouns, some verbs; `function_word`: English) or of patch (`edge`, "
        "`flat`: the tenth with the highest and the lowest contrast; `border`, `centre`: by place)",
        choices=(*KINDS, *PATCH_KINDS),
    ),
]
Reading = Annotated[
    Literal["word", "token"], Argument("Told from the whole word that a token stands in, or from its own characters")
]
PathRanks = Annotated[
    Sequence[int], Argument("Only these ranks, with commas", max_length=4000, examples=("1,2",), read=parse_paths)
]
RankBounds = Annotated[
    tuple[int, int] | None, Argument("Only ranks between both", max_length=40, examples=("1:100",), read=parse_ranks)
]


@question(
    "tokens/search",
    "knowledge_schema.TokenSearch",
    tag="knowledge",
    route="search_tokens",
    description="Which paths do these tokens take? Found by word, kind and filters, all of which must hold.\n\n"
    "Exact up to a million tokens; of larger runs whole samples are drawn, and `counted` says so.",
    frames={
        "search": Rows("paths", "The paths that the matching tokens take."),
        "search_modules": Rows("modules", "The modules that the matching tokens choose, beside all others."),
        "search_examples": Rows("examples", "Some of the matching tokens in their context."),
    },
)
def search_tokens(
    run: RunFile,
    *,
    q: Word = None,
    kind: Kind = None,
    reading: Reading = "word",
    label: LabelFilter = None,
    paths: PathRanks = (),
    through: Points = (),
    ranks: RankBounds = None,
    compute: Annotated[Interval, within("compute", "tokens whose path")] = None,
    reuse: Annotated[Interval, within("reuse", "tokens whose path")] = None,
    least: Annotated[int, Argument("Fewer tokens give no interval of a lift", ge=1, le=MAX_INT)] = 10,
    limit: Annotated[int, Argument("Most paths, and most modules", ge=1, le=MOST_ROWS)] = 20,
    examples: Annotated[int, Argument("Most examples", ge=0, le=MOST_EXAMPLES)] = 30,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Which paths these tokens take: found by word or pattern ``q``, ``kind`` of word and filters; all must hold.

    ``paths``: share among them, lift over all tokens. ``modules``: contrast Δ with the other tokens. Both with 95 %
    intervals that take samples as what was drawn; no interval of a lift for fewer than ``least`` tokens.
    """
    conditions = Conditions(q, kind, reading, label, tuple(paths), tuple(through), ranks, compute, reuse)
    _check(run, conditions)
    table = measured(run, tokens_of(run), conditions.kind)
    words = _words(run, table, conditions)
    chosen = np.flatnonzero(token_mask(run, table, conditions, words))
    answer = {
        "run": run.run_id,
        "wanted": conditions.as_json(),
        "counted": table.counted,
        "found": _share(table, chosen),
        "words": _top_words(words, chosen),
        "least": least,
    }
    if not len(chosen):
        empty: dict[str, Any] = {"num_paths": 0, "paths": [], "modules": [], "modules_reason": None, "examples": []}
        return {**answer, **empty, "reason": _nothing(table)}
    here_P = np.bincount(table.path_n[chosen], minlength=len(table.rank_P))
    taken = np.flatnonzero(here_P)
    modules, reason = _modules(run, table, chosen, (taken, here_P[taken]), conditions.through, limit)
    return {
        **answer,
        "num_paths": len(taken),
        "paths": _paths(run, table, chosen, (taken, here_P[taken]), least, limit),
        "modules": modules,
        "modules_reason": reason,
        "examples": _examples(run, table, chosen, examples, seed),
        "reason": None,
    }


def _examples(run: RunFile, table: TokenTable, chosen: np.ndarray, limit: int, seed: int) -> list[dict[str, Any]]:
    """At most ``limit`` of the ``chosen`` tokens in context, a seeded draw."""
    if len(chosen) > limit:
        chosen = np.sort(np.random.default_rng(abs(seed)).choice(chosen, limit, replace=False))
    samples = table.samples_N[table.sample_n[chosen]].tolist()
    pairs = list(zip(samples, table.columns["token"][chosen].tolist(), strict=True))
    ranks = table.rank_P[table.path_n[chosen]].tolist()
    names = ("grid_row", "col") if run.row["modality"] == "vision" else ("char_start", "char_end", "token_id")
    known = [table.columns[name][chosen].tolist() if name in table.columns else [-1] * len(pairs) for name in names]
    places = [tuple(None if value < 0 else value for value in place) for place in zip(*known, strict=True)]
    return [
        {**shown, "rank": rank, **ink}
        for rank, shown, ink in zip(ranks, shown_at(run, pairs, places), run.shares.ink_of(ranks), strict=True)
    ]


def _check(run: RunFile, conditions: Conditions) -> None:
    """UserError for invalid conditions."""
    check_text(conditions.q, "q", field="q")
    if conditions.kind is not None:
        check_choice(conditions.kind, (*KINDS, *PATCH_KINDS), "kind")
        if (conditions.kind in PATCH_KINDS) != (run.row["modality"] == "vision"):
            here, fits = ("texts", KINDS) if conditions.kind in PATCH_KINDS else ("images", PATCH_KINDS)
            raise UserError(
                f"kind is {conditions.kind!r}, but run {run.run_id!r} is one of {here}: use one of {', '.join(fits)}",
                field="kind",
            )
    check_filters(Filters(conditions.label, conditions.paths, conditions.through), run.layout, run.row["num_paths"])
    run.label_id(conditions.label)
    if not (run.records("token_id") or run.records("char_end")):  # before its tokens are read
        _check_without_words(run, conditions)
    for name, top in (("ranks", None), ("compute", 1.0), ("reuse", 1.0)):
        check_bounds(getattr(conditions, name), name, top)


def _words(run: RunFile, table: TokenTable, conditions: Conditions) -> Words | None:
    """The strings that ``q`` and ``kind`` are matched against; None if the run has none."""
    words = table.words if conditions.reading == "word" else table.pieces
    words = words or table.pieces
    if words is None:
        _check_without_words(run, conditions)
    return words


def _check_without_words(run: RunFile, conditions: Conditions) -> None:
    """UserError: the conditions are on words, and the run has none."""
    of_words = conditions.kind is not None and conditions.kind not in PATCH_KINDS
    if not (check_pattern(conditions.q) or of_words):
        return
    vision = run.row["modality"] == "vision"
    what = "of images" if vision else "whose words were not recorded"
    more = ", reuse or kind of patch" if vision else " or reuse"
    raise UserError(
        f"run {run.run_id!r} is one {what}, so its tokens have no words; ask by label, path, module, rank, "
        f"compute{more}",
        field="q" if check_pattern(conditions.q) else "kind",
    )


def token_mask(run: RunFile, table: TokenTable, conditions: Conditions, words: Words | None) -> np.ndarray:
    """(n,) whether each token meets the conditions."""
    mask_P = np.ones(len(table.rank_P), dtype=bool)
    for values_P, bounds in (
        (table.rank_P, conditions.ranks),
        (table.compute_P, conditions.compute),
        (table.reuse_P, conditions.reuse),
    ):
        if bounds is not None:
            # Shares come from division: what is shown as 0.3 must be found between 0.3 and 0.3.
            mask_P &= (values_P >= bounds[0] - 1e-9) & (values_P <= bounds[1] + 1e-9)
    if conditions.paths:
        mask_P &= np.isin(table.rank_P, conditions.paths)
    for step, module in conditions.through:
        mask_P &= (table.ribbon_PSK[:, step] == module).any(axis=1)
    mask_n: np.ndarray = np.ones(table.num_tokens, dtype=bool) if mask_P.all() else mask_P[table.path_n]
    if (label_id := run.label_id(conditions.label)) is not None:
        mask_n &= (table.label_N == label_id)[table.sample_n]
    if conditions.kind in PATCH_KINDS:
        mask_n &= patches_of_kind(run, table, conditions.kind)
    pattern = check_pattern(conditions.q)
    if words is not None and (pattern or conditions.kind):
        if pattern:
            mask_n &= words.fitting(pattern)
        if conditions.kind:
            mask_n &= words.of_kind(conditions.kind)
    return mask_n


def _share(table: TokenTable, chosen: np.ndarray) -> dict[str, Any]:
    """Number of tokens, and their share of all; with interval ends if the tokens are a draw."""
    share, hits_N = len(chosen) / table.num_tokens, table.per_sample(chosen)
    answer = {"num_tokens": len(chosen), "share": share, "num_samples": int((hits_N > 0).sum())}
    if table.counted["exact"]:
        return answer
    low, high = share_interval(hits_N[:, None], table.per_sample())
    return {**answer, "low": float(low[0]), "high": float(high[0])}


def _nothing(table: TokenTable) -> str:
    """Message for an empty result: whether all tokens or a draw was searched."""
    if table.counted["exact"]:
        return "no token of the run is like this"
    return (
        f"no token of the {table.num_tokens:,} drawn is like this (whole samples, {table.num_samples:,} of "
        f"{table.counted['of_samples']:,}); among the other "
        f"{table.counted['of_tokens'] - table.num_tokens:,} tokens of the run there may be some"
    )


def _top_words(words: Words | None, chosen: np.ndarray) -> list[dict[str, Any]]:
    """The most frequent words among the matching tokens, case preserved."""
    if words is None or not len(chosen):
        return []
    counts = np.bincount(words.codes_n[chosen], minlength=len(words.names))
    order = np.lexsort((np.arange(len(counts)), -counts))[:MOST_WORDS]
    return [{"word": words.names[i], "count": int(counts[i])} for i in order.tolist() if counts[i]]


Taken = tuple[np.ndarray, np.ndarray]
"""the paths that some tokens take, as ascending indices, and how many take each"""


def _paths(
    run: RunFile, table: TokenTable, chosen: np.ndarray, taken: Taken, least: int, limit: int
) -> list[dict[str, Any]]:
    """The paths of these tokens, by falling frequency: share among them, share in the run, and lift."""
    size, (path_p, here_p), all_P = len(table.rank_P), taken, table.tokens_of_path
    first = np.lexsort((path_p, -here_p))[:limit]
    order, here = path_p[first], here_p[first]
    of_N, total = table.per_sample(chosen), len(chosen)
    share = here / total
    place_P = np.full(size, -1, dtype=np.int64)
    place_P[order] = np.arange(len(order))
    sample, place = table.sample_n[chosen].astype(np.int64), place_P[table.path_n[chosen]]
    keys = sample[place >= 0] * len(order) + place[place >= 0]
    hits_NI = np.bincount(keys, minlength=table.num_samples * len(order)).reshape(table.num_samples, len(order))
    low, high = share_interval(hits_NI, of_N)
    everywhere = all_P[order] / table.num_tokens
    # Of all paths, not only of those that these tokens take: a path is among these because one of them takes it.
    clear = shares_apart(hits_NI, of_N, everywhere, size) & (total >= least)
    most = table.num_tokens / total  # where all tokens of a path are among these
    return [
        {
            "rank": int(table.rank_P[i]),
            **ink,
            "ribbon": used_modules(table.ribbon_PSK[i].tolist(), run.layout),
            "count": int(here[k]),
            "share": float(share[k]),
            "of": int(all_P[i]),
            "share_of_all": float(everywhere[k]),
            "lift": float(share[k] / everywhere[k]),
            "low": float(low[k] / everywhere[k]) if total >= least else None,
            "high": min(float(high[k] / everywhere[k]), most) if total >= least else None,
            "clear": bool(clear[k]),
        }
        for k, (i, ink) in enumerate(zip(order.tolist(), run.shares.ink_of(table.rank_P[order]), strict=True))
    ]


def _modules(
    run: RunFile, table: TokenTable, chosen: np.ndarray, taken: Taken, through: tuple[tuple[int, int], ...], limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Modules per step by significance of Δ = share of these tokens − share of the others that choose the module.

    Requested modules (``through``) are left out, because all of these tokens choose them. So is a step whose slots they
    fill completely.
    """
    of_a = table.per_sample(chosen)
    of_b = table.per_sample() - of_a
    if not of_b.sum():
        return [], "all tokens were found, so there are no others to compare their modules with"
    rows, has_intervals, looked = [], True, 0
    differences: dict[int, Contrast] = {}
    fixed_at: dict[int, set[int]] = {}
    for step, module in through:
        fixed_at.setdefault(step, set()).add(module)
    for step in range(run.layout.num_steps):
        fixed = fixed_at.get(step, set())
        if len(fixed) >= run.layout.top_k:
            continue
        modules, able = _most_different(table, step, run.bank.offered(step), taken, fixed)
        looked += able
        if not len(modules):
            continue
        hits_a = table.chosen_at(step, modules, chosen)
        difference = contrast(hits_a, of_a, table.others_at(step, modules, chosen, hits_a), of_b)
        differences[step] = difference
        has_intervals &= bool(np.isfinite(difference.low).all())
        for i, module in enumerate(modules.tolist()):
            rows.append((_surely(difference, i), step, module, difference, i, int(hits_a[:, i].sum())))
    if not rows:
        return [], "all that these tokens choose was asked for, so there is no other module to compare"
    clear_at = {step: clear_of_all(difference, of_a, of_b, looked) for step, difference in differences.items()}
    rows.sort(key=lambda row: (-row[0], -abs(row[3].delta[row[4]]), row[1], row[2]))
    reason = None if has_intervals else "these tokens, or the others, lie in one sample, so Δ has no interval"
    return [
        {
            **run.bank.head(step, module),
            "count": count,
            "share": float(difference.share_a[i]),
            "share_of_others": float(difference.share_b[i]),
            "delta": float(difference.delta[i]),
            "low": float(difference.low[i]) if has_intervals else None,
            "high": float(difference.high[i]) if has_intervals else None,
            "clear": has_intervals and bool(clear_at[step][i]),
        }
        for _, step, module, difference, i, count in rows[:limit]
    ], reason


def _most_different(
    table: TokenTable, step: int, offered: list[int], taken: Taken, fixed: set[int]
) -> tuple[np.ndarray, int]:
    """The ``COMPARED`` modules that a step offers, except the given ones, whose shares in both sets of tokens differ
    most, ordered by id, and of how many; ``taken`` are the paths of one set, the other tokens are the other set."""
    here_M, all_M = table.weighted_at(step, *taken), table.visits_at(step).copy()
    ids = [module for module in fixed if module < len(all_M)]
    here_M[ids] = all_M[ids] = 0
    used = np.intersect1d(np.flatnonzero(all_M), offered)
    num = int(taken[1].sum())
    delta = np.abs(here_M / num - (all_M - here_M) / (table.num_tokens - num))[used]
    return np.sort(used[np.lexsort((used, -delta))[:COMPARED]]), len(used)


def _surely(difference: Contrast, i: int) -> float:
    """Distance of the interval of Δ from 0; 0 if it contains 0 or is missing."""
    low, high = float(difference.low[i]), float(difference.high[i])
    return max(0.0, low, -high) if np.isfinite(low) else 0.0
