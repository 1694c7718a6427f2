"""Charts for print: SVG in points and PNG at 300 dpi, rendered by vl-convert without network access."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from tokenpaths.frontend.charts.drawing.redraw import call_of
from tokenpaths.frontend.charts.drawing.svg_sheet import clean, size_of, with_caption

TWO_COLUMNS_MM, GUTTER_MM = 183.0, 5.0
DOTS_PER_INCH = 300
_POINTS_PER_MM = 72 / 25.4


def points(millimetres: float) -> float:
    """Millimetres of paper in points, the unit of the print theme."""
    return round(millimetres * _POINTS_PER_MM, 2)


def print_spec(chart: Any, width: float, height: float | None = None) -> dict[str, Any]:
    """Vega-Lite of ``chart`` for a width in points: one unit is one point, so font size 8 is 8-point type.

    A chart of fixed width (an image with its patches) keeps its proportions and is scaled when it is written.
    """
    spec: dict[str, Any] = chart.to_dict()
    if spec.get("width") == "container":
        spec["width"] = width
        if height is not None:
            spec["height"] = height
    spec.pop("usermeta", None)
    spec["padding"] = 2
    _finer(spec, 0.45 * width)
    if width < _NARROW:  # side by side, legends would leave the sheet
        spec.setdefault("config", {}).setdefault("legend", {})["layout"] = {"bottom": {"direction": "vertical"}}
    lines = dict.fromkeys(("gridWidth", "domainWidth", "tickWidth"), 0.5)
    spec.setdefault("config", {}).setdefault("axis", {}).update(lines)
    return spec


_NARROW = 240
"""points of width below which legends stand one below the other"""
_SMALLER = 0.4
"""ratio of a point mark's area in print to that on screen: the font size is 8 there and 12 here"""
_THINNER = 0.6


def _finer(part: Any, longest: float) -> None:
    """Shrink points, and legends to at most ``longest`` points, in place; outlines (points with their own shape) are
    kept.
    """
    if isinstance(part, list):
        for child in part:
            _finer(child, longest)
    if not isinstance(part, dict):
        return
    mark = part.get("mark")
    if isinstance(mark, dict) and mark.get("type") in ("point", "circle") and not isinstance(mark.get("shape"), dict):
        _scale(mark, "size", _SMALLER)
        for channel in ("size", "strokeWidth"):
            coding = part.get("encoding", {}).get(channel, {})
            for child in (coding, coding.get("condition")):
                if isinstance(child, dict):
                    _scale(child, "value", _SMALLER)
    if isinstance(mark, dict) and mark.get("type") in ("line", "rule"):
        _scale(mark, "strokeWidth", _THINNER)
    if isinstance(part.get("legend"), dict):
        _scale(part["legend"], "symbolSize", _SMALLER)
        if isinstance(part["legend"].get("gradientLength"), int | float):
            part["legend"]["gradientLength"] = min(longest, part["legend"]["gradientLength"])
    for name, child in part.items():
        if name not in ("values", "datasets"):
            _finer(child, longest)


def _scale(part: dict[str, Any], name: str, factor: float) -> None:
    if isinstance(part.get(name), int | float):
        part[name] *= factor


_OPACITY = re.compile(r'<path [^>]*?\sopacity="([\d.]+)"[^>]*/>')


def _flat(path: re.Match[str]) -> str:
    """A transparent path as transparent paint: as a layer of its own each would need a bitmap of the whole sheet,
    minutes for a thousand ribbons.
    """
    element = path[0]
    if "fill-opacity" in element or "stroke-opacity" in element:
        return element
    return element.replace(f' opacity="{path[1]}"', f' fill-opacity="{path[1]}" stroke-opacity="{path[1]}"')


def svg_of(spec: dict[str, Any]) -> str:
    """The SVG document of a Vega-Lite chart, sized in points."""
    import vl_convert

    svg = _OPACITY.sub(_flat, clean(vl_convert.vegalite_to_svg(spec)))
    width, height = size_of(svg)
    return svg.replace(f'width="{width:g}" height="{height:g}"', f'width="{width:g}pt" height="{height:g}pt"', 1)


def png_of(svg: str, dots_per_inch: int = DOTS_PER_INCH) -> bytes:
    """PNG of an SVG document whose unit is a point, with its resolution in the metadata."""
    import vl_convert
    from PIL import Image

    width, height = size_of(svg)
    plain = svg.replace(f'width="{width:g}pt" height="{height:g}pt"', f'width="{width:g}" height="{height:g}"', 1)
    drawn = vl_convert.svg_to_png(plain, scale=dots_per_inch / 72, ppi=72)
    out = io.BytesIO()
    Image.open(io.BytesIO(drawn)).convert("RGB").save(out, "PNG", dpi=(dots_per_inch, dots_per_inch))
    return out.getvalue()


def printed(chart: Any, width: float, *, height: float | None = None, caption: Sequence[str] = ()) -> str:
    """``chart`` for print: drawn again with the print theme, without controls, ``caption`` below it.

    A chart without the call that made it is printed unchanged.
    """
    call = call_of(chart)
    words: list[str] = []
    if call is not None:
        words = [str(getattr(call.redraw(theme="print", title=...), "description", "") or "")] if caption else []
        chart = call.redraw(theme="print", title=None, interactive=False)
    svg = svg_of(print_spec(chart, width, height))
    below = [line for line in (*words, *caption) if line]
    return with_caption(svg, below) if below else svg
