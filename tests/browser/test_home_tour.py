"""The tour's whole script, as a class plays it: by mouse, by keys, left and gone back to; no run, no worker needed."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tokenpaths.frontend.views.home.tour_steps import tours

ANSWER_MS = 300
WAIT_FOR_ANSWER = """() => {
  const root = [...document.querySelectorAll("*")].map((one) => one.shadowRoot ?? document)
    .find((one) => one.querySelector(".tour")).querySelector(".tour");
  const before = root.querySelector("h3").textContent;
  const begun = performance.now();
  root.querySelector(".tour-main").click();
  if (root.querySelector("h3").textContent === before) throw new Error("the click was not answered");
  return performance.now() - begun;
}"""


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (400, True)])
@pytest.mark.parametrize("number", [0, 1])
def test_the_whole_script(visit, number, width, dark):
    here = visit(width=width, dark=dark).open()
    tour = tours()[number]
    here.page.get_by_role("button", name=tour["name"]).click()
    for place, step in enumerate(tour["steps"]):
        expect(here.page.locator(".tour h3")).to_have_text(step["title"])
        expect(here.page.locator(".tour")).to_contain_text(f"{place + 1} of {len(tour['steps'])}")
        expect(here.page.locator(".tour h3")).to_be_focused()
        for words in step["words"]:
            expect(here.page.locator(".tour")).to_contain_text(words)
        expect(here.page.locator(".tour a")).to_have_text(step["link"][0])
        here.no_sideways_scroll()
        if place + 1 < len(tour["steps"]):
            assert here.page.evaluate(WAIT_FOR_ANSWER) < ANSWER_MS
    here.page.get_by_role("button", name="Finish").click()
    expect(here.page.get_by_role("button", name=tour["name"])).to_be_focused()


def test_by_keys_there_and_back_and_out(visit):
    here = visit().open()
    tour = tours()[0]
    here.page.get_by_role("button", name=tour["name"]).focus()
    here.page.keyboard.press("Enter")
    title = here.page.locator(".tour h3")
    expect(title).to_have_text(tour["steps"][0]["title"])
    here.page.keyboard.press("ArrowLeft")
    expect(title).to_have_text(tour["steps"][0]["title"])
    for place in (1, 2):
        here.page.keyboard.press("ArrowRight")
        expect(title).to_have_text(tour["steps"][place]["title"])
    here.page.keyboard.press("ArrowLeft")
    expect(title).to_have_text(tour["steps"][1]["title"])
    here.page.keyboard.press("Escape")
    expect(title).to_have_count(0)
    expect(here.page.get_by_role("button", name=tour["name"])).to_be_focused()


def test_a_link_leads_into_the_place_and_the_step_waits(visit):
    here = visit().open()
    tour = tours()[0]
    here.page.get_by_role("button", name=tour["name"]).click()
    for _ in range(3):
        here.page.get_by_role("button", name="Next").click()
    here.page.locator(".tour a").click()
    here.expect_query(view="routes")
    here.page.go_back()
    here.settled()
    expect(here.page.locator(".tour h3")).to_have_text(tour["steps"][3]["title"])


def test_a_frame_of_the_dream_is_shown_large_only_when_asked(visit):
    here = visit().open()
    tour = tours()[0]
    here.page.get_by_role("button", name=tour["name"]).click()
    for _ in range(7):
        here.page.get_by_role("button", name="Next").click()
    large = here.page.locator(".tour-large")
    last = large.get_attribute("src")
    here.page.wait_for_timeout(700)
    assert large.get_attribute("src") == last
    here.page.locator(".tour-strip button").first.click()
    expect(here.page.locator(".tour-strip button").first).to_have_attribute("aria-pressed", "true")
    assert large.get_attribute("src") != last


def test_the_address_has_the_step_and_opens_it(visit):
    here = visit().open()
    tour = tours()[0]
    here.page.get_by_role("button", name=tour["name"]).click()
    here.page.get_by_role("button", name="Next").click()
    here.expect_query(tour=f"{tour['key']}.2")
    again = visit(width=400).open(here.page.evaluate("location.href"))
    title = again.page.locator(".tour h3")
    expect(title).to_have_text(tour["steps"][1]["title"])
    again.page.get_by_role("radio", name="Experiment", exact=True).click()
    again.expect_query(tour=None)
    again.page.get_by_role("radio", name="Home", exact=True).click()
    expect(title).to_have_text(tour["steps"][1]["title"])
    again.expect_query(tour=f"{tour['key']}.2")
    again.page.get_by_role("button", name="Leave the tour").click()
    again.expect_query(tour=None)
    over = visit().open(tour=f"{tour['key']}.99", view="home")
    expect(over.page.locator(".tour h3")).to_have_text(tour["steps"][-1]["title"])
    nowhere = visit().open(tour="nowhere.1", view="home")
    expect(nowhere.page.get_by_role("button", name=tour["name"])).to_be_visible()
    nowhere.expect_query(tour=None)
