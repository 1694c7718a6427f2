"""A search on the Paths view in a real browser, and its link in another one."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.conftest import PATIENCE_S


def told(page) -> list[str]:
    """The bold sentences: what these tokens prefer, whether the law holds, what paths know."""
    return [text.strip() for text in page.locator('[data-testid="stMarkdown"] strong').all_inner_texts()]


def test_a_search_its_path_and_its_link_in_another_browser(visit, browser):
    here = visit().open(view="paths", run="texts")
    field = here.page.get_by_role("textbox", name="Which paths do these tokens take?")
    field.fill("the")
    field.press("Enter")
    here.expect_query(find="the")
    expect(here.page.get_by_text("are “the”; they take")).to_be_visible()
    sentence = here.page.locator("strong", has_text=re.compile("They prefer|None of their paths"))
    expect(sentence).to_be_visible()

    # One of its paths: click the first row, the most taken path.
    table = here.page.locator('[data-testid="stDataFrame"]').first
    table.scroll_into_view_if_needed()
    box = table.bounding_box()
    here.page.mouse.click(box["x"] + 16, box["y"] + 54)
    expect(here.page.get_by_role("heading", name=re.compile(r"Path of rank \d"))).to_be_visible()
    here.settled()
    rank = here.query()["inspect"].removeprefix("path:")

    here.page.locator(".st-key-inspector").get_by_role("button", name="Link", exact=True).click()
    code = here.page.locator('[data-testid="stPopoverBody"] code').first
    expect(code).to_contain_text(f"path%3A{rank}")
    link = code.inner_text().strip()
    assert "find=the" in link
    expect(
        here.page.locator("strong", has_text="a lognormal fits").or_(
            here.page.locator("strong", has_text="No power law is fitted")
        )
    ).to_be_visible()
    expect(here.page.locator("strong", has_text="Paths predict")).to_be_visible()
    here.settled()
    first = told(here.page)

    other = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    other.set_default_timeout(PATIENCE_S * 1000)
    try:
        page = other.new_page()
        page.goto(link)
        expect(page.get_by_role("textbox", name="Which paths do these tokens take?")).to_have_value("the")
        expect(page.get_by_role("heading", name=re.compile(rf"Path of rank {int(rank):,}"))).to_be_visible()
        expect(page.locator("strong", has_text="Paths predict")).to_be_visible()
        expect(page.locator('[data-testid="stApp"]')).to_have_attribute("data-test-script-state", "notRunning")
        assert told(page) == first
    finally:
        other.close()
