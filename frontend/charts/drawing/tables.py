"""The answers behind a chart as CSV tables, singly or in a ZIP archive."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenpaths.frontend.charts.drawing.numbers import ribbon_words

Table = Sequence[Mapping[str, Any]]
_HEAVY = ("patch", "image", "url")
"""columns of image data, left out of tables"""
_THING = re.compile(r"(module|path|sample|token):\d")
"""keys of names by thing"""
_BLANK = r"[\s\x00-\x1f\xad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]"
_FORMULA = re.compile(_BLANK + r"*[=+@\uff1d\uff0b\uff0d\uff20-]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$")


def tables_of(answers: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """All lists of rows inside ``answers`` by their path: ``nodes``, ``links``, ``observed.points`` …

    The scalars and other lists of a response become a table of one row, named after the response.
    """
    tables: dict[str, list[dict[str, Any]]] = {}
    for name, answer in answers.items():
        if isinstance(answer, Mapping):
            _walk(answer, "" if len(answers) == 1 else name, tables, name)
        elif answer:
            tables[name] = [dict(row) for row in answer]
    return tables


def _walk(answer: Mapping[str, Any], place: str, tables: dict[str, list[dict[str, Any]]], name: str) -> None:
    if answer and all(_THING.match(str(key)) and isinstance(value, str) for key, value in answer.items()):
        tables[place or name] = [{"thing": thing, "name": called} for thing, called in answer.items()]
        return
    single: dict[str, Any] = {}
    for key, value in answer.items():
        where = f"{place}.{key}" if place else str(key)
        if isinstance(value, Mapping):
            _walk(value, where, tables, key)
        elif isinstance(value, list | tuple) and value and all(isinstance(row, Mapping) for row in value):
            tables[where] = [dict(row) for row in value]
        elif value is not None and value not in ([], ()) and key != "run":
            single[str(key)] = value
    if single:
        tables[f"{place or name} in short"] = [single]


def csv_of(table: Table) -> str:
    """A table as CSV with a header: full precision, empty cells if missing, lists as JSON, ribbons as arrows."""
    return _written(table, _columns(table))


def csv_files(tables: Mapping[str, Table]) -> dict[str, str]:
    """File name → CSV, for each table that has rows."""
    files: dict[str, str] = {}
    for name, table in tables.items():
        if table:
            file = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.") or "table"
            while f"{file}.csv" in files:  # names that differ only in punctuation
                file += "_"
            files[f"{file}.csv"] = csv_of(table)
    return files


def zip_of(files: Mapping[str, str]) -> bytes:
    """ZIP archive of the files; byte-identical for identical input."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content.encode(), zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _columns(table: Iterable[Mapping[str, Any]]) -> list[str]:
    names: dict[str, None] = {}
    for row in table:
        names.update(dict.fromkeys(row))
    return [name for name in names if name not in _HEAVY]


def _written(table: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_text, columns))
    for row in table:
        writer.writerow([_cell(name, row.get(name)) for name in columns])
    return out.getvalue()


def _cell(name: str, value: Any) -> Any:
    if value is None or isinstance(value, float) and not math.isfinite(value):
        return ""
    if name == "ribbon" and isinstance(value, list | tuple):
        return ribbon_words(value, most=10**9)
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    """What a spreadsheet would take for a formula starts with an apostrophe, as in the API's exports."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.match(text) else text
