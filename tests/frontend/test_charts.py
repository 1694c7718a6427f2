"""Charts as specifications: one colour scale everywhere, no NaN, what is drawn is what was given."""

from __future__ import annotations

import functools
import json
import math
import re
from typing import Any

import pandas as pd
import pytest
import vl_convert

from tests.frontend.test_layout import dense_flow
from tests.support.runs import open_run
from tokenpaths.frontend import charts
from tokenpaths.frontend.charts import distributions, patches, paths, sample_map, usage
from tokenpaths.frontend.charts.drawing import ink, numbers, palette
from tokenpaths.frontend.charts.drawing.encodings import NAME_LETTERS, names_apart
from tokenpaths.frontend.charts.flow import flow, layout, token_flow
from tokenpaths.frontend.charts.paths import with_one_null
from tokenpaths.frontend.charts.slopes import slope_words
from tokenpaths.frontend.views.modules.modules import overloaded_words

RUN = open_run(samples=10, modules=8)
FLOW = RUN.flow()
FIT = RUN.fit()
IMAGE, PNG = RUN.sample(0), RUN.image(0)
TEXT = open_run("text", modules=8).sample(0)
USAGE = RUN.usage()
DISTRIBUTION = RUN.distribution("compute", "sample") | {
    "by_label": [{"label": f"label {i}", "num": 50, "mean": 0.6 + i / 100} for i in range(12)]
}
MANY_LINKS = dense_flow()
POINTS = [{"sample": i, "compute": 0.7 + i / 500, "reuse": 0.3 + (i * 7 % 13) / 100, "label": None} for i in range(40)]
SKIP = RUN.skip_and_reuse()


def all_charts(theme: str) -> dict[str, Any]:
    return {
        "flow": charts.flow_chart(FLOW, theme=theme, through=["1.2"], ribbon=[[1], [2], [3], [4], [7]]),
        "thumbnail": charts.flow_thumbnail(FLOW, theme=theme),
        "rank": charts.rank_frequency_chart(FIT, theme=theme, chosen=[2]),
        "slopes": charts.slope_growth_chart(RUN.slopes(), theme=theme),
        "patch": charts.patch_chart(IMAGE, PNG, theme=theme),
        "step": charts.patch_chart(IMAGE, PNG, theme=theme, step=1, identities=[7]),
        "tokens": charts.token_flow_chart(TEXT, theme=theme, identities=[7], chosen=2),
        "histogram": charts.histogram_chart(DISTRIBUTION, theme=theme),
        "labels": charts.label_chart(DISTRIBUTION, theme=theme),
        "scatter": charts.skip_reuse_chart(POINTS, SKIP, theme=theme),
        "load": charts.load_chart(USAGE, theme=theme),
        "top_k": charts.top_k_chart(USAGE, theme=theme),
    }


@functools.cache
def specs(theme: str) -> dict[str, dict[str, Any]]:
    return {name: chart.to_dict() for name, chart in all_charts(theme).items()}


def walk(spec: Any):
    yield spec
    for value in spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ():
        yield from walk(value)


def data_of(chart: Any, *fields: str) -> list[dict[str, Any]]:
    """The rows of the first data set that has all ``fields``."""
    for values in chart.to_dict()["datasets"].values():
        if values and set(fields) <= set(values[0]):
            return values
    raise AssertionError(f"no data with {fields}")


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_every_chart_compiles_to_a_vector_picture(theme):
    for name, spec in specs(theme).items():
        text = json.dumps(spec, allow_nan=False)
        assert "http" not in text.replace(spec["$schema"], ""), f"{name} would fetch something"
        spec = {**spec, "width": 600} if spec.get("width") == "container" else spec
        svg = vl_convert.vegalite_to_svg(json.dumps(spec))
        assert "NaN" not in svg, name
        assert "undefined" not in svg, name


