"""A detour in a real browser: click a circle, ban it, see before and after; the address shows it again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Site
from tests.frontend.test_detour_page import detour_api
from tests.support.page_server import page_server


@pytest.fixture(scope="module")
def detours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data_dir: Path = tmp_path_factory.mktemp("detour-site")
    with detour_api(data_dir) as api, page_server(data_dir, api=api) as page:
        yield Site(page.url, data_dir)


@pytest.fixture
def here(visit, detours: Site):
    return lambda width=1280, dark=False: visit(width=width, dark=dark, on=detours)


def test_click_a_circle_and_ban_it(here):
    page = here().open(view="change", run="pictures", sample=0)
    page.heading("What if a route were changed?")
    circle = page.page.locator(".tp-nodes circle").first
    expect(circle).to_be_visible()
    page.click_for(circle, "through")
    page.click_for(page.page.get_by_role("button", name="Ban module").first, "controls")
    assert page.query()["controls"].startswith("ban:")
    page.heading("Before")
    page.heading("After")
    page.heading("Where do tokens go instead?")
    expect(page.page.locator('[data-testid="stMetric"]').first).to_be_visible()


def test_click_a_link_and_send_its_tokens_elsewhere(here):
    page = here().open(view="change", run="pictures", sample=0)
    page.heading("Before")
    link = page.page.locator(".tp-hits path").last  # the thinnest
    expect(link).to_be_attached()
    key = link.get_attribute("data-link")
    page.click_for(link, "through")
    assert page.query()["through"] == key.replace(">", ",")
    expect(page.page.locator(".tp-links path.tp-chosen")).to_be_visible()
    page.heading("What becomes of the chosen one?")
    page.click_for(page.page.get_by_role("button", name="Send them there"), "controls")
    assert ".from" in page.query()["controls"]
    page.heading("After")
    expect(page.page.get_by_text("leave, 0 come.")).to_be_visible()


def test_circles_and_links_are_reached_by_keyboard(here):
    page = here().open(view="change", run="pictures", sample=0)
    page.heading("Before")
    for group, arrow in ((".tp-nodes circle", "ArrowRight"), (".tp-hits path", "ArrowDown")):
        stops = page.page.locator(f'{group}[tabindex="0"]')
        expect(stops).to_have_count(1)  # one stop of the tab key, however many there are
        stops.focus()
        page.page.keyboard.press(arrow)
        expect(page.page.locator(group).nth(1)).to_be_focused()
        expect(page.page.locator(group).nth(1)).to_have_attribute("aria-label", re.compile("step"))
    link = page.page.locator(".tp-hits path").nth(1)
    key = link.get_attribute("data-link")
    page.page.keyboard.press("Enter")
    page.expect_query(through=key.replace(">", ","))
    page.heading("What becomes of the chosen one?")


def test_a_module_that_nobody_visits_can_be_forced(here):
    page = here().open(view="change", run="texts", sample=2)  # two words cannot visit every module
    page.heading("Before")
    page.click_for(page.page.locator(".tp-nodes circle.tp-hollow").first, "through")
    page.click_for(page.page.get_by_role("button", name="Send every token there"), "controls")
    step = page.query()["through"].split(".")[0]
    assert page.query()["controls"] == f"force:{page.query()['through']}"
    page.heading("After")
    told = rf"0 of \d+ tokens visit module \d+ at step {step} before and [1-9]\d* after"
    expect(page.page.get_by_text(re.compile(told))).to_be_visible()


@pytest.mark.parametrize("dark", [False, True])
def test_the_address_shows_it_again_even_on_a_telephone(here, dark):
    edits = "ban:0.1,freeze:rest"
    page = here(width=400, dark=dark).open(view="change", run="texts", sample=0, controls=edits, token=1)
    page.heading("With module 1 banned at step 0 and all other routers frozen")
    page.heading("Which tokens become harder to predict?")
    page.no_sideways_scroll()


def test_an_edit_by_hand_and_its_taking_back(here):
    page = here().open(view="change", run="texts", sample=0)
    page.page.get_by_role("button", name="Apply").click()
    page.expect_query(controls="ban:all.0")
    page.heading("After")
    page.page.get_by_role("button", name="module 0 banned at every step").click()
    page.expect_query(controls=None)
    expect(page.page.get_by_text("Nothing is edited yet")).to_be_visible()


def test_too_many_bans_are_a_sentence(here):
    page = here().open(view="change", run="texts", sample=0, controls="ban:0.0,ban:0.1,ban:0.2,ban:0.3,ban:0.4")
    page.alert("top-k needs 2")
