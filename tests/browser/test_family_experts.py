"""Experts in a real browser, over a site of their own: 64 layers × 256 experts, a log without text, a series."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.backend.conftest import api_for
from tests.browser.conftest import Site
from tests.support.page_server import page_server
from tests.support.runs import make_experts

CANVAS = '[data-testid="stVegaLiteChart"] canvas'
CHARTS = '[data-testid="stVegaLiteChart"] svg'


def make_site(runs: Path) -> None:
    """``large``: 64 × 256, top-8; ``log``: ids of experts only; ``at…``: checkpoints of one training."""
    make_experts("large", layers=64, experts=256, top_k=8, samples=6, length=48, dead=3).write(runs)
    make_experts("log", text=False, token_ids=False, labels=False, layers=6, experts=64, top_k=4).write(runs)
    for iteration, drift in ((100, 0.8), (900, 0.0)):
        make_experts(f"at{iteration}", series=("mine", iteration), drift=drift).write(runs)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data_dir = tmp_path_factory.mktemp("experts-site")
    make_site(data_dir / "runs")
    with api_for(data_dir) as served, page_server(data_dir, api=str(served.client.base_url).rstrip("/")) as page:
        yield Site(page.url, data_dir)


@pytest.fixture
def here(visit, family: Site):
    return lambda width=1280, dark=False: visit(width=width, dark=dark, on=family)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_every_question_about_64_by_256_experts_has_its_picture(here, width, dark):
    page = here(width, dark).open(view="family", run="large", layer=13)
    for question in (
        "How evenly does each layer share its work?",
        "How many experts does nobody choose?",
        "Which experts does each token choose?",
        "Which experts does each domain prefer?",
        "Which words is each expert chosen for?",
        "Which experts work together?",
        "Do neighbouring tokens choose the same experts?",
    ):
        page.heading(question)
    expect(page.page.locator(CHARTS)).to_have_count(7)
    page.no_sideways_scroll()


def test_a_click_on_a_layer_chooses_it(here):
    page = here().open(view="family", run="large")
    page.click_for(page.mark("layer: 7;"), "layer")
    page.expect_query(layer="7")
    expect(page.page.get_by_text("experts of layer 7").first).to_be_visible()


def test_the_flow_of_64_by_256_is_drawn_with_the_small_experts_merged(here):
    page = here().open(view="routes", run="large", drawn="ribbons")
    page.heading("Where do tokens go?")
    expect(page.page.get_by_text("smaller experts of a step together")).to_be_visible()
    drawn = '.mark-symbol path[aria-roledescription="{}"]'
    expect(page.page.locator(drawn.format("circle"))).to_have_count(64 * 12)
    expect(page.page.locator(drawn.format("square"))).to_have_count(64)
    page.no_sideways_scroll()


def test_routes_of_many_experts_are_a_heat_map_that_is_clicked(here):
    page = here().open(view="routes", run="large")
    page.heading("Where do tokens go?")
    expect(page.page.get_by_text("that each token makes at a step")).to_be_visible()
    page.click_for(page.page.locator(CANVAS).first, "inspect")
    page.heading("at step")


def test_a_click_on_an_expert_opens_it(here):
    page = here().open(view="routes", run="large", steps="3:5", merge="20", drawn="ribbons")
    page.click_for(page.page.locator('.mark-symbol path[aria-roledescription="circle"]').first, "inspect")
    page.heading("at step")


def test_many_ribbons_have_names_and_are_clicked(here):
    page = here().open(view="routes", run="large", steps="3:6", merge="2", drawn="ribbons")
    expect(page.mark("node: 4.")).to_be_visible()
    expect(page.mark("link: 4.")).to_be_visible()
    page.click_for(page.mark("link: 4."), "through")
    page.heading("Where do tokens go?")


def test_a_click_on_a_cell_of_64_by_256_opens_its_module(here):
    page = here().open(view="modules", run="large")
    canvas = page.page.locator(CANVAS).first
    expect(canvas).to_be_visible()
    page.click_for(canvas, "inspect")
    page.expect_query(view="modules")
    expect(page.page.get_by_role("heading", name="at step")).to_be_visible()
    # A table of 16,384 rows is sent when it is opened.
    page.page.get_by_text("The numbers behind this: cells").click()
    expect(page.page.locator('[data-testid="stDataFrame"]').first).to_be_visible()


@pytest.mark.parametrize("run", ["large", "log"])
def test_the_shared_views_show_them_too(here, run):
    page = here()
    for view in ("samples", "paths", "modules", "home", "work"):
        page.open(view=view, run=run, **({"paths": 1} if view == "paths" else {}))
        assert page.page.locator('[data-testid="stAlert"]', has_text="failed").count() == 0
        page.no_sideways_scroll()


def test_a_log_without_text_shows_positions_and_says_so(here):
    page = here().open(view="samples", run="log", sample=2, token=5)
    expect(page.page.get_by_text("This run holds no text, so tokens stand by their position.")).to_be_visible()
    expect(page.page.locator('[data-token="5"]')).to_be_visible()
    family = here().open(view="family", run="log")
    family.alert("recorded no token ids")
    family.alert("no labels")


def test_a_series_draws_when_routing_settled(here):
    page = here().open(view="family", run="at100", layer=1)
    page.heading("When did routing settle during training?")
    expect(page.page.get_by_text("2 checkpoints of the series")).to_be_visible()