@pytest.mark.parametrize(("count", "ends"), [(1, [0.0001, 0.001]), (2, [0.0001, 0.01])])
def test_equal_shares_lie_between_two_powers_of_ten(count, ends):
    """One value alone would put both labels of the axis on its line."""
    points = [{"rank": rank, "count": count, "share": count / 2000, "cdf": rank * count / 2000} for rank in (1, 10, 50)]
    fit = {"observed": {**FIT["observed"], "num_paths": 50, "points": points}, "untrained": None, "independent": None}
    scales = [
        layer["encoding"]["y"]["scale"]["domain"]
        for layer in charts.rank_frequency_chart(fit).to_dict()["layer"]
        if "y" in layer.get("encoding", {})
    ]
    assert scales
    assert all(scale == pytest.approx(ends) for scale in scales)


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_the_scale_of_paths_is_one_and_the_same_in_all_charts(theme):
    wanted = palette.cdf_scale(theme).to_dict()
    found = [
        part["scale"]
        for spec in specs(theme).values()
        for part in walk(spec)
        if isinstance(part, dict) and part.get("field") == "cdf_middle" and "scale" in part
    ]
    assert len(found) >= 2
    assert all(scale == wanted for scale in found)
    assert len(wanted["domain"]) == len(wanted["range"]) > 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_frequent_paths_stand_out_from_the_page(theme):
    look = palette.theme_named(theme)
    frequent, rare = palette.cdf_colour(0, theme), palette.cdf_colour(1, theme)
    assert palette.contrast(frequent, look.background) > 10
    assert palette.contrast(frequent, look.background) > palette.contrast(rare, look.background) > 1.3


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_cdf_scale_is_uniform_to_the_eye(theme):
    """Lightness changes in one direction along the whole scale."""
    light = [palette.contrast(palette.cdf_colour(step / 50, theme), "#000000") for step in range(51)]
    assert light == sorted(light) or light == sorted(light, reverse=True)


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_words_are_readable_on_every_colour(theme):
    for step in range(101):
        colour = palette.cdf_colour(step / 100, theme)
        assert palette.contrast(palette.ink_on(colour), colour) >= 4.5
    look = palette.theme_named(theme)
    for words in (look.ink, look.muted, look.accent):
        assert palette.contrast(words, look.background) >= 4.5


def test_a_theme_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="sepia.*light, dark, print"):
        charts.flow_chart(FLOW, theme="sepia")


@pytest.mark.parametrize("given", [pd.DataFrame({"step": [0]}), object(), None], ids=lambda given: type(given).__name__)
def test_what_is_no_answer_is_refused_with_what_the_chart_takes(given):
    """A data frame has ``get`` too: a flow of it was an empty picture."""
    for chart in (charts.flow_chart, charts.token_flow_chart, charts.rank_frequency_chart, charts.class_chart):
        with pytest.raises(TypeError, match=f"{chart.__name__} takes an answer of a run.*not a {type(given).__name__}"):
            chart(given)


def test_a_whole_answer_is_no_list_of_its_rows():
    for given in ({}, {"tokens": [{}]}, "text"):
        for chart in (charts.class_chart, charts.token_loss_chart):
            with pytest.raises(TypeError, match=f"not a {type(given).__name__}"):
                chart(given)
    with pytest.raises(TypeError, match="flow_thumbnail takes an answer"):
        charts.flow_thumbnail(pd.DataFrame({"step": [0]}))


def test_flow_draws_what_the_api_counted():
    chart = charts.flow_chart(FLOW, least=0)
    circles = data_of(chart, "node", "count")
    assert sum(row["count"] for row in circles if row["step"] == 0) == FLOW["num_tokens"]
    size = next(
        part["size"]
        for part in walk(chart.to_dict())
        if isinstance(part, dict)
        and "size" in part
        and isinstance(part["size"], dict)
        and part["size"].get("field") == "count"
    )
    assert size["scale"]["type"] == "linear"
    assert size["scale"]["domain"][0] == 0
    assert size["scale"]["range"][0] == 0
    assert size["scale"]["domain"][1] == max(row["count"] for row in circles)
    assert len(data_of(chart, "link", "outline")) == len(FLOW["links"])


