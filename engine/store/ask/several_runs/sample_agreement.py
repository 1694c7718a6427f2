"""Agreement of two runs in one sample: which of its decisions differ, token by token and step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs.compare import NotComparable
from tokenpaths.engine.store.ask.several_runs.token_agreement import check_alike
from tokenpaths.engine.store.ask.several_runs.token_pairs import pair_tokens
from tokenpaths.engine.store.ask.topics.samples import sample as sample_of

MOST_TOKENS = 1000


def agree_in(a: RunFile, b: RunFile, sample: int, *, first: int = 0, limit: int = 200) -> dict[str, Any]:
    """The decisions of both runs about the common tokens of one sample of ``a``.

    Args:
        a: the run that has the sample of this number.
        b: the other run.
        sample: number in ``a``.
        first: token of the common stretch with which to begin.
        limit: most tokens.

    Raises:
        NotComparable: the runs cannot be compared (``token_agreement.agree``), or the sample is in one run only.
        NoSuchThing: ``a`` has no such sample.
        UserError: ``first`` or ``limit`` out of range.
    """
    check_alike(a, b)
    if not 0 <= sample < int(a.row["num_samples"]):
        raise a.no_sample(sample)
    if not 1 <= limit <= MOST_TOKENS:
        raise UserError(f"limit is {limit}, it should be 1 to {MOST_TOKENS:,}", field="limit")
    pairs = pair_tokens(a, b)
    (rows,) = np.nonzero(pairs.sample_a_P == sample)
    if not len(rows):
        raise NotComparable(f"sample {sample} of {a.run_id!r} has no common tokens with {b.run_id!r}", field="sample")
    row = int(rows[0])
    start_a, start_b, length = (int(values[row]) for values in (pairs.start_a_P, pairs.start_b_P, pairs.length_P))
    if not 0 <= first < length:
        raise UserError(f"first is {first}, it should be 0 to {length - 1}", field="first")
    partner = int(pairs.sample_b_P[row])
    own, other = sample_of(a, sample), sample_of(b, partner)
    part = slice(first, min(length, first + limit))
    tokens = [
        _token(a, b, one, its)
        for one, its in zip(
            own["tokens"][start_a : start_a + length][part],
            other["tokens"][start_b : start_b + length][part],
            strict=True,
        )
    ]
    return {
        "a": a.run_id,
        "b": b.run_id,
        "sample": sample,
        "partner": partner,
        "label": own["label"],
        "num_tokens": length,
        "first": first,
        "tokens": tokens,
    }


def _token(a: RunFile, b: RunFile, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    places: dict[str, Any] = {name: one[name] for name in ("text", "row", "col") if name in one}
    return {
        "token": one["token"],
        "partner": other["token"],
        **places,
        "overlap": [
            _overlap(a, b, step, mine, its)
            for step, (mine, its) in enumerate(zip(one["ribbon"], other["ribbon"], strict=True))
        ],
        "ribbon_a": one["ribbon"],
        "ribbon_b": other["ribbon"],
    }


def _overlap(a: RunFile, b: RunFile, step: int, mine: Sequence[int], its: Sequence[int]) -> float | None:
    """|A ∩ B| / K, of two sizes the larger; 1 of two empty sets, None where a run does not know its decision."""
    if any(a.bank.is_stand_in(step, m) for m in mine) or any(b.bank.is_stand_in(step, m) for m in its):
        return None
    larger = max(len(mine), len(its))
    return len(set(mine) & set(its)) / larger if larger else 1.0
