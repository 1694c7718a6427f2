"""Tables and lines to type that are plain HTML."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.page.commands import TYPED_STYLE, typed_html
from tokenpaths.frontend.page.tables import Column, table_html


def test_a_table_names_itself_its_rows_and_its_columns_and_writes_numbers_for_people() -> None:
    rows = [{"model": "a <b>", "params": 7_300_000, "loss": 4.9321}, {"model": 'c"d', "params": None, "accuracy": 0.5}]
    columns = {"params": Column("parameters", help="how many"), "accuracy": Column("right", numbers.percent)}
    region = ET.fromstring(table_html(rows, "Twins & co", columns))
    assert region.get("aria-label") == region.findtext(".//caption") == "Twins & co"
    heads = region.findall("./table/thead/tr/th")
    assert ["".join(head.itertext()) for head in heads] == ["model", "parameters", "loss", "right"]
    assert heads[1].find("abbr").get("title") == "how many"  # type: ignore[union-attr]
    lines = [["".join(cell.itertext()) for cell in row] for row in region.findall("./table/tbody/tr")]
    assert lines == [["a <b>", "7,300,000", "4.93", "–"], ['c"d', "–", "–", "50.0 %"]]
    assert [cell.tag for cell in region.find("./table/tbody/tr")] == ["th", "td", "td", "td"]  # type: ignore[union-attr]
    right = [cell.get("class") for cell in region.find("./table/tbody/tr")]  # type: ignore[union-attr]
    assert right == [None, "tp-number", "tp-number", "tp-number"]


def test_a_table_of_nothing_is_one_without_rows() -> None:
    assert ET.fromstring(table_html([], "none", {})).findall(".//td") == []


def test_lines_to_type_are_escaped_and_each_stands_alone() -> None:
    html = typed_html({'with record(m, run="<x>"): m(b)': "any model"}).removeprefix(TYPED_STYLE)
    (listed,) = ET.fromstring(html)
    assert [(one.tag, one.text) for one in listed] == [("dt", 'with record(m, run="<x>"): m(b)'), ("dd", "any model")]
