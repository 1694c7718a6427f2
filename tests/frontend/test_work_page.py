"""The work view over a real API, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend.conftest import api_for
from tests.frontend.test_charts import DISTRIBUTION
from tests.support.pages import showing
from tests.support.runs import make_run
from tokenpaths.frontend import charts
from tokenpaths.frontend.views import compute


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir: Path = tmp_path_factory.mktemp("work")
    make_run(data_dir / "runs", "pictures", samples=310, seed=1)
    make_run(data_dir / "runs", "single", samples=1, seed=4)
    make_run(data_dir / "runs", "flat", samples=6, steps=1, modules=4, identities=0, labels=False, seed=2)
    with api_for(data_dir) as served:
        yield str(served.client.base_url).rstrip("/")


@pytest.fixture
def show(api: str, monkeypatch: pytest.MonkeyPatch):
    with showing(api, monkeypatch, view="work", run="pictures") as draw:
        yield draw


@pytest.mark.parametrize("per", ["sample", "token"])
def test_the_mean_beside_all_labels_is_that_of_all_with_one_chosen_too(show, monkeypatch, per):
    drawn = []

    def chart(distribution, **options):
        drawn.append(distribution)
        return charts.label_chart(distribution, **options)

    monkeypatch.setattr(compute, "label_chart", chart)
    for query in ({}, {"label": "square"}):
        assert not show(per=per, **query).error
    whole, one = drawn
    assert one["mean"] == whole["mean"]
    assert one["num"] < whole["num"]


def test_the_lists_of_samples_name_how_many_they_hold(show):
    told = [heading.value for heading in show().subheader]
    assert {"Most compute (top 8)", "In the middle (8)", "Least compute (bottom 8)"} <= set(told)


@pytest.mark.parametrize("per", ["sample", "token"])
def test_the_tooltip_of_a_label_counts_what_is_counted(per):
    drawn = charts.label_chart(DISTRIBUTION | {"per": per}).to_dict()
    (tooltip,) = [layer["encoding"]["tooltip"] for layer in drawn["layer"] if "tooltip" in layer["encoding"]]
    assert f"{per}s" in str(tooltip)
    assert ("samples" in str(tooltip)) == (per == "sample")


def test_measures_of_one_value_do_not_lead_to_one_another(show, monkeypatch):
    monkeypatch.setattr(compute, "_measures", lambda _run: ["compute", "reuse"])
    for measure in ("compute", "reuse"):
        page = show(run="flat", measure=measure)
        assert "No measure of this run has anything to compare here" in " ".join(box.value for box in page.info)
        assert not [button for button in page.button if str(button.key).startswith("instead_")]


def test_one_sample_is_compared_by_its_tokens(show):
    words = " ".join(box.value for box in show(run="single", measure="compute").info)
    assert "The only sample has compute" in words
    assert "There is nothing to compare here." in words
    assert "Count per token." in words


def test_where_the_measure_is_not_known_all_of_the_page_is_about_another(show, monkeypatch):
    monkeypatch.setattr(compute, "_measures", lambda _run: ["compute", "reuse"])
    page = show(measure="loss")
    assert "Shown instead: compute" in " ".join(box.value for box in page.info)
    assert "Which tokens get more compute?" in [heading.value for heading in page.subheader]
