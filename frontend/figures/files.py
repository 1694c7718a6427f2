"""Figures as files: SVG, PNG, CSV and JSON, with an index of captions, numbers and provenance."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from tokenpaths.frontend.charts.drawing.printing import GUTTER_MM, png_of, points, print_spec, printed
from tokenpaths.frontend.charts.drawing.tables import csv_of
from tokenpaths.frontend.figures.figure import Figure, Kind
from tokenpaths.frontend.formulas import HELP

FORMATS = ("svg", "png", "csv", "json")
INDEX = ("index.md", "index.json")
MADE_BY = "tokenpaths figures"


@dataclass
class Index:
    """Index of the figures drawn, and of those not drawn with the reason."""

    about: Mapping[str, Any]
    """run, model, checkpoint_sha256, version, command"""
    drawn: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: Kind, figures: Sequence[Figure], why: str, files: Mapping[str, Sequence[str]]) -> None:
        """Add the figures of one kind with their file names, and a sentence if some or all are missing."""
        if why:
            self.left_out.append({"figure": kind.name, "paper": list(kind.paper), "shows": kind.shows, "why": why})
        for figure in figures:
            self.drawn.append(
                {
                    "figure": figure.key,
                    "paper": list(kind.paper),
                    "question": figure.question,
                    "files": list(files[figure.key]),
                    "caption": figure.caption,
                    "numbers": plain(figure.numbers),
                    "formulas": [name for name in figure.formulas if name in HELP],
                    "view": kind.view,
                    "rest": kind.rest,
                }
            )

    def as_json(self) -> str:
        formulas = {name: HELP[name] for row in self.drawn for name in row["formulas"]}
        document = {
            "made_by": MADE_BY,
            **self.about,
            "figures": self.drawn,
            "not_drawn": self.left_out,
            "formulas": formulas,
        }
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def as_markdown(self) -> str:
        """Markdown with a section per figure, the formulas, and the missing figures."""
        about = self.about
        lines = [f"# Figures of {about['run']}", ""]
        lines += [f"- {name.replace('_', ' ')}: `{value}`" for name, value in about.items() if value not in (None, "")]
        for row in self.drawn:
            picture = next((name for name in row["files"] if name.endswith((".svg", ".png"))), None)
            lines += ["", f"## {row['figure']}: {row['question']}", ""]
            lines += [f"![{row['question']}]({picture})", ""] * bool(picture)
            paper = f"Paper: figure {', '.join(row['paper'])}. " if row["paper"] else ""
            lines += [
                escaped(row["caption"]),
                "",
                f"{paper}Files: " + ", ".join(f"[{name}]({name})" for name in row["files"]) + ".",
            ]
            if row["numbers"]:
                shown = ((name, json.dumps(value, ensure_ascii=False)) for name, value in row["numbers"].items())
                lines += ["", "| number | value |", "|---|---|"]
                lines += [f"| {escaped(name)} | {escaped(value)} |" for name, value in shown]
            lines += [f"\n*{name}*: {escaped(HELP[name])}" for name in row["formulas"]]
        if self.left_out:
            lines += ["", "## Not drawn", ""]
            for row in self.left_out:
                lines.append(f"- **{row['figure']}** ({escaped(row['shows'])}): {escaped(row['why'])}")
        return "\n".join(lines) + "\n"


def files_of(figure: Figure, formats: Sequence[str], column_mm: float) -> dict[str, bytes]:
    """Name → contents of all files of one figure, ``column_mm`` wide per column."""
    width = points(column_mm if figure.columns == 1 else 2 * column_mm + GUTTER_MM)
    files: dict[str, bytes] = {}
    if {"svg", "png"} & set(formats):
        svg = figure.sheet(width) if figure.sheet else printed(_chart(figure), width, height=figure.height)
        ElementTree.fromstring(svg)  # fail on malformed XML before writing it
        if "svg" in formats:
            files[f"{figure.key}.svg"] = svg.encode()
        if "png" in formats:
            files[f"{figure.key}.png"] = png_of(svg)
    tables = {name: table for name, table in figure.tables.items() if table}
    if "csv" in formats:
        for name, table in tables.items():
            ending = f"-{name.replace(' ', '-')}" if len(tables) > 1 else ""
            files[f"{figure.key}{ending}.csv"] = csv_of(table).encode()
    if "json" in formats:
        shown = {name: [_without_pictures(row) for row in table] for name, table in tables.items()}
        document = {"figure": figure.key, "caption": figure.caption, "numbers": figure.numbers, "tables": shown}
        if figure.draw is not None:
            document["vega_lite"] = print_spec(_chart(figure), width, figure.height)
        files[f"{figure.key}.json"] = (json.dumps(plain(document), ensure_ascii=False, allow_nan=False) + "\n").encode()
    return files


def _chart(figure: Figure) -> Any:
    assert figure.draw is not None
    return figure.draw("print")


def _without_pictures(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("patch", "image", "url")}


def plain(value: Any) -> Any:
    """JSON-compatible copy: NumPy numbers become Python's, non-finite ones null."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def escaped(text: str) -> str:
    """Untrusted text escaped for Markdown, on one line."""
    return "".join("\\" + letter if letter in "\\`*_[]<>|#" else letter for letter in " ".join(str(text).split()))
