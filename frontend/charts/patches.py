"""An image whose patches are tinted by how many tokens take their path, or by the module of one step.

Under a tint the image is grey, so that its own colours never mix with those of the legend.

After figure 1e of *Towards Distributed Neural Architectures* (the DNA paper).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import altair as alt
from PIL import Image

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import between, tips
from tokenpaths.frontend.charts.drawing.ink import ink_encoding, ink_fields, path_ink, with_neutral_legend
from tokenpaths.frontend.charts.drawing.palette import Theme, ink_on, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.slots import DROPPED, NOT_RECORDED, SKIPPED, Idle, idle, mark
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
"""muted, distinct from the scale of paths; the ten colours repeat, so the module's number is always shown too"""
IDLE_COLOURS: Mapping[Idle, str] = {SKIPPED: "identity", DROPPED: "muted", NOT_RECORDED: "grid"}
"""the neutral of a theme for each step without a working module"""
MOST_IN_KEY = 4
"""modules of one colour that the key names"""


def data_url(png: bytes) -> str:
    """An image as a data URL, so that no request leaves the page."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def grey(picture: str | bytes) -> str:
    """A picture (PNG bytes or a ``data:`` URL) without its colours, as a data URL."""
    data = picture if isinstance(picture, bytes) else base64.b64decode(picture.partition(",")[2])
    with Image.open(io.BytesIO(data)) as opened:
        buffer = io.BytesIO()
        opened.convert("L").save(buffer, "PNG")
    return data_url(buffer.getvalue())


def patch_url(picture: bytes, grid: Mapping[str, Any], row: int, col: int) -> str:
    """One patch of a picture (PNG bytes) of ``grid`` rows and columns, as a data URL."""
    with Image.open(io.BytesIO(picture)) as opened:
        wide, high = opened.width / grid["cols"], opened.height / grid["rows"]
        box = (round(col * wide), round(row * high), round((col + 1) * wide), round((row + 1) * high))
        buffer = io.BytesIO()
        opened.crop(box).save(buffer, "PNG")
    return data_url(buffer.getvalue())


def module_key(
    tokens: Sequence[Mapping[str, Any]],
    step: int | None,
    identities: Collection[int],
    theme: str | Theme,
    offered: Collection[int] | None = None,
) -> list[dict[str, str]]:
    """The key of the tint by module: a colour each, and the modules that have it at ``step`` (None: at any step).

    Colours are those of ``step_colour``; steps without a working module have an entry of their own.
    """
    look = theme_named(theme)
    taken = [
        modules
        for token in tokens
        for modules in (token["ribbon"] if step is None else token["ribbon"][step : step + 1])
    ]
    reasons = {idle(modules, identities, offered) for modules in taken}
    of_colour: dict[str, list[int]] = {}
    for module in sorted(
        {_shown(modules, identities) for modules in taken if idle(modules, identities, offered) is None}
    ):
        of_colour.setdefault(_hue(module), []).append(module)
    keys = [
        {
            "label": ", ".join(map(str, members[:MOST_IN_KEY])) + (" …" if len(members) > MOST_IN_KEY else ""),
            "colour": colour,
        }
        for colour, members in of_colour.items()
    ]
    return keys + [{"label": why, "colour": getattr(look, IDLE_COLOURS[why])} for why in IDLE_COLOURS if why in reasons]


def step_colour(
    modules: Sequence[int], theme: str | Theme, identities: Collection[int] = (), offered: Collection[int] | None = None
) -> str:
    """Tint of what a token took at a step, by module: the hue of its first module that does work, else a neutral."""
    why = idle(modules, identities, offered)
    return _hue(_shown(modules, identities)) if why is None else getattr(theme_named(theme), IDLE_COLOURS[why])


def _shown(modules: Sequence[int], identities: Collection[int]) -> int:
    """The module that gives a step its colour: the first, that of the largest weight, which is no identity."""
    return next(int(module) for module in modules if module not in identities)


def _hue(module: int) -> str:
    return MODULE_HUES[module % len(MODULE_HUES)]


def patch_rows(
    sample: Mapping[str, Any],
    *,
    theme: str | Theme,
    step: int | None = None,
    identities: Collection[int] = (),
    offered: Collection[int] | None = None,
) -> list[dict[str, Any]]:
    """One row per patch: position, fill, label, and its numbers as text.

    ``step`` None tints by the ink of the path; a number tints by the patch's module at that step.
    """
    table = []
    for token in sample.get("tokens") or []:
        modules = [int(module) for module in token["ribbon"][step]] if step is not None else []
        fill = path_ink(token, theme).colour if step is None else step_colour(modules, theme, identities, offered)
        table.append(
            {
                "token": token["token"],
                "row": token.get("row"),
                "col": token.get("col"),
                "fill": fill,
                "ink": ink_on(fill),
                "mark": "" if step is None else mark(modules, offered),
                "rank": token["rank"],
                **ink_fields(token),
                "path": numbers.ribbon_words(token["ribbon"], offered=offered),
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
    identities: Collection[int] = (),
    offered: Collection[int] | None = None,
    title: str | None = TITLE,
    size: int = 420,
) -> alt.LayerChart:
    """The patches of a response of ``/samples/{sample}`` over its image (PNG bytes or a data URL)."""
    look = theme_named(theme)
    grid = sample.get("grid") or {}
    num_rows, num_cols = int(grid.get("rows") or 1), int(grid.get("cols") or 1)
    table = [
        {**row, "x2": row["col"] + 1, "y2": row["row"] + 1, "ranks": f"{row['rank']:,}"}
        for row in patch_rows(sample, theme=look, step=step, identities=identities, offered=offered)
    ]
    url = grey(image) if opacity else data_url(image) if isinstance(image, bytes) else image
    height = round(size * num_rows / num_cols)
    picture = (
        alt.Chart(rows([{"url": url, "x": num_cols / 2, "y": num_rows / 2}]))
        .mark_image(width=size, height=height, aspect=False)
        .encode(x=_axis("x", num_cols, alt.X), y=_axis("y", num_rows, alt.Y, down=True), url="url:N")
    )
    fill = (
        ink_encoding(alt.Color, look, legend=any(row["taken"] == "scale" for row in table))
        if step is None
        else _module_fill(module_key(sample["tokens"], step, identities, look, offered), table)
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
    what = "how many tokens of the run take its path" if step is None else f"the module that it took at step {step}"
    chart = alt.layer(picture, tiles)
    chart = (with_neutral_legend(chart, table, look) if step is None else chart).properties(width=size, height=height)
    chart = finish(chart, look, title, f"Each of {numbers.count(len(table))} patches is tinted by {what}.")
    # The picture has a size of its own: patches that were fitted to a container's width would leave it.
    return changed(chart, autosize=alt.AutoSizeParams(type="pad"))


def _module_fill(key: Sequence[Mapping[str, str]], table: Sequence[Mapping[str, Any]]) -> alt.Color:
    """The patches' own colours, with the key of modules as legend."""
    named = {row["colour"]: row["label"] for row in key}
    fills = sorted({row["fill"] for row in table}, key=list(named).index)
    words = " : ".join(f"datum.value === '{fill}' ? '{named[fill]}'" for fill in fills)
    legend = alt.Legend(title="module", orient="bottom", labelExpr=f"{words} : ''", columns=6)
    return alt.Color("fill:N", scale=alt.Scale(domain=fills, range=fills), legend=legend)


def _axis(name: str, num: int, kind: Any, *, down: bool = False) -> Any:
    return kind(f"{name}:Q", axis=None, scale=between(*[num, 0] if down else [0, num]))
