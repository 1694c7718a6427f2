"""Load of modules by step, dead and overloaded modules, effective top-k, and labels of one module.

After figures 2, 8, 10 and 13 of *Towards Distributed Neural Architectures* (the DNA paper).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, between, either, shade, tips
from tokenpaths.frontend.charts.drawing.palette import DARKER, Theme, neutral_scale, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import (
    MOST_VECTORS,
    as_vectors,
    click_selection,
    finish,
    highest,
    rows,
    tip,
)
from tokenpaths.frontend.charts.drawing.thing_names import called

EVEN = 1.005
"""largest utilisation that is shown as 1.00"""
OVERLOADED = 3.0
"""utilisation above which a module counts as overloaded: three times its fair share"""


MOST_MARKED = 64
"""with more modules the cells are too small for a × in dead ones; they get the colour of the page instead"""
MOST_LINED = 160
"""with more modules a line around each cell would hide it"""


COUNTS_TITLE = "How many tokens did each module get?"


def cell_map(
    cells: Sequence[Mapping[str, Any]],
    facts: Callable[[Mapping[str, Any]], Mapping[str, str]],
    colour: alt.Color,
    look: Theme,
    *,
    value: str,
    chosen: str | None = None,
    things: Mapping[str, str] | None = None,
) -> list[alt.Chart]:
    """Layers of modules by steps, coloured by ``value`` of each of ``cells``; a click picks its step and module.

    Args:
        cells: rows with step, module, name, kind and ``value``; missing combinations stay empty.
        facts: what a cell's tooltip and accessible name say besides.
        colour: encoding of the field ``value``.
        chosen: ``step.module`` of a framed cell.
        things: display names by thing (``drawing.thing_names``).
    """
    modules, steps = modules_of(cells), sorted({row["step"] for row in cells})
    line = {module: place for place, module in enumerate(modules)}
    # Everything about a cell is precomputed, including the positions of its edges, one row per step with a list for
    # each field: with 16,000 cells, any transform in the browser takes a second.
    named = len(cells) <= MOST_VECTORS
    columns: dict[int, dict[str, Any]] = {}
    fields: dict[str, str] = {}
    for row in cells:
        step, module = row["step"], row["module"]
        said = {
            "module": module,
            "name": called(things, f"module:{step}.{module}", row.get("name") or str(module)),
            "kind": row.get("kind") or "module",
            **facts(row),
        }
        # A label may hold what is no name of a field.
        fields = {title: title if title.isidentifier() else f"fact{place}" for place, title in enumerate(said)}
        words = "; ".join(f"{title}: {text}" for title, text in {"step": step, **said}.items())
        place = {"y": line[module], "y2": line[module] + 1, "value": round(row[value] or 0.0, 4)}
        column = columns.setdefault(step, {"step": step, "x": step - 0.5, "x2": step + 0.5})
        for field, entry in {**{fields[title]: text for title, text in said.items()}, **place, "words": words}.items():
            if named or field != "words":
                column.setdefault(field, []).append(entry)
    table = [columns[step] for step in steps]
    x, y = _step_axis(steps), module_axis(modules, look)
    squares = (
        alt.Chart(rows(table, "cells"))
        .transform_flatten([*fields.values(), "y", "y2", "value", *(["words"] if named else [])])
        .mark_rect(
            stroke=look.grid,
            strokeWidth=0.7 if len(modules) <= MOST_LINED else 0,
            cursor="pointer",
            invalid="show",
            tooltip=tip({"step": "step", **fields}),
        )
        .encode(x=x, x2="x2:Q", y=y, y2="y2:Q", color=colour, **({"description": "words:N"} if named else {}))
        .add_params(click_selection("node", "step", "module"))
    )
    framed = [
        {"x": row["step"] - 0.5, "x2": row["step"] + 0.5, "y": line[row["module"]], "y2": line[row["module"]] + 1}
        for row in cells
        if chosen == f"{row['step']}.{row['module']}"
    ]
    # There even without a cell: data that all layers share stand outside them, where Streamlit makes of lists what
    # Vega cannot flatten.
    frame = (
        alt.Chart(rows(framed, "frame"))
        .mark_rect(filled=False, stroke=look.accent, strokeWidth=2.5, aria=False)
        .encode(x=x, x2="x2:Q", y=y, y2="y2:Q")
    )
    return [squares, frame]


def modules_of(cells: Sequence[Mapping[str, Any]]) -> list[int]:
    """The lines of ``cell_map`` from the top: modules by number, those that do nothing last."""
    skips = {row["module"] for row in cells if row.get("kind") == "identity"}
    return sorted({row["module"] for row in cells}, key=lambda module: (module in skips, module))


def load_of_flow(flow: Mapping[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
    """The load that the tokens of a flow put on each module, in the form of a response of ``/usage``.

    Args:
        flow: Response of ``/flow`` without merged modules; its filters say which tokens count.
        usage: Response of ``/usage`` of the run, which names the modules that no token of the flow met; its weights
            are of all tokens and left out.
    """
    counts = {(node["step"], node["module"]): float(node["count"]) for node in flow["nodes"]}
    cells = [row for row in usage["usage"] if row["step"] in set(flow["steps"])]
    offered, totals, rows = Counter(row["step"] for row in cells), dict[int, float](), []
    for (step, _), count in counts.items():
        totals[step] = totals.get(step, 0.0) + count
    for row in cells:
        count, total = counts.get((row["step"], row["module"]), 0.0), totals.get(row["step"], 0.0)
        load = count * offered[row["step"]] / total if total else 0.0
        share = count / flow["num_tokens"] if flow["num_tokens"] else 0.0
        named = {key: value for key, value in row.items() if key != "weight"}
        rows.append({**named, "count": round(count), "share": share, "utilisation": load})
    return {"usage": rows}


def height_of(modules: int) -> int:
    """Height of the heat map in pixels: 20 per row, up to a maximum."""
    return max(80, min(620, 20 * max(1, modules)))


@redrawable
def load_chart(
    usage: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    title: str | None = "How is the work shared between modules?",
    chosen: str | None = None,
    names: Mapping[str, str] | None = None,
    most: float | None = None,
) -> alt.LayerChart:
    """Heat map of utilisation (1 = fair share, 0 = dead), × for dead modules.

    Neutral scale, because viridis means path CDF. ``chosen``: ``step.module`` of a framed cell.
    ``names``: display names by thing (``drawing.thing_names``), for tooltips. ``most``: the end of the scale, where
    several charts share one.
    """
    look = theme_named(theme)
    cells = usage["usage"]
    modules, steps = modules_of(cells), sorted({row["step"] for row in cells})
    most = most or max([row["utilisation"] or 0 for row in cells], default=1) or 1
    squares, frame = cell_map(
        cells,
        lambda row: {
            "utilisation": numbers.number(row["utilisation"]),
            "tokens": numbers.count(row["count"]),
            "share": numbers.percent(row["share"]),
        },
        shade("value:Q", neutral_scale(most, look, type="sqrt"), "utilisation (1 = fair share)", tickCount=4),
        look,
        value="utilisation",
        chosen=chosen,
        things=names,
    )
    crosses = _dead_marks(cells, modules, look, _step_axis(steps), module_axis(modules, look))
    height = height_of(len(modules))
    chart = alt.layer(squares, crosses, frame)
    words = f"{DARKER}: more tokens than a fair share. {'×' if len(modules) <= MOST_MARKED else 'Page colour'}: "
    drawn = finish(chart, look, title, [words + "no token came."], height=height, summary=load_words(usage))
    return as_vectors(drawn, len(cells))


def load_words(usage: Mapping[str, Any]) -> str:
    """The busiest module of a step, and how many got no token, in a sentence."""
    known = _known_steps(usage["usage"])
    cells = [row for row in usage["usage"] if row["step"] in known and row["utilisation"] is not None]
    if not cells:
        return "No choice is known."
    most = max(cells, key=lambda row: row["utilisation"])
    if most["utilisation"] < EVEN:
        return "Each module got its fair share at every step."
    times = numbers.number(most["utilisation"])
    text = f"The busiest is module {most['module']} at step {most['step']}, with {times} times its fair share"
    if empty := sum(row["count"] == 0 for row in cells):
        text += f"; {numbers.count(empty)} of {numbers.plural(len(cells), 'cell')} got no token"
    return f"{text}."


def concentration_words(usage: Mapping[str, Any]) -> str:
    """The steps of the smallest and the largest effective top-k, and the range of the untrained twin, in a sentence."""
    known = [row for row in usage["steps"] if row.get("effective_top_k") is not None]
    if not known:
        return "No choice is known."
    least, most = (f(known, key=lambda row: row["effective_top_k"]) for f in (min, max))
    first, last = (numbers.number(row["effective_top_k"]) for row in (least, most))
    text = f"Step {least['step']} is the most concentrated ({first}), step {most['step']} the least ({last})"
    if first == last:
        text = f"{'Each' if len(known) > 1 else 'The'} step’s effective top-k is {first}"
    twins = [value for row in known if (value := row.get("untrained_effective_top_k")) is not None]
    if twins:
        low, high = (numbers.number(f(twins)) for f in (min, max))
        text += f"; untrained: {low if low == high else f'{low} to {high}'}"
    return f"{text}."


def module_axis(modules: Sequence[int], look: Theme, title: str = "module") -> alt.Y:
    """A line for each module, named by its number as far as there is room."""
    every = max(1, -(-len(modules) * (look.font_size + 2) // height_of(len(modules))))
    return alt.Y(
        "y:Q",
        scale=between(len(modules), 0),
        axis=bare_axis(
            title,
            grid=False,
            labelOverlap=True,
            values=[place + 0.5 for place in range(0, len(modules), every)],
            labelExpr=f"{list(modules)}[floor(datum.value)]",
        ),
    )


def _step_axis(steps: Sequence[int]) -> alt.X:
    return alt.X(
        "x:Q",
        scale=between(min(steps, default=0) - 0.5, max(steps, default=0) + 0.5),
        axis=bare_axis("step", orient="top", labelAngle=0, labelOverlap=True, grid=False, values=steps, format="d"),
    )


def _known_steps(cells: Sequence[Mapping[str, Any]]) -> set[int]:
    """Steps at which some module was chosen: at others nothing is known, and no module is dead."""
    return {row["step"] for row in cells if row["count"]}


def _dead_marks(
    cells: Sequence[Mapping[str, Any]], modules: Sequence[int], look: Theme, x: alt.X, y: alt.Y
) -> alt.Chart:
    """A × on each dead module, none at a step of which no choice is known."""
    line = {module: place for place, module in enumerate(modules)}
    known = _known_steps(cells)
    dead = [
        {"x": row["step"], "y": line[row["module"]] + 0.5}
        for row in cells
        if row["count"] == 0 and row["step"] in known and len(modules) <= MOST_MARKED
    ]
    return (
        alt.Chart(rows(dead, "dead"))
        .mark_text(text="×", color=look.accent, fontSize=look.font_size + 2, aria=False)
        .encode(x=x, y=y)
    )


@redrawable
def top_k_chart(
    usage: Mapping[str, Any],
    *,
    theme: str | Theme = "light",
    height: int = 240,
    title: str | None = "How concentrated is each step?",
) -> alt.LayerChart:
    """Effective top-k per step with that of the untrained twin.

    A low value alone does not show whether tokens are spread evenly over modules; compare with the twin.
    """
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
            "value:Q", axis=alt.Axis(title="effective top-k", tickCount=5), scale=alt.Scale(zero=False, padding=12)
        ),
        color=alt.Color(
            "what:N", scale=alt.Scale(domain=shown, range=[look.module, look.identity][: len(shown)]), legend=legend
        ),
        strokeDash=alt.StrokeDash(
            "what:N", scale=alt.Scale(domain=shown, range=[[1, 0], [5, 3]][: len(shown)]), legend=legend
        ),
        tooltip=tips("what:N whose", "step:Q", "words:N effective top-k"),
    )
    points = base.mark_point(filled=True, size=60, opacity=1)
    return finish(
        alt.layer(base.mark_line(strokeWidth=2), points),
        look,
        title,
        "Effective number of modules among which tokens are spread, per step.",
        height=height,
        summary=concentration_words(usage),
    )


def dead_modules(usage: Mapping[str, Any]) -> list[tuple[int, str, int]]:
    """Modules that no token chose: (module, name, number of steps at which it could be chosen, choices known)."""
    total: dict[int, list[Any]] = {}
    known = _known_steps(usage["usage"])
    for row in (row for row in usage["usage"] if row["step"] in known):
        entry = total.setdefault(int(row["module"]), [str(row.get("name") or row["module"]), 0.0, 0])
        entry[1] += row["count"]
        entry[2] += 1
    return [(module, name, steps) for module, (name, count, steps) in sorted(total.items()) if count == 0]


def stand_in_words(usage: Mapping[str, Any]) -> str:
    """The stand-ins for a module that does nothing (“left alone”, “silent”) to which no token came, where each step has
    modules of its own: a × in the heat map, though nothing there is dead. Empty if there are none.

    >>> alone = {"step": 0, "name": "L0 left alone", "kind": "identity", "count": 0}
    >>> stand_in_words({"usage": [{"step": 0, "name": "L0", "kind": "direction", "count": 9}, alone]})
    'Not counted: 1 stand-in for a module that does nothing, such as “L0 left alone” at step 0, to which no token came.'
    """
    known = _known_steps(usage["usage"])
    empty = [row for row in usage["usage"] if row["kind"] == "identity" and row["count"] == 0 and row["step"] in known]
    if not empty:
        return ""
    return (
        f"Not counted: {numbers.plural(len(empty), 'stand-in')} for a module that does nothing, such as "
        f"“{empty[0].get('name') or empty[0]['module']}” at step {empty[0]['step']}, to which no token came."
    )


def overloaded(usage: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The (step, module) pairs far above their fair share, highest first."""
    high = [row for row in usage["usage"] if (row["utilisation"] or 0) >= OVERLOADED]
    return sorted(high, key=lambda row: (-row["utilisation"], row["step"], row["module"]))


