"""The ink of a path: the one colour that says how many tokens take it, in pictures, texts, tables, flows and print.

Ink is made of two numbers that every row with a path has: ``cdf_middle`` (the share of tokens on strictly more frequent
paths plus half of that on paths of equal count) and ``path_tokens`` (tokens of the run on the path). So equal counts
have equal ink, and a path that most take is never drawn as one that few take. A path of a single token has no place on
the scale: it is neutral, ``ONCE``. So is one that no token of the reference run takes, ``UNKNOWN``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from tokenpaths.frontend.charts.drawing.palette import Theme, cdf_colour, cdf_scale, gradient_legend, theme_named
from tokenpaths.frontend.charts.drawing.theme import rows

Kind = Literal["scale", "once", "unknown"]
MANY, FEW = "taken by many", "taken by few"
ONCE, UNKNOWN = "only here", "not in the reference run"
WORDS: Mapping[Kind, str] = {"once": ONCE, "unknown": UNKNOWN}
NEUTRALS: Mapping[str, Mapping[Kind, str]] = {
    "light": {"once": "#b5a182", "unknown": "#efe4d2"},
    "dark": {"once": "#9a896d", "unknown": "#45403a"},
    "print": {"once": "#b5a182", "unknown": "#ece4d8"},
}
"""sand, which the scale does not have; skipped steps are a bluish grey"""


@dataclass(frozen=True)
class Ink:
    """A colour, and what it stands for."""

    colour: str
    kind: Kind


def path_ink(path: Mapping[str, Any], theme: str | Theme) -> Ink:
    """The ink of a row with ``cdf_middle`` and ``path_tokens``: a path, a token, an example, a search result."""
    look = theme_named(theme)
    kind = ink_kind(path)
    colour = cdf_colour(path["cdf_middle"], look) if kind == "scale" else NEUTRALS[look.name][kind]
    return Ink(colour, kind)


def ink_kind(path: Mapping[str, Any]) -> Kind:
    """Whether a path is on the scale, taken once, or unknown to the reference run.

    >>> [ink_kind({"path_tokens": count}) for count in (0, 1, 2)]
    ['unknown', 'once', 'scale']
    """
    count = path["path_tokens"]
    return "scale" if count > 1 else "once" if count else "unknown"


def ink_words(path: Mapping[str, Any]) -> str:
    """The ink in words, for tables and tooltips: the middle of the CDF, or what stands in its place.

    >>> ink_words({"path_tokens": 9, "cdf_middle": 0.25}), ink_words({"path_tokens": 1, "cdf_middle": 1.0})
    ('25 %', 'only here')
    """
    kind = ink_kind(path)
    return f"{100 * path['cdf_middle']:.3g} %" if kind == "scale" else WORDS[kind]


def ink_fields(path: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a chart's row that ``ink_encoding`` reads."""
    kind = ink_kind(path)
    return {"cdf_middle": path["cdf_middle"] if kind == "scale" else 0.0, "taken": kind}


def ink_encoding(channel: type[alt.Fill] | type[alt.Color], theme: str | Theme, *, legend: bool = True) -> Any:
    """Fill or colour of marks whose rows have ``ink_fields``: the scale, or a neutral."""
    look = theme_named(theme)
    neutrals = [{"test": f"datum.taken === '{kind}'", "value": colour} for kind, colour in NEUTRALS[look.name].items()]
    return channel("cdf_middle:Q", scale=cdf_scale(look), legend=ink_legend() if legend else None, condition=neutrals)


def ink_legend() -> alt.Legend:
    """The legend of the scale, with words at its ends; those that both have stand in the title, because a scale in
    print may be as short as a few words.
    """
    (start, many), (_, few) = MANY.rsplit(" ", 1), FEW.rsplit(" ", 1)
    return gradient_legend(
        f"path {start}",
        direction="horizontal",
        gradientOpacity=1,
        values=[0, 1],
        labelExpr=f"datum.value ? '{few}' : '{many}'",
    )


def with_neutral_legend(chart: Any, table: Iterable[Mapping[str, Any]], theme: str | Theme) -> Any:
    """A chart, or a layered one, with an entry of its legend for each neutral among the rows of ``table``."""
    look = theme_named(theme)
    kinds = [kind for kind in WORDS if any(row.get("taken") == kind for row in table)]
    if not kinds:
        return chart
    entries = [_entry(kind, look) for kind in kinds]
    return alt.layer(chart, *entries).resolve_scale(shape="independent")


def _entry(kind: Kind, look: Theme) -> alt.Chart:
    """An empty mark whose legend is one square with its words."""
    legend = alt.Legend(
        title=None,
        orient="bottom",
        symbolType="square",
        symbolFillColor=NEUTRALS[look.name][kind],
        symbolStrokeColor=look.muted,
        symbolStrokeWidth=0.5,
        symbolSize=110,
    )
    return (
        alt.Chart(rows([{"neutral": WORDS[kind]}]))
        .mark_point(filled=True, size=0, color=NEUTRALS[look.name][kind], aria=False)
        .encode(shape=alt.Shape("neutral:N", scale=alt.Scale(domain=[WORDS[kind]], range=["square"]), legend=legend))
    )


def legend_parts(tokens: Sequence[Mapping[str, Any]], theme: str | Theme) -> dict[str, Any]:
    """A legend outside charts: ends and colours of the scale, and the neutrals that these tokens have."""
    look = theme_named(theme)
    kinds = {ink_kind(token) for token in tokens}
    scale = {"left": f"path {MANY}", "right": FEW, "stops": list(look.cdf)} if "scale" in kinds else None
    keys = [{"label": WORDS[kind], "colour": NEUTRALS[look.name][kind]} for kind in WORDS if kind in kinds]
    return {"scale": scale, "title": None, "keys": keys}
