"""What a flow picture and the picture of a difference of two flows share: axes, rows, the shape of ribbons, the size
of circles."""

from __future__ import annotations

import altair as alt

from tokenpaths.frontend.charts.drawing.palette import Theme
from tokenpaths.frontend.charts.drawing.theme import rows
from tokenpaths.frontend.charts.flow.layout import OTHER, FlowLayout


def axes(layout: FlowLayout) -> tuple[alt.X, alt.Y]:
    """Steps from left to right, named on top; rows in pixels from the top, without an axis."""
    return (
        alt.X("x:Q", scale=alt.Scale(domain=domain(layout), nice=False, zero=False), axis=_step_axis(layout)),
        alt.Y("y:Q", scale=alt.Scale(domain=[layout.height, 0], nice=False, zero=False), axis=None),
    )


def domain(layout: FlowLayout, right: float = 0.35) -> list[float]:
    """Of x, with room for the names of rows at the left."""
    first, last = (layout.steps[0], layout.steps[-1]) if layout.steps else (0, 1)
    room = max(1, last - first) / (7 if layout.own else 12)  # “busiest” is a longer word than a number
    return [first - max(0.4, room), last + max(right, room / 2)]


def _step_axis(layout: FlowLayout) -> alt.Axis:
    every = max(1, -(-len(layout.steps) // 12))
    return alt.Axis(
        orient="top",
        values=layout.steps[::every],
        format="d",
        title="step",
        grid=False,
        domain=False,
        ticks=False,
        labelPadding=2,
        titlePadding=2,
    )


def row_labels(layout: FlowLayout, look: Theme, x: alt.X, y: alt.Y) -> alt.LayerChart:
    """Module ids at the left, and a faint line per row so that the eye can follow a module."""
    names = {node.module: node for node in layout.nodes}
    every = max(1, -(-len(layout.row_of) * 11 // max(1, int(layout.height))))
    words_of = {"identity": "skip", "other": "other"}
    table = [
        {
            "y": layout.row_of[module],
            "label": words_of.get(names[module].kind, str(module)),
            "x": domain(layout)[0],
            "x2": domain(layout)[1],
        }
        for place, module in enumerate(layout.row_of)
        if place % every == 0
    ]
    if layout.own:  # an id means another module in every column: a row is a place in the order of load
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
    """The ``outline`` of a row (``layout.ribbon_outline``) in pixels: the browser knows the width of the picture, and
    with it the distance of two columns. For marks of size 4: an outline is drawn at half the square root of it."""
    first, last = domain(layout)
    return alt.ExprRef(
        f"replace(replace(datum.outline, regexp('a', 'g'), {0.5 / (last - first):.6f} * width), "
        f"regexp('b', 'g'), {1 / (last - first):.6f} * width)"
    )


def circle_size(layout: FlowLayout) -> alt.Size:
    """Area ∝ ``count``. On a narrow page the columns stand closer than the rows: then all circles shrink by one
    factor."""
    span = max(1, (layout.steps[-1] - layout.steps[0]) if layout.steps else 1)
    limit = alt.ExprRef(f"pow(min({2 * layout.radius:.2f}, 0.8 * width / {span + 0.9}), 2)")
    scale = alt.Scale(type="linear", domain=[0, layout.largest], range=[0, limit], nice=False)
    return alt.Size("count:Q", legend=None, scale=scale)
