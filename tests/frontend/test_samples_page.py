"""The samples view over a real API, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backend.conftest import api_for
from tests.support.pages import showing
from tests.support.runs import make, make_run
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.samples import one_sample, samples


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("samples")


@pytest.fixture(scope="module")
def api(data_dir: Path) -> Iterator[str]:
    make_run(data_dir / "runs", "pictures", samples=9, seed=1)
    with api_for(data_dir) as served:
        yield str(served.client.base_url).rstrip("/")


@pytest.fixture
def show(api: str, monkeypatch: pytest.MonkeyPatch):
    with showing(api, monkeypatch, view="samples", run="pictures") as draw:
        yield draw


@pytest.mark.parametrize(("number", "before", "after"), [(0, None, 1), (2, 1, 3), (6, 5, 7), (8, 7, None)])
def test_previous_and_next_reach_every_sample_of_a_run_too_large_to_list(show, monkeypatch, number, before, after):
    monkeypatch.setattr(one_sample, "LISTED", 3)
    for name, to in (("previous", before), ("next", after)):
        page = show(sample=number)
        button = page.button(key=f"sample_{name}")
        assert button.disabled == (to is None)
        if to is not None:
            assert button.click().run().query_params["sample"] in (str(to), [str(to)])


def test_with_a_label_previous_and_next_stay_within_it(show):
    rows = widgets.client().ask("pictures", "samples")["samples"]
    label = rows[4]["label"]
    same = [row["sample"] for row in rows if row["label"] == label]
    page = show(sample=same[0], label=label)
    assert page.button(key="sample_previous").disabled
    assert page.button(key="sample_previous").label == "Previous sample"  # the arrow alone says nothing by ear
    for number in same[1:]:
        page = page.button(key="sample_next").click().run()
        assert page.query_params["sample"] in (str(number), [str(number)])
    assert page.button(key="sample_next").disabled
    other = next(n for n in range(same[0], same[-1]) if n not in same)  # opened from elsewhere: it stands in order
    page = show(sample=other, label=label)
    chosen = page.selectbox(key=next(box.key for box in page.selectbox if box.label == "Sample"))
    assert chosen.index == sum(number < other for number in same)
    page = page.button(key="sample_previous").click().run()
    assert page.query_params["sample"][0] == str(max(number for number in same if number < other))


def test_more_samples_are_shown_in_an_order_that_is_in_the_address(show, monkeypatch):
    monkeypatch.setattr(samples, "WALL", 4)
    page = show()
    assert any("9 samples; the first 4." in one.value for one in page.caption)
    page = page.button(key="more_samples").click().run()
    assert page.query_params["more"] in ("1", ["1"])
    assert page.button(key="more_samples").label == "Show 1 more"
    page = page.button(key="more_samples").click().run()
    assert not [one for one in page.button if one.key == "more_samples"]
    page = page.selectbox(key="in_sort").set_value("loss").run()
    assert page.query_params["sort"] in ("loss", ["loss"])
    assert "more" not in page.query_params, "another order begins at its first samples"
    assert not page.error
    (answer,) = [widgets.client().ask("pictures", "samples", **samples.question(Selection(sort="loss", more=2)))]
    losses = [row["loss"] for row in answer["samples"]]
    assert losses == sorted(losses, reverse=True)
    assert samples.question(Selection()) == {"most": 4, "label": None, "q": None}, "the first picture asks as before"


def test_an_arrow_in_a_caption_is_explained_where_there_is_one():
    right = {"label": "cat", "prediction": "cat", "loss": 0.1}
    wrong, unknown = right | {"prediction": "dog"}, {"label": "animal", "prediction": "goldfish", "loss": None}
    assert samples.caption_words([right]) == ""
    assert samples.caption_words([right, wrong]) == "An arrow: what the model answers where it is not the label."
    assert samples.caption_words([unknown]).endswith("so that is neither right nor wrong.")


@pytest.mark.parametrize("query", [{}, {"sample": 1}, {"label": "__odd__"}, {"inspect": "path:1"}])
def test_names_with_two_underlines_are_names_like_others(data_dir, show, query):
    odd = make("under__lined", samples=3, twin=False)
    labelled = [replace(one, label="__odd__") for one in odd.batches[0].samples]
    odd.with_changes(samples=labelled).write(data_dir / "runs", overwrite=True)
    page = show(**({"run": "under__lined"} | query))
    assert not page.error, [error.value for error in page.error]
