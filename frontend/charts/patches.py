"""An image whose patches are tinted by the CDF of their path, or by the module of one step.

After figure 1e of *Towards Distributed Neural Architectures* (the DNA paper).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import between, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, cdf_colour, cdf_legend, cdf_scale, ink_on, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import changed, click_selection, finish, rows

TITLE = "What happened inside this image?"

MODULE_HUES = (
    "#7fa7d6",
    "#e3b587",
    "#9cc79b",
    "#d79aa8",
    "#b3a3d4",
    "#c9c07a",
    "#88c5c7",
    "#d3a27f",
    "#a9b9a0",
    "#cfa6cc",
)
"""muted, distinct from the CDF scale; the ten colours repeat, so the module's number is always shown too"""


def data_url(png: bytes) -> str:
    """An image as a data URL, so that no request leaves the page."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def module_colour(module: int, identity: bool, theme: str | Theme) -> str:
    """Tint of a module in the step view; identity modules are neutral grey."""
    return theme_named(theme).identity if identity else MODULE_HUES[module % len(MODULE_HUES)]


def patch_rows(
    sample: Mapping[str, Any], *, theme: str | Theme, step: int | None = None, identities: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """One row per patch: position, fill, label, and its numbers as text.

    ``step`` None tints by path CDF; a number tints by the patch's module at that step.
    """
    table = []
    for token in sample.get("tokens") or []:
        modules = [int(module) for module in token["ribbon"][step]] if step is not None else []
        fill = (
            cdf_colour(token["cdf"], theme)
            if step is None
            else module_colour(modules[0], modules[0] in identities, theme)
        )
        table.append(
            {
                "token": token["token"],
                "row": token.get("row"),
                "col": token.get("col"),
                "fill": fill,
                "ink": ink_on(fill),
                "mark": "+".join(map(str, modules)),
                "rank": token["rank"],
                "cdf": token["cdf"],
                "path": numbers.ribbon_words(token["ribbon"]),
                "compute": numbers.percent(token["compute"]),
                "reuse": numbers.percent(token["reuse"]),
            }
        )
    return table


@redrawable
def patch_chart(
    sample: Mapping[str, Any],
    image: bytes | str,
    *,
    theme: str | Theme = "light",
    opacity: float = 0.6,
    step: int | None = None,
    identities: Sequence[int] = (),
    title: str | None = TITLE,
    size: int = 420,
) -> alt.LayerChart:
    """The patches of a response of ``/samples/{sample}`` over its image (PNG bytes or a data URL)."""
    look = theme_named(theme)
    grid = sample.get("grid") or {}
    num_rows, num_cols = int(grid.get("rows") or 1), int(grid.get("cols") or 1)
    table = [
        {**row, "x2": row["col"] + 1, "y2": row["row"] + 1, "ranks": f"{row['rank']:,}"}
        for row in patch_rows(sample, theme=look, step=step, identities=identities)
    ]
    url = data_url(image) if isinstance(image, bytes) else image
    height = round(size * num_rows / num_cols)
    picture = (
        alt.Chart(rows([{"url": url, "x": num_cols / 2, "y": num_rows / 2}]))
        .mark_image(width=size, height=height, aspect=False)
        .encode(x=_axis("x", num_cols, alt.X), y=_axis("y", num_rows, alt.Y, down=True), url="url:N")
    )
    fill = (
        alt.Color("cdf:Q", scale=cdf_scale(look), legend=cdf_legend())
        if step is None
        else alt.Color("fill:N", scale=None)
    )
    tiles = (
        alt.Chart(rows(table))
        .mark_rect(stroke=look.background, strokeWidth=0.5, opacity=opacity, cursor="pointer")
        .encode(
            x=_axis("col", num_cols, alt.X),
            x2="x2:Q",
            y=_axis("row", num_rows, alt.Y, down=True),
            y2="y2:Q",
            color=fill,
            tooltip=tips(
                "token:Q patch", "ranks:N rank of its path", "path:N path", "compute:N compute", "reuse:N reuse"
            ),
        )
        .add_params(click_selection("token", "token"))
    )
    what = (
        "the rank of its path among all paths of the run" if step is None else f"the module that it took at step {step}"
    )
    chart = alt.layer(picture, tiles).properties(width=size, height=height)
    chart = finish(chart, look, title, f"Each of {numbers.count(len(table))} patches is tinted by {what}.")
    # The picture has a size of its own: patches that were fitted to a container's width would leave it.
    return changed(chart, autosize=alt.AutoSizeParams(type="pad"))


def _axis(name: str, num: int, kind: Any, *, down: bool = False) -> Any:
    return kind(f"{name}:Q", axis=None, scale=between(*[num, 0] if down else [0, num]))
