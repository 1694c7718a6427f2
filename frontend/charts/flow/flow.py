"""Flow chart: one circle per (step, module) sized by tokens, ribbons between steps sized by flow.

After figure 2 of *Towards Distributed Neural Architectures* (the DNA paper).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, between, haloed
from tokenpaths.frontend.charts.drawing.palette import Theme, ink_on, theme_named
from tokenpaths.frontend.charts.drawing.redraw import check_answer, redrawable
from tokenpaths.frontend.charts.drawing.theme import as_vectors, click_selection, finish, hover_selection, rows, tip
from tokenpaths.frontend.charts.drawing.thing_names import called
from tokenpaths.frontend.charts.flow.flow_words import flow_captions, flow_words
from tokenpaths.frontend.charts.flow.layout import (
    MOST_LINKS,
    OTHER,
    FlowLayout,
    Link,
    flow_layout,
    least_share,
    ribbon_outline,
)

TITLE = "Where do tokens go?"
LEAST_GAP, DIGIT = 12.0, 6.5
"""pixels between rows of circles that carry numbers: a line of small text; width of a digit of it"""
NODE_PICK, LINK_PICK = "node", "link"
"""names of the two point selections; their fields have the same names"""


@redrawable
def flow_chart(
    flow: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    through: Iterable[str] = (),
    ribbon: Sequence[Sequence[int]] | None = None,
    title: str | None = TITLE,
    most_links: int = MOST_LINKS,
    least: float | None = None,
    largest: float | None = None,
    interactive: bool = True,
    names: Mapping[str, str] | None = None,
) -> alt.LayerChart:
    """Flow chart of a response of ``/flow``.

    Args:
        flow: {num_tokens, steps, nodes: [{step, module, name, kind, count, share}], links: [{step, source, target,
            count, share}], other: [{step, num_links, count}]}
        through: ``step.module`` of the selected nodes, drawn in the accent colour.
        least: Links with a smaller share of the tokens are counted but not drawn; None: use ``layout.least_share``.
        largest: Count of the largest circle of several flows that are drawn to one scale; None: of this flow.
        ribbon: One path to draw on top as a line: a tuple of module ids for each step.
        names: Display names by thing (``drawing.thing_names``), for tooltips.
    """
    look = theme_named(theme)
    least = least_share(flow) if least is None else least
    layout = flow_layout(flow, most_links=most_links, least=least, largest=largest)
    chosen = set(through)
    fills = {
        node.key: look.accent if node.key in chosen else look.identity if node.kind == "identity" else look.module
        for node in layout.nodes
    }
    x, y = axes(layout)
    layers: list[Any] = [
        row_labels(layout, look, x, y),
        *_ribbons(layout, look, x, y, chosen, interactive, names),
        _circles(layout, look, x, y, chosen, interactive, names),
        *_squares(layout, look, x, y),
        *circle_numbers(layout, look, x, y, fills, cursor="pointer" if interactive else "default"),
    ]
    if ribbon:
        layers.append(_line(layout, look, x, y, ribbon))
    subtitle = [
        f"{numbers.plural(flow.get('num_tokens'), 'token')}; columns are steps, {ROWS[layout.own]}.",
        "Circle area: tokens that a module received. Ribbon width: tokens that go that way.",
        *flow_captions(flow, least, layout),
    ]
    chart = alt.layer(*layers)
    drawn = finish(chart, look, title, subtitle, height=layout.height, summary=flow_words(flow))
    return as_vectors(drawn, len(layout.links) + len(layout.nodes))


def flow_thumbnail(
    flow: Mapping[str, Any], *, theme: str | Theme = "light", height: float = 110, most_links: int = 150
) -> alt.LayerChart:
    """The flow chart without text, for a card."""
    check_answer(flow_thumbnail, flow)
    look = theme_named(theme)
    layout = flow_layout(flow, height=height, most_links=most_links)
    x = alt.X("x:Q", scale=between(*domain(layout, 0.2)), axis=None)
    y = alt.Y("y:Q", scale=between(height + 8, -8), axis=None)
    chart = alt.layer(
        *_ribbons(layout, look, x, y, set(), False),
        _circles(layout, look, x, y, set(), False),
        *_squares(layout, look, x, y),
    )
    words = f"{TITLE} {numbers.plural(flow.get('num_tokens'), 'token')}, {numbers.plural(len(layout.steps), 'step')}."
    return finish(chart, look, None, words, height=height + 16)


ROWS = {False: "rows are modules", True: "in each the busiest module stands at the top"}
"""meaning of a row, keyed by whether each step has its own modules"""


def _ribbons(
    layout: FlowLayout,
    look: Theme,
    x: alt.X,
    y: alt.Y,
    chosen: set[str],
    interactive: bool,
    names: Mapping[str, str] | None = None,
) -> list[alt.Chart]:
    """All ribbons in the link colour and, in interactive charts, the highlighted ones on top.

    A ribbon is one mark with its own outline, not an area through four points: a data flow for each of 2,000 areas took
    the browser seconds. Highlighted ribbons are drawn a second time, so that hovering redraws only them.
    """
    data = rows(_ribbon_row(link, chosen) | _ends(link, names) for link in layout.links)
    same: dict[str, Any] = {"filled": True, "size": 4, "shape": ribbon_shape(layout), "strokeWidth": 0.4}
    if not interactive:
        plain = alt.Chart(data).mark_point(**same, color=look.link, stroke=look.link, opacity=0.4, aria=False)
        return [plain.encode(x=x, y=y)]
    hover = hover_selection("hover_link", "link")
    ribbons = (
        alt.Chart(data)
        .mark_point(
            **same,
            color=look.link,
            stroke=look.link,
            opacity=0.36,
            cursor="pointer",
            tooltip=tip(
                {
                    "from step.module": "source" if names is None else "from",
                    "to step.module": "target" if names is None else "to",
                    "tokens": "tokens",
                    "share of tokens": "share",
                }
            ),
        )
        .encode(x=x, y=y, description="words:N")
        .add_params(hover, click_selection(LINK_PICK, "link"))
    )
    over_node = "(hover_node.node && (hover_node.node[0] === datum.source || hover_node.node[0] === datum.target))"
    lit = f"datum.on || {over_node} || (hover_link.link && hover_link.link[0] === datum.link)"
    above = (
        alt.Chart(data)
        .transform_filter(lit)
        .mark_point(**same, color=look.accent, stroke=look.accent, opacity=0.7, aria=False)
        .encode(x=x, y=y)
    )
    return [ribbons, above]


def _ribbon_row(link: Link, chosen: set[str]) -> dict[str, Any]:
    source, target = f"{link.step}.{link.source}", f"{link.step + 1}.{link.target}"
    tokens, share = numbers.count(link.count), numbers.percent(link.share)
    return {
        "link": link.key,
        "x": link.step,
        "y": round(link.y0, 2),
        "outline": ribbon_outline(link),
        "source": source,
        "target": target,
        "tokens": tokens,
        "share": share,
        "on": source in chosen and target in chosen,
        "words": f"link: {link.key}; from module {link.source} at step {link.step} to module {link.target}: "
        f"{tokens} tokens ({share})",
    }


def _ends(link: Link, names: Mapping[str, str] | None) -> dict[str, str]:
    """Both ends of a link with their display names, ``3.4, block 4 · numbers, 80 %``; nothing without ``names``."""
    if names is None:
        return {}
    ends = {"from": f"{link.step}.{link.source}", "to": f"{link.step + 1}.{link.target}"}
    named = {side: called(names, f"module:{node}", "") for side, node in ends.items()}
    return {side: f"{node}, {named[side]}" if named[side] else node for side, node in ends.items()}


def _circles(
    layout: FlowLayout,
    look: Theme,
    x: alt.X,
    y: alt.Y,
    chosen: set[str],
    interactive: bool,
    names: Mapping[str, str] | None = None,
) -> alt.Chart:
    table = [
        {
            "node": node.key,
            "x": node.step,
            "y": node.y,
            "module": node.module,
            "name": called(names, f"module:{node.key}", node.name),
            "kind": node.kind or "module",
            "step": node.step,
            "count": node.count,
            "tokens": numbers.count(node.count),
            "share": numbers.percent(node.share),
            "on": node.key in chosen,
            "words": f"node: {node.key}; module {node.module} at step {node.step} "
            f"({called(names, f'module:{node.key}', node.name)}): "
            f"{numbers.count(node.count)} tokens ({numbers.percent(node.share)})",
        }
        for node in layout.nodes
        if node.count > 0 and not node.other
    ]
    paint = (
        alt.when("datum.on")
        .then(alt.value(look.accent))
        .when("datum.kind === 'identity'")
        .then(alt.value(look.identity))
        .otherwise(alt.value(look.module))
    )
    chart = (
        alt.Chart(rows(table))
        .mark_circle(
            opacity=1,
            strokeWidth=1,
            stroke=look.background,
            cursor="pointer",
            aria=interactive,
            tooltip=tip(
                {name: name for name in ("step", "module", "name", "kind", "tokens")} | {"share of tokens": "share"}
            )
            if interactive
            else None,
        )
        .encode(x=x, y=y, size=circle_size(layout), color=paint, description="words:N")
    )
    if not interactive:
        return chart
    hover = hover_selection("hover_node", "node")
    return chart.add_params(hover, click_selection(NODE_PICK, "node"))


def circle_numbers(
    layout: FlowLayout, look: Theme, x: alt.X, y: alt.Y, fills: Mapping[str, str], *, cursor: str = "default"
) -> list[alt.Chart]:
    """The module of each circle, where a row is no module and circles are far enough apart to be told by number.

    On narrow pages circles shrink with the distance of the steps, and the numbers vanish before they touch.
    ``fills``: colour of each circle.
    """
    rows_y = sorted(set(layout.place.values()))
    gap = min((below - above for above, below in pairwise(rows_y)), default=layout.height)
    if not layout.own or gap < LEAST_GAP:
        return []
    table: list[dict[str, Any]] = [
        {
            "node": node.key,
            "x": node.step,
            "y": node.y,
            "id": str(node.module),
            "ink": ink_on(fills[node.key]),
            "inside": node.radius >= 3.2 * len(str(node.module)) + 2.5,
            "beside": math.ceil(node.radius) + 2,
        }
        for node in layout.nodes
        if node.count > 0 and not node.other
    ]
    span = max(1, (layout.steps[-1] - layout.steps[0]) if layout.steps else 1)
    inside, beside = ([row for row in table if row["inside"] == place] for place in (True, False))
    # All or none: those beside a circle end before that of the next step, and some numbers without the others would
    # mislead.
    radius_at = {(node.step, node.y): node.radius for node in layout.nodes}
    ends = [row["beside"] + DIGIT * len(row["id"]) + radius_at.get((row["x"] + 1, row["y"]), 0) for row in beside]
    font: dict[str, Any] = {"baseline": "middle", "fontSize": min(11, look.font_size), "cursor": cursor}
    room = max([2 * layout.radius, *ends])
    font |= {"opacity": alt.ExprRef(f"0.8 * width / {span + 0.9} >= {room:.1f} ? 1 : 0"), "aria": False}
    text = alt.Chart(rows(inside)).mark_text(**font)
    layers = [text.encode(x=x, y=y, text="id:N", color=alt.Color("ink:N", scale=None))] if inside else []
    for distance in sorted({row["beside"] for row in beside}):
        near = alt.Chart(rows(row for row in beside if row["beside"] == distance)).encode(x=x, y=y, text="id:N")
        layers += haloed(near, look, look.ink, 3, **font, align="left", dx=distance)
    return layers


def _squares(layout: FlowLayout, look: Theme, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Merged modules, one neutral square of fixed size per step; no layer if there are none, for screen readers."""
    table = [
        {
            "x": node.step,
            "y": node.y,
            "name": node.name,
            "tokens": numbers.count(node.count),
            "share": numbers.percent(node.share),
            "words": f"step {node.step}, {node.name}: {numbers.count(node.count)} choices",
        }
        for node in layout.nodes
        if node.other
    ]
    if not table:
        return []
    span = max(1, (layout.steps[-1] - layout.steps[0]) if layout.steps else 1)
    size = alt.ExprRef(f"pow(min({layout.radius:.2f}, 0.6 * width / {span + 0.9}), 2)")
    return [
        alt.Chart(rows(table))
        .mark_square(
            color=look.identity,
            opacity=1,
            size=size,
            tooltip=tip({"step": "x", "name": "name", "choices of them": "tokens", "per token": "share"}),
        )
        .encode(x=x, y=y, description="words:N")
    ]


