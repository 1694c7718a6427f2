"""How many tokens did each module get? One bar a module, over all steps (DNA paper, figure 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, highest, rows, titled

TITLE = "How many tokens did each module get?"


def module_rows(usage: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tokens of each module over all steps of an answer of ``/usage``: {module, name, kind, count, steps}.

    ``steps`` is the number of steps at which it could be chosen; a count of 0 is a dead module.
    """
    found: dict[int, dict[str, Any]] = {}
    for cell in usage["usage"]:
        row = found.setdefault(
            int(cell["module"]),
            {"module": int(cell["module"]), "name": cell.get("name"), "kind": cell.get("kind"), "count": 0, "steps": 0},
        )
        row["count"] += cell["count"]
        row["steps"] += 1
    return [found[module] for module in sorted(found)]


@redrawable
def module_count_chart(
    usage: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = TITLE, height: int = 180
) -> alt.LayerChart:
    """Bars of visits per module; identity modules are grey, a module that no token chose is marked ×."""
    look = theme_named(theme)
    table = [
        row | {"skip": row["kind"] == "identity", "tokens": numbers.count(row["count"]), "zero": 0, "mark": "×"}
        for row in module_rows(usage)
    ]
    every = max(1, -(-len(table) // 24))
    x = alt.X(
        "module:O",
        axis=alt.Axis(
            title="module", labelAngle=0, grid=False, ticks=False, values=[row["module"] for row in table[::every]]
        ),
    )
    y = alt.Y("count:Q", axis=alt.Axis(title="visits of tokens", tickCount=4, format="~s"))
    tooltip = [alt.Tooltip("module:O"), alt.Tooltip("name:N"), alt.Tooltip("kind:N"), alt.Tooltip("tokens:N")]
    paint = alt.when("datum.skip").then(alt.value(look.identity)).otherwise(alt.value(look.module))
    bars = alt.Chart(rows(table)).mark_bar().encode(x=x, y=y, color=paint, tooltip=tooltip)
    layers = [bars]
    if dead := [row for row in table if not row["count"]]:
        marks = alt.Chart(rows(dead)).mark_text(color=look.accent, fontSize=look.font_size + 2, baseline="bottom")
        layers.append(marks.encode(x=x, y=alt.Y("zero:Q"), text="mark:N", tooltip=tooltip))
    chart = alt.layer(*layers).properties(width="container", height=height)
    said = highest(table, "count", lambda row: f"module {row['module']}, {row['tokens']} visits")
    words = "Visits over all steps. Grey: identity (skipped); ×: dead."
    return finish(titled(chart, look, title, words, said=said), look)
