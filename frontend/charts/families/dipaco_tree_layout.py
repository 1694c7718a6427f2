"""Positions of bars and bands of DiPaCo's tree of paths (documents → levels → paths); arithmetic only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

_GAP = 0.16
"""share of a column's height used for the gaps between bars"""


def modules_of(path: Mapping[str, Any]) -> tuple[int, ...]:
    """The module of each level."""
    return tuple(int(modules[0]) for modules in path["ribbon"])


def path_name(modules: Iterable[int]) -> str:
    """A path in compact form: 0·2."""
    return "·".join(map(str, modules))


@dataclass(frozen=True)
class Bar:
    """One bar of a column: a label, a module of a level, or a path."""

    key: str
    column: int
    name: str
    tokens: float
    top: float
    """as a share of the height, like ``bottom``"""
    bottom: float


def tree_bars(by_label: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[list[Bar], list[dict[str, Any]]]:
    """Bars of the columns documents, levels and paths, and the bands between neighbouring columns.

    The height of a bar, and the width of a band, is its share of all tokens, so the total is conserved.
    """
    flows = [
        (label, modules_of(path), float(path["count"]))
        for label, paths in by_label.items()
        for path in paths
        if path["count"]
    ]
    total = sum(count for _label, _modules, count in flows) or 1.0
    levels = len(flows[0][1]) if flows else 0
    columns: list[dict[str, float]] = [defaultdict(float) for _ in range(levels + 2)]
    bands: dict[tuple[int, str, str], float] = defaultdict(float)
    for label, modules, count in flows:
        keys = [f"from {label}", *(f"{level}.{m}" for level, m in enumerate(modules)), f"path {path_name(modules)}"]
        for column, key in enumerate(keys):
            columns[column][key] += count
        for column, (source, target) in enumerate(zip(keys, keys[1:], strict=False)):
            bands[column, source, target] += count
    paths = {f"path {path_name(modules)}": modules for _label, modules, _count in flows}
    order = [lambda key: (key,)] + [lambda key: (int(key.split(".")[1]),)] * levels
    order.append(lambda key: tuple(reversed(paths[key])))  # group paths by their last module
    bars = [bar for column, sizes in enumerate(columns) for bar in _stacked(column, sizes, order[column], total)]
    return bars, _banded(bands, {(bar.column, bar.key): bar for bar in bars}, total)


def _stacked(column: int, sizes: Mapping[str, float], order: Any, total: float) -> list[Bar]:
    gap = _GAP / max(1, len(sizes) - 1) if len(sizes) > 1 else 0.0
    top, bars = 0.0 if len(sizes) > 1 else _GAP / 2, []
    for key in sorted(sizes, key=order):
        height = sizes[key] / total * (1 - _GAP)
        name = key.split(" ", 1)[1] if " " in key else key.split(".")[1]
        bars.append(Bar(key, column, name, sizes[key], top, top + height))
        top += height + gap
    return bars


def _top_at_the_other_end(bars: Mapping[tuple[int, str], Bar], side: int, band: tuple[int, str, str]) -> float:
    return bars[band[0] + 1 - side, band[1:][1 - side]].top


def _banded(
    bands: Mapping[tuple[int, str, str], float], bars: Mapping[tuple[int, str], Bar], total: float
) -> list[dict[str, Any]]:
    """Stack the bands at both ends in the order of the bars that they connect to."""
    ends: dict[tuple[int, str, str], list[float]] = {key: [0.0, 0.0] for key in bands}
    for side in (0, 1):
        groups: dict[tuple[int, str], list[tuple[int, str, str]]] = defaultdict(list)
        for key in bands:
            groups[key[0] + side, key[1:][side]].append(key)
        for near, members in groups.items():
            top = bars[near].top
            for key in sorted(members, key=partial(_top_at_the_other_end, bars, side)):
                ends[key][side] = top
                top += bands[key] / total * (1 - _GAP)
    return [
        {
            "column": column,
            "source": bars[column, source].name,
            "target": bars[column + 1, target].name,
            "from": source,
            "to": target,
            "tokens": count,
            "share": count / total,
            "y0": ends[column, source, target][0],
            "y1": ends[column, source, target][1],
            "width": count / total * (1 - _GAP),
        }
        for (column, source, target), count in bands.items()
    ]
