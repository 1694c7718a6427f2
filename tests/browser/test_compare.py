"""Compare and Map in a real browser: choose a second run, click a sample, point at a thumbnail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.backend.conftest import api_for
from tests.browser.conftest import Site
from tests.support.page_server import page_server
from tests.support.runs import make


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A page over two runs of the same pictures."""
    data_dir: Path = tmp_path_factory.mktemp("pairs-site")
    made = make("pictures", samples=8, seed=1, twin=False)
    made.write(data_dir / "runs")
    for batch in made.batches:
        batch.module_ids[::3] = (batch.module_ids[::3] + 1) % 6
    replace(made, info=replace(made.info, run_id="pictures-moved")).write(data_dir / "runs")
    with api_for(data_dir) as api, page_server(data_dir, api=str(api.client.base_url).rstrip("/")) as page:
        yield Site(page.url, data_dir)


def test_from_two_runs_to_a_sample_to_its_like_to_the_map(visit, pairs: Site) -> None:
    here = visit(on=pairs).open(view="compare", run="pictures")
    here.heading("What differs between these two?")
    here.heading("Where do their tokens part?")
    expect(here.page.get_by_text("95 % intervals, 8 samples").first).to_be_visible()
    here.page.locator(".st-key-in_measure input").click()
    here.page.get_by_role("option", name="reuse").click()
    here.expect_query(measure="reuse")
    point = here.mark("sample 3: ")
    expect(point).to_be_visible()
    here.click_for(point, "sample")
    here.expect_query(view="samples", run="pictures", sample="3")
    here.heading("Which samples take similar routes?")
    here.page.locator(".wall-sample button").first.click()
    inspector = here.page.locator(".st-key-inspector")
    expect(inspector.get_by_role("heading", name=re.compile(r"Sample (?!3\b)\d"))).to_be_visible()
    inspector.get_by_role("button", name="Close").click()
    here.expect_query(inspect=None)
    here.page.get_by_role("button", name="All samples").click()
    here.expect_query(sample=None)
    point = here.mark("sample 5, ")
    expect(point).to_be_visible()
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    expect(here.page.locator("#vg-tooltip-element img[src^='data:image/webp']")).to_be_visible()
    here.page.mouse.move(2, 2)
    point.click(force=True)
    here.expect_query(view="samples", inspect="sample:5")


@pytest.mark.parametrize("dark", [False, True])
def test_the_same_on_a_telephone_by_its_address(visit, pairs: Site, dark: bool) -> None:
    here = visit(width=400, dark=dark, on=pairs)
    here.open(view="compare", run="pictures", against="pictures-moved", measure="loss", label="circle")
    here.heading("Which samples differ most in loss?")
    here.no_sideways_scroll()
    here.open(view="samples", run="pictures", label="circle")
    here.heading("Which samples take similar routes?")
    here.no_sideways_scroll()


def test_what_cannot_be_compared_is_a_sentence_in_the_browser(visit, pairs: Site) -> None:
    here = visit(on=pairs).open(view="compare", run="pictures", against="pictures")
    here.alert("given twice")