def test_flow_draws_at_most_two_thousand_ribbons_and_says_what_it_hides():
    chart = charts.flow_chart(MANY_LINKS)
    assert len({row["link"] for row in data_of(chart, "link", "outline")}) == layout.MOST_LINKS
    hidden = len(MANY_LINKS["links"]) - layout.MOST_LINKS
    assert f"{hidden:,} flows beyond the {layout.MOST_LINKS:,} largest are hidden" in " ".join(
        chart.to_dict()["title"]["subtitle"]
    )
    assert len(json.dumps(chart.to_dict())) < 2_500_000


def svg_of(chart: Any, width: int = 700) -> str:
    return vl_convert.vegalite_to_svg(json.dumps({**chart.to_dict(), "width": width}))


def test_every_ribbon_and_circle_has_a_name_however_many_there_are():
    """Streamlit leaves out the names of marks of charts with many rows, unless they are asked for."""
    chart = charts.flow_chart(MANY_LINKS)
    svg = svg_of(chart)
    assert len(re.findall(r'aria-label="link: [0-9.]+&gt;', svg)) == layout.MOST_LINKS
    assert len(re.findall(r'aria-label="node: ', svg)) == sum(1 for node in MANY_LINKS["nodes"] if node["count"])
    spec = chart.to_dict()
    assert spec["config"]["mark"]["aria"] is True
    assert spec["usermeta"]["embedOptions"]["renderer"] == "svg"


def test_a_ribbon_reaches_from_column_to_column_at_any_width():
    for width in (300, 900):
        svg = svg_of(charts.flow_chart(FLOW, least=0), width)
        circle = {
            step: float(x)
            for step, x in re.findall(r'aria-label="node: (\d+)\.\d+;[^>]*transform="translate\(([0-9.]+),', svg)
        }
        ribbons = re.findall(r'aria-label="link: (\d+)\.[^>]*transform="translate\(([0-9.]+),[^>]* d="([^"]+)"', svg)
        assert len(ribbons) == len(FLOW["links"])
        for step, x, outline in ribbons:
            length = max(float(point.split(",")[0]) for point in re.findall(r"-?[0-9.]+,-?[0-9.]+", outline))
            assert float(x) == pytest.approx(circle[step], abs=0.01)
            assert float(x) + length == pytest.approx(circle[str(int(step) + 1)], abs=0.1)


def test_load_keeps_every_cell_and_names_them_where_they_are_few():
    few = charts.load_chart(USAGE)
    squares = re.findall(r'aria-label="step: (\d+); module: (\d+);[^"]*utilisation: ([^;]+);', svg_of(few))
    assert sorted((int(step), int(module)) for step, module, _ in squares) == sorted(
        (row["step"], row["module"]) for row in USAGE["usage"]
    )
    many = {
        **USAGE,
        "usage": [
            {"step": step, "module": module, "count": 1, "share": 0.1, "utilisation": 1.0}
            for step in range(64)
            for module in range(256)
        ],
    }
    spec = charts.load_chart(many).to_dict()
    cells = next(
        part["data"]["values"]
        for part in walk(spec)
        if isinstance(part, dict) and part.get("data", {}).get("name") == "cells"
    )
    assert [len(column["value"]) for column in cells] == [256] * 64
    assert spec["usermeta"]["embedOptions"]["renderer"] == "canvas"
    assert svg_of(charts.load_chart(many)).count("<path") > 64 * 256


def test_numbers_below_a_colour_scale_keep_a_gap():
    """On a scale of square roots up to 2 “1.5 2.0” read “1.52.0”: they touched, which is no overlap."""
    legends = [part["legend"] for part in walk(charts.load_chart(USAGE).to_dict()) if _has_gradient(part)]
    assert [(legend["labelOverlap"], legend["labelSeparation"] >= 4) for legend in legends] == [("greedy", True)]


