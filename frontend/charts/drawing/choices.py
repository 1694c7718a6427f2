"""Values that a click in a chart can select, as a list: the alternative for keyboards and screen readers.

The list is derived from the chart's own Vega-Lite specification, so it matches what is drawn.

>>> import altair as alt
>>> from tokenpaths.frontend.charts.drawing.theme import rows
>>> pick = alt.selection_point(name="bar", fields=["bar"], on="click")
>>> table = rows([{"bar": 0, "words": "bar 0: 3 samples"}])
>>> bars = alt.Chart(table).mark_bar().encode(x="bar:O", description="words:N")
>>> choices_of(bars.add_params(pick), ["bar"])
[Choice(name='bar', value=0, words='bar 0: 3 samples')]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenpaths.frontend.charts.drawing import numbers

_TIP = re.compile(r"'([^']*)': datum\['([^']*)'\]")
"""matches the field pairs in expressions of ``theme.tip``"""


@dataclass(frozen=True)
class Choice:
    """One option: the selection it belongs to, its value, and the description of its mark."""

    name: str
    value: Any
    """as in a click event; ``step.module`` if the selection has these two fields"""
    words: str


def choices_of(chart: Any, names: Sequence[str]) -> list[Choice]:
    """Everything that a click can select in the point selections ``names`` of an Altair chart.

    Ordered by ``names``, then by value. If several marks select the same value (the cells of a token), the description
    is what all of them share.
    """
    spec = chart.to_dict()
    choices: list[Choice] = []
    for name in names:
        fields, views = _selection(spec, name)
        parts_of: dict[Any, dict[str, str]] = {}
        for view in views:
            describe = _words_of(view)
            for row in _rows(spec, view):
                value = f"{row['step']}.{row['module']}" if fields == ["step", "module"] else row[fields[0]]
                if value is None:
                    continue
                parts = describe(row)
                parts_of[value] = {k: v for k, v in parts_of.get(value, parts).items() if parts.get(k) == v}
        for value, parts in sorted(parts_of.items(), key=_order):
            choices.append(Choice(name, value, _sentence(parts, f"{name}: {value}")))
    return choices


def _selection(spec: Mapping[str, Any], name: str) -> tuple[list[str], list[Mapping[str, Any]]]:
    """The fields of a selection, and the views whose marks trigger it; empty for an unknown name."""
    for view in _views(spec):
        for param in view.get("params", ()):
            if param["name"] == name and isinstance(param.get("select"), Mapping):
                view_names = param.get("views")
                views = [v for v in _views(spec) if v.get("name") in view_names] if view_names else [view]
                return list(param["select"]["fields"]), views
    return [], []


def _views(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield spec
    for part in spec.get("layer", ()):
        yield from _views(part)


def _rows(spec: Mapping[str, Any], view: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rows that a view draws; columnar data is flattened as the browser does."""
    data = view.get("data") or spec.get("data") or {}
    values = data.get("values") or spec.get("datasets", {}).get(data.get("name"), ())
    flat = [name for step in view.get("transform", ()) for name in step.get("flatten", ())]
    for row in values:
        if not flat:
            yield row
            continue
        for entry in zip(*(row[name] for name in flat), strict=True):
            yield {**row, **dict(zip(flat, entry, strict=True))}


def _words_of(view: Mapping[str, Any]) -> Any:
    """The description of a mark: its accessible name, else its tooltip."""
    encoding = view.get("encoding") or {}
    if "description" in encoding:
        field = encoding["description"]["field"]
        return lambda row: {"": str(row[field])}
    mark = view.get("mark")
    tooltip = mark.get("tooltip") if isinstance(mark, Mapping) else None
    if isinstance(tooltip, Mapping) and "expr" in tooltip:
        pairs = [(title, field, "") for title, field in _TIP.findall(tooltip["expr"])]
    else:
        tips = encoding.get("tooltip") or []
        tips = [tips] if isinstance(tips, Mapping) else tips
        pairs = [
            (channel.get("title") or channel["field"], channel["field"], str(channel.get("format") or ""))
            for channel in tips
        ]
    return lambda row: {title: shown for title, field, form in pairs if (shown := _shown(row.get(field), form))}


def _shown(value: Any, form: str) -> str:
    """A value as text; empty for images."""
    if value is None or str(value).startswith("data:image"):
        return ""
    if isinstance(value, float):
        return numbers.percent(value) if form[-1:] in ("p", "%") else numbers.number(value)
    return str(value)


def _sentence(parts: Mapping[str, str], instead: str) -> str:
    words = "; ".join(f"{title} {value}" if title else value for title, value in parts.items())
    # Accessible names of flow marks begin with a key that tests and scripts use.
    return words.removeprefix(f"{instead}; ") or instead


def _order(item: tuple[Any, Any]) -> list[Any]:
    """Sort key that orders numbers by value: 2.3 before 2.10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(item[0]))]
