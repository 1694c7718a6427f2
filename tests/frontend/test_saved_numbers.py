"""Save → CSV has the numbers of its picture: all that a chart draws, or tells in a tooltip, stands in a table."""

from __future__ import annotations

import csv
import importlib
import io
import math
import pkgutil
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokenpaths.frontend.charts as package
from tests.frontend import (
    test_charts,
    test_charts_experts,
    test_charts_knowledge,
    test_charts_shards_lights,
    test_charts_soft,
    test_choices,
    test_detour_charts,
    test_dream_page,
    test_flow_beside,
    test_jobs_page,
    test_margins_page,
    test_several_runs,
    test_work_charts,
)
from tests.support.runs import make_experts
from tests.support.runs.margins import with_margins
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.frontend.charts import (
    compare,
    dreams,
    effects,
    job_curve,
    load_over_time,
    margins,
    training_curve,
    work,
)
from tokenpaths.frontend.charts.drawing.redraw import Call, call_of
from tokenpaths.frontend.charts.drawing.tables import csv_files
from tokenpaths.frontend.charts.families.attention import attention_chart
from tokenpaths.frontend.charts.flow.flow_contrast import contrast_map_chart, flow_contrast, flow_contrast_chart
from tokenpaths.frontend.charts.several_runs import agreement_charts, agreement_map, numbers_table, training_maps

COMPARED = {
    "measure": "loss",
    "correlations": [{"measure": "loss", "mean_a": 1.5, "mean_b": 1.25, "num": 2, "pearson": None, "reason": "few"}],
    "points": [{"sample": 3, "label": "x", "a": 1.0, "b": 1.125}, {"sample": 8, "label": None, "a": 2.0, "b": 1.375}],
    "flow": {
        "loads": [
            {
                "step": step,
                "load_entropy_a": 0.75 + step / 8,
                "load_entropy_b": 0.5,
                "effective_top_k_a": 3.5,
                "effective_top_k_b": 2.25,
                "difference": 0.125,
            }
            for step in range(2)
        ]
    },
}
TRAINING = {
    "series": "s",
    "untrained": None,
    "points": [
        {
            "run": name,
            "iteration": at,
            "loss": loss,
            "steps": [
                {"step": step, "load_entropy": loss / 4 + step / 8, "max_violation": 0.5, "dead": step, "kept": None}
                for step in range(2)
            ],
        }
        for name, at, loss in (("a", 5, 2.5), ("b", 9, 1.25))
    ],
}
BINS = {
    "axis": "iteration",
    "modules": [4, 7, 9],
    "bins": [
        {"first": 100, "last": 190, "counts": [30, 60, 0], "choices": 90},
        {"first": 200, "last": 200, "counts": [5, 5, 20], "choices": 30},
    ],
}
BY_LABEL = {
    "modules": [4, 7],
    "all": [40, 24],
    "labels": [{"label": "law", "counts": [30, 2], "choices": 32, "overlap": 0.6875}],
}
GAP = {"value": 0.125, "low": 0.0625, "high": 0.1875, "num": 9, "clear": True}


def agreement_of_two(sample: int | None = None) -> dict[str, Any]:
    """The answer of two checkpoints, a fifth of the decisions of one drawn anew."""
    with tempfile.TemporaryDirectory() as folder:
        files = [
            with_margins(make_experts(name, series=("mine", at), drift=at / 5)).write(Path(folder))
            for at, name in enumerate("ab")
        ]
        with Run.open(files[0]) as one, Run.open(files[1]) as other:
            return one.agree(other) if sample is None else one.agree_in(other, sample)


