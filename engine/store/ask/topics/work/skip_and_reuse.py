"""Do samples that skip more also reuse more, and more than by chance?

Whoever visits fewer modules can meet fewer of them again, so reuse falls with skip by chance alone. What chance gives
is worked out for each token (``analysis.ribbon_costs.chance_reuse``). What is seen beyond it falls with skip as well,
for the same reason, where a model comes back to its modules as readily whatever it skips. So that question is put to
pairs of visits (``analysis.ribbon_costs.repeated_pairs``): is it the same module, where both steps used one?

Shapes: n tokens, N samples, P paths, p of them taken, S steps, K slots, M modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from tokenpaths.engine.analysis import paired_runs
from tokenpaths.engine.analysis.contrast import EqualParts, line, mean_of
from tokenpaths.engine.analysis.ribbon_costs import chance_reuse, repeated_pairs
from tokenpaths.engine.store.ask.question import LabelFilter, Rows, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.sealed_answers import sealed_labels
from tokenpaths.engine.store.ask.tables.token_table import TokenTable, tokens_of
from tokenpaths.engine.store.file.filters import Query

GROUPS = 4
UNKNOWN: dict[str, Any] = dict.fromkeys(
    ("num_samples", "skip", "reuse", "chance_reuse", "pearson", "seen", "by_chance", "beyond", "excess", "pairs")
)


class Taken:
    """The paths p that tokens of ``table`` take, and sums over these tokens by sample."""

    def __init__(self, table: TokenTable, units: np.ndarray) -> None:
        self.table, self.paths = table, np.flatnonzero(table.tokens_of_path)
        self.counted = (table.ribbon_PSK[self.paths], table.tokens_of_path[self.paths], units)
        """ribbons (p, S, K), how many tokens take each, and the units of modules (S, M)"""
        self.here = table.per_sample() > 0
        self.size_N = table.per_sample()[self.here]

    def by_sample(self, values_p: np.ndarray) -> np.ndarray:
        """(N,) sum of the values of their paths over the tokens of each sample that has any."""
        values_P = np.zeros(len(self.table.rank_P))
        values_P[self.paths] = values_p
        return np.bincount(self.table.sample_n, values_P[self.table.path_n], self.table.num_samples)[self.here]


def _can_skip(run: RunFile) -> bool:
    """Whether any token skipped anything: of a run without, no token needs to be read."""
    ((least,),) = run.rows(Query("SELECT min(compute) FROM sample"))
    return least is not None and least < 1


def _page(run: RunFile) -> Iterator[dict[str, Any]]:
    if _can_skip(run):
        for label in sealed_labels(run):
            yield {"label": label}


@question(
    "skip_and_reuse",
    "work_schema.SkipAndReuse",
    tag="runs",
    description="Do samples that skip more also reuse more? Pearson's correlation of skip (1 − `compute`) and `reuse`, "
    "the line of reuse over skip as seen and as chance gives it, what is left beyond chance, and whether pairs of "
    "visits repeat a module more often where more is skipped.\n\nBy chance: each token keeps how many modules it uses "
    "at each step, and each of them is chosen as often as by all tokens that use as many there. Exact up to a million "
    "tokens; of larger runs whole samples are drawn, and `counted` says so.",
    frames={"skip_and_reuse": Rows("groups", "Quarters of the samples from the least skip to the most: skip, reuse …")},
    sealed=_page,
)
def skip_and_reuse(run: RunFile, *, label: LabelFilter = None) -> dict[str, Any]:
    """Reuse against skip over samples, beside what chance gives; lines with 95 % intervals over samples.

    ``seen`` and ``by_chance`` are slopes of reuse over skip, ``beyond`` that of the difference. Do samples that skip
    more come back to modules more readily? That is ``pairs``, of ``share`` in all: the slope of the share of pairs of
    visits that repeat a module, less that of all tokens at the same two steps. (``beyond`` lies below 0 even where
    skip has nothing to do with it.) ``groups`` are quarters of the samples by skip.
    """
    label_id = run.label_id(label)
    answer: dict[str, Any] = {"run": run.run_id, "label": label, "counted": None, **UNKNOWN, "groups": []}
    if not _can_skip(run):
        return {**answer, "reason": "no sample skipped anything"}
    table = tokens_of(run).of_label(label_id)
    taken = Taken(table, run.units)
    skip_N, reuse_N, chance_N = (
        taken.by_sample(values_p) / taken.size_N
        for values_p in (1.0 - table.compute_P[taken.paths], table.reuse_P[taken.paths], chance_reuse(*taken.counted))
    )
    answer |= {
        "counted": table.counted,
        "num_samples": len(skip_N),
        **{
            name: float(values.mean()) if len(values) else None
            for name, values in (("skip", skip_N), ("reuse", reuse_N), ("chance_reuse", chance_N))
        },
    }
    reason = _nothing(skip_N, reuse_N)
    if reason:
        return {**answer, "reason": reason}
    excess = mean_of(reuse_N - chance_N, np.ones(len(reuse_N)))
    assert excess is not None
    parts = EqualParts(skip_N, GROUPS)
    r = paired_runs.pearson(skip_N, reuse_N)
    slopes = {"seen": reuse_N, "by_chance": chance_N, "beyond": reuse_N - chance_N}
    return {
        **answer,
        "pearson": asdict(r) if r else None,
        **{name: asdict(line(skip_N, values)) for name, values in slopes.items()},
        "excess": asdict(excess),
        "pairs": _pairs(taken, skip_N),
        "groups": [_group(parts, group, reuse_N, chance_N) for group in range(GROUPS)],
        "reason": None,
    }


def _pairs(taken: Taken, skip_N: np.ndarray) -> dict[str, Any] | None:
    """Slope over skip of the share of each sample's pairs that repeat a module, less what is expected of them, and the
    share of all; None where too few samples have pairs."""
    pairs_p, more_p, share = repeated_pairs(*taken.counted)
    pairs_N, more_N = taken.by_sample(pairs_p), taken.by_sample(more_p)
    has = pairs_N > 0
    if has.sum() < paired_runs.FEWEST or paired_runs.is_flat(skip_N[has]):
        return None
    return {**asdict(line(skip_N[has], more_N[has] / pairs_N[has])), "share": share}


def _group(parts: EqualParts, group: int, reuse_N: np.ndarray, chance_N: np.ndarray) -> dict[str, Any]:
    lowest, skip, highest = parts.bounds(group)
    weight_N = parts.weight(group)
    reuse, chance = mean_of(weight_N * reuse_N, weight_N), mean_of(weight_N * chance_N, weight_N)
    assert reuse is not None
    assert chance is not None
    return {"lowest": lowest, "skip": skip, "highest": highest, "reuse": asdict(reuse), "chance_reuse": chance.mean}


def _nothing(skip_N: np.ndarray, reuse_N: np.ndarray) -> str | None:
    """Why there is nothing to compare, in words."""
    if len(skip_N) < paired_runs.FEWEST:
        return f"{len(skip_N):,} {'sample is' if len(skip_N) == 1 else 'samples are'} too few: it takes four"
    if paired_runs.is_flat(skip_N):
        return f"every sample skips the same share, {skip_N[0]:.3g}"
    if paired_runs.is_flat(reuse_N):
        return f"the reuse of every sample is {reuse_N[0]:.3g}"
    return None
