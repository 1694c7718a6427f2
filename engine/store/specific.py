"""Paths and modules most specific to a label: share, lift and how sure they are.

All tokens of a sample have its label, so what counts is in how many samples a path was met, and how evenly: a share
is as sure as one of (Σx)²/Σx² samples, x = tokens of the sample on it (``contrast.kish_size``).

Shapes: N samples with a label, L labels, I paths or (step, module) pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.analysis.contrast import wilson
from engine.errors import UserError
from engine.store.filters import check_choice, check_page
from engine.store.travellers import Travellers, travellers

if TYPE_CHECKING:
    from engine.store.run import Run

OF = ("path", "module")
LEAST = 20
MOST_ROWS = 500
MOST_CELLS = 4_000_000
"""samples × modules that are counted at once"""
LEAST_SAMPLES = 2
"""of the label: what only one sample shows is that sample's, not its label's"""


@dataclass(frozen=True)
class Counts:
    """How tokens of things fall on labels."""

    things: np.ndarray
    """(I, …) what row i is: a path's index, or step and module"""
    tokens_IL: np.ndarray
    samples_IL: np.ndarray
    """samples of the label that were met"""
    size_I: np.ndarray
    """effective number of samples, (Σx)²/Σx²"""


def most_specific(run: Run, of: str, label: str | None, least: int, limit: int) -> dict[str, Any]:
    """The answer of ``Run.specific``."""
    check_choice(of, OF, "of")
    check_page(limit, 0, MOST_ROWS)
    if least < 1:
        raise UserError(f"least is {least}, it should be at least 1 token", field="least")
    wanted = run.label_id(label)
    found = travellers(run)
    ids = np.array(sorted({int(i) for i in found.label_N if i >= 0}), dtype=np.int64)
    names = {row[0]: row[1] for row in run.labels}
    head = {"run": run.run_id, "of": of, "label": label, "least": least, "counted": found.counted}
    if len(ids) < 2:
        what = "has no labels" if not len(ids) else f"has one label, {names[int(ids[0])]!r},"
        return {**head, "num_candidates": 0, "labels": [], "rows": [],
                "reason": f"the run {what} so nothing can be more specific to one than to another"}  # fmt: skip
    base_L = np.bincount(
        np.searchsorted(ids, found.label_N[found.label_N >= 0]),
        found.per_sample()[found.label_N >= 0],
        len(ids),
    )
    base_L = base_L / base_L.sum()
    counts = count_paths(found, ids) if of == "path" else count_modules(found, ids)
    keep = (counts.tokens_IL >= least) & (counts.samples_IL >= LEAST_SAMPLES)
    rows = _ranked(counts, keep, base_L, None if wanted is None else int(np.searchsorted(ids, wanted)))
    reason = None
    if not keep.any():
        reason = f"no {of} has {least} tokens or more of one label, from at least two samples: ask for fewer"
    return {
        **head,
        "num_candidates": int(keep.any(axis=1).sum()),
        "labels": [{"label": names[int(i)], "share": float(s)} for i, s in zip(ids, base_L, strict=True)],
        "rows": [_row(run, found, of, counts, i, j, names[int(ids[j])], base_L[j]) for i, j in rows[:limit]],
        "reason": reason,
    }


def count_paths(found: Travellers, ids: np.ndarray) -> Counts:
    """Of every path that a labelled sample takes."""
    num = found.num_samples
    # Pairs (path, sample) that occur, and how often: far fewer than paths × samples.
    keys, times = np.unique(found.path_n.astype(np.int64) * num + found.sample_n, return_counts=True)
    path, sample = np.divmod(keys, num)
    labelled = found.label_N[sample] >= 0
    path, sample, times = path[labelled], sample[labelled], times[labelled]
    width, size = len(ids), len(found.rank_P)
    place = np.searchsorted(ids, found.label_N[sample])
    tokens = np.bincount(path * width + place, times, size * width).reshape(size, width)
    samples = np.bincount(path * width + place, minlength=size * width).reshape(size, width)
    total, squares = np.bincount(path, times, size), np.bincount(path, times.astype(np.float64) ** 2, size)
    return Counts(np.arange(size), tokens, samples, total**2 / np.maximum(squares, 1e-300))


def count_modules(found: Travellers, ids: np.ndarray) -> Counts:
    """Of every module at every step."""
    known = np.flatnonzero(found.label_N >= 0)
    order = known[np.argsort(found.label_N[known], kind="stable")]
    starts = np.searchsorted(found.label_N[order], ids)
    parts: list[tuple[np.ndarray, ...]] = []
    at_once = max(16, MOST_CELLS // max(1, found.num_samples))
    for step in range(found.ribbon_PSK.shape[1]):
        used = np.unique(found.ribbon_PSK[:, step])
        for some in np.split(used, range(at_once, len(used), at_once)):
            met = found.chosen_at(step, some)[order]
            total, squares = met.sum(axis=0).astype(np.float64), (met.astype(np.float64) ** 2).sum(axis=0)
            things = np.stack([np.full(len(some), step), some.astype(np.int64)], axis=1)
            tokens, samples = np.add.reduceat(met, starts), np.add.reduceat((met > 0).astype(np.int64), starts)
            parts.append((things, tokens.T, samples.T, total**2 / np.maximum(squares, 1e-300)))
    return Counts(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _ranked(counts: Counts, keep_IL: np.ndarray, base_L: np.ndarray, wanted: int | None) -> list[tuple[int, int]]:
    """(thing, label) by the lower end of their lift: what is surely specific comes first. Of each thing the label that
    it is most specific to, or the one that is wanted."""
    share_IL = counts.tokens_IL / np.maximum(counts.tokens_IL.sum(axis=1, keepdims=True), 1)
    low_IL, _ = wilson(share_IL, np.broadcast_to(counts.size_I[:, None], share_IL.shape))
    lift_IL = np.where(keep_IL, low_IL / base_L, -1.0)
    best_I = lift_IL.argmax(axis=1) if wanted is None else np.full(len(keep_IL), wanted)
    lift_I = np.take_along_axis(lift_IL, best_I[:, None], axis=1)[:, 0]
    able = np.flatnonzero(lift_I >= 0)
    order = able[np.lexsort((able, -lift_I[able]))]
    return [(int(i), int(best_I[i])) for i in order]


def _row(
    run: Run, found: Travellers, of: str, counts: Counts, i: int, j: int, label: str, base: float
) -> dict[str, Any]:
    tokens, total = int(counts.tokens_IL[i, j]), int(counts.tokens_IL[i].sum())
    share = np.array([tokens / total])
    low, high = wilson(share, counts.size_I[i : i + 1])
    if of == "path":
        head = {"rank": int(found.rank_P[i]), "ribbon": found.ribbon_PSK[i].tolist()}
    else:
        head = run.bank.head(*(int(part) for part in counts.things[i]))
    return {
        **head, "label": label, "count": tokens, "of": total, "num_samples": int(counts.samples_IL[i, j]),
        "share": tokens / total, "base": float(base), "lift": tokens / total / float(base),
        "low": float(low[0] / base), "high": float(high[0] / base),
    }  # fmt: skip
