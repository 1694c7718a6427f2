"""What all charts share: data as plain rows, titles, the theme's look."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt

from frontend.charts.palette import Theme

PADDING = {"left": 6, "top": 6, "right": 6, "bottom": 6}


class Rows(alt.InlineData):
    """Rows of a chart, shared by all copies of it.

    Altair copies a chart whenever something is added to it, and checks inline data against the schema of Vega-Lite
    row by row: seconds for 16,000 cells. Rows never change once they are drawn, so both are left out.
    """

    _class_is_valid_at_instantiation = False

    def __deepcopy__(self, _memo: Any = None) -> Rows:
        return self


def rows(values: Iterable[Mapping[str, Any]]) -> Rows:
    """Plain dicts as inline data; a number that is not finite becomes null, never NaN in JSON."""
    clean = [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in values
    ]
    return Rows(values=clean)


def titled(chart: Any, theme: Theme, title: str | None, subtitle: str | list[str] | None = None) -> Any:
    """The question as title, what is drawn and its units as subtitle; a title of None leaves both out of the
    picture. A screen reader gets the words either way."""
    lines = [subtitle] if isinstance(subtitle, str) else list(subtitle or [])
    chart = chart.properties(description=" ".join(filter(None, [title, *lines])))
    if title is None:
        return chart
    return chart.properties(
        title=alt.TitleParams(
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
    )


def finish(chart: Any, theme: Theme) -> Any:
    """The look of the theme. Text is drawn with fonts that the page ships; nothing is fetched."""
    axis = {
        "labelColor": theme.muted,
        "titleColor": theme.ink,
        "domainColor": theme.grid,
        "tickColor": theme.grid,
        "gridColor": theme.grid,
        "labelFontSize": theme.font_size,
        "titleFontSize": theme.font_size,
        "titleFontWeight": 600,
        "labelFont": theme.font,
        "titleFont": theme.font,
    }
    legend = {
        "labelColor": theme.muted,
        "titleColor": theme.ink,
        "labelFontSize": theme.font_size,
        "titleFontSize": theme.font_size,
        "labelFont": theme.font,
        "titleFont": theme.font,
        "titleFontWeight": 600,
        "symbolStrokeWidth": 2,
    }
    # At the top, not in the configuration: Streamlit would otherwise squeeze axes into the height.
    # The padding too: it would otherwise add 20 pixels below.
    sized = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"), padding=PADDING)
    return (
        sized.configure(background=theme.background, font=theme.font)
        .configure_view(stroke=None)
        .configure_axis(**axis)
        .configure_legend(**legend)
    )
