"""Effect of an edit: a run with changed routing beside the unchanged run over the same samples.

Shapes: n tokens, S steps, K slots.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenpaths.engine.analysis.route_changes import RouteChange, change_of, edited_steps
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.lookups import some_samples
from tokenpaths.engine.store.ask.topics.samples import image
from tokenpaths.engine.store.ask.topics.samples import sample as sample_of
from tokenpaths.engine.store.ask.topics.soft_decisions import finding
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.flow_counter import columns_sql, read_chunks

MOST_TOKENS = 2_000_000
MOST_LINKS = 2000


def drawn_samples(num_samples: int, limit: int) -> np.ndarray:
    """Sample numbers (n,), ascending, at most ``limit``: one drawn from each of ``limit`` equal parts of the run.

    Samples are often ordered by label, so the first ones would not be representative. The draw is deterministic.

    >>> drawn_samples(3, 64).tolist()
    [0, 1, 2]
    """
    if num_samples <= limit:
        return np.arange(num_samples)
    edges = np.arange(limit + 1) * num_samples // limit
    return np.random.default_rng(0).integers(edges[:-1], edges[1:])


def sample_inputs(run: RunFile, limit: int, sample: int | None = None) -> Iterator[dict[str, Any]]:
    """label, source, and stored text or image (PNG) of ``drawn_samples`` of the run, or of one sample.

    Raises:
        UserError: the run stores neither.
    """
    numbers = [sample] if sample is not None else drawn_samples(int(run.row["num_samples"]), limit).tolist()
    query = some_samples(numbers, "sample, label, source, text, image IS NOT NULL")
    for sample, label, source, text, has_image in run.rows(query):
        if text is None and not has_image:
            what = "text" if run.row["modality"] == "text" else "image"
            raise UserError(f"sample {sample} of run {run.run_id!r} holds no {what} to be run again", field="run")
        yield {"label": label, "source": source, "text": text, "image": image(run, sample) if text is None else None}


def effect(after: RunFile, before: RunFile, *, sample: int | None = None, limit: int = 200) -> dict[str, Any]:
    """Effect of edits, ``after`` relative to ``before``: routes, loss, accuracy or perplexity, links that changed most.

    Both runs must be of one model. With ``sample``, the only sample of ``after`` is compared with that sample of
    ``before``, token by token; otherwise samples are compared in order, as many as ``after`` has. ``outputs`` holds the
    measurements made while ``after`` was traced (KL, top 5), None if there are none.

    Raises:
        UserError: different models or samples, or more tokens than can be compared at once.
    """
    _check_same(after, before, whole=sample is None)
    pairs = _pairs(after, before, sample)
    config = json.loads(after.row["config"])
    unused = [run.layout.top_k for run in (after, before) if run.layout.unused_from is not None]
    change = RouteChange(after.num_modules + max(unused, default=0), _edited_steps(config))
    first_row, num_tokens = pairs[0][3], sum(pair[2] for pair in pairs)
    for start in range(0, num_tokens, 65_536):
        size = min(65_536, num_tokens - start)
        old, known_before = _ribbons(before, first_row + start, size)
        new, known_after = _ribbons(after, start, size)
        known = known_before & known_after
        change.add(old[known], new[known])
    outputs = finding(after, "effect")
    answer = {
        "run": after.run_id,
        "of": before.run_id,
        "sample": sample,
        "num_samples": len(pairs),
        "of_samples": (outputs or {}).get("of_samples") or int(before.row["num_samples"]),
        **change.answer(),
        "controls": config.get("controls"),
        **_losses(after, before, pairs),
        "links": [link for link in change.links(limit) if max(link["source"], link["target"]) < after.num_modules],
        "outputs": outputs,
        "tokens": None,
    }
    return answer if sample is None else answer | {"tokens": _tokens(after, before, sample)}


def _check_same(after: RunFile, before: RunFile, *, whole: bool) -> None:
    """Refuse runs of two models, and whole runs over two data sets."""
    edited, unedited = (run.row | {"num_modules": run.num_modules} for run in (after, before))
    for name in ("model", "modality", "num_steps", "num_modules"):
        if edited[name] != unedited[name]:
            raise UserError(
                f"{name} of {after.run_id} is {edited[name]}, of {before.run_id} {unedited[name]}: an effect is that "
                "of one model on the same inputs",
                field="of",
            )
    if after.row["checkpoint_sha256"] != before.row["checkpoint_sha256"]:
        raise UserError(
            f"{after.run_id} and {before.run_id} are of two checkpoints of {after.row['model']}: an effect is that of "
            "the same weights",
            field="of",
        )
    for name in ("dataset", "split") if whole else ():
        if after.row[name] != before.row[name]:
            raise UserError(
                f"{name} of {after.run_id} is {after.row[name]!r}, of {before.run_id} {before.row[name]!r}: they are "
                "not of the same inputs",
                field="of",
            )


def _check_samples(after: RunFile, before: RunFile, num_samples: int) -> None:
    """Refuse whole runs whose samples differ in label or source."""
    query = Query("SELECT source, label FROM sample WHERE sample < ? ORDER BY sample", (num_samples,))
    for place, (edited, unedited) in enumerate(zip(after.rows(query), before.rows(query), strict=True)):
        for name, value, expected in zip(("source", "label"), edited, unedited, strict=True):
            if value != expected:
                raise UserError(
                    f"{name} of sample {place} is {value!r} in {after.run_id!r}, {expected!r} in {before.run_id!r}: "
                    "they are not of the same inputs",
                    field="of",
                )


def _pairs(after: RunFile, before: RunFile, sample: int | None) -> list[tuple[int, int, int, int]]:
    """(sample of after, sample of before, tokens, first row in before) of each comparison."""
    sizes = Query("SELECT num_tokens, first_row FROM sample ORDER BY sample")
    edited, unedited = after.rows(sizes), before.rows(sizes)
    if sample is not None:
        if len(edited) != 1:
            raise UserError(
                f"run {after.run_id!r} has {len(edited)} samples; one sample of {before.run_id!r} can stand beside a "
                "run of one sample",
                field="sample",
            )
        if not 0 <= sample < len(unedited):
            raise before.no_sample(sample)
        unedited = [unedited[sample]]
    if len(edited) > len(unedited):
        raise UserError(
            f"run {after.run_id!r} has {len(edited)} samples, {before.run_id!r} only {len(unedited)}: they are not of "
            "the same inputs",
            field="of",
        )
    first = sample or 0
    for place, ((n, _), (m, _)) in enumerate(zip(edited, unedited, strict=False)):
        if n != m:
            raise UserError(
                f"sample {place} of {after.run_id!r} has {n} tokens, sample {place + first} of {before.run_id!r} has "
                f"{m}: they are not of the same inputs",
                field="of" if sample is None else "sample",
            )
    if (total := sum(n for n, _ in edited)) > MOST_TOKENS:
        raise UserError(f"{total:,} tokens; up to {MOST_TOKENS:,} are compared at once", field="run")
    if sample is None:
        _check_samples(after, before, len(edited))
    return [(i, first + i, n, start) for i, ((n, _), (_, start)) in enumerate(zip(edited, unedited, strict=False))]


def _edited_steps(config: dict[str, Any]) -> frozenset[int] | None:
    """The steps that the edits of this run change directly; None: every step."""
    controls = config.get("controls") or {}
    if set(controls) - {"edits"}:
        return None
    return edited_steps(edit.get("step") for edit in controls.get("edits") or () if edit.get("edit") != "freeze")


def _ribbons(run: RunFile, first_row: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids (n, S, K) of ``size`` tokens, starting at a row of ``token``, and which tokens' decisions are all known (n,).

    Unused slots have the same ids behind the modules in every run.
    """
    sql = f"SELECT {columns_sql(run.layout)} FROM token WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
    with run.cursor() as cursor:
        parts = [
            run.ribbons_of(columns)[0]
            for columns in read_chunks(cursor, sql, run.layout, (first_row, first_row + size - 1))
        ]
    ids_nSK = np.concatenate(parts)
    known_n = np.logical_not(run.bank.unknown(ids_nSK).any(axis=1))
    unused_from = run.layout.unused_from
    if unused_from is not None and unused_from != run.num_modules:
        ids_nSK = np.where(ids_nSK < unused_from, ids_nSK, ids_nSK - (unused_from - run.num_modules))
    return ids_nSK, known_n