def others() -> Iterator[Any]:
    """Charts of which no other test file keeps a list."""
    yield compare.pair_chart(COMPARED, chosen="x")
    yield compare.load_chart(COMPARED, names=("one", "other"))
    yield compare.training_chart(TRAINING, "loss", chosen=["a"])
    yield training_maps.training_map(TRAINING, "load_entropy")
    yield training_maps.training_map(TRAINING, "dead")
    numbers = test_several_runs.answer_of_numbers(None, GAP, None)
    numbers["rows"][0] |= {"low": [1.75, 1.875, None], "high": [2.25, 2.375, None]}
    labels = {name: f"run {name}" for name in "ABC"}
    yield numbers_table.number_chart(numbers["rows"][0], numbers["runs"], labels=labels)
    agreement = agreement_of_two()
    for draw in (
        agreement_charts.agreement_steps_chart,
        agreement_charts.agreement_together_chart,
        agreement_charts.agreement_positions_chart,
        agreement_charts.agreement_margins_chart,
        agreement_charts.agreement_labels_chart,
    ):
        yield draw(agreement)
    yield agreement_map.sample_agreement_chart(agreement_of_two(sample=2))
    yield load_over_time.load_time_chart(BINS)
    yield load_over_time.label_load_chart(BY_LABEL)
    yield margins.margin_chart(test_margins_page.ANSWER)
    yield effects.flow_difference_chart({"links": test_detour_charts.LINKS})
    yield effects.answers_chart(test_detour_charts.TOP5)
    yield effects.importance_chart(test_detour_charts.ROWS)
    yield effects.share_chart(test_detour_charts.SHARES)
    yield effects.token_loss_chart(test_charts_soft.LOSSES)
    yield dreams.match_chart(test_dream_page.DREAMS)
    yield dreams.top_chart(test_dream_page.DREAMS)
    yield job_curve.curve_chart(test_jobs_page.CURVE)
    yield training_curve.training_curve_chart(test_work_charts.HISTORY)
    yield training_curve.phase_chart(test_work_charts.PHASES)
    yield package.knowledge_chart({**test_charts_knowledge.KNOWN})
    yield package.contrast_chart(test_charts_knowledge.FOUND)
    yield package.sample_map_chart(test_choices.MAP)
    flow = test_flow_beside.flow
    for draw in (flow_contrast_chart, contrast_map_chart):
        yield draw(flow_contrast(flow(10, 8, 2), flow(100, 50, 50)), names=("cats", "dogs"))
    tokens = [{"token": place, "row": place // 3, "col": place % 3} for place in range(6)]
    yield attention_chart([{0: 0.5, 5: 0.25}, {2: 1.0}], tokens, 5)
    images = test_work_charts.IMAGES
    for outcome in work.OUTCOMES:
        yield work.outcome_chart(test_work_charts.OUTCOMES, outcome)
    yield work.kind_means_chart(images.kind_means("compute"), images.kind_means("compute"))
    yield work.likeness_chart(images.alikeness())
    yield work.module_kinds_chart(images.module_kinds())
    yield package.module_count_chart(images.usage())


def every_chart() -> dict[str, Any]:
    """At least one chart of each function, by a name for the test."""
    kept = [
        chart
        for module in (test_charts, test_charts_experts, test_charts_shards_lights, test_charts_soft)
        for name, chart in module.all_charts("light").items()
        if name != "thumbnail"  # no picture of its own to save
    ]
    named: dict[str, Any] = {}
    for chart in (*kept, *others()):
        call = call_of(chart)
        assert isinstance(call, Call)
        named[f"{call.function.__module__.rpartition('.')[2]} {call.name} {len(named)}"] = chart
    return named


CHARTS = every_chart()


LAYOUT = {"x", "y", "lo", "cdf_middle", "image"}
"""fields that only say where on the picture, or in which shade, something stands"""
ASIDE = {
    "graph": {"got"},
    "rank-frequency": {"share"},
    "pair": {"a", "b"},
    "flow": {"source", "target"},
    "flow-contrast": {"from", "to"},
}
"""chart → fields that hold a sum of the rows, ends of a line through them, or names of circles (``step.module``)"""


def numbers_in(text: str) -> Iterator[tuple[float, float]]:
    """The numbers of a text as a reader sees them, 12,300, −0.5 or 12.3, and how far off each may be rounded."""
    for found in re.finditer(r"[-−]?\d[\d,]*(?:\.(\d+))?(?:e[-+]\d+)?", text):
        number = float(found[0].replace(",", "").replace("−", "-"))
        off = 0.51 * 10 ** -len(found[1]) if found[1] else 0.0 if "%" not in text else 0.51
        yield number, max(off, 0.0051 * abs(number))


def saved(call: Call) -> list[float]:
    """All numbers of the CSV files of a call."""
    cells = (
        cell for text in csv_files(call.tables()).values() for row in csv.reader(io.StringIO(text)) for cell in row
    )
    return [abs(number) for cell in cells for number, _ in numbers_in(cell)]


def told(spec: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Field and value of what a chart draws as a quantity with a scale for its readers, or tells in a tooltip."""
    for layer, data in layers(spec):
        mark = layer.get("mark")
        tooltip = mark.get("tooltip") if isinstance(mark, dict) else None
        written = tooltip["expr"] if isinstance(tooltip, dict) else ""  # by ``theme.tip``
        for field in re.findall(r"datum\['(\w+)'\]", written):
            yield from ((field, row[field]) for row in data if row.get(field) is not None)
        for channel, ends in (layer.get("encoding") or {}).items():
            for end in ends if isinstance(ends, list) else [ends]:
                field = end.get("field") if isinstance(end, dict) else None
                axis = end.get("axis", {}) if isinstance(end, dict) else None
                for_readers = (
                    channel == "tooltip"
                    or end.get("type") == "quantitative"
                    and (
                        channel in ("color", "fill")
                        or channel in ("x", "y")
                        and axis
                        and axis.get("title")
                        and not axis.get("labelExpr")
                        and axis.get("labels") is not False
                    )
                )
                if field is not None and for_readers:
                    yield from ((field, row[field]) for row in data if row.get(field) is not None)


def layers(spec: dict[str, Any], data: list[dict[str, Any]] | None = None, every: dict[str, Any] | None = None):
    every = every or spec.get("datasets", {})
    if "data" in spec:
        data = every.get(spec["data"].get("name")) or spec["data"].get("values") or []
    if "encoding" in spec and isinstance(data, list):
        yield spec, data
    for part in spec.get("layer", ()):
        yield from layers(part, data, every)


@pytest.mark.parametrize("name", CHARTS)
def test_the_csv_of_a_picture_holds_every_number_of_it(name: str) -> None:
    call = call_of(CHARTS[name])
    exact = saved(call)
    assert exact, "an empty file"
    aside = LAYOUT if call.name not in ("sample-map", "pca") else {"image"}
    missing = {
        (field, number)
        for field, value in told(CHARTS[name].to_dict())
        if field not in aside | ASIDE.get(call.name, set())
        for one in (value if isinstance(value, list) else [value])
        for number, off in ([(float(one), 1e-9)] if isinstance(one, (int, float)) else numbers_in(str(one)))
        if not any(math.isclose(abs(number), near * by, abs_tol=off) for near in exact for by in (1, 100))
    }
    assert not missing


def test_every_function_whose_pictures_can_be_saved_is_here() -> None:
    modules = [
        importlib.import_module(one.name)
        for one in pkgutil.walk_packages(package.__path__, "tokenpaths.frontend.charts.")
        if not one.ispkg
    ]
    functions = {
        f"{module.__name__}.{name}"
        for module in modules
        for name, function in vars(module).items()
        if callable(function) and hasattr(function, "__wrapped__") and function.__module__ == module.__name__
        if "theme" in getattr(function, "__annotations__", {})
    }
    drawn = {f"{call_of(chart).function.__module__}.{call_of(chart).function.__name__}" for chart in CHARTS.values()}
    assert functions - drawn == set()


def test_tokens_of_ids_only_are_saved_without_weights(tmp_path) -> None:
    with Run.open(make_experts("ids", top_k=2).write(tmp_path)) as run:
        sample = run.sample(0)
    for weighted in (False, True):
        cells = call_of(package.token_flow_chart(sample, weighted=weighted)).tables()["cells"]
        assert ("weight" in cells[0]) == weighted
