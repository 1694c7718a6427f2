"""Every chart tells a screen reader its question and a number, with its title in the picture or without."""

from __future__ import annotations

import re
import sys

import pytest

from tests.frontend import test_charts, test_charts_shards_lights, test_charts_soft
from tokenpaths.frontend.charts.drawing.redraw import call_of

FAMILIES = {"paths": test_charts, "lights": test_charts_shards_lights, "soft": test_charts_soft}
CHARTS = {
    f"{family} {name}": chart
    for family, module in FAMILIES.items()
    for name, chart in module.all_charts("light").items()
    if name != "thumbnail"  # has no question of its own to leave out
}


@pytest.mark.parametrize("name", CHARTS)
def test_the_accessible_name_asks_and_counts(name):
    drawn, call = CHARTS[name], call_of(CHARTS[name])
    assert call is not None
    with_title = drawn.to_dict()["description"]
    function = getattr(sys.modules[call.function.__module__], call.function.__name__)
    on_the_page = function(**{**call.arguments, "title": None}).to_dict()
    assert "title" not in on_the_page or on_the_page["title"] is None
    for words in (with_title, on_the_page["description"]):
        assert re.search(r"\d", words), words
        assert "None" not in words
        assert "nan" not in words
    if name not in ("paths histogram", "paths labels"):  # their page asks with a measure that the reader chose
        assert "?" in on_the_page["description"]


def test_the_number_is_that_of_the_answer():
    found = max(test_charts.USAGE["usage"], key=lambda row: row["utilisation"])
    words = CHARTS["paths load"].to_dict()["description"]
    assert f"module {found['module']} at step {found['step']}, " in words
    best = max(test_charts.DISTRIBUTION["by_label"], key=lambda row: row["mean"])
    assert f"{best['label']}, mean" in CHARTS["paths labels"].to_dict()["description"]
