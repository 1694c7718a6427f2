"""Read aggregated counts of tokens per layer and expert, such as OLMoE's ``expert_counts``.

Load statistics can be computed from them, but no run: sums hold no decisions of single tokens, so ribbons, paths and
flows cannot be recovered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.pieces import MOST_EXPERTS, Announced, layer_names
from tokenpaths.engine.analysis.load import effective_top_k, load_entropy, max_violation
from tokenpaths.engine.base.errors import UserError

MAX_BYTES = 256 << 20


class OnlyCounts(UserError):
    """The file holds aggregates: ``counts`` are available, but no run can be made."""

    def __init__(self, file: Path, counts: ExpertCounts) -> None:
        super().__init__(
            f"{file}: holds sums over tokens ({len(counts.layers)} layers × {counts.counts.shape[1]} experts), "
            "not what each token chose, so there are no paths to make a run of; log the ids of every token instead",
            field="file",
        )
        self.counts = counts


@dataclass(frozen=True)
class ExpertCounts:
    """Number of tokens per layer and expert."""

    layers: tuple[str, ...]
    counts: np.ndarray
    """(S, M) int64"""

    def load(self) -> list[dict[str, Any]]:
        """Per layer: number of choices, load entropy, MaxVio, effective top-k and dead experts, as in a run's usage.

        If the number of experts is not given, M is the largest id of any layer plus one.
        """
        return [
            {
                "layer": name,
                "choices": int(row.sum()),
                "load_entropy": load_entropy(row),
                "max_violation": max_violation(row),
                "effective_top_k": effective_top_k(row),
                "dead": int((row == 0).sum()),
            }
            for name, row in zip(self.layers, self.counts, strict=True)
        ]


def find_counts(value: Any) -> Any | None:
    """Find the part of a JSON value that looks like counts: per layer an object or a list of numbers."""
    if isinstance(value, dict):
        if "expert_counts" in value:
            return value["expert_counts"]
        return value if value and all(_is_number(str(k).lstrip("layer_. ")) for k in value) else None
    return value if isinstance(value, list) and value and all(isinstance(row, dict | list) for row in value) else None


def _is_number(text: str) -> bool:
    """Whether a string consists of ASCII digits: ``isdigit`` accepts ², which ``int`` does not."""
    return text.isascii() and text.isdigit()


def read_counts(file: Path, announced: Announced) -> ExpertCounts:
    """Counts from JSON: ``{"0": {"17": 1200, …}, …}``, a list of such objects, or a list of rows.

    Given the number of experts, those that no layer names count as dead.

    Raises:
        UserError: another structure, or another number of layers or experts.
    """
    if file.stat().st_size > MAX_BYTES:
        raise UserError(f"{file}: too large for a table of counts", field="file")
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: is not JSON ({str(error)[:80]})", field="file") from None
    found = find_counts(value)
    if not isinstance(found, dict | list) or not found:
        raise UserError(f"{file}: holds no expert_counts (per layer an object expert → tokens)", field="file")
    rows = found.items() if isinstance(found, dict) else enumerate(found)
    return table_of_rows(file, {str(name): row for name, row in rows}, announced)


def table_of_rows(file: Path, rows: dict[str, Any], announced: Announced) -> ExpertCounts:
    """Counts from an object expert → tokens, or a list, for each layer.

    Raises:
        UserError: another structure, or another number of layers or experts than announced.
    """
    table = {name: _row(file, name, row) for name, row in rows.items()}
    width = max((max(row, default=-1) for row in table.values()), default=-1) + 1
    if not width:
        raise UserError(f"{file}: no layer counts any expert", field="file")
    counts = np.zeros((len(table), width), dtype=np.int64)
    for step, row in enumerate(table.values()):
        for expert, number in row.items():
            counts[step, expert] = number
    names = tuple(name if not _is_number(name) else f"layer {name}" for name in table)
    return counts_of(counts, announced, str(file), names)


def counts_of(
    counts: np.ndarray, announced: Announced, where: str, names: tuple[str, ...] | None = None
) -> ExpertCounts:
    """Counts (S, M) of ``names``; wider if more experts are announced.

    Raises:
        UserError: another number of layers, or fewer experts, than announced; negative counts.
    """
    announced.check(where, layers=len(counts))
    if counts.min(initial=0) < 0:
        raise UserError(f"{where}: holds negative counts", field="file")
    width = counts.shape[1]
    if announced.experts is not None and width > announced.experts:
        raise UserError(
            f"{where}: counts expert {width - 1}, but the experts are 0 … {announced.experts - 1} (announced)",
            field="experts",
        )
    wide = np.zeros((len(counts), announced.experts or width), dtype=np.int64)
    wide[:, :width] = counts
    return ExpertCounts(names or layer_names(len(counts)), wide)


def _row(file: Path, layer: str, row: Any) -> dict[int, int]:
    pairs = row.items() if isinstance(row, dict) else enumerate(row) if isinstance(row, list) else None
    if pairs is None:
        raise UserError(f"{file}, layer {layer}: should be an object expert → tokens, or a list", field="file")
    found = {}
    for expert, number in pairs:
        if not _is_number(str(expert)) or len(str(expert)) > 9 or int(expert) >= MOST_EXPERTS:
            raise UserError(f"{file}, layer {layer}: {str(expert)[:40]!r} is no expert id", field="file")
        if type(number) is not int or not 0 <= number < 2**53:
            said = repr(number)[:40]
            raise UserError(f"{file}, layer {layer}, expert {expert}: {said} is no number of tokens", field="file")
        found[int(expert)] = number
    return found


def added(parts: Sequence[ExpertCounts], where: str) -> ExpertCounts:
    """The sum of counts of the same layers and experts, such as those of several ranks.

    Raises:
        UserError: they are of other layers or experts.
    """
    first = parts[0]
    for part in parts:
        if part.layers != first.layers or part.counts.shape != first.counts.shape:
            raise UserError(f"{where}: its files count other layers or experts", field="file")
    return ExpertCounts(first.layers, np.sum([part.counts for part in parts], axis=0))