def _losses(after: RunFile, before: RunFile, pairs: list[tuple[int, int, int, int]]) -> dict[str, Any]:
    """Mean loss of both runs, and accuracy (images) or perplexity (texts)."""
    text = after.row["modality"] == "text"
    answer: dict[str, Any] = {"loss": None, "accuracy": None, "perplexity": None}
    if text and "loss" in after.token_columns and "loss" in before.token_columns:
        size, start = sum(pair[2] for pair in pairs), pairs[0][3]
        (old, num_old), (new, num_new) = _token_loss(before, start, size), _token_loss(after, 0, size)
        # Means over other tokens have no difference: a run may be older than the rule of which tokens have a loss.
        if old is not None and new is not None and num_old == num_new:
            answer["loss"] = change_of(old, new)
            answer["perplexity"] = change_of(math.exp(min(80.0, old)), math.exp(min(80.0, new)))
        return answer
    query = Query("SELECT label, prediction, loss FROM sample WHERE sample BETWEEN ? AND ? ORDER BY sample")
    rows = [run.rows(Query(query.sql, (pairs[0][side], pairs[-1][side]))) for run, side in ((before, 1), (after, 0))]
    both_losses = [both for both in zip(*rows, strict=True) if both[0][2] is not None and both[1][2] is not None]
    if both_losses:
        sides = list(zip(*both_losses, strict=True))
        answer["loss"] = change_of(*(float(np.mean([row[2] for row in side])) for side in sides))
        if not text:
            answer["accuracy"] = change_of(*(float(np.mean([row[0] == row[1] for row in side])) for side in sides))
    return answer


