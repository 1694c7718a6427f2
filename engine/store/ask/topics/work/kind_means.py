"""Means of compute, reuse and loss by region, kind of patch and kind of word.

Over all tokens up to a million, else over whole samples drawn by a seed; kinds of patches that need pixels over the
pictures that the search draws (``patch_kinds``). Intervals take samples as what was drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np

from tokenpaths.engine.analysis import paired_runs
from tokenpaths.engine.analysis.contrast import by_sample, difference, freedom, mean_of, student
from tokenpaths.engine.analysis.words import CLASSES, word_class
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.question import Argument, Rows, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.patch_kinds import PATCH_KINDS, measured, patches_of_kind
from tokenpaths.engine.store.ask.tables.token_table import TokenTable, tokens_of
from tokenpaths.engine.store.ask.topics.work.token_losses import losses
from tokenpaths.engine.store.file.filters import check_choice

MEANS = ("compute", "reuse", "loss")


@question(
    "means/{measure}",
    "work_schema.KindMeans",
    tag="runs",
    name="kind_means",
    description="Mean `compute`, `reuse` or `loss` of each region, kind of patch and kind of word, beside that of all "
    "tokens; 95 % intervals by sample.\n\nExact up to a million tokens; of larger runs whole samples are drawn, and "
    "`counted` says so.",
    frames={"kind_means": Rows("kinds", "A row for each region, kind of patch or of word: mean, difference …")},
    sealed=lambda run: [{"measure": measure} for measure in MEANS],
)
def kind_means(run: RunFile, measure: Annotated[str, Argument()]) -> dict[str, Any]:
    """Mean compute, reuse or loss of each region, kind of patch and kind of word, beside that of all tokens.

    ``difference`` is the mean of the kind less that of all tokens that could be of one (those whose region is known,
    those of the pictures that were looked at), with a 95 % interval by sample, never less than that of as many
    independent tokens: those of a rare kind may all miss what few tokens have, and scatter too little. ``clear``:
    whether it leaves 0 out when those of all kinds are to hold together.
    """
    check_choice(measure, MEANS, "measure")
    table = tokens_of(run)
    answer = {"run": run.run_id, "measure": measure, "counted": table.counted, "counted_pictures": None}
    value_n = _values(run, table, measure)
    if not np.isfinite(value_n).any():
        return {**answer, "kinds": [], "reason": f"no token of this run has a {measure}"}
    if paired_runs.is_flat(value_n[np.isfinite(value_n)]):
        return {**answer, "kinds": [], "reason": f"the {measure} of every token is the same"}
    rows = []
    for by, kind, tokens, mask_n, among_n in _kinds(run, table):
        rows += _row(by, kind, _values(run, tokens, measure), mask_n, among_n, tokens)
        if tokens is not table:
            answer["counted_pictures"] = tokens.counted
    _judge(rows)
    order = {"region": 0, "patch": 1, "word": 2}
    rows.sort(key=lambda row: (order[row["by"]], -row["mean"], row["kind"]))
    reason = None if rows else "neither regions, nor pictures, nor words of this run were recorded"
    return {**answer, "kinds": rows, "reason": reason}


def _values(run: RunFile, table: TokenTable, measure: str) -> np.ndarray:
    if measure == "loss":
        return losses(run, table)
    values_P = table.compute_P if measure == "compute" else table.reuse_P
    value_n: np.ndarray = values_P[table.path_n].astype(np.float64)
    return value_n


Kind = tuple[str, str, TokenTable, np.ndarray, np.ndarray]
"""group, name, the tokens, which are of the kind, which could be"""


def _kinds(run: RunFile, table: TokenTable) -> Iterator[Kind]:
    everything = np.ones(table.num_tokens, dtype=bool)
    if run.row["modality"] == "vision":
        region_n = table.columns.get("region")
        if region_n is not None:
            for region, name in sorted(run.regions.items()):
                yield "region", name, table, np.equal(region_n, region), np.greater_equal(region_n, 0)
        for kind in PATCH_KINDS:
            tokens = measured(run, table, kind)
            try:
                mask_n = patches_of_kind(run, tokens, kind)
            except UserError:  # its pictures or their grids were not recorded
                continue
            yield "patch", kind, tokens, mask_n, np.ones(tokens.num_tokens, dtype=bool)
        return
    words = table.words or table.pieces
    if words is not None:
        class_W = np.array([CLASSES.index(word_class(name)) if name else -1 for name in words.names], dtype=np.int64)
        class_n = class_W[words.codes_n]
        for number, name in enumerate(CLASSES):
            yield "word", name, table, class_n == number, everything
        yield "word", "sentence_end", table, words.of_kind("sentence_end"), everything


def _row(
    by: str, kind: str, value_n: np.ndarray, mask_n: np.ndarray, among_n: np.ndarray, table: TokenTable
) -> list[dict[str, Any]]:
    here, among = (
        by_sample(value_n, mask.astype(np.float64), table.sample_n, table.num_samples) for mask in (mask_n, among_n)
    )
    mean, apart = mean_of(*here), difference(*here, *among)
    if mean is None or apart is None:
        return []
    num, of = float(here[1].sum()), float(among[1].sum())
    scatter = float(np.nanstd(value_n[among_n]))
    few = min(freedom(here[1]), freedom(among[1]))
    row = {
        "by": by,
        "kind": kind,
        "num_tokens": int(num),
        "num_samples": int((here[1] > 0).sum()),
        "mean": mean.mean,
        "low": mean.low,
        "high": mean.high,
        "difference": apart.mean,
        "difference_low": apart.low,
        "difference_high": apart.high,
    }
    if mean.low is None or mean.high is None or apart.high is None:
        return [row]
    half = max(mean.high - mean.mean, student(of) * scatter / np.sqrt(num))
    error, least = (apart.high - apart.mean) / student(few), scatter * np.sqrt(1 / num - 1 / of)

    def apart_by(intervals: int) -> float:
        return float(max(student(few, intervals) * error, student(of, intervals) * least))

    ends = {"difference_low": apart.mean - apart_by(1), "difference_high": apart.mean + apart_by(1)}
    return [row | {"low": mean.mean - half, "high": mean.mean + half, **ends, "apart_by": apart_by}]


def _judge(rows: list[dict[str, Any]]) -> None:
    """``clear``: whether a difference leaves 0 out when the intervals of all kinds are to hold together (Bonferroni).

    The page names the kinds that lie furthest apart, the largest of many differences.
    """
    tests = max(1, sum("apart_by" in row for row in rows))
    for row in rows:
        apart_by = row.pop("apart_by", None)
        row["clear"] = apart_by is not None and abs(row["difference"]) > apart_by(tests)
