"""Counts of tokens per layer and expert, as engines sum them: in all, over time, by domain.

A run of them knows the load of each layer and nothing of single tokens (``counts.load_runs``): sums hold no decisions,
so ribbons, paths and flows cannot be recovered.

Shapes: T parts (a time, a domain, or both), S layers, M experts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.counts.counter_notes import running_counters
from tokenpaths.engine.adapters.logs.pieces.announced import MOST_EXPERTS, Announced, layer_names
from tokenpaths.engine.analysis.load import effective_top_k, load_entropy, max_violation
from tokenpaths.engine.base.errors import UserError

MAX_BYTES = 256 << 20
MOST_CELLS = 1 << 24
"""T·S·M that a run keeps; of more, neighbouring times are added up"""
_PART_OF_ONE = re.compile(r"(^|[^a-z])(rank|shard|part|worker|dp|tp|pp|ep)[-_.]?\d", re.IGNORECASE)
"""names of files that are parts of one count, not domains"""
_LAYER = re.compile(r".*layer [0-9]{1,9}")


class OnlyCounts(UserError):
    """The file holds aggregates: ``counts`` become a run of loads, but there are no tokens in it."""

    def __init__(self, file: Path, counts: ExpertCounts) -> None:
        super().__init__(
            f"{file}: holds sums over tokens ({len(counts.layers)} layers × {counts.parts.shape[2]} experts), "
            "not what each token chose",
            field="file",
        )
        self.counts = counts


@dataclass(frozen=True)
class ExpertCounts:
    """Number of tokens per layer and expert, in parts."""

    layers: tuple[str, ...]
    parts: np.ndarray
    """(T, S, M) int64"""
    format: str = "expert-counts"
    times: tuple[int, ...] | None = None
    """of each part, rising within a domain; None: the counts are of no time"""
    axis: str = ""
    """what ``times`` number: step, forward pass, iteration"""
    domains: tuple[str, ...] | None = None
    """of each part; None: the counts are of no domain"""
    top_k: int | None = None
    """experts that a token chose at a layer; None: not known"""
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> np.ndarray:
        """(S, M) sums of all parts."""
        total: np.ndarray = self.parts.sum(axis=0)
        return total

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

    def bounded(self, most_cells: int = MOST_CELLS) -> ExpertCounts:
        """The counts in at most so many cells: neighbouring times of a domain are added up, which a note says."""
        per_part = self.parts[0].size
        if self.times is None or self.parts.size <= most_cells:
            return self
        together = -(-self.parts.size // most_cells)
        domains = self.domains or ("",) * len(self.times)
        starts: list[int] = []
        for place, domain in enumerate(domains):
            run = place - starts[-1] if starts else together
            if run >= together or domain != domains[place - 1]:
                starts.append(place)
        note = f"{len(self.times):,} {self.axis}s are kept {together} by {together}: {per_part:,} counts each are many"
        return replace(
            self,
            parts=np.add.reduceat(self.parts, starts, axis=0),
            times=tuple(self.times[start] for start in starts),
            domains=None if self.domains is None else tuple(self.domains[start] for start in starts),
            notes=(*self.notes, note),
        )


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
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:80]
        raise UserError(f"{file}: is not JSON ({reason})", field="file") from None
    if domains := find_domains(value):
        parts = [table_of_rows(file, _named_rows(rows), announced, name) for name, rows in domains.items()]
        return by_domain(dict(zip(domains, parts, strict=True)), str(file))
    found = find_counts(value)
    if not isinstance(found, dict | list) or not found:
        raise UserError(f"{file}: holds no expert_counts (per layer an object expert → tokens)", field="file")
    return table_of_rows(file, _named_rows(found), announced)


def find_domains(value: Any) -> dict[str, Any]:
    """Counts by domain: an object domain → object layer → counts; empty if it is none."""
    if isinstance(value, dict) and isinstance(value.get("expert_counts"), dict):
        value = value["expert_counts"]
    if not isinstance(value, dict) or not value or find_counts(value) is not None:
        return {}
    found = {name: find_counts(rows) for name, rows in value.items() if isinstance(rows, dict)}
    return found if len(found) == len(value) and all(found.values()) else {}


def _named_rows(found: Any) -> dict[str, Any]:
    rows = found.items() if isinstance(found, dict) else enumerate(found)
    return {str(name): row for name, row in rows}


def table_of_rows(file: Path, rows: dict[str, Any], announced: Announced, domain: str = "") -> ExpertCounts:
    """Counts from an object expert → tokens, or a list, for each layer; of a ``domain``, for messages.

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
    return counts_of(counts, announced, f"{file}, {domain}" if domain else str(file), names)


