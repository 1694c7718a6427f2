"""What a view shows of the filters in the address: each view names those that it uses, and hides none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import api_for
from tests.support.runs import make_experts, make_run
from tokenpaths.frontend.api.client import Client
from tokenpaths.frontend.page.filter_chips import chips
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir = tmp_path_factory.mktemp("filters")
    make_run(data_dir / "runs", "one", samples=1, twin=False)
    for place, name in enumerate(("early", "late")):
        make_experts(name, drift=1 - place / 2, samples=4).write(data_dir / "runs")
    with api_for(data_dir) as served:
        yield str(served.client.base_url).rstrip("/")


def keys(page: AppTest) -> list[str]:
    return [str(button.key) for button in page.button]


def where(**selection: object) -> dict[str, str]:
    """field → what its chip adds to its text."""
    return {chip.field: chip.where.removeprefix(" · ") for chip in chips(Selection(run="a", **selection))}


def test_a_search_of_home_can_be_cleared(show) -> None:
    page = show(view="home", q="dinner")
    assert not page.error
    assert "chip_0_q" in keys(page)
    page.button(key="chip_0_q").click().run()
    assert "q" not in page.query_params
    assert not any(key.startswith("chip_") for key in keys(show(view="home", run="one")))


def test_a_run_of_one_sample_shows_it_with_the_filters_of_a_sample(show) -> None:
    page = show(view="samples", run="one", token=1, through="0.1")
    assert not page.error
    assert page.query_params["sample"] in ("0", ["0"])
    assert page.query_params["token"] in ("1", ["1"])
    assert not any("not used here" in button.label for button in page.button)


def test_chips_say_what_each_part_of_a_view_uses() -> None:
    filters = {"through": ("1.0",), "paths": (3,), "label": "circle"}
    assert where(view="samples", **filters) == {"through": "not used here", "paths": "not used here", "label": ""}
    assert where(view="samples", sample=0, **filters) == {"through": "", "paths": "", "label": "", "sample": ""}
    assert where(view="paths", **filters) == {"through": "", "paths": "only marked here", "label": ""}
    assert where(view="importance", label="circle", job="it") == {"label": "not used here", "job": ""}
    for part in ("numbers", "routes", "training"):
        assert where(view="compare", part=part, label="circle") == {"label": "not used here"}
    assert where(view="compare", part="samples", label="circle") == {"label": "only marked here"}
    assert where(view="routes", label="circle", labels="merged") == {"label": "", "labels": ""}


def test_home_says_nothing_of_the_upload_that_it_shows(show) -> None:
    page = show(view="home", run="one", sample=0, token=1, label="circle")
    chips_there = [button.label for button in page.button if button.label.endswith("×")]
    assert chips_there == ["label\\: circle · not used here ×"]


@pytest.mark.parametrize(
    ("steps", "words"), [("1:99", "some of the chosen 1–98"), ("50:60", "none of the chosen 50–59")]
)
def test_steps_that_a_run_does_not_have_are_named(show, steps: str, words: str) -> None:
    told = " ".join(box.value for box in show(view="routes", run="one", steps=steps).info)
    assert words in told
    assert not show(view="routes", run="one", steps="0:2").info


def test_a_search_ends_with_its_place() -> None:
    here = Selection(view="samples", run="a", q="dinner")
    assert here.change(view="paths").q == "dinner"
    assert here.change(view="home").q is None
    assert Selection(view="home", q="scenes").change(view="routes", run="a").q is None


def test_experts_know_a_series_that_was_set_later(show) -> None:
    from tokenpaths.frontend.page import widgets

    def headings() -> list[str]:
        page = show(view="family", run="late")
        assert not page.error
        return [one.value.replace("\\", "") for one in page.subheader]

    settle = "When did routing settle during training?"
    assert settle not in headings()
    for iteration, run in ((1, "early"), (2, "late")):
        widgets.client().put_into_series(run, "mine", iteration)
    assert settle in headings()


def test_where_every_token_has_its_path_the_advice_fits_every_family(show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "all_differ", lambda run: True)
    for run in ("one", "late"):
        page = show(view="paths", run=run)
        told = " ".join(caption.value for caption in page.caption)
        assert "Look at single steps in Routes and Modules" in told


def test_the_badge_counts_every_job_that_is_not_over(show, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Client, "jobs", lambda self, **query: asked.append(query) or {"jobs": [], "workers": 1})
    assert not show(view="modules", run="late").error
    assert [set(query["state"]) for query in asked] == [{"waiting", "running", "paused"}]
