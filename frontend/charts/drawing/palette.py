"""Themes, colour scales and their legends; each colour has one meaning.

The colour scale is viridis (van der Walt and Smith 2015, CC0): perceptually uniform and readable with every common
colour blindness. It encodes how many tokens take a path (``ink.py``) and nothing else. The frequent end is the one with
the higher contrast to the background: dark on a light page, light on a dark one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import altair as alt

VIRIDIS = (
    "#440154",
    "#481a6c",
    "#472f7d",
    "#414487",
    "#39568c",
    "#31688e",
    "#2a788e",
    "#23888e",
    "#1f988b",
    "#22a884",
    "#35b779",
    "#54c568",
    "#7ad151",
    "#a5db36",
    "#d2e21b",
    "#fde725",
)
"""16 evenly spaced stops; charts and page interpolate linearly in RGB"""


@dataclass(frozen=True)
class Theme:
    """Colours of a page or sheet for all charts."""

    name: str
    background: str
    ink: str
    """text and measured values"""
    muted: str
    """axis labels, secondary text, unselected elements"""
    grid: str
    accent: str
    """selection only"""
    identity: str
    """identity modules, “other”, the null"""
    module: str
    """circles of modules that do work"""
    link: str
    """links between modules"""
    cdf: tuple[str, ...]
    """colours of the middle of a path's CDF 0 … 1, evenly spaced"""
    font: str
    font_size: int


_FONT = '"Source Sans", "Source Sans Pro", system-ui, sans-serif'

LIGHT = Theme(
    "light",
    "#ffffff",
    "#1b2230",
    "#5b6474",
    "#e4e7ed",
    "#c2410c",
    "#a9b0bc",
    "#3c4a63",
    "#7c8ba6",
    VIRIDIS[:15],
    _FONT,
    12,
)
DARK = Theme(
    "dark",
    "#11151c",
    "#e8ebf0",
    "#a3adbd",
    "#2a313d",
    "#ff9255",
    "#6d7787",
    "#c3cede",
    "#6f83a8",
    tuple(reversed(VIRIDIS[2:])),
    _FONT,
    12,
)
PRINT = Theme(
    "print",
    "#ffffff",
    "#000000",
    "#444444",
    "#dddddd",
    "#b03a08",
    "#a5a5a5",
    "#3c4a63",
    "#8594ad",
    VIRIDIS[:15],
    "Helvetica, Arial, sans-serif",
    8,
)

THEMES = {theme.name: theme for theme in (LIGHT, DARK, PRINT)}


DIVERGING = {"light": ("#1f66b5", "#b0124f"), "dark": ("#6db3ff", "#ff86ab")}
"""decrease and increase of a difference: blue and rose, distinguishable with every common colour blindness"""


GROUPS = {
    "light": ("#332288", "#3a94c5", "#117733", "#85852a", "#cc6677", "#882255", "#aa4499", "#5b6474"),
    "dark": ("#8f86e8", "#3fb6d9", "#55b56e", "#e6dc7a", "#ee8899", "#c0508a", "#e6bdf2", "#8b95a6"),
}
"""up to eight unordered groups, each with a shape of its own as well; after Paul Tol's muted scheme, darkened or
lightened to fit the page colour; distinguishable with every common colour blindness
"""


def group_colours(count: int, theme: str | Theme) -> list[str]:
    """A colour for each of ``count`` groups, at most eight."""
    return list(GROUPS["dark" if theme_named(theme).name == "dark" else "light"][:count])


def theme_named(name: str | Theme) -> Theme:
    """``light``, ``dark`` or ``print``; a Theme passes through."""
    if isinstance(name, Theme):
        return name
    if name not in THEMES:
        raise ValueError(f"theme is {name!r}; it can be one of {', '.join(THEMES)}")
    return THEMES[name]


def cdf_scale(theme: str | Theme) -> alt.Scale:
    """The colour scale of paths, over the middle of the CDF (``ink.py``).

    Has one domain stop per colour: with only two, Vega would use just the first two colours.
    """
    stops = theme_named(theme).cdf
    return alt.Scale(type="linear", domain=_positions(len(stops)), range=list(stops), interpolate="rgb", clamp=True)


SHARE_FLOOR = 0.01
"""least end of a scale of differences of shares: one percentage point"""
NATS_FLOOR = 0.01
"""least end of a scale of differences of losses"""


