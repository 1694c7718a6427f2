"""Save: a picture's caption has the filters of that picture and no others, on the views of runs of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import api_for
from tests.frontend.test_family_pages import family_api
from tests.support.pages import check_captions, saved, showing
from tests.support.runs import make_experts, make_run
from tests.support.runs.traced import trace_dipaco, trace_raytracing
from tokenpaths.frontend.page import downloads
from tokenpaths.frontend.page.selection import Selection


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir: Path = tmp_path_factory.mktemp("saved")
    make_run(data_dir / "runs", "pictures", samples=12, seed=1)
    make_run(data_dir / "runs", "other", samples=12, seed=2)
    make_experts("experts", layers=3, experts=8, samples=12, length=16, top_k=2).write(data_dir / "runs")
    trace_raytracing(data_dir, "lights")
    trace_dipaco(data_dir, "shards")
    with api_for(data_dir) as served:
        yield str(served.client.base_url).rstrip("/")


@pytest.fixture
def show(api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AppTest]]:
    with showing(api, monkeypatch, run="pictures") as draw:
        yield draw


@pytest.mark.parametrize(
    ("plain", "filters", "changed"),
    [
        ({"view": "routes"}, {"label": "square"}, {"flow"}),
        ({"view": "routes"}, {"through": "1.0"}, {"flow"}),
        ({"view": "routes"}, {"steps": "0:2"}, {"flow"}),
        ({"view": "paths"}, {"label": "square", "through": "1.0"}, set()),
        ({"view": "paths", "kind": "border"}, {"label": "square"}, {"contrast"}),
        ({"view": "paths", "kind": "border"}, {"through": "1.0"}, {"contrast"}),
        ({"view": "work"}, {"label": "square"}, {"histogram", "skip-reuse"}),
        ({"view": "modules"}, {"label": "square"}, {"load", "top-k"}),
        ({"view": "samples"}, {"label": "square"}, set()),
        ({"view": "samples", "sample": 3}, {"label": "square", "through": "1.0"}, set()),
        ({"view": "samples", "sample": 3}, {"q": "a"}, set()),
        ({"view": "compare", "against": "other"}, {"label": "square"}, set()),
        (
            {"view": "family", "run": "experts", "sample": 2},
            {"label": "code"},
            {"load-band", "word", "co-activation", "repetition"},
        ),
        ({"view": "family", "run": "lights", "sample": 2}, {"label": "five"}, {"difficulty"}),
        ({"view": "family", "run": "shards", "sample": 2}, {"label": "code"}, {"tree", "label-path", "sharing"}),
    ],
)
def test_a_caption_has_the_filters_of_its_picture_alone(show, monkeypatch, plain, filters, changed) -> None:
    assert check_captions(show, monkeypatch, plain, **filters) >= changed


def test_the_curve_of_the_whole_run_is_captioned_without_filters(show, monkeypatch) -> None:
    query = {"view": "paths", "label": "square", "through": "1.0", "kind": "border"}
    captions = {one.name: one.caption for one in saved(show, monkeypatch, **query)}
    assert captions["rank-frequency"] == "run: pictures. Tokenpaths."
    assert captions["knowledge"] == "run: pictures. Tokenpaths."
    assert captions["contrast"] == (
        "run: pictures; label: square; patches at the border; passes module 0 at step 1. Tokenpaths."
    )


def test_a_picture_of_several_runs_names_them(show, monkeypatch) -> None:
    captions = {one.name: one.caption for one in saved(show, monkeypatch, view="compare", against="other")}
    assert captions["number"] == "runs: pictures, other. Tokenpaths."
    many = downloads.Scope(runs=[f"r{i}" for i in range(9)])
    assert downloads.caption(Selection(view="compare"), many) == "runs: r0, r1, r2, r3, r4, r5, 3 more. Tokenpaths."


def test_look_alike_labels_are_named_with_the_label_that_they_were_merged_into() -> None:
    now = Selection(view="modules", run="r", label="cat", labels="merged")
    of_label, of_run = downloads.Scope(("label",)), downloads.Scope()
    assert downloads.caption(now, of_label) == "run: r; label: cat; look-alike labels as one. Tokenpaths."
    assert downloads.caption(now, of_run) == "run: r. Tokenpaths."


@pytest.fixture(scope="module")
def soft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with family_api(tmp_path_factory.mktemp("soft")) as url:
        yield url


@pytest.mark.parametrize(
    ("plain", "filters", "changed"),
    [
        ({"run": "hmodel", "sample": 5}, {"label": "German"}, set()),
        ({"run": "hmodel", "sample": 5}, {"other": "English"}, {"graph"}),
        ({"run": "directional"}, {"label": "German"}, {"gate"}),
        ({"run": "directional", "sample": 3}, {"label": "English"}, set()),
        ({"run": "directional"}, {"label": "English", "other": "German"}, {"gate"}),
    ],
)
def test_soft_families_say_which_mean_or_sample_is_drawn(soft, monkeypatch, plain, filters, changed) -> None:
    with showing(soft, monkeypatch, timeout=250, view="family") as draw:
        assert check_captions(draw, monkeypatch, plain, **filters) == changed


def test_files_of_charts_that_differ_have_names_that_differ(show, monkeypatch):
    from tokenpaths.frontend.charts import work
    from tokenpaths.frontend.charts.drawing.redraw import Call, call_of
    from tokenpaths.frontend.page import address

    names = []

    def keep(drawing, scope):
        names.append(downloads.file_name(address.current(), call_of(drawing), scope))

    monkeypatch.setattr(downloads, "menu", keep)
    show(view="work", label="square")
    assert len(set(names)) == len(names), names
    assert "pictures-histogram-compute-sample-label-square" in names
    now, scope = Selection(view="work", run="pictures"), downloads.Scope()
    for measure in ("compute", "modules"):
        call = Call(work.outcome_chart, {"answer": {"measure": measure}, "outcome": "right"})
        assert downloads.file_name(now, call, scope) == f"pictures-outcome-right-{measure}"
    names.clear()
    show(view="family", run="experts", layer=1)
    assert "experts-co-activation-layer-1" in names
    assert all(len(name) <= downloads.MOST_IN_NAME and "/" not in name and " " not in name for name in names)
