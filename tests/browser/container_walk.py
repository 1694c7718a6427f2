"""Look at a page that runs elsewhere: ``python -m tests.browser.container_walk URL FOLDER``, with TOKENPATHS_TOKEN.

Gives the token to the login form, traces a bundled picture, opens each view on its run, and leaves pictures in FOLDER.
An error of the page, a message in its console or a request that leaves this machine ends it with 1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlparse

from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.chromium import find
from tests.browser.conftest import LEAVING

VIEWS = ("samples", "routes", "paths", "work", "modules", "home")
PATIENCE_MS = 240_000


def settle(page: Page) -> None:
    """Wait until the script of the page has run to its end."""
    expect(page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]')).to_be_visible(
        timeout=PATIENCE_MS
    )
    page.wait_for_timeout(500)


def walk(page: Page, url: str, folder: Path) -> list[str]:
    """Every view on the run of one uploaded picture; returns what went wrong."""
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url) if LEAVING.match(request.url) else None)
    page.goto(url)
    page.locator('input[type="password"]').fill(os.environ["TOKENPATHS_TOKEN"])
    page.keyboard.press("Enter")
    settle(page)
    problems.clear()  # before the token the form's own 401 stands in the console
    page.goto(f"{url}/?{urlencode({'view': 'home', 'model': 'dna-vision-top1'})}")
    page.get_by_role("button", name="A yellow car on grass").click(timeout=PATIENCE_MS)
    expect(page.locator(".tp-patch")).to_have_count(64, timeout=PATIENCE_MS)
    settle(page)
    run = parse_qs(urlparse(page.url).query)["run"][0]
    for view in VIEWS:
        page.goto(f"{url}/?{urlencode({'view': view, 'run': run})}")
        settle(page)
        page.screenshot(path=folder / f"{view}.png")
        problems += [f"{view}: {text}" for text in page.locator('[data-testid="stException"]').all_inner_texts()]
        print(f"{view}: drawn", flush=True)
    return problems


def main() -> int:
    """Walk through the page at the address of the command line."""
    url, folder = sys.argv[1], Path(sys.argv[2])
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find(), args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1440, "height": 1000}, locale="en-US").new_page()
        try:
            problems = walk(page, url, folder)
        finally:
            page.screenshot(path=folder / "last.png")
            browser.close()
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
