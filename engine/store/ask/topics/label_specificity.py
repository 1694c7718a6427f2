"""Paths and modules most specific to a label: share, lift over the run's share, and its interval.

All tokens of a sample share its label, so the effective sample size of a share is Kish's (Σx)²/Σx² samples, x = tokens
of the sample on the path (``contrast.kish_size``).

Shapes: N labelled samples, L labels, I paths or (step, module) pairs, J pairs of one of them and a label that co-occur.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from tokenpaths.engine.analysis.contrast import surely_above, wilson
from tokenpaths.engine.store.ask.question import MAX_INT, Argument, question
from tokenpaths.engine.store.ask.run_file import ModuleBank, RunFile
from tokenpaths.engine.store.ask.sealed_answers import sealed_labels
from tokenpaths.engine.store.ask.tables.excerpts import used_modules
from tokenpaths.engine.store.ask.tables.token_table import TokenTable, tokens_of

LEAST = 20
MOST_ROWS = 500
MOST_CELLS = 4_000_000
"""samples × modules counted at once"""
LEAST_SAMPLES = 2
"""with the label: what occurs in a single sample is specific to that sample, not to its label"""


@dataclass(frozen=True)
class Counts:
    """Token counts by thing (path or module) and label as sparse pairs: most paths and labels never meet."""

    things: np.ndarray
    """(I, …) identity of row i: a path's index, or step and module"""
    total_I: np.ndarray
    """tokens, of all labels"""
    size_I: np.ndarray
    """effective number of samples, (Σx)²/Σx²"""
    thing_J: np.ndarray
    """pairs with tokens, ordered by thing, then by label"""
    label_J: np.ndarray
    """index into the labels"""
    tokens_J: np.ndarray
    samples_J: np.ndarray
    """number of the label's samples in the pair"""

    def kept(self, mask_J: np.ndarray) -> Counts:
        """Some of the pairs; things keep their indices."""
        pairs = {name: getattr(self, name)[mask_J] for name in ("thing_J", "label_J", "tokens_J", "samples_J")}
        return replace(self, **pairs)


@question(
    "specific",
    "knowledge_schema.Specific",
    tag="knowledge",
    description="Which paths or modules are specific to a label: share, lift over the run and how sure it is.",
    rows="rows",
    sealed=lambda run: [
        {"of": of, "label": label, "limit": 20} for of in ("path", "module") for label in sealed_labels(run)
    ],
)
def specific(
    run: RunFile,
    of: Annotated[Literal["path", "module"], Argument("Paths, or modules at their steps")] = "path",
    *,
    label: Annotated[str | None, Argument("Specific to this label; else to any", max_length=500)] = None,
    least: Annotated[int, Argument("Fewest tokens of the label", ge=1, le=MAX_INT)] = LEAST,
    limit: Annotated[int, Argument("Most rows", ge=1, le=MOST_ROWS)] = 20,
) -> dict[str, Any]:
    """Paths or modules most specific to a label: share of their tokens that have it, lift over the run's share.

    Ordered by the lower end of the lift's 95 % interval, which takes samples as what was drawn. Only where at
    least ``least`` tokens of the label, from two samples or more, are met. ``clear``: whether the lift lies above 1
    if that is to hold of all paths (or modules) with so many tokens, and of all labels (or of ``label``), together.
    """
    label_id = run.label_id(label)
    table = tokens_of(run)
    ids = np.array(sorted({int(i) for i in table.label_N if i >= 0}), dtype=np.int64)
    names = {row[0]: row[1] for row in run.labels}
    head = {"run": run.run_id, "of": of, "label": label, "least": least, "counted": table.counted}
    reason, where = None, "run"
    if not table.counted["exact"]:
        where = f"draw of {table.num_samples:,} of {table.counted['of_samples']:,} samples"
    if len(ids) < 2:
        what = "no labels" if not len(ids) else f"one label, {names[int(ids[0])]!r},"
        reason = f"the {where} has {what} so nothing can be more specific to one than to another"
    elif label_id is not None and label_id not in ids:
        reason = f"nothing is known of label {label!r}: none of its samples is in the {where}"
    if reason is not None:
        return {**head, "num_candidates": 0, "labels": [], "rows": [], "reason": reason}
    labelled = table.label_N >= 0
    base_L = np.bincount(np.searchsorted(ids, table.label_N[labelled]), table.per_sample()[labelled], len(ids))
    base_L = base_L / base_L.sum()
    counts = _counted(table, ids, run.bank, of, least)
    keep_J = np.flatnonzero(counts.tokens_J >= least)
    wanted = None if label_id is None else int(np.searchsorted(ids, label_id))
    # Also those whose tokens have other labels: a pair is listed because its tokens are of one.
    num_pairs = int(((counts.total_I >= least) & (counts.size_I > 1)).sum()) * (len(ids) if wanted is None else 1)
    rows = _ranked(counts, keep_J, base_L, wanted)
    if not len(keep_J):
        alone = bool((np.bincount(table.label_N[labelled]) <= 1).all())
        reason = f"no {of} has {least} tokens or more of one label, from at least two samples" + (
            ": each label has one sample only" if alone else ""
        )
    return {
        **head,
        "num_candidates": len(np.unique(counts.thing_J[keep_J])),
        "labels": [{"label": names[int(i)], "share": float(s)} for i, s in zip(ids, base_L, strict=True)],
        "rows": [
            _row(run, table, of, counts, j, names[int(ids[counts.label_J[j]])], base_L[counts.label_J[j]], num_pairs)
            for j in rows[:limit].tolist()
        ],
        "reason": reason,
    }


