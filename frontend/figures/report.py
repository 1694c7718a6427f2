"""Self-contained HTML report of one run: charts, examples, tables and formulas.

Vega's scripts, data and images are inline, and the content security policy forbids any request. Text of the run is
escaped.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.printing import points
from tokenpaths.frontend.charts.drawing.slots import offered_ids
from tokenpaths.frontend.charts.drawing.svg_sheet import clean
from tokenpaths.frontend.charts.drawing.tables import csv_of
from tokenpaths.frontend.charts.paths import path_rows
from tokenpaths.frontend.figures import KINDS, Figure, Kind, Source, Wishes, draw_figures
from tokenpaths.frontend.figures.common import sample_rows
from tokenpaths.frontend.figures.files import plain
from tokenpaths.frontend.formulas import HELP

_HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""unsafe-eval: Vega compiles its expressions to functions"""
MOST_ROWS, MOST_CSV_BYTES = 300, 2_000_000
CARD = {
    "model": "model",
    "family": "family",
    "dataset": "data set",
    "samples_are": "its samples are",
    "split": "split",
    "num_samples": "samples",
    "num_tokens": "tokens",
    "num_steps": "steps",
    "num_modules": "modules",
    "top_k": "top-k",
    "num_paths": "paths",
    "accuracy": "accuracy",
    "loss": "loss (nats)",
    "created_at": "traced at",
    "checkpoint_sha256": "checkpoint, SHA-256",
    "engine_version": "version",
}


def report(
    source: Source,
    *,
    version: str,
    refusals: tuple[type[Exception], ...] = (),
    wishes: Wishes | None = None,
    on_missing: Callable[[Kind, Sequence[Figure], str], None] = lambda kind, drawn, why: None,
) -> str:
    """The HTML report of a run.

    Args:
        source: The run.
        version: Of this program.
        refusals: Exceptions whose message says why a figure cannot be drawn.
        wishes: What figures show of the run, and the run beside it.
        on_missing: Told of each kind that was not drawn, or in part, and why.
    """
    info, counter = source.info(), itertools.count()
    parts, contents, missing = [], [], []
    for kind, figures, why in draw_figures(source, wishes or Wishes(), KINDS, refusals):
        if why:
            on_missing(kind, figures, why)
            numbered = f" (figure {escape(', '.join(kind.paper))})" if kind.paper else ""
            missing.append(f"<li><b>{escape(kind.shows)}</b>{numbered}: {_text(why)}</li>")
        if not figures:
            continue
        contents.append((kind.name, figures[0].question))
        parts.append(_section(kind, figures, counter))
    contents += [("tables", "Tables")]
    body = [
        f"<h1>{_text(info['run'])}</h1>",
        f"<p>{_text(_in_words(info))}</p>",
        _card(info),
        "<nav aria-label='contents'><ol>",
        *(f"<li><a href='#{name}'>{_text(words)}</a></li>" for name, words in contents),
        "</ol></nav>",
        *parts,
        _tables(source, info),
        f"<h2>Not drawn</h2><ul class='why'>{''.join(missing)}</ul>" if missing else "",
        f"<p class='why'>Made by Tokenpaths {_text(version)} from one run file; nothing on this page is loaded from "
        "elsewhere.</p>",
    ]
    return _PAGE.format(
        policy=POLICY,
        title=_text(info["run"]),
        style=_file("report.css"),
        body="\n".join(body),
        library=_library(),
        script=_file("report.js"),
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} – Tokenpaths</title>
<style>{style}</style></head>
<body>
{body}
<script type="module">{library}
{script}</script>
</body></html>
"""


@lru_cache(maxsize=1)
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; built once per process, in about a second."""
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--")


@lru_cache(maxsize=4)
def _file(name: str) -> str:
    return (_HERE / name).read_text("utf-8")


def _section(kind: Kind, figures: Sequence[Figure], counter: Any) -> str:
    head = f"<section id='{kind.name}'><h2>{_text(figures[0].question)}</h2>"
    description = f"Figure {', '.join(kind.paper)} of the DNA paper: {kind.shows}" if kind.paper else kind.shows
    paper = f"<p class='paper'>{escape(numbers.capital(description))}.</p>"
    drawn = [_figure(figure, counter, first=number == 0) for number, figure in enumerate(figures)]
    return head + paper + "".join(drawn) + "</section>"


def _figure(figure: Figure, counter: Any, *, first: bool) -> str:
    """A figure with its caption, numbers, data and formulas."""
    narrow = " narrow" if figure.columns == 1 else ""
    if figure.sheet is not None:
        width = points(89 if figure.columns == 1 else 183)
        named = f"role='img' aria-label='{_text(figure.question)}'"
        picture = f"<div class='sheet{narrow}' {named}>{figure.sheet(width)}</div>"
    else:
        assert figure.draw is not None
        picture = _chart(figure.draw("light"), counter, narrow)
    title = "" if first else f"<h3>{_text(figure.question)}</h3>"
    values = [{"number": name, "value": value} for name, value in plain(figure.numbers).items()]
    return (
        f"{title}<figure>{picture}<figcaption>{_text(figure.caption)}</figcaption></figure>"
        + _formulas([name for name in figure.formulas if name in HELP])
        + _details("Exact numbers", values)
        + "".join(_details(f"Data: {name}", table, f"{figure.key}-{name}.csv") for name, table in figure.tables.items())
    )


