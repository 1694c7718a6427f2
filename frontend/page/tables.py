"""Small tables as plain HTML: no scripts needed before the first chart, and cells with accessible names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers

STYLE = """<style>
.tp-table { overflow-x: auto; max-height: 36rem; overflow-y: auto; font-size: .875rem; margin-top: .3rem;
  border: 1px solid color-mix(in srgb, currentColor 18%, transparent); border-radius: .5rem; }
.tp-table table { border-collapse: collapse; width: 100%; margin: 0; }
.tp-table caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.tp-table th, .tp-table td { padding: .3rem .65rem; text-align: left; vertical-align: top; border: 0;
  border-bottom: 1px solid color-mix(in srgb, currentColor 12%, transparent); }
.tp-table tr:last-child > * { border-bottom: 0; }
.tp-table thead th { font-weight: 500; opacity: .78; white-space: nowrap; }
.tp-table thead .tp-number { white-space: normal; }
.tp-table tbody th { font-weight: 400; }
.tp-table .tp-number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tp-table abbr { text-decoration: underline dotted; text-underline-offset: .2em; cursor: help; }
</style>"""


@dataclass(frozen=True)
class Column:
    """Header and number format of a column."""

    head: str
    write: Callable[[Any], str] = str
    help: str | None = None
    right: bool = False
    """right-aligned, the default for numbers"""


def plain_table(rows: Sequence[Mapping[str, Any]], caption: str, columns: Mapping[str, Column] | None = None) -> None:
    """HTML table of ``rows`` with the accessible name ``caption``; the first column is the row header.

    Columns without a ``Column`` are written as they are; a missing value is a dash. Numbers are right-aligned.
    """
    st.html(STYLE + table_html(rows, caption, columns or {}))


def table_html(rows: Sequence[Mapping[str, Any]], caption: str, columns: Mapping[str, Column]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    to_right = {
        name
        for name in names[1:]
        if name in columns and columns[name].right or any(_is_number(row.get(name)) for row in rows)
    }
    heads = "".join(_head(name, columns.get(name, Column(name)), name in to_right) for name in names)
    body = "".join(
        "<tr>"
        + "".join(
            _cell(row.get(name), columns.get(name, Column(name)), name in to_right, first=not place)
            for place, name in enumerate(names)
        )
        + "</tr>"
        for row in rows
    )
    label = escape(caption, quote=True)
    return (
        f'<div class="tp-table" role="region" tabindex="0" aria-label="{label}"><table><caption>{label}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _head(name: str, column: Column, right: bool) -> str:
    words = escape(column.head)
    if column.help:
        words = f'<abbr title="{escape(column.help, quote=True)}">{words}</abbr>'
    return f'<th scope="col"{_class(right)}>{words}</th>'


def _cell(value: Any, column: Column, right: bool, *, first: bool) -> str:
    if value is None:
        words = "–"
    elif column.write is str and _is_number(value):
        words = numbers.count(value) if isinstance(value, int) else numbers.number(value)
    else:
        words = column.write(value)
    tag, scope = ("th", ' scope="row"') if first else ("td", "")
    return f"<{tag}{scope}{_class(right)}>{escape(words)}</{tag}>"


def _class(right: bool) -> str:
    return ' class="tp-number"' if right else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
