"""SVG sheets that combine images, tokens and finished charts; one unit is one point (1/72 inch).

Text is escaped, and characters that XML does not allow are replaced.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from tokenpaths.frontend.charts.drawing.palette import PRINT, Theme

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NARROW, _WIDE = set("iljtfrI.,:;'|!()[]{}-/\\ \"`1"), set("mwMW@%—…→←")
_SIZE = re.compile(r'<svg[^>]*?\swidth="([\d.]+)(?:pt)?"\s+height="([\d.]+)(?:pt)?"')
_ROOT_SIZE = re.compile(r'(<svg[^>]*?)\swidth="[^"]*"\s+height="[^"]*"')
_IDS = re.compile(r'\bid="([^"]+)"')
_counter = itertools.count()


def clean(text: str) -> str:
    """``text`` with characters that XML does not allow replaced by �."""
    return _FORBIDDEN.sub("�", text)


def text_width(text: str, size: float) -> float:
    """Estimated width of ``text`` in Helvetica, in points; rather over- than underestimated."""
    return size * sum(_em(letter) for letter in text)


def _em(letter: str) -> float:
    if letter in _NARROW:
        return 0.33
    if letter in _WIDE or ord(letter) > 0x2E80:
        return 1.0
    return 0.7 if letter.isupper() else 0.56


def wrapped(text: str, width: float, size: float, most: int | None = None) -> list[str]:
    """Lines of at most ``width`` points; after ``most`` lines the text is truncated with an ellipsis."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        while text_width(word, size) > width and len(word) > 1:  # break a word longer than a line
            cut = max(1, int(len(word) * width / text_width(word, size)) - 1)
            lines += [line] * bool(line) + [word[:cut]]
            line, word = "", word[cut:]
        joined = f"{line} {word}".strip()
        if text_width(joined, size) > width:
            lines.append(line)
            joined = word
        line = joined
    lines += [line] * bool(line)
    if most is not None and len(lines) > most:
        lines = lines[:most]
        lines[-1] = lines[-1][: max(1, len(lines[-1]) - 2)].rstrip() + " …"
    return lines


class SvgSheet:
    """A sheet of fixed width that grows downwards. Positions are in points from the upper left corner."""

    def __init__(self, width: float, theme: Theme = PRINT) -> None:
        self.width, self.theme, self.height = width, theme, 0.0
        self._parts: list[str] = []

    def _reach(self, bottom: float) -> None:
        self.height = max(self.height, bottom)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float | None = None,
        colour: str | None = None,
        bold: bool = False,
        anchor: str = "start",
    ) -> None:
        """One line with its baseline at ``y``."""
        size = size or self.theme.font_size
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size:g}px" fill="{colour or self.theme.ink}" '
            f'text-anchor="{anchor}" xml:space="preserve"{weight}>{escape(clean(words))}</text>'
        )
        self._reach(y + 0.3 * size)

    def lines(
        self, x: float, y: float, words: str, width: float, *, most: int | None = None, **options: object
    ) -> float:
        """Wrapped text whose first baseline is at ``y``; returns the baseline of the line after it."""
        size = float(options.get("size") or self.theme.font_size)  # type: ignore[arg-type]
        for line in wrapped(words, width, size, most):
            self.text(x, y, line, **options)  # type: ignore[arg-type]
            y += 1.25 * size
        return y

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "none",
        stroke: str = "none",
        stroke_width: float = 0.5,
        opacity: float = 1.0,
    ) -> None:
        self._parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="{stroke_width:g}" fill-opacity="{opacity:g}"/>'
        )
        self._reach(y + height)

    def image(self, x: float, y: float, width: float, height: float, url: str, title: str = "") -> None:
        """An image from a data URL, without smoothing."""
        tooltip = f"<title>{escape(clean(title))}</title>" if title else ""
        self._parts.append(
            f'<image x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" preserveAspectRatio="none" '
            f'image-rendering="optimizeSpeed" style="image-rendering:pixelated" href={quoteattr(url)} '
            f"xlink:href={quoteattr(url)}>{tooltip}</image>"
        )
        self._reach(y + height)

    def nest(self, x: float, y: float, svg: str) -> tuple[float, float]:
        """Embed a finished SVG (a chart) at a position; returns its width and height."""
        width, height = size_of(svg)
        number = next(_counter)  # gradients and clip paths of two charts have the same ids
        for name in sorted(set(_IDS.findall(svg)), key=len, reverse=True):
            new = f"n{number}-{name}"
            svg = svg.replace(f'id="{name}"', f'id="{new}"').replace(f"url(#{name})", f"url(#{new})")
        inner = _ROOT_SIZE.sub(rf'\1 width="{width:g}" height="{height:g}"', svg, count=1)
        self._parts.append(f'<g transform="translate({x:.2f},{y:.2f})">{inner}</g>')
        self._reach(y + height)
        return width, height

    def svg(self, margin: float = 2.0) -> str:
        """The sheet as an SVG document on a white background."""
        height = round(self.height + margin, 2)
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" version="1.1" '
            f'width="{self.width:g}pt" height="{height:g}pt" viewBox="0 0 {self.width:g} {height:g}" '
            f"font-family={quoteattr(self.theme.font)}>"
            f'<rect width="{self.width:g}" height="{height:g}" fill="{self.theme.background}"/>'
            + "".join(self._parts)
            + "</svg>"
        )


def size_of(svg: str) -> tuple[float, float]:
    """Width and height of an SVG document in its own units."""
    match = _SIZE.search(svg)
    if match is None:
        raise ValueError("this is not an SVG with width and height")
    return float(match[1]), float(match[2])


def with_caption(svg: str, paragraphs: Sequence[str], theme: Theme = PRINT) -> str:
    """The SVG with text below it, wrapped to its width."""
    width, height = size_of(svg)
    sheet = SvgSheet(width, theme)
    sheet.nest(0, 0, svg)
    y = height + 1.6 * theme.font_size
    for number, words in enumerate(paragraphs):
        y = sheet.lines(4, y, words, width - 8, colour=theme.muted if number else theme.ink) + 0.2 * theme.font_size
    return sheet.svg()
