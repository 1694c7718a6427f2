"""Inline data, tooltips, selections and the final styling that all charts share."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing.palette import Theme

PADDING = {"left": 6, "top": 6, "right": 6, "bottom": 6}


class Rows(alt.InlineData):
    """Inline data of a chart, shared by all copies of it.

    Altair copies a chart on each modification, and validates inline data against the Vega-Lite schema row by row:
    seconds for 16,000 cells. Rows are immutable once drawn, so both are skipped.
    """

    _class_is_valid_at_instantiation = False

    def __deepcopy__(self, _memo: Any = None) -> Rows:
        return self

    def to_dict(self, *_given: Any, **_options: Any) -> dict[str, Any]:
        """The rows without conversion."""
        return {name: value for name, value in self._kwds.items() if value is not alt.Undefined}


def rows(values: Iterable[Mapping[str, Any]], name: str | None = None) -> Rows:
    """Plain dicts as inline data; non-finite numbers become null, never NaN in JSON.

    Rows with a ``name`` stay inside the chart as JSON, so that they may hold lists, to be flattened in the browser;
    others are sent as a table of columns. Names must be unique within a chart.
    """
    clean = [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in values
    ]
    return Rows(values=clean) if name is None else Rows(values=clean, name=name)


def tip(fields: Mapping[str, str]) -> alt.ExprRef:
    """Tooltip expression for a mark: title → field of its row, shown unformatted.

    To be used as a mark's ``tooltip``. Encoded tooltips would format every field of every row in advance, and the page
    evaluates such expressions in an interpreter.
    """
    return alt.ExprRef("{" + ", ".join(f"{title!r}: datum[{field!r}]" for title, field in fields.items()) + "}")


def axis_labels(names: Mapping[int, str]) -> str:
    """Vega expression that labels axis values with ``names``; a value without a name gets no label."""
    return "({" + ", ".join(f"'{value}': '{name}'" for value, name in names.items()) + "})[datum.value] || ''"


MOST_VECTORS = 6000
"""maximum number of marks drawn as vectors with accessible names; more are drawn as a bitmap, with the table as the
alternative
"""


def as_vectors(chart: Any, marks: int) -> Any:
    """Keep up to ``MOST_VECTORS`` marks as separate elements with accessible names.

    By default Streamlit draws bitmaps from 2,000 rows on and drops accessible names from 5,000 rows on.
    """
    few = marks <= MOST_VECTORS
    renderer = "svg" if few else "canvas"
    return changed(chart, usermeta={"embedOptions": {"renderer": renderer}}, config={"mark": alt.MarkConfig(aria=few)})


def changed(chart: Any, *, config: Mapping[str, Any] | None = None, **properties: Any) -> Any:
    """A copy of ``chart`` with changed properties and ``config`` values.

    Same as ``chart.properties(…).configure_…(…)``, but shares the layers. Altair's methods copy all layers of a chart,
    a third of a second per call; layers never change once drawn.
    """
    copy = object.__new__(type(chart))
    # Do not copy the attached call (see ``redraw``): it did not make this chart.
    vars(copy).update(_args=chart._args, _kwds={**chart._kwds, **properties})
    if config is not None:
        previous = chart._kwds.get("config", alt.Undefined)
        copy._kwds["config"] = alt.Config(**{**({} if previous is alt.Undefined else previous._kwds), **config})
    return copy


def unvalidated(chart: Any) -> Any:
    """``chart`` whose ``to_dict()`` skips validation against the Vega-Lite schema, which takes half of its time.

    For callers that pass no arguments to ``to_dict``, as Streamlit does. The tests validate every chart.
    """
    # Bypass Altair's ``__setattr__``, which would treat it as part of the specification.
    object.__setattr__(chart, "to_dict", functools.partial(chart.to_dict, validate=False))
    return chart


def click_selection(name: str, *fields: str) -> alt.Parameter:
    """Point selection that a click sets and a second click does not clear; initially empty."""
    return alt.selection_point(name=name, fields=list(fields), on="click", clear=False, empty=False)


def hover_selection(name: str, field: str) -> alt.Parameter:
    """Point selection of the mark under the pointer."""
    return alt.selection_point(name=name, fields=[field], on="pointerover", clear="pointerout", empty=False)


def highest(table: Iterable[Mapping[str, Any]], name: str, say: Callable[[Mapping[str, Any]], str]) -> str:
    """Summary for screen readers: the sentence ``say`` of the row with the highest ``name``."""
    measured = [row for row in table if row.get(name) is not None]
    return f"Highest: {say(max(measured, key=lambda row: row[name]))}." if measured else ""


def finish(
    chart: Any,
    theme: Theme,
    title: str | None,
    subtitle: str | list[str] | None = None,
    *,
    height: Any = None,
    summary: str = "",
) -> Any:
    """Give a chart its size, title, description and the look of the theme. Fonts are the page's; nothing is fetched.

    Args:
        chart: Any top-level chart of Altair.
        theme: Colours and fonts.
        title: The question that the chart answers; None leaves title and subtitle out of the picture.
        subtitle: What is drawn, with its units.
        height: In pixels, or an ``alt.Step``; the width is the container's. None keeps the chart's own size.
        summary: The number that the chart is about, for the accessible description, where the subtitle has none.

    Returns:
        A copy. Its description has title, ``summary`` and subtitle even where the picture shows none of them.
    """
    lines = [subtitle] if isinstance(subtitle, str) else list(subtitle or [])
    properties: dict[str, Any] = {"description": " ".join(filter(None, [title, summary, *lines]))}
    if height is not None:
        properties |= {"width": "container", "height": height}
    if title is not None:
        properties["title"] = _heading(title, subtitle, theme)
    # At the top, not in the configuration: Streamlit would otherwise squeeze axes into the height.
    # The padding too: it would otherwise add 20 pixels below.
    return changed(
        chart,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        padding=PADDING,
        **properties,
        config=_config(theme),
    )


def _heading(title: str, subtitle: str | list[str] | None, theme: Theme) -> alt.TitleParams:
    return alt.TitleParams(
        text=title,
        subtitle=subtitle or [],
        anchor="start",
        frame="group",
        fontSize=theme.font_size + 3,
        subtitleFontSize=theme.font_size,
        color=theme.ink,
        subtitleColor=theme.muted,
        offset=10,
        font=theme.font,
        subtitleFont=theme.font,
    )


def _config(theme: Theme) -> dict[str, Any]:
    """Colours and fonts of axes and legends."""
    labels: dict[str, Any] = {
        "labelColor": theme.muted,
        "titleColor": theme.ink,
        "labelFontSize": theme.font_size,
        "titleFontSize": theme.font_size,
        "labelFont": theme.font,
        "titleFont": theme.font,
        "titleFontWeight": 600,
    }
    lines_of_axis: dict[str, Any] = dict.fromkeys(("domainColor", "tickColor", "gridColor"), theme.grid)
    return {
        "background": theme.background,
        "font": theme.font,
        "view": alt.ViewConfig(stroke=None),
        "axis": alt.AxisConfig(**labels, **lines_of_axis),
        "legend": alt.LegendConfig(**labels, symbolStrokeWidth=2),
    }
