"""What is each module for? Load per step and module, dead ones, effective top-k (DNA paper, figures 2, 8, 10, 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from frontend.charts import numbers
from frontend.charts.frame import finish, rows, titled
from frontend.charts.palette import Theme, theme_named

OVERLOADED = 3.0
"""utilisation from which a module is called overloaded: three times its fair share"""


MOST_MARKED = 64
"""with more modules the cells are too small for a × in dead ones; they have the colour of the page then"""


def load_chart(
    usage: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = "How is the work shared between modules?",
) -> alt.LayerChart:
    """Heat map of utilisation (1 = fair share, 0 = dead), × where a module is dead. A neutral scale, because
    viridis means path CDF."""
    look = theme_named(theme)
    table = [
        {
            "step": row["step"],
            "module": row["module"],
            "node": f"{row['step']}.{row['module']}",
            "kind": row.get("kind") or "module",
            "load": row["utilisation"],
            "tokens": numbers.count(row["count"]),
            "share": numbers.percent(row["share"]),
            "words": numbers.number(row["utilisation"]),
            "name": row.get("name") or str(row["module"]),
            "dead": row["count"] == 0,
        }
        for row in usage["usage"]
    ]
    skips = {row["module"] for row in table if row["kind"] == "identity"}
    modules = sorted({row["module"] for row in table}, key=lambda module: (module in skips, module))
    x = alt.X("step:O", axis=alt.Axis(orient="top", title="step", labelAngle=0, labelOverlap=True, domain=False,
                                    ticks=False))  # fmt: skip
    y = alt.Y("module:O", sort=modules, axis=alt.Axis(title="module", domain=False, ticks=False, labelOverlap=True))
    pick = alt.selection_point(name="node", fields=["node"], on="click", clear=False, empty=False)
    most = max([row["load"] or 0 for row in table], default=1) or 1
    scale = alt.Scale(
        type="sqrt",
        domain=[0, most],
        range=[look.background, look.module if look.name != "dark" else look.ink],
        interpolate="lab",
    )
    cells = (
        alt.Chart(rows(table))
        .mark_rect(stroke=look.grid, strokeWidth=0.7, cursor="pointer")
        .encode(
            x=x,
            y=y,
            color=alt.Color(
                "load:Q",
                scale=scale,
                legend=alt.Legend(
                    title="utilisation (1 = fair share)",
                    orient="bottom",
                    gradientLength=180,
                    gradientThickness=10,
                    tickCount=4,
                    titleLimit=260,
                ),
            ),
            tooltip=[
                alt.Tooltip("step:O"),
                alt.Tooltip("module:O"),
                alt.Tooltip("name:N"),
                alt.Tooltip("kind:N"),
                alt.Tooltip("words:N", title="utilisation"),
                alt.Tooltip("tokens:N"),
                alt.Tooltip("share:N"),
            ],
        )
        .add_params(pick)
    )
    dead = (
        alt.Chart(rows(row for row in table if row["dead"] and len(modules) <= MOST_MARKED))
        .mark_text(text="×", color=look.accent, fontSize=look.font_size + 2)
        .encode(x=x, y=y)
    )
    chart = alt.layer(cells, dead).properties(width="container", height=max(80, min(620, 20 * max(1, len(modules)))))
    return finish(
        titled(
            chart,
            look,
            title,
            [
                "Darker: more tokens than a fair share. "
                + ("×" if len(modules) <= MOST_MARKED else "Page colour")
                + ": no token ever came (dead)."
            ],
        ),
        look,
    )


def top_k_chart(
    usage: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    height: int = 240,
    title: str | None = "How widely does each step choose?",
) -> alt.LayerChart:
    """Effective top-k per step beside the untrained twin. Low: tokens spread over many modules evenly or not is
    told by the distance from the twin, never by the number alone."""
    look = theme_named(theme)
    series = [("this run", "effective_top_k"), ("untrained twin", "untrained_effective_top_k")]
    table = [
        {"step": row["step"], "value": row[key], "what": name, "words": numbers.number(row[key])}
        for row in usage["steps"]
        for name, key in series
        if row.get(key) is not None
    ]
    shown = [name for name, _key in series if any(row["what"] == name for row in table)]
    legend = alt.Legend(title=None, orient="top", symbolType="stroke", symbolSize=300)
    base = alt.Chart(rows(table)).encode(
        x=alt.X(
            "step:Q",
            axis=alt.Axis(title="step", format="d", tickMinStep=1, grid=False),
            scale=alt.Scale(padding=12, nice=False),
        ),
        y=alt.Y(
            "value:Q",
            axis=alt.Axis(title="effective top-k", tickCount=5),
            scale=alt.Scale(zero=False, padding=12),
        ),
        color=alt.Color(
            "what:N",
            scale=alt.Scale(domain=shown, range=[look.module, look.identity][: len(shown)]),
            legend=legend,
        ),
        strokeDash=alt.StrokeDash(
            "what:N", scale=alt.Scale(domain=shown, range=[[1, 0], [5, 3]][: len(shown)]), legend=legend
        ),
        tooltip=[
            alt.Tooltip("what:N", title="whose"),
            alt.Tooltip("step:Q"),
            alt.Tooltip("words:N", title="effective top-k"),
        ],
    )
    points = base.mark_point(filled=True, size=60, opacity=1)
    chart = alt.layer(base.mark_line(strokeWidth=2), points).properties(width="container", height=height)
    return finish(
        titled(chart, look, title, "Effective number of modules among which tokens are spread, per step."),
        look,
    )


def dead_modules(usage: Mapping[str, Any]) -> list[tuple[int, str, int]]:
    """Modules that no token ever chose: (module, name, number of steps where it could have been chosen)."""
    total: dict[int, list[Any]] = {}
    for row in usage["usage"]:
        entry = total.setdefault(int(row["module"]), [str(row.get("name") or row["module"]), 0.0, 0])
        entry[1] += row["count"]
        entry[2] += 1
    return [(module, name, steps) for module, (name, count, steps) in sorted(total.items()) if count == 0]


def overloaded(usage: Mapping[str, Any], most: int = 5) -> list[dict[str, Any]]:
    """The steps and modules far above their fair share, highest first."""
    high = [row for row in usage["usage"] if (row["utilisation"] or 0) >= OVERLOADED]
    return sorted(high, key=lambda row: (-row["utilisation"], row["step"], row["module"]))[:most]
