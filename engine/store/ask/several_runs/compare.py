"""Comparison of two runs over the samples that both have: measures, grouping of tokens by path, flows and loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenpaths.engine.analysis.paired_runs import agreement, is_flat, pearson, spearman
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.arguments import check_opened
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs.flow_difference import flow_difference
from tokenpaths.engine.store.ask.several_runs.sample_matching import Matched, match_samples
from tokenpaths.engine.store.ask.several_runs.series import numbers_of, untrained_numbers
from tokenpaths.engine.store.ask.several_runs.token_pairs import rows_of
from tokenpaths.engine.store.ask.tables.excerpts import finite, sample_answers
from tokenpaths.engine.store.ask.topics.overview import card
from tokenpaths.engine.store.file.filters import Query, check_choice, check_page

if TYPE_CHECKING:
    import pandas as pd

MEASURES = ("reuse", "compute", "skip", "loss")
AUTO = "auto"
MOST_TOKENS = 5_000_000
MOST_POINTS = 2000
MOST_LINKS = 2000
MOST_SAMPLES = 100
_LABELS = "SELECT sample, label FROM sample WHERE sample IN (SELECT unnest(?::INTEGER[]))"


class NotComparable(UserError):
    """Two valid runs that cannot be compared; HTTP 409 in the API."""

    status = 409


def compare(
    a: RunFile,
    b: RunFile,
    measure: str = "reuse",
    *,
    limit: int = 12,
    links: int = 200,
    points: int = MOST_POINTS,
    grouping: bool = True,
) -> dict[str, Any]:
    """Run ``b`` beside run ``a``, sample by sample.

    Args:
        a: the run that differences start from.
        b: the other run.
        measure: reuse, compute, skip (1 − compute) or loss: what ``points`` and ``most`` show; ``auto``: the one by
            which the two differ most, see ``telling_measure``. Correlations are of all.
        limit: samples in ``most``, largest difference b − a first.
        links: flows that differ, largest first.
        points: samples in the scatter, an even draw where there are more.
        grouping: whether ``grouping`` is there: more than half of the work for a million tokens.

    Raises:
        NotComparable: one run given twice, an image run beside a text run, or runs with no sample in common.
        UserError: an unknown measure, or limits out of range.
    """
    for name, given in (("a", a), ("b", b)):
        check_opened(given, name)
    check_choice(measure, (*MEASURES, AUTO), "measure")
    check_page(limit, 0, MOST_SAMPLES)
    for name, value, most in (("links", links, MOST_LINKS), ("points", points, MOST_POINTS)):
        if not 1 <= value <= most:
            raise UserError(f"{name} is {value}, it should be 1 to {most}", field=name)
    matched = _match(a, b)
    pairs = matched.pairs
    correlations = _correlations(a, b, pairs)
    measure = telling_measure(pairs, correlations) if measure == AUTO else measure
    values_a, values_b, measured = _values(pairs, measure)
    return {
        "a": card(a),
        "b": card(b),
        "measure": measure,
        "matched": matched.as_json() | {"sentence": _how(matched, a, b)},
        "summary": _summary(a, b),
        "correlations": correlations,
        "within": [_within(run, pairs, side) for run, side in ((a, "a"), (b, "b"))],
        "grouping": _grouping(a, b, pairs) if grouping else None,
        "flow": flow_difference(a, b, matched, links),
        "points": _points(a, pairs, values_a, values_b, measured, points),
        "points_of": int(measured.sum()),
        "most": _most(a, pairs, values_a, values_b, measured, limit),
    }


def telling_measure(pairs: pd.DataFrame, correlations: Sequence[Mapping[str, Any]]) -> str:
    """The measure by which the paired samples differ most: the largest mean |b − a| / standard deviation of both, of
    the measures that vary in both runs; where none does, of all. ``skip`` only mirrors compute.
    """
    varying = [row["measure"] for row in correlations if row["pearson"] is not None and row["measure"] != "skip"]
    gaps = {}
    for name in varying or [name for name in MEASURES if name != "skip"]:
        x, y, known = _values(pairs, name)
        if known.any():
            spread = float(np.concatenate([x[known], y[known]]).std())
            gaps[name] = float(np.abs(y[known] - x[known]).mean()) / spread if spread else 0.0
    return max(gaps, key=gaps.__getitem__, default=MEASURES[0])


def _points(
    run: RunFile, pairs: pd.DataFrame, values_a: np.ndarray, values_b: np.ndarray, known: np.ndarray, most: int
) -> list[dict[str, Any]]:
    """The pairs with a known measure; evenly subsampled if there are more than ``most``."""
    shown = np.flatnonzero(known)
    if len(shown) > most:
        shown = np.sort(np.random.default_rng(0).choice(shown, most, replace=False))
    samples, partners = (pairs[name].iloc[shown].tolist() for name in ("sample_a", "sample_b"))
    labels = dict(run.rows(Query(_LABELS, (samples,))))
    return [
        {"sample": n, "partner": m, "a": float(values_a[i]), "b": float(values_b[i]), "label": labels[n]}
        for i, n, m in zip(shown.tolist(), samples, partners, strict=True)
    ]


def grouping(a: RunFile, b: RunFile) -> dict[str, Any]:
    """``grouping`` of ``compare`` alone; NotComparable as there."""
    return {"a": a.run_id, "b": b.run_id, "grouping": _grouping(a, b, _match(a, b).pairs)}


def _match(a: RunFile, b: RunFile) -> Matched:
    """The pairs of samples; NotComparable if there are none."""
    if a.file.resolve() == b.file.resolve() or a.run_id == b.run_id:
        raise NotComparable(
            f"{a.run_id!r} was given twice: a run is its own equal; give another one over the same samples", field="b"
        )
    if a.row["modality"] != b.row["modality"]:
        raise NotComparable(
            f"{a.run_id!r} is of {a.row['modality']}, {b.run_id!r} of {b.row['modality']}: only runs over the same "
            "samples can be compared",
            field="b",
        )
    matched = match_samples(a, b)
    if not len(matched.pairs):
        why = (
            f"{matched.different:,} have the same names and other contents"
            if matched.different
            else f"{a.run_id!r} is over {a.row['dataset']!r}, {b.run_id!r} over {b.row['dataset']!r}"
        )
        raise NotComparable(
            f"the runs have no sample in common: {why}; trace both models over the same data", field="b"
        )
    return matched


def _how(matched: Matched, a: RunFile, b: RunFile) -> str:
    """How samples were paired, and how many have no partner."""
    ways = {
        "source": "by their source, and by their text, picture or vocabulary ids where both runs keep them",
        "content": "by their content",
        "place": "by their place: neither run keeps sources, texts or pictures",
    }
    num = len(matched.pairs)
    sentences = [f"{num:,} {'sample is' if num == 1 else 'samples are'} paired {ways[matched.by or 'place']}."]
    for run, alone in ((a, matched.only_a), (b, matched.only_b)):
        if alone:
            sentences.append(f"{alone:,} of {run.row['num_samples']:,} of {run.run_id} have no partner.")
    if matched.by_name:
        whose = "All" if matched.by_name == num else f"{matched.by_name:,} of them"
        sentences.append(f"{whose} by name alone: nothing else tells whether they are the same samples.")
    if matched.different:
        sentences.append(f"{matched.different:,} have a partner by name whose content is another, and are left out.")
    return " ".join(sentences)


def _values(pairs: pd.DataFrame, measure: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The measure of both samples of each pair, and a mask of the pairs for which both are known."""
    column = "compute" if measure == "skip" else measure
    sides = [pairs[f"{column}_{side}"].to_numpy(dtype=np.float64, na_value=np.nan) for side in ("a", "b")]
    if measure == "skip":
        sides = [1 - values for values in sides]
    return sides[0], sides[1], np.isfinite(sides[0]) & np.isfinite(sides[1])


