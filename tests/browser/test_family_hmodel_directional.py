"""The family views of H-Model and Directional Routing in a real browser, over a site of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Site
from tests.frontend.test_family_pages import family_api
from tests.support.page_server import page_server

CHARTS = '[data-testid="stVegaLiteChart"] svg'


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data_dir: Path = tmp_path_factory.mktemp("family-site")
    with family_api(data_dir) as api, page_server(data_dir, api=api) as page:
        yield Site(page.url, data_dir)


@pytest.fixture
def here(visit, family: Site):
    return lambda width=1280, dark=False: visit(width=width, dark=dark, on=family)


def test_the_graph_of_a_text_and_hovering_a_layer(here):
    page = here().open(view="family", run="hmodel", sample=5)
    page.heading("Which layers talk to each other?")
    page.heading("Does each label have routes of its own?")
    expect(page.page.locator(CHARTS)).to_have_count(2 + 3 + 1)
    line = page.page.locator('path[aria-label*="c: "], line[aria-label*="c: "]').first
    expect(line).to_be_attached()
    circle = page.mark("layer: transformer 0")
    circle.hover()
    expect(page.page.locator("#vg-tooltip-element")).to_contain_text("sum of c that it receives")
    page.page.get_by_text("The numbers behind this: connections, sample 5").click()
    expect(page.page.locator('[data-testid="stDataFrame"]').first).to_be_visible()


def test_moving_a_slider_runs_the_text_again_and_the_link_reproduces_it(here):
    page = here().open(view="family", run="hmodel", sample=1)
    expect(page.page.get_by_text("Loss changed")).to_have_count(0)
    slider = page.page.get_by_role("slider", name="top-k (connections kept)")
    slider.focus()
    slider.press("ArrowLeft")
    page.expect_query(controls="top_k:2")
    expect(page.page.get_by_text("Loss changed (nats)")).to_be_visible()
    page.heading("Which tokens become harder to predict?")
    again = here().open(page.page.evaluate("location.href"))
    expect(again.page.get_by_text("Loss changed (nats)")).to_be_visible()


def test_a_text_runs_with_the_gates_of_another(here):
    page = here().open(view="family", run="directional", sample=1, controls="gates_of:4")
    page.heading("How did the gates change?")
    expect(page.page.get_by_text("Loss changed (nats)")).to_be_visible()
    expect(page.page.get_by_role("combobox", name="Gates of another text")).to_be_visible()


def test_a_click_on_a_gate_shows_its_words(here):
    page = here().open(view="family", run="directional", label="English", other="German")
    page.heading("Which directions are switched on?")
    page.click_for(page.mark("direction: 1; r: "), "gate")
    layer, head, direction = page.query()["gate"].split(".")
    expect(page.page.get_by_text(f"Layer {layer}, head {head}, direction {direction}:")).to_be_visible()
    again = here().open(page.page.evaluate("location.href"))
    expect(again.page.get_by_text(f"Layer {layer}, head {head}, direction {direction}:")).to_be_visible()


def test_a_click_on_a_point_shows_the_gates_of_that_text(here):
    page = here().open(view="family", run="directional")
    page.heading("Do texts of one domain lie together?")
    page.click_for(page.mark("domain: "), "sample")
    expect(page.page.get_by_text(f"Shown: text {page.query()['sample']}.")).to_be_visible()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_narrow_page_holds_everything(here, dark):
    page = here(width=400, dark=dark)
    for run in ("hmodel", "directional", "lone"):
        page.open(view="family", run=run)
        expect(page.page.locator(CHARTS).first).to_be_visible()
        page.no_sideways_scroll()
        expect(page.page.locator('[data-testid="stAlert"]', has_text="failed")).to_have_count(0)
