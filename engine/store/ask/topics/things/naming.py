"""Automatic names of modules and paths: what most of their tokens have in common, where chance is excluded.

A name is a label, a word, a kind of word or patch, or a region. Of those whose lift exceeds 1 beyond chance the one is
taken that tells most about the thing's tokens: largest p·log₂(p/b), where p is the lower end of the 95 % interval of
its share there and b its share of all tokens. (The lower end of the lift alone names modules after rare words.)

Chance: many things times many candidates are looked at, so the lower end has to exceed b at 1 − 0.05/(things ×
candidates) (Bonferroni): of a hundred runs with random routing at most five get any name. Samples are taken as what was
drawn: Kish's size for labels, the clustered variance for the rest, and Student's quantile of the samples that were met.

Shapes: n tokens, N samples, P paths, J codes, A candidates, I things.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from tokenpaths.engine.analysis.contrast import effective_size, kish_size, share_interval, wilson
from tokenpaths.engine.store.ask.question import Argument, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.attributes import Attributes, attributes_of
from tokenpaths.engine.store.ask.tables.cache import cached
from tokenpaths.engine.store.ask.tables.excerpts import used_modules
from tokenpaths.engine.store.ask.tables.token_table import TokenTable, most_tokens, read_token_table, tokens_of

NAMED_PATHS = 200
"""the most frequent ones"""
LEAST = 20
"""tokens of the attribute in the thing"""
LEAST_SAMPLES = 2
LEAST_SHARE, LEAST_LIFT = 0.1, 1.2
"""a name has to hold for a tenth of the tokens, and to say something: surely more often than a fifth above chance"""
LEVEL = 0.05
MOST_TOKENS, MOST_VISITS = 100_000, 4_000_000
"""tokens, and tokens × visits, that are counted; larger runs are drawn from, whole samples at a time"""
KIND_NAMES = {
    "punctuation": "punctuation",
    "sentence_end": "ends of sentences",
    "number": "numbers",
    "capitalised": "capitalised words",
    "function_word": "function words",
    "ends_in_s": "words in -s",
    "whitespace": "blanks",
    "edge": "busy patches",
    "flat": "flat patches",
    "border": "patches at the border",
    "centre": "patches in the middle",
}


@dataclass(frozen=True)
class Things:
    """Modules at one step, or paths: ``place_PK[p]`` has the things that tokens of path p belong to, −1 = none."""

    heads: list[dict[str, Any]]
    place_PK: np.ndarray

    def visits(self, table: TokenTable) -> tuple[np.ndarray, np.ndarray]:
        """Things and tokens (indices) of all visits, by thing and then in reading order."""
        place = self.place_PK[table.path_n].reshape(-1).astype(np.int16 if len(self.heads) < 2**15 else np.int64)
        order = np.argsort(place, kind="stable")
        order = order[np.searchsorted(place[order], 0) :]
        return place[order], order // self.place_PK.shape[1]


@dataclass(frozen=True)
class Name:
    """What a thing is named by; ``low`` and ``high`` bound its share at 95 %."""

    what: str
    value: str
    count: int
    of: int
    share: float
    base: float
    low: float
    high: float

    @property
    def gain(self) -> float:
        return float(_gain(np.array(self.low), np.array(self.base)))


@dataclass(frozen=True)
class Near:
    """What a thing would be named by if its tokens, and not its samples, were what was drawn."""

    what: str
    value: str
    share: float
    base: float
    num_samples: int
    bound: float


@question(
    "summaries",
    "naming_schema.Summaries",
    tag="knowledge",
    description="Automatic names: the label, word, kind of word or patch, or region that the tokens of each module (or "
    "of each of the 200 most frequent paths) have in common, where chance is excluded.",
    rows="rows",
    sealed=lambda run: [{"of": of} for of in ("module", "path")],
)
def summaries(
    run: RunFile,
    of: Annotated[Literal["module", "path"], Argument("Modules at their steps, or the 200 most frequent paths")] = (
        "module"
    ),
) -> dict[str, Any]:
    """What each module, or each of the 200 most frequent paths, has most of: a label, a word, a kind, or a region.

    Each with its share of the thing's tokens, its share of all tokens and its lift, with the 95 % interval that takes
    samples as what was drawn. Only where the lift exceeds 1 after a correction for all candidates; else ``reason``.
    """
    answer = cached(run, f"summaries {of}", lambda: _summaries(run, of), lambda answer: 500 * len(answer["rows"]))
    return {**answer, "rows": [dict(row) for row in answer["rows"]]}


def _summaries(run: RunFile, of: str) -> dict[str, Any]:
    table, attributes = cached(run, "attributes", lambda: _attributes(run), _num_bytes)
    groups = list(_modules(run, table)) if of == "module" else [_paths(run, table, NAMED_PATHS)]
    names, num_pairs, unsure = name_things(table, groups, attributes)
    num_candidates = sum(len(part.named) for part in attributes)
    tokens_I = np.concatenate([_tokens_of(things, table) for things in groups])
    heads = [head for things in groups for head in things.heads]
    return {
        "run": run.run_id,
        "of": of,
        "counted": table.counted,
        "num_candidates": num_candidates,
        "num_compared": num_pairs,
        "level": LEVEL,
        "rows": [
            {**head, "count": count, **_row(name, count, num_candidates, near)}
            for head, count, name, near in zip(heads, tokens_I.tolist(), names, unsure, strict=True)
        ],
        "reason": None if num_candidates else "the run has no labels, words, regions or places to name its modules by",
    }


def _attributes(run: RunFile) -> tuple[TokenTable, list[Attributes]]:
    """The tokens that are counted, those in memory if there are few, else a draw of whole samples; their attributes."""
    most = min(MOST_TOKENS, MOST_VISITS // run.layout.visits, most_tokens(run))
    table = tokens_of(run) if run.row["num_tokens"] <= most else read_token_table(run, most)
    return table, attributes_of(run, table)


def _num_bytes(held: tuple[TokenTable, list[Attributes]]) -> int:
    table, attributes = held
    arrays = [*table.columns.values(), table.sample_n, table.path_n, table.ribbon_PSK]
    return sum(array.nbytes for part in attributes for array in (part.code_n, part.member_JA, *arrays))


def _modules(run: RunFile, table: TokenTable) -> Iterator[Things]:
    for step in range(run.layout.num_steps):
        offered = run.bank.offered(step)
        place_M = np.full(max(table.num_modules, run.layout.num_modules), -1, dtype=np.int64)
        place_M[offered] = np.arange(len(offered))
        yield Things([run.bank.head(step, module) for module in offered], place_M[table.ribbon_PSK[:, step]])


def _paths(run: RunFile, table: TokenTable, most: int) -> Things:
    chosen = np.flatnonzero(table.rank_P <= most)
    place_P = np.full(len(table.rank_P), -1, dtype=np.int64)
    place_P[chosen] = np.arange(len(chosen))
    heads = [
        {"rank": rank, "ribbon": used_modules(ribbon, run.layout)}
        for rank, ribbon in zip(table.rank_P[chosen].tolist(), table.ribbon_PSK[chosen].tolist(), strict=True)
    ]
    return Things(heads, place_P[:, None])


def _tokens_of(things: Things, table: TokenTable) -> np.ndarray:
    place_PK = things.place_PK
    counts = [np.bincount(column + 1, table.tokens_of_path, len(things.heads) + 1)[1:] for column in place_PK.T]
    total: np.ndarray = np.sum(counts, axis=0).astype(np.int64)
    return total


def name_things(
    table: TokenTable, groups: Sequence[Things], attributes: Sequence[Attributes]
) -> tuple[list[Name | None], int, list[Near | None]]:
    """The name of each thing, None where chance excludes none, the number of pairs that were compared, and of each
    thing the strongest attribute that only its samples are too few for."""
    num_candidates = sum(len(part.named) for part in attributes)
    num_things = sum(int((_tokens_of(things, table) >= LEAST).sum()) for things in groups)
    num_pairs = num_things * num_candidates
    names: list[Name | None] = []
    unsure: list[Near | None] = []
    for things in groups:
        best: list[Name | None] = [None] * len(things.heads)
        near: list[Near | None] = [None] * len(things.heads)
        for part in attributes:
            _name_by(things, part, max(num_pairs, 1), best, near)
        names += best
        unsure += near
    return names, num_pairs, unsure


def _name_by(
    things: Things, part: Attributes, num_pairs: int, best: list[Name | None], near: list[Near | None]
) -> None:
    """Put into ``best`` what names a thing better than what is there; into ``near`` what would, of more samples.

    Intervals that take tokens as what was drawn are never wider than those of samples, so they bound what is worth
    working out.
    """
    from scipy.special import ndtri, stdtrit  # only for who asks

    place, token = things.visits(part.table)
    num_codes, num_things = len(part.member_JA), len(things.heads)
    keys = place.astype(np.int64) * num_codes + part.code_n[token]
    counts_IJ = np.bincount(keys, minlength=num_things * num_codes).reshape(num_things, num_codes)
    member_JA = part.member_JA.astype(np.float64)
    hits_IA, of_I = counts_IJ @ member_JA, counts_IJ.sum(axis=1).astype(np.float64)
    base_A = np.bincount(part.code_n, minlength=num_codes) @ member_JA / part.table.num_tokens
    share_IA = hits_IA / np.maximum(of_I, 1)[:, None]
    sizes_IA = np.broadcast_to(of_I[:, None], share_IA.shape)
    tail = 1 - LEVEL / 2 / num_pairs
    surely_IA, _ = wilson(share_IA, sizes_IA, float(ndtri(tail)))
    low_IA, _ = wilson(share_IA, sizes_IA)
    bound_IA = _gain(low_IA, base_A)
    worth_IA = (hits_IA >= LEAST) & (share_IA >= LEAST_SHARE) & (surely_IA > base_A) & (low_IA > LEAST_LIFT * base_A)
    bound_IA = np.where(worth_IA, bound_IA, 0.0)
    starts = np.searchsorted(place, np.arange(num_things + 1))
    for i in np.flatnonzero(worth_IA.any(axis=1)).tolist():
        here = token[starts[i] : starts[i + 1]]
        sample, code = part.table.sample_n[here], part.code_n[here]
        of_N = np.bincount(sample, minlength=part.table.num_samples)
        met = np.flatnonzero(of_N)
        for a in np.argsort(-bound_IA[i], kind="stable").tolist():
            so_far = best[i]
            if bound_IA[i, a] <= (0.0 if so_far is None else so_far.gain):
                break
            hits_N = np.bincount(sample[part.member_JA[code, a]], minlength=len(of_N))
            bound = float(bound_IA[i, a])
            kept = near[i]
            if kept is None or bound > kept.bound:
                what, value = part.named[a]
                met_here = int((hits_N > 0).sum())
                near[i] = Near(what, value, float(share_IA[i, a]), float(base_A[a]), met_here, bound)
            if (hits_N > 0).sum() < LEAST_SAMPLES:
                continue
            size = kish_size(of_N[met, None]) if part.by_sample else effective_size(hits_N[met, None], of_N[met])
            share, base = share_IA[i, a], float(base_A[a])
            freedom = _freedom(of_N[met], hits_N[met], by_sample=part.by_sample)
            surely, _ = wilson(share[None], size, float(stdtrit(freedom, tail)))
            own = wilson(share[None], size) if part.by_sample else share_interval(hits_N[met, None], of_N[met])
            (low,), (high,) = own
            if surely[0] <= base or low <= LEAST_LIFT * base:
                continue
            what, value = part.named[a]
            name = Name(what, value, int(hits_IA[i, a]), int(of_I[i]), float(share), base, float(low), float(high))
            if so_far is None or name.gain > so_far.gain:
                best[i] = name


def _freedom(of_N: np.ndarray, hits_N: np.ndarray, *, by_sample: bool) -> float:
    """Degrees of freedom of a share whose variance is estimated from samples: (Σv)²/Σv² − 1 of what each sample adds to
    it (Satterthwaite 1946), where a few may add nearly all; at most Kish's size of the samples − 1, at least 1."""
    freedom = float(kish_size(of_N[:, None])[0])
    parts_N = (hits_N - hits_N.sum() / of_N.sum() * of_N) ** 2
    if not by_sample and parts_N.any():
        freedom = min(freedom, float(parts_N.sum() ** 2 / (parts_N**2).sum()))
    return max(freedom - 1, 1.0)