def counts_of(
    counts: np.ndarray,
    announced: Announced,
    where: str,
    names: tuple[str, ...] | None = None,
    *,
    top_k: int | None = None,
    **about: Any,
) -> ExpertCounts:
    """Counts (S, M) or (T, S, M) of ``names``; wider if more experts are announced.

    Args:
        top_k: Experts a token and layer, as the file says.
        about: ``format``, ``times``, ``axis``, ``notes`` of ``ExpertCounts``.

    Raises:
        UserError: another number of layers, or fewer experts, than announced; negative counts.
    """
    counts = counts[None] if counts.ndim == 2 else counts
    if not counts.size:
        raise UserError(f"{where}: counts nothing", field="file")
    announced.check(where, layers=counts.shape[1], top_k=top_k)
    if counts.min(initial=0) < 0:
        raise UserError(f"{where}: holds negative counts", field="file")
    width = counts.shape[2]
    if announced.experts is not None and width > announced.experts:
        raise UserError(
            f"{where}: counts expert {width - 1}, but the experts are 0 … {announced.experts - 1} (announced)",
            field="experts",
        )
    if about.get("times") is not None:
        about["notes"] = (*about.get("notes", ()), *running_counters(counts, about["times"], about["axis"]))
    wide = np.zeros((*counts.shape[:2], announced.experts or width), dtype=np.int64)
    wide[:, :, :width] = counts
    return ExpertCounts(names or layer_names(counts.shape[1]), wide, top_k=announced.top_k or top_k, **about)


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


def joined(parts: dict[str, ExpertCounts], where: str) -> ExpertCounts:
    """The counts of several files, by name: of ranks they are added up, of domains they stand beside each other.

    Files are domains if they count no time and are not numbered as ranks or shards. Ranks that count other layers are
    stages of a pipeline: their layers are joined.

    Raises:
        UserError: they count other experts, or only some of the layers of others.
    """
    timeless = all(part.times is None and part.domains is None for part in parts.values())
    if timeless and len(parts) > 1 and not any(_PART_OF_ONE.search(name) for name in parts):
        return by_domain(parts, where)
    first_name, first = next(iter(parts.items()))
    stages: dict[tuple[str, ...], str] = {}
    """layers -> a file that counts them"""
    for name, part in parts.items():
        if part.parts.shape[2] != first.parts.shape[2]:
            raise UserError(
                f"{where}: {name} counts {part.parts.shape[2]} experts a layer, {first_name} {first.parts.shape[2]}; "
                "ranks are of one model (say --experts where counts of 0 are left out)",
                field="file",
            )
        other = next((known for known in stages if set(known) & set(part.layers)), part.layers)
        if set(other) != set(part.layers):
            raise UserError(
                f"{where}: {name} counts {len(part.layers)} layers, some of the {len(other)} of {stages[other]}; ranks "
                "count the same layers, or none in common as stages of a pipeline, so one of them is cut off or of "
                "another model",
                field="file",
            )
        stages.setdefault(other, name)
        if (part.times is None) != (first.times is None) or part.domains != first.domains:
            raise UserError(
                f"{where}: {name} counts other times or domains than {first_name}; import them one by one", field="file"
            )
    layers = _in_order([layer for stage in stages for layer in stage])
    times = None if first.times is None else sorted({time for part in parts.values() for time in part.times or ()})
    rows = len(first.parts) if times is None else len(times)
    total = np.zeros((rows, len(layers), first.parts.shape[2]), dtype=np.int64)
    for part in parts.values():
        at = np.arange(rows) if times is None or part.times is None else np.searchsorted(times, part.times)
        total[np.ix_(at, np.array([layers.index(layer) for layer in part.layers]))] += part.parts
    notes = _notes_of(parts.values())
    if len(stages) > 1:
        notes = (*notes, f"the layers of {len(stages)} pipeline stages are joined")
    return replace(first, layers=tuple(layers), parts=total, times=None if times is None else tuple(times), notes=notes)


def _notes_of(parts: Iterable[ExpertCounts]) -> tuple[str, ...]:
    """Those of all parts, each once."""
    return tuple(dict.fromkeys(note for part in parts for note in part.notes))


def _in_order(layers: list[str]) -> list[str]:
    """Layers of stages in the order of the model: by their numbers, those of other blocks behind."""
    if not all(map(_LAYER.fullmatch, layers)):
        return layers
    return sorted(layers, key=lambda layer: (layer.rpartition("layer ")[0], int(layer.rpartition(" ")[2])))


def by_domain(parts: dict[str, ExpertCounts], where: str) -> ExpertCounts:
    """Counts of several domains; with as many experts as the widest counts.

    Raises:
        UserError: they are of other layers.
    """
    counts = list(parts.values())
    if len({part.layers for part in counts}) > 1:
        raise UserError(f"{where}: its domains count other layers", field="file")
    width = max(part.parts.shape[2] for part in counts)
    wide = [np.pad(part.parts, ((0, 0), (0, 0), (0, width - part.parts.shape[2]))) for part in counts]
    notes = _notes_of(counts)
    return replace(counts[0], parts=np.concatenate(wide), domains=tuple(parts), notes=notes)
