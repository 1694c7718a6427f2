"""Flow chart of the difference between two groups of tokens, on a diverging scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import signed_ticks
from tokenpaths.frontend.charts.drawing.palette import (
    DIVERGING,
    SHARE_FLOOR,
    Theme,
    diverging_scale,
    gradient_legend,
    mix,
    scale_end,
    theme_named,
    with_floor,
)
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import as_vectors, finish, rows, tip
from tokenpaths.frontend.charts.flow.flow import axes, circle_numbers, circle_size, ribbon_shape, row_labels
from tokenpaths.frontend.charts.flow.layout import OTHER, FlowLayout, flow_layout, ribbon_outline
from tokenpaths.frontend.charts.usage import cell_map, height_of, modules_of

MANY_NODES, FEW_NODES = 600, 8
"""with more circles than the first, a difference is reduced to the second number per step"""


def flow_contrast(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The difference of shares between two responses of ``/flow`` over the same steps and modules.

    Returns:
        ``{num_tokens: [first, second], steps, nodes, links}``. For each node and link ``before`` is the share of the
        second's tokens and ``after`` that of the first's; ``change`` = after − before in [−1, 1]. A link that one
        response cut off counts as 0 there.
    """
    pair = (second, first)
    nodes: dict[tuple[int, int], dict[str, Any]] = {}
    links: dict[tuple[int, int, int], dict[str, Any]] = {}
    for name, flow in zip(("before", "after"), pair, strict=True):
        total = float(flow.get("num_tokens") or 0) or 1.0
        for node in flow.get("nodes") or []:
            key = (int(node["step"]), int(node["module"]))
            fields = {"step": key[0], "module": key[1], "name": node.get("name"), "kind": node.get("kind")}
            nodes.setdefault(key, {**fields, "before": 0.0, "after": 0.0})[name] = float(node["count"]) / total
        for link in flow.get("links") or []:
            of = (int(link["step"]), int(link["source"]), int(link["target"]))
            fields = dict(zip(("step", "source", "target"), of, strict=True))
            links.setdefault(of, {**fields, "before": 0.0, "after": 0.0})[name] = float(link["count"]) / total
    for row in (*nodes.values(), *links.values()):
        row["change"] = row["after"] - row["before"]
    return {
        "num_tokens": [first.get("num_tokens"), second.get("num_tokens")],
        "steps": sorted({int(s) for flow in pair for s in flow.get("steps") or []}),
        "own_modules": bool(first.get("own_modules")),
        "nodes": [nodes[key] for key in sorted(nodes)],
        "links": sorted(links.values(), key=lambda row: -abs(row["change"])),
    }


def contrast_words(contrast: Mapping[str, Any], first: str, second: str) -> str:
    """The module with the largest difference, as a sentence."""
    most = max(contrast["nodes"], key=lambda row: abs(row["change"]), default=None)
    if most is None or not most["change"]:
        return f"{first} and {second} visit the same modules at every step."
    if abs(most["change"]) < 0.0005:
        return f"{first} and {second} visit each module about equally often at every step."
    what = "skip it" if most["kind"] == "identity" else f"visit module {most['module']}"
    shares = [[numbers.percent(most[side], digits) for side in ("after", "before")] for digits in (3, 4, 5)]
    own, others = next((pair for pair in shares if pair[0] != pair[1]), shares[-1])
    who = f"{own} of the tokens of {first} {what}, {others} of those of {second}"
    return f"They differ most at step {most['step']}: {who}."


def few_of(flow: Mapping[str, Any]) -> Mapping[str, Any]:
    """A difference over many modules (a mixture of experts), reduced to the largest differences."""
    if len(flow["nodes"]) <= MANY_NODES:
        return flow
    ordered = sorted(flow["nodes"], key=lambda node: -abs(node["change"]))
    nodes = [node for step in flow["steps"] for node in [n for n in ordered if n["step"] == step][:FEW_NODES]]
    node_keys = {(node["step"], node["module"]) for node in nodes}
    links = [
        link
        for link in flow["links"]
        if {(link["step"], link["source"]), (link["step"] + 1, link["target"])} <= node_keys
    ]
    return {**flow, "links": links, "nodes": nodes}