def _line(layout: FlowLayout, look: Theme, x: alt.X, y: alt.Y, ribbon: Sequence[Sequence[int]]) -> alt.Chart:
    """A ribbon as lines through the nodes, one line per slot."""
    table = [
        {"x": step, "y": layout.y_of(int(module), step), "slot": slot}
        for step, modules in zip(layout.steps, ribbon, strict=False)
        for slot, module in enumerate(modules)
    ]
    return (
        alt.Chart(rows(table))
        .mark_line(
            interpolate="monotone",
            strokeWidth=3,
            color=look.accent,
            point=alt.OverlayMarkDef(color=look.accent, size=40),
        )
        .encode(x=x, y=y, detail="slot:N", strokeDash=alt.StrokeDash("slot:O", legend=None))
    )


def node_rows(flow: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the nodes."""
    return [
        {
            "step": node["step"],
            "module": node["module"],
            "name": node.get("name"),
            "kind": node.get("kind"),
            "tokens": node["count"],
            "share": node.get("share"),
        }
        for node in flow.get("nodes") or []
    ]


def link_rows(flow: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Table of the links."""
    return [
        {
            "step": link["step"],
            "source": link["source"],
            "target": link["target"],
            "tokens": link["count"],
            "share": link.get("share"),
            "weight": link.get("weight"),
        }
        for link in flow.get("links") or []
    ]


def axes(layout: FlowLayout) -> tuple[alt.X, alt.Y]:
    """Steps from left to right, with labels on top; rows in pixels from the top, without an axis."""
    return (
        alt.X("x:Q", scale=between(*domain(layout)), axis=_step_axis(layout)),
        alt.Y("y:Q", scale=between(layout.height, 0), axis=None),
    )


def domain(layout: FlowLayout, right: float = 0.35) -> list[float]:
    """Domain of x, with room for the row labels at the left."""
    first, last = (layout.steps[0], layout.steps[-1]) if layout.steps else (0, 1)
    room = max(1, last - first) / (7 if layout.own or layout.several_kinds else 12)  # words are longer than numbers
    return [first - max(0.4, room), last + max(right, room / 2)]


def _step_axis(layout: FlowLayout) -> alt.Axis:
    every = max(1, -(-len(layout.steps) // 12))
    return bare_axis(
        "step", orient="top", values=layout.steps[::every], format="d", grid=False, labelPadding=2, titlePadding=2
    )


def row_labels(layout: FlowLayout, look: Theme, x: alt.X, y: alt.Y) -> alt.LayerChart | alt.FacetChart:
    """Module ids at the left, and a faint line per row to guide the eye."""
    words_of = layout.row_words()
    every = max(1, -(-len(layout.row_of) * 11 // max(1, int(layout.height))))
    table = [
        {"y": layout.row_of[module], "label": words_of[module], "x": domain(layout)[0], "x2": domain(layout)[1]}
        for place, module in enumerate(layout.row_of)
        if place % every == 0
    ]
    if layout.own:  # ids mean different modules in each column: a row is a rank by load
        ends = {min(layout.place.values(), default=0.0): "busiest"}
        ends |= {y: "other" for (_, module), y in layout.place.items() if module == OTHER}
        table = [{"y": y, "label": word, "x": domain(layout)[0], "x2": domain(layout)[1]} for y, word in ends.items()]
    lines = (
        alt.Chart(rows(table))
        .mark_rule(color=look.grid, strokeWidth=1, opacity=0.7, aria=False)
        .encode(x=x, x2="x2:Q", y=y)
    )
    words = (
        alt.Chart(rows(table))
        .mark_text(align="left", dx=1, color=look.muted, fontSize=look.font_size - 1)
        .encode(x=x, y=y, text="label:N")
    )
    name = (
        alt.Chart(rows([{"x": domain(layout)[0]}]))
        .mark_text(text="module", align="left", dx=1, color=look.ink, fontSize=look.font_size, fontWeight=600)
        .encode(x=x, y=alt.value(-24))
    )
    return alt.layer(lines, words, name)


def ribbon_shape(layout: FlowLayout) -> alt.ExprRef:
    """Pixel outline of a ribbon (``layout.ribbon_outline``).

    Only the browser knows the chart's width and so the distance between columns. For marks of size 4, since Vega scales
    an outline by half the square root of the size.
    """
    first, last = domain(layout)
    return alt.ExprRef(
        f"replace(replace(datum.outline, regexp('a', 'g'), {0.5 / (last - first):.6f} * width), "
        f"regexp('b', 'g'), {1 / (last - first):.6f} * width)"
    )


def circle_size(layout: FlowLayout) -> alt.Size:
    """Area ∝ ``count``. On a narrow page columns are closer together than rows, and all circles shrink by the same
    factor.
    """
    span = max(1, (layout.steps[-1] - layout.steps[0]) if layout.steps else 1)
    limit = alt.ExprRef(f"pow(min({2 * layout.radius:.2f}, 0.8 * width / {span + 0.9}), 2)")
    scale = alt.Scale(type="linear", domain=[0, layout.largest], range=[0, limit], nice=False)
    return alt.Size("count:Q", legend=None, scale=scale)