def _has_gradient(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("legend"), dict) and "gradientLength" in part["legend"]


def test_flow_marks_the_chosen_circle_and_only_it():
    rows = data_of(charts.flow_chart(FLOW, through=["1.2"]), "node", "count")
    assert [row["node"] for row in rows if row["on"]] == ["1.2"]


@pytest.mark.parametrize(("most", "labels"), [(90_000, ","), (10**6, ","), (99_992_383, "~s")])
def test_ranks_of_many_decades_are_written_short(most: int, labels: str):
    observed = FIT["observed"] | {
        "points": [*FIT["observed"]["points"], FIT["observed"]["points"][-1] | {"rank": most}]
    }
    chart = charts.rank_frequency_chart(FIT | {"observed": observed}).to_dict()
    axes = [
        layer["encoding"]["x"]["axis"] for layer in chart["layer"] if "axis" in layer.get("encoding", {}).get("x", {})
    ]
    assert {axis["format"] for axis in axes} == {labels}


def test_rank_frequency_shows_the_run_and_both_nulls():
    chart = charts.rank_frequency_chart(FIT)
    assert {row["what"] for row in data_of(chart, "what", "rank")} == {paths.UNTRAINED, paths.INDEPENDENT}
    assert len(data_of(chart, "on", "rank")) == len(FIT["observed"]["points"])
    lonely = charts.rank_frequency_chart({**FIT, "untrained": None})
    assert {row["what"] for row in data_of(lonely, "what", "rank")} == {paths.INDEPENDENT}


def test_slopes_are_drawn_for_each_kind_and_both_ways_and_compared_at_equal_sizes():
    def point(tokens, slope, window):
        return {
            "num_tokens": tokens,
            "num_paths": 400.0,
            "slope": slope,
            "slope_std": 0.1,
            "window_slope": window,
            "window_std": None,
        }

    slopes = {
        "window": [10, 1000],
        "observed": [point(1000, -0.5, None), point(2000, -0.75, -0.9)],
        "untrained": [point(1000, -0.1, None), point(2000, -0.2, -0.3)],
        "independent": None,
    }
    drawn = data_of(charts.slope_growth_chart(slopes), "line", "slope")
    assert {(row["line"], row["tokens"], row["slope"]) for row in drawn} == {
        ("this run, all ranks", 1000, -0.5),
        ("this run, all ranks", 2000, -0.75),
        ("this run, ranks 10–1,000", 2000, -0.9),
        ("untrained twin, all ranks", 1000, -0.1),
        ("untrained twin, all ranks", 2000, -0.2),
        ("untrained twin, ranks 10–1,000", 2000, -0.3),
    }
    whole = next(row for row in drawn if row["slope"] == -0.5)
    assert (whole["low"], whole["high"]) == (-0.6, -0.4)
    assert slope_words(slopes) == (
        "The curve is steeper than its untrained twin. At 2,000 tokens each, ranks 10–1,000: this run −0.900, "
        "untrained twin −0.300. Lower is steeper."
    )
    few = {**slopes, "observed": [point(9, -0.5, None)], "untrained": None}
    assert slope_words(few) == "At 9 tokens there are too few paths for a slope over ranks 10–1,000."