def module_rows(usage: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tokens of each module over all steps of an answer of ``/usage``: {module, name, kind, count, steps}.

    ``steps`` is the number of steps at which it could be chosen; a count of 0 is a dead module.
    """
    by_module: dict[int, dict[str, Any]] = {}
    for cell in usage["usage"]:
        row = by_module.setdefault(
            int(cell["module"]),
            {"module": int(cell["module"]), "name": cell.get("name"), "kind": cell.get("kind"), "count": 0, "steps": 0},
        )
        row["count"] += cell["count"]
        row["steps"] += 1
    return [by_module[module] for module in sorted(by_module)]


@redrawable(numbers=module_rows)
def module_count_chart(
    usage: Mapping[str, Any], *, theme: str | Theme = "light", title: str | None = COUNTS_TITLE, height: int = 180
) -> alt.LayerChart:
    """Bars of visits per module; identity modules are grey, dead modules are marked ×."""
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
    tooltip = tips("module:O", "name:N", "kind:N", "tokens:N")
    paint = either("datum.skip", look.identity, look.module)
    bars = alt.Chart(rows(table)).mark_bar().encode(x=x, y=y, color=paint, tooltip=tooltip)
    layers = [bars]
    if dead := [row for row in table if not row["count"]]:
        marks = alt.Chart(rows(dead)).mark_text(color=look.accent, fontSize=look.font_size + 2, baseline="bottom")
        layers.append(marks.encode(x=x, y=alt.Y("zero:Q"), text="mark:N", tooltip=tooltip))
    summary = highest(table, "count", lambda row: f"module {row['module']}, {row['tokens']} visits")
    words = "Visits over all steps. Grey: identity (skipped); ×: dead."
    return finish(alt.layer(*layers), look, title, words, height=height, summary=summary)