def _counted(table: TokenTable, ids: np.ndarray, bank: ModuleBank, of: str, least: int) -> Counts:
    """Counts of pairs with ``least`` tokens, or fewer, and ``LEAST_SAMPLES``; cached, as they serve every label."""
    counts: Counts | None = table.cache.get(f"counts of each {of}")
    if counts is None or least < LEAST:
        every = count_paths(table, ids) if of == "path" else count_modules(table, ids, bank)
        counts = every.kept((every.tokens_J >= min(least, LEAST)) & (every.samples_J >= LEAST_SAMPLES))
        if least >= LEAST:
            table.cache[f"counts of each {of}"] = counts
    return counts


def count_paths(table: TokenTable, ids: np.ndarray) -> Counts:
    """Counts for every path taken by a labelled sample."""
    num = table.num_samples
    # Pairs (path, sample) that occur, and how often: far fewer than paths × samples.
    keys, times = np.unique(table.path_n.astype(np.int64) * num + table.sample_n, return_counts=True)
    path, sample = np.divmod(keys, num)
    labelled = table.label_N[sample] >= 0
    path, sample, times = path[labelled], sample[labelled], times[labelled]
    size = len(table.rank_P)
    pairs, pair = np.unique(path * len(ids) + np.searchsorted(ids, table.label_N[sample]), return_inverse=True)
    thing, label = np.divmod(pairs, len(ids))
    tokens = np.bincount(pair, times, len(pairs)).astype(np.int64)
    total, squares = np.bincount(path, times, size), np.bincount(path, times.astype(np.float64) ** 2, size)
    sizes = total**2 / np.maximum(squares, 1e-300)
    return Counts(np.arange(size), total, sizes, thing, label, tokens, np.bincount(pair, minlength=len(pairs)))


def count_modules(table: TokenTable, ids: np.ndarray, bank: ModuleBank | None = None) -> Counts:
    """Counts for every module at every step; without a ``bank`` every id is a module."""
    labelled = np.flatnonzero(table.label_N >= 0)
    order = labelled[np.argsort(table.label_N[labelled], kind="stable")]
    starts = np.searchsorted(table.label_N[order], ids)
    parts: list[tuple[np.ndarray, ...]] = []
    at_once, num = max(16, MOST_CELLS // max(1, table.num_samples)), 0
    for step in range(table.ribbon_PSK.shape[1]):
        used = np.unique(table.ribbon_PSK[:, step])
        used = used if bank is None else np.intersect1d(used, bank.offered(step))
        for modules in np.split(used, range(at_once, len(used), at_once)):
            met = table.chosen_at(step, modules)[order]
            total, squares = met.sum(axis=0).astype(np.float64), (met.astype(np.float64) ** 2).sum(axis=0)
            things = np.stack([np.full(len(modules), step), modules.astype(np.int64)], axis=1)
            tokens = np.add.reduceat(met, starts).T
            samples = np.add.reduceat((met > 0).astype(np.int64), starts).T
            thing, label = np.nonzero(tokens)
            sizes = total**2 / np.maximum(squares, 1e-300)
            parts.append((things, total, sizes, num + thing, label, tokens[thing, label], samples[thing, label]))
            num += len(modules)
    return Counts(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _ranked(counts: Counts, keep_J: np.ndarray, base_L: np.ndarray, wanted: int | None) -> np.ndarray:
    """Pairs (indices into J) ordered by the lower end of their lift, so that certain ones come first. Each thing is
    listed with its most specific label, or with the requested one."""
    if wanted is not None:
        keep_J = keep_J[counts.label_J[keep_J] == wanted]
    thing, label = counts.thing_J[keep_J], counts.label_J[keep_J]
    low, _ = wilson(counts.tokens_J[keep_J] / counts.total_I[thing], counts.size_I[thing])
    lift = low / base_L[label]
    order = np.lexsort((label, thing, -lift))
    # Best first, so the first pair of a thing is the one to show.
    _, first = np.unique(thing[order], return_index=True)
    return keep_J[order[np.sort(first)]]


def _row(
    run: RunFile, table: TokenTable, of: str, counts: Counts, j: int, label: str, base: float, num_pairs: int
) -> dict[str, Any]:
    i, tokens = int(counts.thing_J[j]), int(counts.tokens_J[j])
    total = int(counts.total_I[i])
    share, size = np.array([tokens / total]), counts.size_I[i : i + 1]
    low, high = wilson(share, size)
    # The first row is the largest of all pairs: what is said of one has to hold of all together.
    clear = surely_above(share, size, np.array([base]), num_pairs)
    if of == "path":
        head = {"rank": int(table.rank_P[i]), "ribbon": used_modules(table.ribbon_PSK[i].tolist(), run.layout)}
    else:
        head = run.bank.head(*(int(part) for part in counts.things[i]))
    return {
        **head,
        "label": label,
        "count": tokens,
        "of": total,
        "num_samples": int(counts.samples_J[j]),
        "share": tokens / total,
        "base": float(base),
        "lift": tokens / total / float(base),
        "low": float(low[0] / base),
        "high": float(high[0] / base),
        "clear": bool(clear[0]),
    }