def test_the_law_is_drawn_where_there_is_one_and_said_in_words():
    law = {
        "num_paths": 900,
        "alpha": 2.114,
        "alpha_error": 0.08,
        "x_min": 3,
        "num_tail": 194,
        "ks": 0.05,
        "p_value": 0.3,
        "lognormal": {"mu": 0.0, "sigma": 1.0, "ratio": -3.83, "p_value": 0.0001},
        "curve": [{"rank": 194.0, "share": 0.001}, {"rank": 0.6, "share": 0.4}],
    }
    drawn = data_of(charts.rank_frequency_chart(FIT, law=law), "what", "rank")
    assert {row["what"] for row in drawn} == {paths.UNTRAINED, paths.INDEPENDENT}
    spec = charts.rank_frequency_chart(FIT, law=law).to_dict()
    assert paths.LAW in str(spec)
    assert paths.LAW not in str(charts.rank_frequency_chart(FIT).to_dict())
    assert paths.law_words(law) == (
        "Power law by maximum likelihood: α = 2.11 ± 0.080, for the 194 of 900 paths taken by at least 3 tokens. "
        "Goodness of fit: a power law is plausible (p = 0.30, 100 simulations). "
        "A lognormal fits better (likelihood ratio −3.83, p < 0.001)."
    )
    refused = "the counts are not a pure power law (p ≤ {}, none of {} simulations)"
    assert refused.format(0.01, 100) in paths.law_words(law | {"p_value": 1 / 101})
    assert refused.format(0.04, 24) in paths.law_words(law | {"p_value": 1 / 25}, 24)
    assert "p =" not in paths.law_words({**law, "p_value": None, "lognormal": None})
    even = law | {"lognormal": law["lognormal"] | {"p_value": 0.4}}
    assert "about as well" in paths.law_words(even)
    assert paths.law_words({"num_paths": 3, "reason": "3 paths are too few"}) == (
        "No power law is fitted: 3 paths are too few."
    )


def test_the_fitted_line_has_the_slope_that_the_api_gave():
    first, last = paths.fitted_line(FIT["observed"])
    slope = (math.log10(last["share"]) - math.log10(first["share"])) / (
        math.log10(last["rank"]) - math.log10(first["rank"])
    )
    assert slope == pytest.approx(FIT["observed"]["slope"])


def test_the_fitted_line_goes_through_an_exact_power_law():
    points = [{"rank": r, "count": 1000 / r, "share": 0.5 / r} for r in range(1, 101)]
    ends = paths.fitted_line({"num_paths": 100, "num_tokens": 1, "slope": -1.0, "points": points})
    assert [end["share"] for end in ends] == pytest.approx([0.5, 0.005])


def test_one_path_has_no_line():
    lonely = {"num_paths": 1, "num_tokens": 9, "slope": None, "points": [{"rank": 1, "count": 9, "share": 1.0}]}
    assert paths.fitted_line(lonely) == []
    assert "too few paths" in paths.fit_words("This run", lonely)
    charts.rank_frequency_chart({"observed": lonely, "untrained": None, "independent": None}).to_dict()


def test_patches_cover_the_grid_once():
    rows = data_of(charts.patch_chart(IMAGE, PNG), "row", "col")
    assert {(row["row"], row["col"]) for row in rows} == {(r, c) for r in range(8) for c in range(8)}
    assert [row["fill"] for row in rows] == [ink.path_ink(token, "light").colour for token in IMAGE["tokens"]]


def test_step_tint_names_the_module_and_greys_the_skip():
    rows = patches.patch_rows(IMAGE, theme="light", step=1, identities=[7])
    for row, token in zip(rows, IMAGE["tokens"], strict=True):
        assert row["mark"] == str(token["ribbon"][1][0])
        assert (row["fill"] == palette.LIGHT.identity) == (token["ribbon"][1][0] == 7)


def test_token_flow_has_a_cell_for_every_token_and_step():
    rows = data_of(charts.token_flow_chart(TEXT, identities=[7]), "step", "mark")
    assert len(rows) == TEXT["num_tokens"] * 5
    assert {row["mark"] == "skip" for row in rows if row["skipped"]} <= {True}
    window = charts.token_flow_chart(TEXT, first=4, most=3)
    assert {row["token"] for row in data_of(window, "step", "mark")} == {4, 5, 6}


@pytest.mark.parametrize(("shade", "weighted"), [("path", False), ("module", False), ("path", True), ("weight", True)])
def test_weights_stand_in_a_token_flow_only_where_a_log_recorded_them(shade, weighted):
    spec = charts.token_flow_chart(TEXT, shade=shade, weighted=weighted).to_dict()
    told = {tip["field"] for part in walk(spec) if isinstance(part, dict) for tip in part.get("tooltip") or []}
    assert "modules" in told
    assert ("weight" in told) == weighted


