"""Differences between the routes of an intervened run and the unchanged run on the same inputs. Plain numpy.

Shapes: n tokens, S steps, K and L slots before and after, M modules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Integer

from tokenpaths.engine.base.errors import UserError

LARGEST_GRID = 1 << 24
"""cells of (S − 1)·M² above which no flow is counted: one pair of grids then takes 256 MB"""


def shared_choices(
    before: Integer[np.ndarray, "n S K"], after: Integer[np.ndarray, "n S L"]
) -> Integer[np.ndarray, "n S"]:
    """|S ∩ S′| of each token and step; a token never visits a module twice at a step."""
    shared: np.ndarray = (before[:, :, :, None] == after[:, :, None, :]).any(axis=3).sum(axis=2)
    return shared


def step_distance(
    before: Integer[np.ndarray, "n S K"], after: Integer[np.ndarray, "n S L"]
) -> Float[np.ndarray, "n S"]:
    """1 − |S ∩ S′| / K of each token and step; of two top-k the larger counts."""
    moved: np.ndarray = 1 - shared_choices(before, after) / max(before.shape[2], after.shape[2])
    return moved


def flow_counts(module_ids: Integer[np.ndarray, "n S K"], num_modules: int) -> Float[np.ndarray, "S-1 M M"]:
    """Tokens from each module to each module of the next step; each of a token's K² pairs counts 1/K²."""
    n, num_steps, top_k = module_ids.shape
    visits = np.zeros((num_steps, n, num_modules), dtype=np.float32)
    np.put_along_axis(visits, module_ids.transpose(1, 0, 2).astype(np.int64), 1.0, axis=2)
    links: np.ndarray = np.matmul(visits[:-1].transpose(0, 2, 1), visits[1:]).astype(np.float64) / top_k**2
    return links


def edited_steps(steps: Iterable[int | None]) -> frozenset[int] | None:
    """The steps that edits change by themselves, each given by its own step; None: every step.

    None among ``steps`` stands for every step, and so does no edit at all: another control holds everywhere.
    """
    distinct = set(steps)
    return None if not distinct or None in distinct else frozenset(step for step in distinct if step is not None)


def change_of(before: float, after: float) -> dict[str, float]:
    """Two numbers and their difference, as JSON."""
    return {"before": before, "after": after, "change": after - before}


@dataclass
class RouteChange:
    """Sums over the tokens of two runs, batch by batch."""

    num_modules: int
    edited: frozenset[int] | None = None
    """the steps that edits change by themselves; None: every step"""
    num_steps: int = 0
    num_tokens: int = 0
    changed: int = 0
    changed_after: int = 0
    distance: float = 0.0
    flows: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)

    def add(self, before: Integer[np.ndarray, "n S K"], after: Integer[np.ndarray, "m Z L"]) -> None:
        """Some tokens, in the same order.

        Raises:
            UserError: not the same number of tokens or steps.
        """
        if before.shape[:2] != after.shape[:2]:
            raise UserError(
                f"{before.shape[0]} tokens of {before.shape[1]} steps cannot be compared with {after.shape[0]} tokens "
                f"of {after.shape[1]} steps: both runs must be of one model over the same inputs",
                field="of",
            )
        rows = max(1, LARGEST_GRID // max(1, before[0].size * after.shape[2])) if len(before) else 1
        for start in range(0, len(before), rows):
            self._add(before[start : start + rows], after[start : start + rows])

    def _add(self, before: Integer[np.ndarray, "n S K"], after: Integer[np.ndarray, "n S L"]) -> None:
        distance_nS = step_distance(before, after)
        moved_nS: Bool[np.ndarray, "n S"] = distance_nS > 0
        self.num_tokens += len(before)
        self.changed += int(moved_nS.any(axis=1).sum())
        self.num_steps = before.shape[1]
        self.changed_after += int(moved_nS[:, self.after_steps].any(axis=1).sum())
        self.distance += float(distance_nS.sum())
        if (before.shape[1] - 1) * self.num_modules**2 <= LARGEST_GRID:
            both = [flow_counts(ids, self.num_modules) for ids in (before, after)]
            self.flows = (
                (both[0], both[1]) if self.flows is None else (self.flows[0] + both[0], self.flows[1] + both[1])
            )

    @property
    def after_steps(self) -> list[int]:
        """The steps behind the first edited one that no edit changes by itself: what moved there, an edit caused."""
        edited = self.edited
        return [] if not edited else [step for step in range(min(edited) + 1, self.num_steps) if step not in edited]

    def answer(self) -> dict[str, Any]:
        """Shares and means over the tokens; ``paths_changed_after`` is None where no step is left to look at."""
        n = max(1, self.num_tokens)
        return {
            "num_tokens": self.num_tokens,
            "after_step": min(self.edited or (0,)),
            "after_steps": self.after_steps,
            "paths_changed": self.changed / n,
            "paths_changed_after": self.changed_after / n if self.after_steps else None,
            "path_distance": self.distance / n,
            "flow_difference": self.flow_difference(),
        }

    def flow_difference(self) -> float | None:
        """Share of tokens whose link is another one, mean over the pairs of steps: ½ Σ |f′ − f| / T.

        0 = the same flow, 1 = no link in common; tokens that trade places cancel out. None: one step only, or too
        many modules to count.
        """
        if self.flows is None or not self.num_tokens or not len(self.flows[0]):
            return None
        return float(np.abs(self.flows[1] - self.flows[0]).sum() / 2 / self.num_tokens / len(self.flows[0]))

    def links(self, limit: int) -> list[dict[str, int | float]]:
        """The links that gained or lost most, as shares of the tokens; largest change first."""
        if self.flows is None or not self.num_tokens:
            return []
        before, after = (flow / self.num_tokens for flow in self.flows)
        change = after - before
        order = np.argsort(-np.abs(change), axis=None, kind="stable")[:limit]
        rows = []
        for step, source, target in zip(*np.unravel_index(order, change.shape), strict=True):
            if change[step, source, target] == 0:
                break
            rows.append(
                {
                    "step": int(step),
                    "source": int(source),
                    "target": int(target),
                    "before": float(before[step, source, target]),
                    "after": float(after[step, source, target]),
                    "change": float(change[step, source, target]),
                }
            )
        return rows
