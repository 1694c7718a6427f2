"""SVG sheets of images, patches, tokens and samples, laid out as in the DNA paper."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tokenpaths.frontend.charts.drawing.ink import FEW, MANY, NEUTRALS, WORDS, Kind, path_ink
from tokenpaths.frontend.charts.drawing.palette import PRINT, cdf_colour, ink_on, mix
from tokenpaths.frontend.charts.drawing.svg_sheet import SvgSheet, text_width
from tokenpaths.frontend.charts.flow.token_flow import visible
from tokenpaths.frontend.charts.patches import grey

GAP = 1.5


def scale_of_paths(sheet: SvgSheet, x: float, y: float, kinds: Collection[Kind], width: float = 120.0) -> None:
    """Legend of path colours: taken by many at the left, by few at the right; then the neutral ``kinds``."""
    cells = 30
    for cell in range(cells):
        sheet.rect(x + width * cell / cells, y, width / cells + 0.2, 6, fill=cdf_colour(cell / (cells - 1), PRINT))
    sheet.text(x, y + 15, f"path {MANY}", colour=PRINT.ink)
    sheet.text(x + width, y + 15, FEW, colour=PRINT.ink, anchor="end")
    x += width + 12
    for kind, words in WORDS.items():
        if kind in kinds:
            sheet.rect(x, y, 10, 6, fill=NEUTRALS[PRINT.name][kind])
            sheet.text(x + 14, y + 6, words, colour=PRINT.ink)
            x += 26 + text_width(words, 8)


def tinted_images(
    samples: Sequence[tuple[str, str, Mapping[str, int], Sequence[Mapping[str, Any]]]], opacity: float = 0.75
) -> Callable[[float], str]:
    """Images above, the same with tinted patches below.

    Each sample is its title, its image as a data URL, its grid {rows, cols} and its patches {row, col, fill, taken}.
    The image under the tint is grey, so that its own colours do not mix with those of the legend.
    """

    def draw(width: float) -> str:
        sheet = SvgSheet(width)
        each = (width - GAP * (len(samples) - 1)) / max(3, len(samples))
        for place, (title, url, grid, patches) in enumerate(samples):
            x, high = place * (each + GAP), each * grid["rows"] / grid["cols"]
            sheet.text(x, 8, _cut(title, each))
            sheet.image(x, 12, each, high, url, title)
            top = 12 + high + GAP
            sheet.image(x, top, each, high, grey(url))
            cell_w, cell_h = each / grid["cols"], high / grid["rows"]
            for patch in patches:
                sheet.rect(
                    x + patch["col"] * cell_w,
                    top + patch["row"] * cell_h,
                    cell_w,
                    cell_h,
                    fill=patch["fill"],
                    stroke=PRINT.background,
                    stroke_width=0.3,
                    opacity=opacity,
                )
        kinds = {patch["taken"] for *_, patches in samples for patch in patches}
        scale_of_paths(sheet, 0, sheet.height + 6, kinds)
        return sheet.svg()

    return draw


def blocks_of_patches(
    blocks: Sequence[tuple[str, Mapping[str, Any] | None, Sequence[Mapping[str, Any]]]],
) -> Callable[[float], str]:
    """Blocks of patches in two columns; each has a title, its path's row (for its ink) if it is of one path, and
    examples {patch, sample, …}.
    """

    def draw(width: float) -> str:
        sheet, beside, across = SvgSheet(width), min(2, len(blocks)), 10
        block = (width - 10 * (beside - 1)) / 2 if len(blocks) > 1 else min(width, 260.0)
        side = (block - GAP * (across - 1)) / across
        tops = [0.0] * beside
        for number, (title, path, examples) in enumerate(blocks):
            column = number % beside
            x, y = column * (block + 10), tops[column]
            room = 0 if path is None else 11
            if path is not None:
                sheet.rect(x, y + 2, 7, 7, fill=path_ink(path, PRINT).colour)
            y = sheet.lines(x + room, y + 8.5, title, block - room, most=2) - 6
            for place, example in enumerate(examples):
                tooltip = f"sample {example['sample']}, row {example.get('row')}, column {example.get('col')}"
                sheet.image(
                    x + place % across * (side + GAP),
                    y + place // across * (side + GAP),
                    side,
                    side,
                    example["patch"],
                    tooltip,
                )
            tops[column] = y + -(-len(examples) // across) * (side + GAP) + 6
            if column == beside - 1:
                tops = [max(tops)] * beside
        return sheet.svg()

    return draw


def blocks_of_tokens(blocks: Sequence[tuple[str, Mapping[str, Any] | None, Sequence[str]]]) -> Callable[[float], str]:
    """Tokens of each path on its ink, or on grey for mixed paths."""

    def draw(width: float) -> str:
        sheet, y = SvgSheet(width), 0.0
        for title, path, tokens in blocks:
            fill = PRINT.grid if path is None else mix(path_ink(path, PRINT).colour, PRINT.background, 0.85)
            ink = ink_on(fill)
            y = sheet.lines(0, y + 9, title, width, most=2, bold=True) - 8
            x, y = 0.0, y + 2
            for token in tokens:
                word = visible(token) or "–"
                wide = min(width, text_width(word, 8) + 5)
                if x + wide > width:
                    x, y = 0.0, y + 12
                sheet.rect(x, y, wide, 10.5, fill=fill)
                sheet.text(x + wide / 2, y + 8, word, colour=ink, anchor="middle")
                x += wide + GAP
            y += 17
        return sheet.svg()

    return draw


def rows_of_samples(rows: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Callable[[float], str]:
    """One row of samples per band: images {url, caption} side by side, or texts {text, caption} below each other."""

    def draw(width: float) -> str:
        sheet, y = SvgSheet(width), 0.0
        most = max((len(members) for _, members in rows), default=1)
        each = (width - 4 * (most - 1)) / max(4, most)
        for title, members in rows:
            sheet.text(0, y + 8, title, bold=True)
            y += 12
            if members and members[0].get("url"):
                for place, member in enumerate(members):
                    x = place * (each + 4)
                    sheet.image(x, y, each, each, member["url"], member["caption"])
                    sheet.text(x, y + each + 9, _cut(member["caption"], each), colour=PRINT.muted)
                y += each + 18
            else:
                for member in members:
                    y = sheet.lines(0, y + 8, member["caption"], width, most=1, colour=PRINT.muted) - 8
                    y = sheet.lines(8, y + 8, member["text"], width - 8, most=3) - 4
                y += 4
        return sheet.svg()

    return draw


def strips(rows: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> Callable[[float], str]:
    """Rows of images with captions: an original and its dreams."""

    def draw(width: float) -> str:
        sheet, y = SvgSheet(width), 0.0
        most = max((len(pictures) for _, pictures in rows), default=1)
        each = (width - 4 * (most - 1)) / max(4, most)
        for title, pictures in rows:
            y = sheet.lines(0, y + 8, title, width, most=2, bold=True) - 6
            deepest = y
            for place, (url, words) in enumerate(pictures):
                x = place * (each + 4)
                sheet.image(x, y, each, each, url, words)
                deepest = max(deepest, sheet.lines(x, y + each + 9, words, each, most=2, colour=PRINT.muted))
            y = deepest
        return sheet.svg()

    return draw


def side_by_side(parts: Sequence[Callable[[float], str]], gutter: float = 10.0) -> Callable[[float], str]:
    """Sheets or charts in columns of equal width."""

    def draw(width: float) -> str:
        sheet, each = SvgSheet(width), (width - gutter * (len(parts) - 1)) / len(parts)
        for place, part in enumerate(parts):
            sheet.nest(place * (each + gutter), 0, part(each))
        return sheet.svg()

    return draw


def _cut(words: str, width: float) -> str:
    while len(words) > 1 and text_width(words, 8) > width:
        words = words[:-2].rstrip() + "…"
    return words