def test_histogram_keeps_every_sample():
    rows = data_of(charts.histogram_chart(DISTRIBUTION), "lo", "hi", "count")
    assert sum(row["count"] for row in rows) == DISTRIBUTION["num"]
    flat = {**DISTRIBUTION, "bins": [{"lo": 1.0, "hi": 1.0, "count": 5}]}
    (bar,) = data_of(charts.histogram_chart(flat), "lo", "hi", "count")
    assert bar["hi"] > bar["lo"]


def test_many_labels_show_both_ends_and_count_the_rest():
    chart = charts.label_chart(DISTRIBUTION, most=4)
    rows = data_of(chart, "label", "mean")
    assert [row["label"] for row in rows] == ["label 11", "label 10", "label 1", "label 0"]
    assert "8 labels" in chart.to_dict()["title"]["subtitle"]


def test_labels_are_told_apart_where_their_means_surely_differ():
    def of(*clear: str, **more) -> dict:
        by_label = [
            {"label": name, "num": 9, "mean": mean, "low": mean - 0.01, "high": mean + 0.01, "clear": name in clear}
            for name, mean in (("cat", 0.6), ("dog", 0.8), ("owl", 0.7))
        ]
        return DISTRIBUTION | {"mean": 0.7, "by_label": by_label} | more

    assert charts.distributions.label_words(of("dog", "cat")) == "Most compute: dog (0.800), least: cat (0.600)."
    assert charts.distributions.label_words(of("dog")) == "Most compute: dog (0.800)."
    assert charts.distributions.label_words(of("cat")) == "Least compute: cat (0.600)."
    single = [*of("dog", "cat")["by_label"], {"label": "fox", "num": 1, "mean": 0.5, "low": None, "high": None}]
    told = charts.distributions.label_words(of() | {"by_label": single})
    assert told == "Most compute: dog (0.800), surely less: cat (0.600).", "the only fox has less than each cat"
    most = of("dog") | {"mean": 0.95}
    assert charts.distributions.label_words(most) == "Most compute: dog (0.800).", "samples without a label have more"
    assert charts.distributions.label_words(of()) == "No label has surely more or less compute than the others."
    assert charts.distributions.label_words(DISTRIBUTION) == "", "nothing is known of how sure these means are"
    bars = data_of(charts.label_chart(of()), "label", "low", "high")
    assert [(row["label"], row["low"], row["high"]) for row in bars][0] == ("dog", 0.79, 0.81)
    assert "95 % intervals" in charts.label_chart(of()).to_dict()["title"]["subtitle"]
    assert "95 % intervals" not in charts.label_chart(DISTRIBUTION).to_dict()["title"]["subtitle"]


def test_dead_and_overloaded_modules_are_named():
    rows = [
        {"step": 0, "module": m, "name": f"m{m}", "kind": "mlp", "count": c, "share": c / 10, "utilisation": u}
        for m, c, u in ((0, 10, 4.0), (1, 0, 0.0), (2, 2, 0.5))
    ]
    made = {"usage": rows, "steps": []}
    assert usage.dead_modules(made) == [(1, "m1", 1)]
    assert [row["module"] for row in usage.overloaded(made)] == [0]
    assert overloaded_words(made).endswith("fair share or more: module 0 at step 0 (4.00 × its share).")
    many = {"usage": [{**rows[0], "step": step} for step in range(7)] + rows[1:], "steps": []}
    told = overloaded_words(many)
    assert "or more: 7 of 9 cells. Most: module 0 at step 0" in told
    assert told.endswith("at step 4 (4.00 × its share); …")
    unknown = [{**row, "step": 1, "count": 0, "share": 0.0, "utilisation": None} for row in rows]
    assert usage.dead_modules({"usage": rows + unknown, "steps": []}) == [(1, "m1", 1)]
    assert usage.dead_modules({"usage": unknown, "steps": []}) == []
    marks = [part["data"] for part in walk(charts.load_chart({"usage": rows + unknown}).to_dict()) if _is_dead(part)]
    assert [[row["x"] for row in data["values"]] for data in marks] == [[0]]


