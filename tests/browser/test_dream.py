"""Dream: click patches, dream, watch it grow, find it again by its address."""

from __future__ import annotations

from playwright.sync_api import expect


def a_run(here) -> str:
    """A run of one image, made on the page."""
    here.open(view="home", model="tiny-vision")
    here.page.get_by_role("button", name="A yellow car on grass").click()
    expect(here.page.locator(".tp-patch")).to_have_count(16)
    here.settled()
    return here.query()["run"]


def test_clicked_patches_are_dreamed_and_the_address_brings_the_dream_back(visit):
    here = visit()
    run = a_run(here)
    here.open(view="dream", run=run, sample=0, dream="group:picked,context:both,until:2,iterations:64")
    here.heading("What input would follow this path best?")
    go = here.page.get_by_role("button", name="Dream", exact=True).last
    expect(go).to_be_disabled()
    expect(here.page.locator(".tp-patch")).to_have_count(16)
    here.page.locator(".tp-patch").nth(5).click()
    expect(here.page.get_by_text("Clicked: 5.")).to_be_visible()
    here.settled()
    assert "picked:5" in here.query()["dream"]
    expect(go).to_be_enabled()
    here.click_for(go, "job")
    here.heading("The dream")
    shown = here.page.locator(".st-key-dream_strip img")
    expect(shown).to_have_count(3)
    expect(here.page.get_by_text("Red: the group").first).to_be_visible()
    here.no_sideways_scroll()
    again = visit(width=400, dark=True).open(here.page.evaluate("location.href"))
    expect(again.page.locator(".st-key-dream_strip img")).to_have_count(3)
    again.no_sideways_scroll()
    again.open(view="dream", run=run, sample=0)
    again.page.locator(".st-key-dream_gallery .wall button").first.click()
    again.expect_query(job=here.query()["job"])
    assert "picked:5" in again.query()["dream"]  # its own wishes came with it


def test_a_model_of_nobody_cannot_dream_and_the_page_says_why(visit):
    here = visit().open(view="dream", run="texts", dream="of:module,module:1")
    here.page.get_by_role("button", name="Dream", exact=True).last.click()
    expect(here.page.locator('[data-testid="stAlert"]').first).to_be_visible()
    here.heading("What input would go to this module?")