def share_of(name: str) -> str:
    """Head of the column with the shares of one side: a label alone could be the name of another column."""
    return f"tokens of {name}"


def contrast_rows(contrast: Mapping[str, Any], names: tuple[str, str], what: str) -> list[dict[str, Any]]:
    """Table of the differences; ``what`` is nodes or links."""
    keys = ("step", "module", "name") if what == "nodes" else ("step", "source", "target")
    first, second = (share_of(name) for name in names)
    return [
        {**{key: row[key] for key in keys}, first: row["after"], second: row["before"], "change": row["change"]}
        for row in contrast[what]
    ]


@redrawable(
    numbers=lambda contrast, names: {
        "circles": contrast_rows(contrast, names, "nodes"),
        "ribbons": contrast_rows(contrast, names, "links"),
    }
)
def flow_contrast_chart(
    contrast: Mapping[str, Any],
    *,
    names: tuple[str, str] = ("first", "second"),
    theme: str | Theme = "light",
    title: str | None = "Where do they part?",
    most_links: int = 150,
) -> alt.LayerChart:
    """Chart of a result of ``flow_contrast``: circles sized by the mean share, ribbons by the difference, both coloured
    by the difference.
    """
    look = theme_named(theme)
    drawn = {
        "num_tokens": 1.0,
        "steps": contrast["steps"],
        "own_modules": contrast.get("own_modules"),
        "nodes": [{**n, "count": (n["before"] + n["after"]) / 2} for n in contrast["nodes"]],
        "links": [{**k, "count": abs(k["change"])} for k in contrast["links"]],
    }
    layout = flow_layout(drawn, most_links=most_links)
    most = scale_end((row["change"] for row in (*contrast["nodes"], *contrast["links"])), SHARE_FLOOR)
    x, y = axes(layout)
    scale = diverging_scale(most, look, middle=look.identity)
    legend = _legend(names, most)
    colour = alt.Color("change:Q", scale=scale, legend=legend)
    columns = _columns(names)
    flows = (
        alt.Chart(rows(_ribbon_rows(contrast, layout)))
        .mark_point(
            filled=True,
            size=4,
            shape=ribbon_shape(layout),
            strokeWidth=0,
            opacity=0.75,
            tooltip=tip({"from step.module": "from", "to step.module": "to", **columns}),
        )
        .encode(x=x, y=y, color=colour)
    )
    circles = (
        alt.Chart(rows(_circle_rows(contrast, layout, names)))
        .mark_circle(
            opacity=1,
            strokeWidth=1,
            stroke=look.background,
            tooltip=tip({"step": "x", "module": "module", "name": "name", **columns}),
        )
        .encode(x=x, y=y, color=colour, description="words:N", size=circle_size(layout))
    )
    layers = [
        row_labels(layout, look, x, y),
        flows,
        circles,
        *circle_numbers(layout, look, x, y, _fills(contrast, look, most)),
    ]
    chart = alt.layer(*layers)
    return finish(
        chart,
        look,
        title,
        with_floor(colour_words(*names), most),
        height=layout.height,
        summary=contrast_words(contrast, *names),
    )


