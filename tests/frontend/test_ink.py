"""Colour does not lie: equal counts have equal ink, what most take is never rare, and every picture agrees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from tests.frontend.test_explorer import flow_of
from tests.support.runs import open_run
from tests.support.runs.traced import trace_raytracing, trace_soft_families
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.frontend import charts
from tokenpaths.frontend.charts.drawing import palette
from tokenpaths.frontend.charts.drawing.ink import NEUTRALS, ONCE, UNKNOWN, ink_words, path_ink
from tokenpaths.frontend.charts.drawing.running_text import with_text
from tokenpaths.frontend.charts.flow import token_flow
from tokenpaths.frontend.charts.flow.flow_contrast import flow_contrast
from tokenpaths.frontend.charts.patches import MODULE_HUES, grey, module_key, patch_rows
from tokenpaths.frontend.components.explorer_data import Tint, explorer_data

PNG = "data:image/png;base64,"


@pytest.fixture(scope="module", params=["images", "texts", "hmodel", "raytracing"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder: Path = tmp_path_factory.mktemp("inks")
    if request.param in ("images", "texts"):
        yield open_run("vision" if request.param == "images" else "text", modules=8)
        return
    if request.param == "hmodel":
        trace_soft_families(folder)
    else:
        trace_raytracing(folder, "raytracing")
    with Run.open(folder / "runs" / f"{request.param}.duckdb") as opened:
        yield opened


def explored(sample: dict[str, Any], theme: str, **options: Any) -> dict[str, Any]:
    """What the explorer draws of a sample."""
    opacity = options.pop("opacity", 1.0)
    return explorer_data(
        sample,
        flow_of({(0, 0): 1, (1, 0): 1}, 2),
        Tint(palette.theme_named(theme), 9, opacity, **options),
        image=None,
        chosen=None,
        kept=lambda token: True,
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_picture_text_table_and_flow_of_a_sample_have_one_ink(run: Run, theme: str) -> None:
    for number in range(min(3, run.row["num_samples"])):
        sample = with_text(run.sample(number))
        counts = {path["rank"]: path for path in run.paths(limit=1000)["paths"]}
        wanted = {t["token"]: path_ink(counts[t["rank"]], theme).colour for t in sample["tokens"]}
        drawn = explored(sample, theme)["tokens"]
        assert {t["token"]: t["fill"] for t in drawn} == wanted
        assert {t["token"]: t["line"] for t in drawn} == wanted, "the line in the flow"
        table = token_flow._cells(sample, sample["tokens"], "path", ((), None), None, palette.theme_named(theme))
        assert {row["token"]: row["fill"] for row in table} == wanted
        if sample.get("grid"):
            assert {row["token"]: row["fill"] for row in patch_rows(sample, theme=theme)} == wanted


def test_by_module_picture_text_and_table_have_the_colours_of_the_key(run: Run) -> None:
    sample, step = with_text(run.sample(0)), run.row["num_steps"] - 1
    skips = {m.module for m in run.modules if m.kind == "identity"}
    key = {row["colour"] for row in module_key(sample["tokens"], step, skips, "light")}
    drawn = explored(sample, "light", step=step, identities=skips)
    assert {t["fill"] for t in drawn["tokens"]} == key == {row["colour"] for row in drawn["legend"]["keys"]}
    assert [t["mark"] for t in drawn["tokens"]] == ["+".join(map(str, t["ribbon"][step])) for t in sample["tokens"]]
    table = token_flow._cells(sample, sample["tokens"], "module", (skips, None), None, palette.LIGHT)
    assert {row["fill"] for row in table if row["step"] == step} == key


def test_modules_that_share_a_colour_share_an_entry_of_the_key() -> None:
    tokens = [{"ribbon": [[m]]} for m in (0, len(MODULE_HUES), 1, 7)]
    labels = {row["label"]: row["colour"] for row in module_key(tokens, 0, {7}, "light")}
    assert labels == {"0, 10": MODULE_HUES[0], "1": MODULE_HUES[1], "skipped": palette.LIGHT.identity}


def path(count: int, middle: float) -> dict[str, Any]:
    return {"path_tokens": count, "cdf_middle": middle}


def test_ties_are_equal_and_what_most_take_is_not_drawn_as_rare() -> None:
    assert path_ink(path(4, 0.5), "light") == path_ink(path(4, 0.5), "light")
    most = path_ink(path(82, 0.41), "light").colour
    half = palette.cdf_colour(0.5, "light")
    assert palette.contrast(most, "#ffffff") > palette.contrast(half, "#ffffff"), "darker than the middle: frequent"


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_a_path_of_one_token_is_neutral_and_so_is_one_that_the_reference_lacks(theme: str) -> None:
    once, unknown = path_ink(path(1, 0.99), theme), path_ink(path(0, 0.0), theme)
    assert (once.kind, unknown.kind) == ("once", "unknown")
    assert once.colour != unknown.colour
    scale = {palette.cdf_colour(step / 100, theme) for step in range(101)}
    assert not {once.colour, unknown.colour} & scale
    assert [ink_words(path(count, 0.5)) for count in (0, 1, 2)] == [UNKNOWN, ONCE, "50 %"]
    for colour in (once.colour, unknown.colour):
        assert palette.contrast(palette.ink_on(colour), colour) >= 4.5


def test_charts_and_components_have_an_entry_for_each_neutral() -> None:
    sample = open_run("text", modules=8).sample(0)
    inks = [path(5, 0.4), path(1, 0.9), {"rank": None, "cdf": None, "cdf_middle": None, "path_tokens": 0}]
    tokens = [{**token, **inks[i % 3]} for i, token in enumerate(sample["tokens"])]
    mixed = {**sample, "tokens": tokens}
    for theme in ("light", "dark", "print"):
        spec = charts.token_flow_chart(mixed, theme=theme).to_dict()
        svg = vl_convert.vegalite_to_svg(json.dumps({**spec, "width": 600}))
        assert ONCE in svg
        assert UNKNOWN in svg
        assert all(f">{words}<" in svg for words in ("path taken by", "many", "few"))
        assert all(f'fill="{colour}"' in svg for colour in NEUTRALS[theme].values())
    legend = explored(with_text(mixed), "light")["legend"]
    assert [key["label"] for key in legend["keys"]] == [ONCE, UNKNOWN]
    assert legend["scale"]["left"] == "path taken by many"
    alone = {**sample, "tokens": [{**token, **path(1, 1.0)} for token in sample["tokens"]]}
    legend = explored(with_text(alone), "light")["legend"]
    assert (legend["scale"], [key["label"] for key in legend["keys"]]) == (None, [ONCE])


def test_the_legend_has_the_colours_that_the_eye_sees() -> None:
    sample = with_text(open_run("text", modules=8).sample(0))
    faint = explored(sample, "light", opacity=0.5)
    assert faint["legend"]["scale"]["stops"][0] == palette.mix(palette.LIGHT.cdf[0], "#ffffff", 0.5)
    none = explored(sample, "light", opacity=0.0)
    assert (none["legend"], none["hint"]) == (None, "No tint: its opacity is 0 %.")


def test_a_picture_under_a_tint_is_grey() -> None:
    run = open_run("vision")
    sample, picture = run.sample(0), run.picture(0)
    drawn = [
        row["url"]
        for opacity in (0.6, 0.0)
        for rows in charts.patch_chart(sample, picture, opacity=opacity).to_dict()["datasets"].values()
        for row in rows
        if "url" in row
    ]
    assert drawn[0] == grey(picture)
    assert drawn[1] != grey(picture)
    assert all(url.startswith(PNG) for url in drawn)


@pytest.mark.parametrize("change", [0.0004, 0.3])
def test_differences_next_to_nothing_are_not_drawn_in_the_strongest_colours(change: float) -> None:
    first, second = (
        {
            "num_tokens": 1000,
            "steps": [0],
            "nodes": [
                {"step": 0, "module": m, "name": "t", "kind": "transformer", "count": 500 + 1000 * sign * by}
                for m, sign in ((0, 1), (1, -1))
            ],
            "links": [],
        }
        for by in (change, 0.0)
    )
    spec = charts.flow_contrast_chart(flow_contrast(first, second)).to_dict()
    end = max(palette.SHARE_FLOOR, change)
    ends = [part["domain"] for part in scales_of(spec) if part.get("interpolate") == "lab"]
    assert ends
    assert all(domain == pytest.approx([-end, 0, end]) for domain in ends)
    assert ("No difference reaches 1 percentage point" in json.dumps(spec)) == (change < palette.SHARE_FLOOR)


def test_a_sweep_within_its_noise_is_pale() -> None:
    rows = [
        {"step": 0, "module": m, "name": f"t{m}", "loss_change": value, "loss_error": 0.2}
        for m, value in ((0, 0.01), (1, -0.02))
    ]
    spec = charts.importance_chart(rows).to_dict()
    (domain,) = (part["domain"] for part in scales_of(spec) if part.get("interpolate") == "lab")
    assert domain == pytest.approx([-1.96 * 0.2, 0, 1.96 * 0.2])


def scales_of(spec: Any) -> Iterator[dict[str, Any]]:
    """All scales anywhere in a chart."""
    if isinstance(spec, dict):
        if isinstance(spec.get("scale"), dict):
            yield spec["scale"]
        for part in spec.values():
            yield from scales_of(part)
    elif isinstance(spec, list):
        for part in spec:
            yield from scales_of(part)