def _correlations(a: RunFile, b: RunFile, pairs: pd.DataFrame) -> list[dict[str, Any]]:
    """Each measure's correlation, in the order of ``MEASURES``."""
    correlations = {name: _correlation(a, b, pairs, name) for name in MEASURES if name != "skip"}
    # 1 − x on both sides has the coefficients of x, and ranking is most of the work.
    correlations["skip"] = _correlation(
        a, b, pairs, "skip", {k: correlations["compute"][k] for k in ("pearson", "spearman")}
    )
    return [correlations[name] for name in MEASURES]


def _correlation(
    a: RunFile, b: RunFile, pairs: pd.DataFrame, measure: str, known_coefficients: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Both coefficients of a measure over the pairs, and the means; ``reason`` explains missing coefficients."""
    x, y, measured = _values(pairs, measure)
    x, y = x[measured], y[measured]
    answer = {
        "measure": measure,
        "num": len(x),
        "mean_a": finite(x.mean()) if len(x) else None,
        "mean_b": finite(y.mean()) if len(y) else None,
        "pearson": None,
        "spearman": None,
        "reason": None,
    }
    reason = _no_correlation(x, y, measure, a.run_id, b.run_id)
    if reason is not None:
        return answer | {"reason": reason}
    if known_coefficients is not None:
        return answer | known_coefficients
    straight, ranked = pearson(x, y), spearman(x, y)
    return answer | {"pearson": asdict(straight) if straight else None, "spearman": asdict(ranked) if ranked else None}


def _no_correlation(x: np.ndarray, y: np.ndarray, measure: str, name_x: str, name_y: str) -> str | None:
    if not len(x):
        return f"no sample has {measure} in both"
    if len(x) < 4:
        return f"{len(x)} {'sample has' if len(x) == 1 else 'samples have'} {measure} in both; a correlation takes four"
    for values, name in ((x, name_x), (y, name_y)):
        if is_flat(values):
            return f"{measure} of {name} is {values[0]:.3g} for every sample"
    return None


def _within(run: RunFile, pairs: pd.DataFrame, side: str) -> dict[str, Any]:
    """Skip against reuse inside one run, over the paired samples."""
    reuse = pairs[f"reuse_{side}"].to_numpy(dtype=np.float64, na_value=np.nan)
    skip = 1 - pairs[f"compute_{side}"].to_numpy(dtype=np.float64, na_value=np.nan)
    finite = np.isfinite(reuse) & np.isfinite(skip)
    skip, reuse = skip[finite], reuse[finite]
    reason = _no_correlation(skip, skip, "skip", run.run_id, run.run_id)
    reason = reason or _no_correlation(reuse, reuse, "reuse", run.run_id, run.run_id)
    r = pearson(skip, reuse) if reason is None else None
    return {"run": run.run_id, "num": len(skip), "pearson": asdict(r) if r else None, "reason": reason}


def _most(
    run: RunFile, pairs: pd.DataFrame, values_a: np.ndarray, values_b: np.ndarray, known: np.ndarray, limit: int
) -> list[dict[str, Any]]:
    """The samples with the largest difference |b − a|, in falling order; equal ones are left out."""
    change = np.where(known, values_b - values_a, 0.0)
    order = np.argsort(-np.abs(change), kind="stable")[:limit]
    order = order[np.abs(change[order]) > 1e-9]
    if not len(order):
        return []
    heads = sample_answers(run, pairs["sample_a"].iloc[order].tolist())
    return [
        {
            "sample": sample,
            "partner": partner,
            "a": float(values_a[i]),
            "b": float(values_b[i]),
            "difference": float(change[i]),
            **{name: heads[sample][name] for name in ("label", "source", "snippet", "has_image")},
        }
        for i, sample, partner in zip(
            order.tolist(), *(pairs[name].iloc[order].tolist() for name in ("sample_a", "sample_b")), strict=True
        )
    ]


def _summary(a: RunFile, b: RunFile) -> list[dict[str, Any]]:
    """One row per number, for both runs and for the untrained twins that they have."""
    mine, theirs = numbers_of(a), numbers_of(b)
    twins = [untrained_numbers(run) for run in (a, b)]
    return [
        {
            "name": name,
            "a": value,
            "b": theirs[name],
            "untrained_a": twins[0].get(name),
            "untrained_b": twins[1].get(name),
        }
        for name, value in mine.items()
    ]


def _grouping(a: RunFile, b: RunFile, pairs: pd.DataFrame) -> dict[str, Any]:
    """Whether both runs assign the same tokens to one path, over pairs with equal tokens."""
    answer = {"ami": None, "nmi": None, "expected_nmi": None, "num_tokens": 0, "num_samples": 0, "reason": None}
    for run in (a, b):
        if run.row["num_tokens"] > MOST_TOKENS:
            return answer | {
                "reason": f"{run.run_id} has {run.row['num_tokens']:,} tokens; up to {MOST_TOKENS:,} are "
                "grouped at once"
            }
    same = pairs["num_tokens_a"] == pairs["num_tokens_b"]
    for name in ("grid_rows", "grid_cols"):
        same &= (pairs[f"{name}_a"] == pairs[f"{name}_b"]) | pairs[f"{name}_a"].isna() | pairs[f"{name}_b"].isna()
    same_tokens = pairs[same]
    if not len(same_tokens):
        words = "cut the pictures into other patches" if a.row["modality"] == "vision" else "cut the texts otherwise"
        return answer | {"reason": f"the two models {words}, so no token of one is a token of the other"}
    path_a, id_a = _tokens(a, same_tokens, "a")
    path_b, id_b = _tokens(b, same_tokens, "b")
    if ((id_a != id_b) & (id_a >= 0) & (id_b >= 0)).any():
        return answer | {
            "reason": "the two models have different vocabularies, so no token of one is a token of the other"
        }
    if len(path_a) < 2:
        return answer | {"reason": "there is one token only"}
    groups = agreement(path_a, path_b)
    return answer | {
        "ami": finite(groups.ami),
        "nmi": groups.nmi,
        "expected_nmi": groups.expected_nmi,
        "num_tokens": len(path_a),
        "num_samples": len(same_tokens),
        "reason": "nearly every token has a path of its own, so chance alone gives the same"
        if groups.ami is None
        else None,
    }


def _tokens(run: RunFile, pairs: pd.DataFrame, side: str) -> tuple[np.ndarray, np.ndarray]:
    """path_id and token_id (−1: unknown) of the tokens of these samples, in order."""
    token_id = "coalesce(token_id, -1)" if "token_id" in run.token_columns else "-1"
    columns = run.arrays(Query(f"SELECT path_id, {token_id} AS token_id FROM token"))  # in the order of rowid
    first, length = (pairs[f"{name}_{side}"].to_numpy(dtype=np.int64) for name in ("first_row", "num_tokens"))
    rows = rows_of(first, length)
    return columns["path_id"][rows], columns["token_id"][rows]
