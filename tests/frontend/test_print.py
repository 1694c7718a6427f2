"""What is printed does not depend on the page: every chart remembers its call, and its answers are its data."""

from __future__ import annotations

import csv
import importlib
import inspect
import io
import pkgutil
import re
import zipfile

import pytest

import tokenpaths.frontend.charts as charts
from tests.support.runs import open_run
from tokenpaths.frontend.charts.drawing.palette import DARK, PRINT
from tokenpaths.frontend.charts.drawing.printing import points, print_spec, printed
from tokenpaths.frontend.charts.drawing.redraw import call_of
from tokenpaths.frontend.charts.drawing.svg_sheet import text_width
from tokenpaths.frontend.charts.drawing.tables import csv_files, csv_of, zip_of

MODULES = [
    importlib.import_module(one.name)
    for one in pkgutil.walk_packages(charts.__path__, "tokenpaths.frontend.charts.")
    if not one.ispkg
]
RUN = open_run(samples=4, modules=8, top_k=2)
DRAWN = {
    "flow": lambda theme: charts.flow_chart(RUN.flow(), theme=theme, title=None),
    "load": lambda theme: charts.load_chart(RUN.usage(), theme=theme, title=None),
    "histogram": lambda theme: charts.histogram_chart(RUN.distribution("compute", "sample"), theme=theme, title=None),
    "token flow": lambda theme: charts.token_flow_chart(open_run("text", modules=8).sample(0), theme=theme, title=None),
    "paths": lambda theme: charts.rank_frequency_chart({"observed": RUN.fit()["observed"]}, theme=theme, title=None),
}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_chart_function_remembers(module):
    for name, function in vars(module).items():
        if name.endswith("_chart") and not name.startswith("_") and function.__module__ == module.__name__:
            assert "theme" not in inspect.signature(function).parameters or hasattr(function, "__wrapped__"), name


def test_functions_of_one_name_stay_those_of_their_module():
    from tokenpaths.frontend.charts import compare, usage

    assert charts.load_chart is usage.load_chart
    assert compare.load_chart is not usage.load_chart


@pytest.mark.parametrize("name", DRAWN)
def test_a_dark_page_prints_what_a_light_one_prints(name):
    dark, light = (printed(DRAWN[name](theme), points(183), caption=["run: x."]) for theme in ("dark", "light"))
    plain = [re.sub(r"\b(n\d+-)?(clip|gradient_)\w*", "", svg) for svg in (dark, light)]
    assert plain[0] == plain[1]
    assert DARK.background not in dark
    assert PRINT.ink in dark
    assert "run: x." in dark


def test_a_chart_that_was_changed_afterwards_is_printed_as_it_is():
    changed = DRAWN["histogram"]("light").properties(height=50)
    assert call_of(changed) is None
    assert printed(changed, 300.0).startswith("<svg")


def test_the_data_are_the_answers():
    answer = RUN.distribution("compute", "sample")
    tables = call_of(DRAWN["histogram"]("dark")).tables()
    assert tables["bins"] == answer["bins"]
    assert tables["by_label"] == answer["by_label"]
    with zipfile.ZipFile(io.BytesIO(zip_of(csv_files(tables)))) as archive:
        assert archive.namelist() == [f"{name.replace(' ', '_')}.csv" for name in tables]
        assert set(archive.namelist()) == {"bins.csv", "by_label.csv", "distribution_in_short.csv"}
        rows = list(csv.DictReader(io.StringIO(archive.read("by_label.csv").decode())))
    assert [float(row["mean"]) for row in rows] == [b["mean"] for b in answer["by_label"]]
    assert list(csv_files({"a b": [{"x": 1}], "a/b": [{"x": 2}], "none": []})) == ["a_b.csv", "a_b_.csv"]


def test_csv_has_no_nan_no_pictures_and_ribbons_in_one_cell():
    text = csv_of([{"a": float("nan"), "ribbon": [[1, 2], [3, 4]], "patch": "data:…", "b": None, "t": 'x,"y"\n'}])
    assert list(csv.DictReader(io.StringIO(text))) == [{"a": "", "ribbon": "1+2 → 3+4", "b": "", "t": 'x,"y"\n'}]


def test_the_legend_of_paths_fits_a_column_of_a_third_of_a_page():
    """Its words lay on each other where tokens stand in three columns, and what is neutral left the sheet."""
    chart = charts.token_flow_chart(open_run("text", modules=8).sample(0), theme="print", title=None)
    for width, across in ((points(60), False), (points(183), True)):
        spec = print_spec(chart, width)
        (legend,) = [one for one in _legends(spec) if "gradientLength" in one]
        words = re.findall(r"'([^']+)'", legend["labelExpr"])
        assert words == ["few", "many"]
        assert sum(text_width(one, PRINT.font_size) for one in words) < legend["gradientLength"]
        assert ("layout" in spec["config"]["legend"]) != across


def _legends(part):
    if isinstance(part, dict) and isinstance(part.get("legend"), dict):
        yield part["legend"]
    for child in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _legends(child)
