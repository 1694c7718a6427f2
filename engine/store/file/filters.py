"""Filters on tokens and paths as (SQL, parameters): parsing, checks and conditions; values are always bound.

``steps=0:5`` are the steps 0 … 4; ``through=2.7,3.4`` the tokens that visit module 7 at step 2 and
module 4 at step 3; ``paths=1,2`` the tokens on the paths of rank 1 or 2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.file.checks import check_text
from tokenpaths.engine.store.file.columns import PATHS
from tokenpaths.engine.store.file.packed_ids import chooses_sql
from tokenpaths.engine.store.file.schema import Layout

MOST_RANKS = 1000
MOST_POINTS = 256
_WITHIN = "compute BETWEEN ? AND ?"


class Query(NamedTuple):
    """SQL with ``?`` placeholders and their values; a condition can follow WHERE or AND."""

    sql: str
    parameters: tuple[object, ...] = ()


@dataclass(frozen=True)
class Filters:
    """Filters on tokens, combined by AND."""

    label: str | None = None
    paths: tuple[int, ...] = ()
    """ranks: on any of these paths"""
    through: tuple[tuple[int, int], ...] = ()
    """(step, module) pairs: through all of them"""

    @property
    def need_tokens(self) -> bool:
        """False if the sealed summaries suffice."""
        return bool(self.paths or self.through)

    def as_json(self) -> dict[str, object]:
        """The filters as repeated in an answer."""
        return {
            "label": self.label,
            "paths": list(self.paths),
            "through": [f"{step}.{module}" for step, module in self.through],
        }


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """``"0:5"`` -> (0, 5), the steps 0 … 4; None and "" -> None."""
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4})", text)
    if not match:
        raise UserError(f"steps is {text[:40]!r}, it should look like 0:5 (the steps 0 to 4)", field="steps")
    return int(match[1]), int(match[2])


def parse_paths(text: str | None) -> tuple[int, ...]:
    """``"1,2,3"`` -> (1, 2, 3), the ranks of paths."""
    if not text:
        return ()
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise UserError(f"paths is {text[:40]!r}, it should be ranks like 1,2,3", field="paths")
    return tuple(int(part) for part in text.split(","))


def parse_through(text: str | None) -> tuple[tuple[int, int], ...]:
    """``"2.7,3.4"`` -> ((2, 7), (3, 4)): step.module pairs."""
    if not text:
        return ()
    if not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,5}(,[0-9]{1,4}\.[0-9]{1,5})*", text):
        raise UserError(f"through is {text[:40]!r}, it should be step.module pairs like 2.7,3.4", field="through")
    pairs = (part.split(".") for part in text.split(","))
    return tuple((int(step), int(module)) for step, module in pairs)


def parse_ranks(text: str | None) -> tuple[int, int] | None:
    """``"1:100"`` -> (1, 100), the ranks 1 to 100; None and "" -> None."""
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    if not match:
        raise UserError(f"ranks is {text[:40]!r}, it should look like 1:100 (the ranks 1 to 100)", field="ranks")
    return int(match[1]), int(match[2])


def parse_bounds(text: str | None, field: str) -> tuple[float, float] | None:
    """``"0.5:1"`` -> (0.5, 1.0), minimum and maximum; None and "" -> None."""
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{0,3}\.?[0-9]{1,12}):([0-9]{0,3}\.?[0-9]{1,12})", text)
    if not match:
        raise UserError(f"{field} is {text[:40]!r}, it should look like 0.5:1 (from a half to one)", field=field)
    return float(match[1]), float(match[2])


def check_filters(filters: Filters, layout: Layout, num_paths: int) -> None:
    """UserError if a filter names something that the run does not have."""
    check_text(filters.label, "label", field="label")
    if len(filters.paths) > MOST_RANKS:
        raise UserError(f"{len(filters.paths)} paths given, at most {MOST_RANKS} at once", field="paths")
    if len(filters.through) > MOST_POINTS:
        raise UserError(f"{len(filters.through)} points to pass given, at most {MOST_POINTS} at once", field="through")
    for rank in filters.paths:
        if not 1 <= rank <= num_paths:
            raise UserError(f"path {rank} does not exist, the run has ranks 1 to {num_paths}", field="paths")
    for step, module in filters.through:
        if not 0 <= step < layout.num_steps:
            raise UserError(f"step {step} does not exist, the run has 0 to {layout.num_steps - 1}", field="through")
        if not 0 <= module < layout.num_modules:
            raise UserError(
                f"module {module} does not exist, the run has 0 to {layout.num_modules - 1}", field="through"
            )


def check_bounds(bounds: tuple[int | float, int | float] | None, field: str, top: float | None = 1.0) -> None:
    """UserError unless the bounds of a measure ascend inside 0 … ``top``, those of ranks (``top`` None) from 1 on."""
    if bounds is None:
        return
    low, high = bounds
    if not low <= high or low < (1 if top is None else 0) or (top is not None and high > top):
        inside = "1 or more" if top is None else "0 to 1"
        raise UserError(
            f"{field} is {low:g}:{high:g}, it should be two numbers, {inside}, the smaller one first", field=field
        )


def check_steps(steps: tuple[int, int] | None, layout: Layout) -> tuple[int, int]:
    """The half-open range of steps, all by default; UserError if it is empty or out of range."""
    if steps is None:
        return 0, layout.num_steps
    first, stop = steps
    if not 0 <= first < stop <= layout.num_steps:
        raise UserError(
            f"steps is {first}:{stop}, it should lie inside 0:{layout.num_steps} and hold at least one step",
            field="steps",
        )
    return first, stop


def check_page(limit: int, offset: int, most: int) -> None:
    """UserError unless 1 ≤ limit ≤ most and offset ≥ 0."""
    if not 1 <= limit <= most:
        raise UserError(f"limit is {limit}, it should be 1 to {most}", field="limit")
    if offset < 0:
        raise UserError(f"next points before the first row ({offset})", field="next")


def next_offset(offset: int, limit: int, total: int) -> int | None:
    """The ``offset`` of the next page, or None."""
    return offset + limit if offset + limit < total else None


def check_choice(value: str, allowed: Sequence[str], field: str) -> None:
    """UserError unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        raise UserError(f"{field} is {value[:40]!r}, it should be one of {', '.join(allowed)}", field=field)