def scale_end(values: Iterable[float | None], floor: float, errors: Iterable[float | None] = ()) -> float:
    """Where a scale of differences ends: at the largest of them, but not below ``floor`` nor within their noise.

    Differences that are next to nothing are then drawn as next to nothing, instead of in the strongest colours.

    Args:
        values: the differences; unknown ones are None.
        floor: the least end, in the unit of the values.
        errors: standard errors of the differences, where they are known; the scale ends at 1.96 times the largest or
            further.

    >>> scale_end([0.0004, None], SHARE_FLOOR), scale_end([0.3, -0.5], SHARE_FLOOR), scale_end([0.1], 0.01, [0.25])
    (0.01, 0.5, 0.49)
    """
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    noise = max((1.96 * error for error in errors if error is not None), default=0.0)
    return max(largest, noise, floor)


def floor_words(end: float, floor: float, unit: str) -> str:
    """A sentence for the legend of a scale that ends at its floor; empty where a difference is larger.

    >>> floor_words(0.01, 0.01, "percentage point")
    'No difference reaches 1 percentage point, where the colours end.'
    >>> floor_words(0.2, 0.01, "nats")
    ''
    """
    if end > floor:
        return ""
    amount = 1 if unit == "percentage point" else floor
    return f"No difference reaches {amount:g} {unit}, where the colours end."


def with_floor(words: str, end: float, floor: float = SHARE_FLOOR, unit: str = "percentage point") -> str:
    """``words`` and the sentence of ``floor_words``."""
    return " ".join(filter(None, (words, floor_words(end, floor, unit))))


def diverging_scale(most: float, theme: str | Theme, *, middle: str | None = None) -> alt.Scale:
    """The colour scale of differences: less – equal – more, with the page's colour (or ``middle``) at zero."""
    look = theme_named(theme)
    less, more = DIVERGING["dark" if look.name == "dark" else "light"]
    return alt.Scale(
        type="linear",
        domain=[-most, 0, most],
        range=[less, middle or look.background, more],
        interpolate="lab",
        clamp=True,
    )


def cdf_colour(cdf: float, theme: str | Theme) -> str:
    """A middle of the CDF in [0, 1] as ``#rrggbb``; of a path, ask ``ink.path_ink``."""
    stops = theme_named(theme).cdf
    place = min(max(float(cdf), 0.0), 1.0) * (len(stops) - 1)
    low = min(int(place), len(stops) - 2)
    pairs = zip(_rgb(stops[low]), _rgb(stops[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in pairs)


def strong_neutral(theme: str | Theme) -> str:
    """The end of a neutral scale that is far from the background."""
    look = theme_named(theme)
    return look.ink if look.name == "dark" else look.module


DARKER = "Darker on a light page (lighter on a dark one)"
"""how the captions of neutral scales begin: which colours stand for more"""


def neutral_scale(most: float, theme: str | Theme, *, end: str | None = None, **options: Any) -> alt.Scale:
    """The scale of amounts 0 … ``most`` that are no CDF: from the background to ``end`` (``strong_neutral``)."""
    look = theme_named(theme)
    colours = [look.background, end or strong_neutral(look)]
    return alt.Scale(domain=[0, most], range=colours, interpolate="lab", **options)


def gradient_legend(title: str, **options: Any) -> alt.Legend:
    """Legend of a continuous colour scale, below the chart."""
    shape = {"orient": "bottom", "gradientLength": 180, "gradientThickness": 10, "titleLimit": 320, "tickCount": 3}
    shape |= {"labelOverlap": "greedy", "labelSeparation": 4}  # on a scale of square roots “1.5 2.0” read “1.52.0”
    return alt.Legend(title=title, **{**shape, **options})


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on ``#rrggbb`` (WCAG contrast)."""
    luminance = _luminance(colour)
    return "#ffffff" if 1.05 / (luminance + 0.05) >= (luminance + 0.05) / 0.05 else "#000000"


def contrast(first: str, second: str) -> float:
    """WCAG contrast ratio of two colours, 1 … 21."""
    high, low = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [value / 255 for value in _rgb(colour)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _positions(count: int) -> list[float]:
    return [round(index / (count - 1), 6) for index in range(count)]


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def mix(colour: str, paper: str, opacity: float) -> str:
    """``colour`` laid over ``paper`` with an opacity in [0, 1]: what the eye sees."""
    pairs = zip(_rgb(colour), _rgb(paper), strict=True)
    return ("#") + "".join(f"{round(paper_part + (part - paper_part) * opacity):02x}" for part, paper_part in pairs)