def _is_dead(part) -> bool:
    return isinstance(part, dict) and isinstance(part.get("data"), dict) and part["data"].get("name") == "dead"


def test_nothing_that_is_not_finite_reaches_the_page():
    sick = {**FLOW, "nodes": [{**FLOW["nodes"][0], "share": float("nan")}], "links": []}
    json.dumps(charts.flow_chart(sick).to_dict(), allow_nan=False)
    rows = [{"sample": 0, "compute": None, "reuse": None}, {"sample": 1, "compute": float("nan"), "reuse": 0.1}]
    json.dumps(charts.skip_reuse_chart(rows, SKIP).to_dict(), allow_nan=False)


def test_what_is_said_of_skip_and_reuse_is_as_sure_as_its_intervals():
    def slope(low: float, high: float) -> dict[str, float]:
        return {"slope": (low + high) / 2, "low": low, "high": high}

    said = {
        name: distributions.skip_reuse_words(SKIP | {"seen": slope(*seen), "pairs": slope(*pairs)})
        for name, seen, pairs in (
            ("rise", (0.1, 0.3), (0.2, 0.4)),
            ("fall", (-0.3, -0.1), (-0.2, -0.1)),
            ("nothing", (-0.1, 0.1), (-0.1, 0.3)),
        )
    }
    assert said["rise"].startswith("Samples that skip more reuse more: ")
    assert said["rise"].endswith(" samples that skip more use the same one more often.")
    assert said["fall"].startswith("Samples that skip more reuse less: ")
    assert said["fall"].endswith(" samples that skip more use the same one less often.")
    assert said["nothing"].startswith("Samples that skip more reuse neither more nor less for certain: ")
    assert said["nothing"].endswith("does not depend on skip for certain.")
    assert distributions.skip_reuse_words(SKIP | {"pairs": None}).endswith("does not depend on skip for certain.")
    for row in (SKIP["groups"][0], SKIP["groups"][-1]):
        for value in (row["skip"], row["reuse"]["mean"], row["chance_reuse"]):
            assert numbers.percent(value, 2) in said["rise"]
    told = distributions.skip_reuse_statistics(SKIP)
    for value in (SKIP["pearson"]["r"], 10 * SKIP["pairs"]["slope"], 100 * SKIP["excess"]["mean"]):
        assert numbers.number(value) in told
    assert "drawn by hash" not in told
    assert distributions.skip_reuse_words(SKIP | {"reason": "no sample skipped anything"}) == (
        "No sample skipped anything."
    )