def token_condition(
    filters: Filters, label_id: int | None, layout: Layout, compute: tuple[float, float] | None = None
) -> Query:
    """SQL condition on rows of ``token``; ``true`` without filters. ``label_id`` is the id of the filter's label,
    ``compute`` the bounds of that of a token's path.
    """
    conditions: list[str] = ["true"]
    parameters: list[object] = []
    if label_id is not None:
        conditions.append("label_id = ?")
        parameters.append(label_id)
    for step, module in filters.through:
        condition, values = _passes(layout, step, module)
        conditions.append(condition)
        parameters += values
    if filters.paths:
        marks = ", ".join("?" * len(filters.paths))
        conditions.append(f"path_id IN (SELECT path_id FROM {PATHS} WHERE rank IN ({marks}))")
        parameters += filters.paths
    if compute is not None:
        conditions.append(f"path_id IN (SELECT path_id FROM {PATHS} WHERE {_WITHIN})")
        parameters += compute
    return Query(" AND ".join(conditions), tuple(parameters))


def path_condition(filters: Filters, compute: tuple[float, float] | None = None) -> Query:
    """SQL condition on rows of ``path_row`` for ``filters`` without a label, for layouts with one slot, and for paths
    whose ``compute`` is in these bounds.
    """
    conditions: list[str] = ["true"]
    parameters: list[object] = []
    if compute is not None:
        conditions.append(_WITHIN)
        parameters += compute
    for step, module in filters.through:
        conditions.append(f"ribbon[{step + 1}] = ?")
        parameters.append(module)
    if filters.paths:
        conditions.append(f"rank IN ({', '.join('?' * len(filters.paths))})")
        parameters += filters.paths
    return Query(" AND ".join(conditions), tuple(parameters))


def _passes(layout: Layout, step: int, module: int) -> tuple[str, list[int]]:
    """SQL condition: tokens that choose ``module`` at ``step`` in any slot."""
    if layout.packed:
        return chooses_sql(layout, step), [module] * layout.top_k
    if layout.by_path:
        return f"path_id IN (SELECT path_id FROM {PATHS} WHERE ribbon[{step + 1}] = ?)", [module]
    columns = [layout.module_column(step, slot) for slot in range(layout.top_k)]
    return "(" + " OR ".join(f"{column} = ?" for column in columns) + ")", [module] * layout.top_k
