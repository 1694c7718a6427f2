"""Rows of a sweep: the edit of each and its measured effect.

A sweep over modules bans each module in turn, at every single step and at all steps; a sweep over shares bans the
most used share of each step's modules and, for comparison, equally many of the least used and of random ones.

Shapes: S steps, M modules.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.base.spreadsheet import spreadsheet_text
from tokenpaths.engine.data.sources.sample import Sample
from tokenpaths.engine.edits.measure import Unchanged
from tokenpaths.engine.edits.prepared import PreparedSet, prepare
from tokenpaths.engine.families.family_controls import Which
from tokenpaths.engine.tracing.traceable import Traceable

WHICH: tuple[Which, ...] = ("top", "bottom", "random")
FLAT = (
    "kl",
    "top1_changed",
    "top5_changed",
    "paths_changed",
    "paths_changed_after",
    "path_distance",
    "flow_difference",
)
PAIRS = ("loss", "accuracy", "perplexity")


@dataclass(frozen=True)
class Row:
    """One edit of a sweep."""

    step: int | None
    """None: at every step"""
    module: int | None
    """None: several modules"""
    name: str
    kind: str
    edits: tuple[dict[str, Any], ...]
    share: float | None = None
    which: Which | None = None
    banned: int = 1
    """number of banned modules, over all steps"""


def module_rows(modules: Sequence[ModuleInfo], choices: Sequence[Sequence[int]]) -> list[Row]:
    """Rows that ban each module in turn, of ``choices``, the modules of each step that may be banned.

    A module that several steps may choose is banned at each of them, then at all; one that belongs to a step, at that
    step. Identities that only mark an omitted module and unused slots are no choices.
    """
    rows = []
    for module in modules:
        offered = [step for step, those in enumerate(choices) if module.module in those]
        if module.step is not None:
            steps: tuple[int | None, ...] = (module.step,) if module.step in offered else ()
        else:
            steps = (*offered, None) if offered else ()
        for step in steps:
            ban = {"edit": "ban", "modules": [module.module]} | ({} if step is None else {"step": step})
            rows.append(Row(step, module.module, module.name, module.kind, (ban,)))
    return rows


def share_rows(
    usage: Int[np.ndarray, "S M"],
    shares: Sequence[float],
    choices: Sequence[Sequence[int]],
    must_leave: int,
    seed: int = 0,
) -> list[Row]:
    """For each share r, ban the ⌈r·M⌉ most used modules of each step, as many of the least used, as many at random.

    ``choices`` are the modules of each step; at least ``must_leave`` of them remain available. Of one ``seed`` the
    random ones of a larger share hold those of a smaller one.

    Raises:
        UserError: a share that is not between 0 and 1.
    """
    rows = []
    for share in shares:
        rng = np.random.default_rng(seed)  # anew, so that a share bans the same whichever others are asked for
        if not 0 < share < 1:
            raise UserError(f"a share of {share:g} of the modules; give shares between 0 and 1", field="shares")
        for which in WHICH:
            edits, total = [], 0
            for step, modules in enumerate(choices):
                there = np.array(modules)
                order = np.argsort(-usage[step, there], kind="stable")
                order = {"top": order, "bottom": order[::-1], "random": rng.permutation(len(there))}[which]
                count = min(math.ceil(share * len(there) - 1e-9), len(there) - must_leave)
                if count > 0:
                    edits.append({"edit": "ban", "modules": sorted(there[order[:count]].tolist()), "step": step})
                    total += count
            if not edits:
                raise UserError(
                    f"no module can be banned: a step has {min(map(len, choices))}, and {must_leave} must be left",
                    field="shares",
                )
            words = {"top": "most used", "bottom": "least used", "random": "drawn at random"}[which]
            rows.append(Row(None, None, f"{100 * share:g} % {words}", "share", tuple(edits), share, which, total))
    return rows


class UsageCount:
    """Number of tokens per step and module of the unchanged model; counted a batch at a time."""

    def __init__(self, num_steps: int, num_modules: int) -> None:
        self.counts: Int[np.ndarray, "S M"] = np.zeros((num_steps, num_modules), dtype=np.int64)
        self.batches = 0

    def add(self, data: PreparedSet, unchanged: Unchanged) -> None:
        """Count the next batch."""
        ids = data.batches[self.batches].ribbons(unchanged[self.batches]).astype(np.int64)
        for step, counts in enumerate(self.counts):
            counts += np.bincount(ids[:, step].ravel(), minlength=len(counts))
        self.batches += 1


def usage_of(model: Traceable, data: PreparedSet, unchanged: Unchanged | None = None) -> Int[np.ndarray, "S M"]:
    """Run ``UsageCount`` over all of ``data``."""
    usage, unchanged = UsageCount(model.num_steps, model.num_modules), unchanged or Unchanged(model, data)
    for _ in data:
        usage.add(data, unchanged)
    return usage.counts


def with_share(model: Traceable, usage: Int[np.ndarray, "S M"]) -> Traceable:
    """The model with ``ban_share`` replaced by bans of modules, given the ``usage`` counts of the unedited model.

    Raises:
        UserError: no module of any step can be banned.
    """
    controls: Any = model.controls
    try:
        rows = share_rows(usage, [controls.ban_share], model.choices(), model.must_leave, controls.seed or 0)
    except UserError as error:
        raise UserError(str(error), field="ban_share") from None
    edits = next(row.edits for row in rows if row.which == (controls.which or "top"))
    return model.with_controls({"edits": list(edits)})


def with_counted_share(model: Traceable, samples: Iterable[Sample]) -> Traceable:
    """The model; ``ban_share``, if it is among its controls, replaced by bans counted over ``samples``."""
    if getattr(model.controls, "ban_share", None) is None:
        return model
    return with_share(model, usage_of(model, prepare(model, samples)))


def result_row(row: Row, effect: dict[str, Any] | None, problem: str | None = None) -> dict[str, Any]:
    """A row as JSON: the edit and its effect, or the error message."""
    cells: dict[str, Any] = {name: value for name, value in asdict(row).items() if name != "edits"}
    effect = effect or {}
    for name in PAIRS:
        pair = effect.get(name) or {}
        cells |= {f"{name}_{when}": pair.get(when) for when in ("before", "after", "change")}
    cells["loss_error"] = (effect.get("loss") or {}).get("error")
    return cells | {name: effect.get(name) for name in FLAT} | {"problem": problem}


def as_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    """The rows as CSV; missing numbers are empty, and no text is a formula."""
    if not rows:
        return b""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]))
    table.writeheader()
    for row in rows:
        table.writerow({key: spreadsheet_text(cell) if isinstance(cell, str) else cell for key, cell in row.items()})
    return text.getvalue().encode()