@pytest.mark.parametrize(
    ("token", "label"),
    [
        ("\n", "↵"),
        (" ", "·"),
        ("the", "the"),
        (None, ""),
        ("\x00", "␀"),
        ("\u200b", "⟦U+200B⟧"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("👩\u200d👧", "👩\u200d👧"),
        ("x" * 40, "x" * 13 + "…"),
    ],
)
def test_tokens_are_shown_so_that_one_sees_them(token, label):
    assert token_flow.visible(token) == label


def test_tables_behind_charts_hold_the_numbers():
    assert sum(row["tokens"] for row in flow.link_rows(FLOW) if row["step"] == 0) == FLOW["num_tokens"]
    assert len(flow.node_rows(FLOW)) == len(FLOW["nodes"])
    assert len(token_flow.token_rows(TEXT)) == TEXT["num_tokens"]


def test_names_of_a_map_are_not_written_over_each_other() -> None:
    table = [{"label": "a", "x": 0.0, "y": 0.0}, {"label": "b", "x": 10.0, "y": 10.0}]
    names = [{"label": f"name {i}", "x": 5.0, "y": 5.0 + i / 100} for i in range(6)]
    names.append({"label": "far", "x": 0.5, "y": 5.0})
    placed = {row["label"]: row for row in names_apart(names, table, width=400, height=400)}
    heights = sorted(placed[f"name {i}"]["y"] for i in range(6))
    assert min(after - before for before, after in zip(heights, heights[1:], strict=False)) >= 10 * 17 / 400 * 0.99
    assert max(abs(row["y"] - 5) for row in placed.values()) < 10 * 17 / 400 * 4, "no further than needed"
    assert (placed["far"]["x"], placed["far"]["y"]) == (0.5, 5.0), "nothing is near it"


def test_names_of_a_map_of_few_points_hide_none() -> None:
    table = [{"label": f"only {i}", "x": float(i % 3), "y": float(i // 3)} for i in range(9)]
    for name in names_apart(table, table, width=400, height=400):
        assert all(abs(name["y"] - row["y"]) >= 2 * 17 / 400 * 0.99 for row in table if row["x"] == name["x"])


def test_long_names_of_a_map_are_cut_short() -> None:
    """What a name needs is taken from the plot's width, and a long one was moved far above all points"""
    table = [{"label": "x" * 130 + str(i), "x": float(i % 3), "y": float(i // 3)} for i in range(9)]
    placed = names_apart(table, table, width=400, height=400)
    assert {len(row["label"]) for row in placed} == {NAME_LETTERS}
    assert all(-0.5 < row["y"] < 2.5 for row in placed)


def test_names_of_the_user_are_in_tooltips() -> None:
    chart = charts.rank_frequency_chart(FIT, names={"path:1": "path 1 · headlines"})
    assert "headlines" in json.dumps(chart.to_dict(), ensure_ascii=False)
    lines = data_of(charts.rank_frequency_chart(with_one_null(FIT), fitted=False), "what", "rank")
    assert {row["what"] for row in lines} == {paths.UNTRAINED}


def test_the_sentences_of_loads_name_their_ends():
    def usage_of(counts: list[list[int]], top_k: list[float], twin: list[float] | None = None) -> dict[str, Any]:
        cells = [
            {"step": step, "module": module, "count": count, "utilisation": count * len(row) / max(1, sum(row))}
            for step, row in enumerate(counts)
            for module, count in enumerate(row)
        ]
        steps = [
            {"step": step, "effective_top_k": value, "untrained_effective_top_k": twin and twin[step]}
            for step, value in enumerate(top_k)
        ]
        return {"usage": cells, "steps": steps}

    uneven = usage_of([[3, 1, 0], [2, 2, 0]], [1.2, 1.5], [1.6, 1.7])
    assert usage.load_words(uneven) == (
        "The busiest is module 0 at step 0, with 2.25 times its fair share; 2 of 6 cells got no token."
    )
    assert usage.concentration_words(uneven) == (
        "Step 0 is the most concentrated (1.20), step 1 the least (1.50); untrained: 1.60 to 1.70."
    )
    assert usage.load_words(usage_of([[2, 2]], [2.0])) == "Each module got its fair share at every step."
    assert usage.concentration_words(usage_of([[2, 2]], [2.0])) == "The step’s effective top-k is 2.00."
    assert usage.load_words(usage_of([[0, 0]], [2.0])) == "No choice is known."
    assert usage.load_words(usage_of([[3, 1], [0, 0]], [1.0, 1.0])) == (
        "The busiest is module 0 at step 0, with 1.50 times its fair share."
    )


def test_the_sentence_of_a_map_says_what_chance_gives():
    row = {"share": 0.4, "by_chance": 0.12, "low": 0.08, "high": 0.16, "p_value": 0.005, "num": 90}
    said = sample_map.nearest_words({"nearest": row})
    assert (
        said
        == "The sample with the nearest routes has the same label for 40.0 % of the samples, where chance gives 12.0 %."
    )
    assert sample_map.nearest_words({"nearest": row | {"p_value": 0.2}}).endswith(
        ", not surely more than by chance (12.0 %)."
    )
    assert sample_map.nearest_words({"nearest": None}) == ""
