"""The family views of DiPaCo and RayTracing in a real browser, over a site of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Site
from tests.frontend.test_family_pages_dipaco_raytracing import lights_api
from tests.support.page_server import page_server

CHART = '[data-testid="stVegaLiteChart"]'
RUNS = {"lights": 7, "at-once": 5, "lone": 2, "shards": 5, "once": 5}
"""run → charts that its page draws at least"""


@pytest.fixture(scope="module")
def lit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data_dir: Path = tmp_path_factory.mktemp("lights-site")
    with lights_api(data_dir) as api, page_server(data_dir, api=api) as page:
        yield Site(page.url, data_dir)


@pytest.fixture
def here(visit, lit: Site):
    return lambda width=1280, dark=False: visit(width=width, dark=dark, on=lit)


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_the_page_draws_everything_and_fits(here, width, dark):
    page = here(width, dark)
    for run, charts in RUNS.items():
        page.open(view="family", run=run)
        for place in range(charts):
            expect(page.page.locator(f"{CHART} svg").nth(place)).to_be_attached()
        expect(page.page.locator('[data-testid="stAlert"]', has_text="failed")).to_have_count(0)
        page.no_sideways_scroll()


def test_the_slider_lights_fewer_blocks_and_the_link_reproduces_it(here):
    page = here().open(view="family", run="lights", sample=0)
    expect(page.page.get_by_text("Now the output fires").first).to_be_visible()
    slider = page.page.get_by_role("slider").first
    slider.focus()
    slider.press("Home")
    page.expect_query(light="0")
    expect(page.page.get_by_text("The output is still silent").first).to_be_visible()
    again = here().open(page.page.evaluate("location.href"))
    expect(again.page.get_by_text("step 0 of").first).to_be_visible()
    slider = again.page.get_by_role("slider").first
    slider.focus()
    slider.press("End")
    again.expect_query(light=None)


def test_a_dear_sample_opens_in_the_network(here):
    page = here().open(view="family", run="lights", light=0)
    button = page.page.locator(".wall button").last
    number = button.get_attribute("aria-label").split(":")[0].removeprefix("sample ").replace(",", "")
    button.click()
    page.expect_query(sample=number, light=None)


def test_a_point_of_the_scatter_opens_its_sample(here):
    page = here().open(view="family", run="lights")
    page.click_for(page.mark("nats"), "sample")


def test_a_document_is_routed_again(here):
    page = here().open(view="family", run="shards", sample=1)
    expect(page.page.get_by_text("The router decided").first).to_be_visible()
    page.page.get_by_role("radio", name="every 16 tokens").click()
    page.expect_query(controls="reroute_every:16")
    expect(page.page.get_by_text("Run again: mean loss").first).to_be_visible()
    expect(page.page.get_by_role("region", name="Text of the document, tagged with its paths")).to_be_visible()


def test_only_documents_of_a_label(here):
    page = here().open(view="family", run="shards", label="code")
    expect(page.chip("label: code")).to_be_visible()
    expect(page.page.get_by_text("6 documents on").first).to_be_visible()