def _formulas(names: Sequence[str]) -> str:
    paragraphs = "".join(f"<p class='why'><b>{escape(name)}</b>: {_text(HELP[name])}</p>" for name in names)
    return f"<details><summary>Formulas: {escape(', '.join(names))}</summary>{paragraphs}</details>" if names else ""


def _chart(chart: Any, counter: Any, narrow: str = "") -> str:
    """A container for a chart and its Vega-Lite as JSON, escaped so that it cannot close the script element."""
    number = next(counter)
    spec = json.dumps(plain(chart.to_dict()), ensure_ascii=False, allow_nan=False)
    spec = clean(spec).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return (
        f"<div class='chart{narrow}' data-chart='spec-{number}'></div>"
        f"<script type='application/json' id='spec-{number}'>{spec}</script>"
    )


def _details(title: str, table: Sequence[Mapping[str, Any]], file_name: str = "", total: int | None = None) -> str:
    """A collapsed table, with the whole of it as a CSV file unless that is too large.

    Args:
        total: Number of rows of the run, if the table may hold only the first of them.
    """
    if not table:
        return ""
    link = ""
    total = max(len(table), total or 0)
    if file_name:
        data = csv_of(table).encode()
        if len(data) <= MOST_CSV_BYTES:
            url = "data:text/csv;base64," + base64.b64encode(data).decode("ascii")
            name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in file_name)
            link = f"<p><a download='{name}' href='{url}'>{_rows_held(len(table), total)} as CSV</a></p>"
    shown = min(MOST_ROWS, len(table))
    extent = f" (the first {numbers.count(shown)} of {numbers.count(total)})" if shown < total else ""
    return f"<details><summary>{_text(title)}{extent}</summary>{link}{_table(table[:MOST_ROWS])}</details>"


def _rows_held(num: int, total: int) -> str:
    """Number of rows in a file, and of how many in total."""
    return numbers.plural(num, "row") if num == total else f"The first {numbers.count(num)} of {total:,} rows"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in ("patch", "image")]
    head = "".join(f"<th scope='col'>{_text(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(_cell(name, row.get(name)) for name in names) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(name: str, value: Any) -> str:
    value = plain(value)
    if value is None:
        return "<td>–</td>"
    if isinstance(value, bool | int | float):
        text = numbers.count(value) if isinstance(value, int) else numbers.number(value, 4)
        return f"<td class='number' title='{value!r}'>{text}</td>"
    if name == "ribbon" and isinstance(value, list):
        value = numbers.ribbon_words(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"<td class='text'>{_text(text[:600])}</td>"


def _in_words(info: Mapping[str, Any]) -> str:
    summary = info["summary"]
    return (
        f"{info['model']} over {numbers.plural(info['num_samples'], 'sample')} of {info['dataset']}: "
        f"{numbers.plural(info['num_tokens'], 'token')} on {numbers.plural(info['num_paths'], 'path')}, effectively "
        f"{numbers.number(summary['effective_paths'])}; mean compute {numbers.percent(summary['mean_compute'])}, mean "
        f"reuse {numbers.percent(summary['mean_reuse'])}."
    )


def _card(info: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th scope='row'>{words}</th>{_cell(name, info[name])}</tr>"
        for name, words in CARD.items()
        if info.get(name) not in (None, "")
    )
    return f"<div class='card'><table>{rows}</table></div>"


def _tables(source: Source, info: Mapping[str, Any]) -> str:
    tables = {
        "Most frequent paths": (path_rows(source.paths(limit=200)["paths"], offered_ids(info)), info["num_paths"]),
        "Samples": (sample_rows(source.samples(limit=500)["samples"]), info["num_samples"]),
        "Labels": (info["labels"], None),
        "Modules": (info["modules"], None),
    }
    more = (
        f"<p class='why'>Every row: <code>tokenpaths export {_text(info['run'])} path -o paths.csv</code>; "
        "<code>sample</code> in place of <code>path</code> gives the samples.</p>"
    )
    inside = "".join(_details(name, table, f"{name.lower()}.csv", total) for name, (table, total) in tables.items())
    config = _text(json.dumps(info["config"], ensure_ascii=False, indent=1))
    return (
        f"<section id='tables'><h2>Tables</h2>{inside}<details><summary>Configuration of the model</summary>"
        f"<pre>{config}</pre></details>{more}</section>"
    )


def _text(words: Any) -> str:
    return escape(clean(str(words)), quote=True)