def _token_loss(run: RunFile, first_row: int, size: int) -> tuple[float | None, int]:
    """Mean over the tokens that have a loss, and how many do.

    Computed from the means of samples: these are exact, losses of single tokens are rounded.
    """
    query = Query(
        "SELECT sum(mean * n) / sum(n), coalesce(sum(n), 0) FROM (SELECT sample, count(*) AS n FROM token "
        "WHERE rowid BETWEEN ? AND ? AND loss IS NOT NULL AND NOT isnan(loss) GROUP BY sample) "
        "JOIN (SELECT sample, loss AS mean FROM sample) USING (sample) WHERE mean IS NOT NULL AND NOT isnan(mean)",
        (first_row, first_row + size - 1),
    )
    mean, num = run.rows(query)[0]
    return mean, int(num)


def _tokens(after: RunFile, before: RunFile, sample: int) -> list[dict[str, Any]]:
    """Both ribbons of each token, and the steps at which they differ."""
    edited, unedited = sample_of(after, 0), sample_of(before, sample)
    rows = []
    for new, old in zip(edited["tokens"], unedited["tokens"], strict=True):
        pairs = enumerate(zip(old["ribbon"], new["ribbon"], strict=True))
        losses = (old["loss"], new["loss"])
        rows.append(
            {
                "token": new["token"],
                "before": old["ribbon"],
                "after": new["ribbon"],
                "moved": [step for step, (here, there) in pairs if set(here) != set(there)],
                "loss": None if None in losses else change_of(*losses),
            }
        )
    return rows