@redrawable(numbers=lambda contrast, names: {"cells": contrast_rows(contrast, names, "nodes")})
def contrast_map_chart(
    contrast: Mapping[str, Any],
    *,
    names: tuple[str, str] = ("first", "second"),
    theme: str | Theme = "light",
    title: str | None = "Where do they part?",
    chosen: str | None = None,
    things: Mapping[str, str] | None = None,
) -> alt.LayerChart:
    """Heat map of a result of ``flow_contrast``, where a token takes so many modules at a step that ribbons would be a
    thicket: modules by steps, coloured by the difference of their shares of tokens.

    ``chosen``: ``step.module`` of a framed cell. ``things``: display names by thing (``drawing.thing_names``).
    """
    look = theme_named(theme)
    most = scale_end((row["change"] for row in contrast["nodes"]), SHARE_FLOOR)
    columns, legend = _columns(names), _legend(names, most)
    layers = cell_map(
        contrast["nodes"],
        lambda row: {title: _tooltip_fields(row)[field] for title, field in columns.items()},
        alt.Color("value:Q", scale=diverging_scale(most, look), legend=legend),
        look,
        value="change",
        chosen=chosen,
        things=things,
    )
    drawn = finish(
        alt.layer(*layers),
        look,
        title,
        with_floor(colour_words(*names, parts=""), most),
        height=height_of(len(modules_of(contrast["nodes"]))),
        summary=contrast_words(contrast, *names),
    )
    return as_vectors(drawn, len(contrast["nodes"]))


def _fills(contrast: Mapping[str, Any], look: Theme, most: float) -> dict[str, str]:
    """About the colour that the scale gives each circle: what is written on it has to be read."""
    less, more = DIVERGING["dark" if look.name == "dark" else "light"]
    return {
        f"{row['step']}.{row['module']}": mix(
            more if row["change"] > 0 else less, look.identity, min(1.0, abs(row["change"]) / most)
        )
        for row in contrast["nodes"]
    }


def _legend(names: tuple[str, str], most: float) -> alt.Legend:
    return gradient_legend(
        f"less often ← {names[0]} → more often",
        labelExpr=signed_ticks("+.2~p", "alike"),
        gradientLength=200,
        titleLimit=420,
        values=[-most, 0, most],
    )


def _columns(names: tuple[str, str]) -> dict[str, str]:
    """Titles of a tooltip → fields of ``_tooltip_fields``."""
    return {share_of(names[0]): "after", share_of(names[1]): "before", "difference": "by"}


def _tooltip_fields(row: Mapping[str, Any]) -> dict[str, str]:
    sign = "+" if row["change"] > 0 else ""
    return {
        "after": numbers.percent(row["after"]),
        "before": numbers.percent(row["before"]),
        "by": f"{sign}{numbers.number(100 * row['change'])} points",
    }


def _ribbon_rows(contrast: Mapping[str, Any], layout: FlowLayout) -> list[dict[str, Any]]:
    """One row per ribbon, the smallest first, so that large differences are drawn on top."""
    by_key = {(link["step"], link["source"], link["target"]): link for link in contrast["links"]}
    return [
        {
            "x": link.step,
            "y": round(link.y0, 2),
            "outline": ribbon_outline(link),
            "change": row["change"],
            "from": f"{link.step}.{link.source}",
            "to": f"{link.step + 1}.{link.target}",
            **_tooltip_fields(row),
        }
        for link in reversed(layout.links)
        for row in [by_key[link.step, link.source, link.target]]
    ]


def _circle_rows(contrast: Mapping[str, Any], layout: FlowLayout, names: tuple[str, str]) -> list[dict[str, Any]]:
    """One row per circle, without merged modules."""
    by_key = {(node["step"], node["module"]): node for node in contrast["nodes"]}
    table = []
    for node in layout.nodes:
        if node.count > 0 and node.module != OTHER:
            row = by_key[node.step, node.module]
            shares = _tooltip_fields(row)
            table.append(
                {
                    "x": node.step,
                    "y": node.y,
                    "count": node.count,
                    "change": row["change"],
                    "module": node.module,
                    "name": node.name,
                    "words": f"step {node.step}, module {node.module}: {shares['after']} of {names[0]}, "
                    f"{shares['before']} of {names[1]}",
                    **shares,
                }
            )
    return table


def colour_words(
    first: str, second: str, parts: str = " Circle area: the mean of both shares; ribbon width: the difference."
) -> str:
    """Meaning of colours, areas and widths."""
    return f"Rose: tokens of {first} go there more often than those of {second}; blue: less often.{parts}"