def _gain(low: np.ndarray, base: np.ndarray) -> np.ndarray:
    """p·log₂(p/b): bits that the attribute tells of a token of the thing; rises with p above b."""
    gain: np.ndarray = np.where(low > base, low * np.log2(np.maximum(low, 1e-300) / np.maximum(base, 1e-300)), 0.0)
    return gain


def _row(name: Name | None, count: int, num_candidates: int, near: Near | None) -> dict[str, Any]:
    if name is None:
        reason = f"no attribute ({num_candidates:,} were looked at) holds for a tenth of its tokens and is surely more "
        reason += "frequent among them than among all, by a fifth at least"
        if near is not None:
            reason = (
                f"{in_words(near.what, near.value, near.share)} (of all tokens {percent_of(near.base)} %), comes from "
            )
            reason += f"{near.num_samples:,} sample{'s' * (near.num_samples != 1)}: too few or too unlike to be sure"
        if count < LEAST:
            reason = f"{count} of the tokens that were counted pass here, a name needs {LEAST}"
        if not num_candidates:
            reason = "the tokens of the run have no attributes"
        return no_name(reason)
    return {
        "what": name.what,
        "value": name.value,
        "share": name.share,
        "base": name.base,
        "lift": name.share / name.base,
        "low": name.low / name.base,
        "high": name.high / name.base,
        "words": in_words(name.what, name.value, name.share),
        "reason": None,
    }


def no_name(reason: str) -> dict[str, Any]:
    """The summary of a thing without a name."""
    return {**dict.fromkeys(("what", "value", "share", "base", "lift", "low", "high", "words")), "reason": reason}


def in_words(what: str, value: str, share: float) -> str:
    """``ends of sentences, 98 %``: whole percent; 100 % only of all tokens.

    >>> in_words("word_kind", "sentence_end", 0.998)
    'ends of sentences, 99 %'
    """
    named = KIND_NAMES.get(value, value) if what in ("word_kind", "patch_kind") else value
    return f"{f'“{named}”' if what == 'word' else named}, {percent_of(share)} %"


def percent_of(share: float) -> int:
    """A share in whole percent, 100 of all alone.

    >>> percent_of(0.998), percent_of(1), percent_of(0.004)
    (99, 100, 0)
    """
    return 100 if share == 1 else min(int(share * 100 + 0.5), 99)
