"""A walk as a person takes it: upload, sample, path, examples, the flow of that path, an export, a link."""

from __future__ import annotations

import csv
import io
import re

from playwright.sync_api import expect

from tests.browser.conftest import PATIENCE_S
from tests.browser.test_try_it import png, upload


def test_from_an_upload_to_a_link_that_somebody_else_opens(visit, browser):
    # Try it: the picture is a sample at once.
    here = visit().open(view="home", model="tiny-vision")
    upload(here, "mine.png", png())
    expect(here.page.locator(".tp-patch")).to_have_count(16)
    here.settled()
    run = here.query()["run"]

    # A patch: it is answered beside the picture.
    here.page.locator(".tp-patch").nth(5).click()
    here.expect_query(token="5")
    inspector = here.page.locator(".st-key-inspector")
    expect(inspector.get_by_role("heading", name="Patch r1 c1")).to_be_visible()

    # Its run has paths of its own; nothing else was traced by this model that could rank them.
    here.open(view="paths", run=run, inspect="path:1")
    expect(inspector.get_by_role("heading", name=re.compile(r"Path of rank \d"))).to_be_visible()
    here.settled()
    rank = here.query()["inspect"].removeprefix("path:")

    # The path: who takes it.
    patches = inspector.locator(".wall-patch button, .wall button")
    expect(patches.first).to_be_visible()
    inspector.get_by_role("button", name="Show its route").click()
    here.expect_query(view="routes", run=run, paths=rank)
    here.heading("Where do tokens go?")
    expect(here.chip(f"path of rank {rank}")).to_be_visible()
    told = here.page.get_by_text(re.compile(r"\d+ of 16 tokens")).first
    expect(told).to_be_visible()
    words = told.inner_text()

    # Export: the table of paths holds what the page said.
    here.page.get_by_role("button", name="Export and link").click()
    button = here.page.get_by_role("button", name=re.compile(r"Download .*-path\.csv"))
    expect(button).to_be_visible()
    with here.page.expect_download(timeout=PATIENCE_S * 1000) as waiting:
        button.click()
    text = waiting.value.path().read_text("utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    mine = next(row for row in rows if row["rank"] == rank)
    assert words.startswith(f"{mine['count']} of 16 tokens")
    assert sum(int(row["count"]) for row in rows) == 16

    # The address, in a browser that was never here.
    link = here.page.evaluate("location.href")
    other = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    other.set_default_timeout(PATIENCE_S * 1000)
    try:
        page = other.new_page()
        page.goto(link)
        expect(page.get_by_text(words).first).to_be_visible()
        expect(page.locator(".st-key-chips button", has_text=f"path of rank {rank}").first).to_be_visible()
    finally:
        other.close()
