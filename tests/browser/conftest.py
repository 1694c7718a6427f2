"""The whole product in a real browser: ``tokenpaths up`` on free ports, Chromium by Playwright.

Chromium is found as in chromium.py, or wherever Playwright put its own. Every page is watched:
an error in its console, a request that leaves this machine, or a traceback fails the test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlparse

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, expect, sync_playwright

from tests.browser.chromium import SHELL, find
from tests.support.runs import make_run

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = float(os.environ.get("TOKENPATHS_BROWSER_PATIENCE", "60"))
"""how long a test waits for the page; a busy machine may need more"""
LEAVING = re.compile(
    r"^(?!https?://(127\.0\.0\.1|localhost)[:/]|wss?://(127\.0\.0\.1|localhost)[:/]|data:|blob:|about:|chrome)"
)

WIDEST = """() => [...document.querySelectorAll("[data-testid=stMain] *")]
  .filter(element => element.getBoundingClientRect().right > innerWidth + 0.5)
  .map(element => `${element.tagName} ${element.className?.baseVal ?? element.className} `
    + `${element.textContent.slice(0, 40)} to ${Math.round(element.getBoundingClientRect().right)}`).slice(-6)"""
"""the innermost of what reaches beyond the window"""
GO = """address => {
    const marks = document.documentElement.dataset, begin = () => { marks.begun = ""; };
    delete marks.begun;
    const app = document.querySelector('[data-testid="stApp"]');
    const runs = new MutationObserver(() => {
        if (app.getAttribute("data-test-script-state") === "running") { runs.disconnect(); begin(); }
    });
    runs.observe(app, {attributes: true});
    setTimeout(begin, 3000);
    history.pushState(null, "", address);
    dispatchEvent(new PopStateEvent("popstate"));
}"""
"""go to an address as the Back button does, a third of the work of loading it; ``data-begun``: the script has begun"""
TEST_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder carries the mark ``browser``, and gets the time that a browser needs."""
    for item in items:
        if TEST_FOLDER in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(max(300, 6 * PATIENCE_S)))


@dataclass
class Site:
    """A running page and the folder behind it."""

    url: str
    data_dir: Path
    api: str = ""
    """address of the API, of sites that have one of their own"""

    def address(self, **query: object) -> str:
        return self.url + "/?" + urlencode({key: str(value) for key, value in query.items()})


def make_data(data_dir: Path) -> None:
    """Runs of every kind that a view may meet, and two tiny untrained models."""
    runs = data_dir / "runs"
    make_run(runs, "pictures", samples=24, steps=6, modules=8, identities=2, seed=1)
    make_run(runs, "texts", "text", samples=12, steps=5, modules=8, top_k=2, seed=2)
    make_run(runs, "bare", samples=1, steps=1, modules=1, identities=0, labels=False, twin=False, seed=3, split="try")
    make_run(runs, "doomed", samples=3, seed=4)
    (runs / "cut.duckdb").write_bytes((runs / "pictures.duckdb").read_bytes()[:9000])
    make_models(data_dir / "models")


def make_models(folder: Path) -> None:
    """tiny-vision and tiny-text, saved like real ones."""
    import torch

    from tokenpaths.engine.data.tokenizer import TextTokenizer
    from tokenpaths.engine.models.checkpoint import save_checkpoint
    from tokenpaths.engine.models.dna import DNA, DNAConfig

    torch.manual_seed(0)
    small = {"width": 16, "heads": 2, "mlp_width": 32, "backbone": 1, "steps": 4, "transformers": 5, "identities": 1}
    vision = DNAConfig(modality="vision", image_size=32, patch_size=8, num_classes=3, **small)
    save_checkpoint(folder / "tiny-vision", DNA(vision), classes=("cat", "dog", "bird"))
    tokenizer = TextTokenizer.train(["the cat sat on the mat and looked at the moon"] * 3, vocab_size=300)
    tokenizer.save(folder / "tiny-text" / "tokenizer.json")
    save_checkpoint(
        folder / "tiny-text", DNA(DNAConfig(modality="text", vocab_size=tokenizer.vocab_size, context=64, **small))
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """``tokenpaths up`` over a folder of test runs."""
    data_dir = tmp_path_factory.mktemp("site")
    make_data(data_dir)
    with serving(data_dir) as served:
        yield served


@contextmanager
def serving(data_dir: Path, **variables: str) -> Iterator[Site]:
    """``tokenpaths up`` over a data folder, with more variables of the environment, until the block ends."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOKENPATHS_", "STREAMLIT_"))
    }
    environment |= {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(data_dir / "config"), "PYTHONUNBUFFERED": "1"}
    environment |= variables
    command = [sys.executable, "-P", "-m", "tokenpaths", "up", "--data-dir", str(data_dir)]
    command += ["--port", "0", "--page-port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment
    )
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(process.stdout or ()), daemon=True)
    reader.start()
    try:
        until = time.monotonic() + 4 * PATIENCE_S
        while not (found := re.search(r"^\s*page\s+(http://\S+)", "".join(said), re.MULTILINE)):
            assert process.poll() is None, "tokenpaths up ended: " + "".join(said)
            assert time.monotonic() < until, "tokenpaths up did not start: " + "".join(said)
            time.sleep(0.1)
        api = re.search(r"^\s*API\s+(http://\S+)", "".join(said), re.MULTILINE)
        yield Site(found[1].rstrip("/"), data_dir, api[1].removesuffix("/docs") if api else "")
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def chromium_file(playwright: Playwright, *, windows: bool = False) -> str | None:
    """Where a Chromium is (``find``), or None."""
    own = playwright.chromium.executable_path
    return find(windows=windows) or (own if Path(own).exists() else None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        file = chromium_file(playwright)
        if file is None:
            pytest.skip(f"no Chromium: apt-get install {SHELL}, or say where it is in TOKENPATHS_CHROMIUM")
        browser = playwright.chromium.launch(executable_path=file, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@dataclass
class Watch:
    """What no page may do."""

    console: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def console_said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.console.append(message.text)


class Visit:
    """A page being visited, with the few gestures that tests need."""

    def __init__(self, page: Page, site: Site) -> None:
        self.page, self.site = page, site

    def open(self, url: str | None = None, **query: object) -> Visit:
        """Open an address and wait until the page is drawn: loaded at first, then gone to as Back and Forward do."""
        address = url or self.site.address(**query)
        if self.page.url.startswith(self.site.url) and self.page.url != address:
            self.page.evaluate(GO, address)
            # Asked for, not awaited as a promise, which the browser now and then takes for garbage.
            expect(self.page.locator("html[data-begun]")).to_have_count(1)
        else:
            self.page.goto(address)
        return self.settled()

    def settled(self) -> Visit:
        """Wait until the script has run through and charts are drawn."""
        expect(self.page.locator(".tp-brand")).to_be_visible()
        expect(self.page.locator('[data-testid="stApp"]')).to_have_attribute("data-test-script-state", "notRunning")
        return self

    def query(self) -> dict[str, str]:
        """The address bar, as a dict."""
        return {key: values[0] for key, values in parse_qs(urlparse(self.page.evaluate("location.href")).query).items()}

    def expect_query(self, **wanted: str | None) -> None:
        """Wait until the address bar says this; None: the key is gone."""

        def holds() -> bool:
            now = self.query()
            return all(now.get(key) == value for key, value in wanted.items())

        until = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < until, f"the address is {self.query()}, wanted {wanted}"
            self.page.wait_for_timeout(100)
        self.settled()

    def chip(self, words: str) -> object:
        return self.page.locator(".st-key-chips button", has_text=words).first

    def heading(self, words: str) -> None:
        expect(self.page.get_by_role("heading", name=words).first).to_be_visible()

    def alert(self, words: str) -> None:
        expect(self.page.locator('[data-testid="stAlert"]', has_text=words).first).to_be_visible()

    def mark(self, label_part: str) -> object:
        """A mark of a chart by a part of its accessible name."""
        return self.page.locator(f'[data-testid="stVegaLiteChart"] path[aria-label*="{label_part}"]').first

    def click_ribbon(self, link: str) -> None:
        """Click in the middle of a ribbon of the flow picture."""
        ribbon = self.mark(f"link: {link};")
        expect(ribbon).to_be_visible()
        ribbon.scroll_into_view_if_needed()
        x, y = ribbon.evaluate("""path => {
            const length = path.getTotalLength(), matrix = path.getScreenCTM();
            const at = (share) => path.getPointAtLength(length * share).matrixTransform(matrix);
            const one = at(0.05), other = at(0.95);
            return [one.x, (one.y + other.y) / 2];
        }""")
        self.page.mouse.click(x, y)

    def click_for(self, mark: object, key: str) -> None:
        """Click a mark until the address bar has ``key``: a chart above that is still growing moves it away."""
        until = time.monotonic() + PATIENCE_S
        while key not in self.query():
            assert time.monotonic() < until, f"no click brought {key!r} into the address {self.query()}"
            mark.scroll_into_view_if_needed()
            mark.click(force=True)
            # Long enough that no second click takes back what the first one chose.
            patience = time.monotonic() + 10
            while key not in self.query() and time.monotonic() < patience:
                self.page.wait_for_timeout(100)
        self.settled()

    def no_sideways_scroll(self) -> None:
        wide = self.page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
        if wide > self.page.viewport_size["width"]:
            raise AssertionError(f"{self.page.url} is {wide} pixels wide: {self.page.evaluate(WIDEST)}")


@dataclass
class Windows:
    """Browser windows by width and colour scheme, kept for all tests: the page's scripts are loaded once."""

    browser: Browser
    watch: Watch = field(default_factory=Watch)
    contexts: dict[tuple[int, bool], BrowserContext] = field(default_factory=dict)

    def page(self, width: int, dark: bool) -> Page:
        if (width, dark) not in self.contexts:
            context = self.browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme="dark" if dark else "light",
                reduced_motion="reduce",
            )
            context.set_default_timeout(PATIENCE_S * 1000)
            context.route(LEAVING, lambda route: (self.watch.left.append(route.request.url), route.abort()))
            context.on("console", self.watch.console_said)
            context.on("weberror", lambda error: self.watch.console.append(str(error.error)))
            self.contexts[width, dark] = context
        return self.contexts[width, dark].new_page()


@pytest.fixture(scope="session")
def windows(browser: Browser) -> Windows:
    return Windows(browser)


@pytest.fixture
def visit(windows: Windows, site: Site) -> Iterator[Callable[..., Visit]]:
    """Open pages: ``visit(width=…, dark=…)``. At the end, what was watched must have been clean."""
    pages: list[Page] = []
    watch = windows.watch
    watch.console.clear()
    watch.left.clear()

    def start(*, width: int = 1280, dark: bool = False, on: Site | None = None) -> Visit:
        pages.append(windows.page(width, dark))
        return Visit(pages[-1], on or site)

    yield start
    texts = [page.content() for page in pages if page.url.startswith("http")]
    for page in pages:
        page.close()
    assert not watch.left, f"requests left this machine: {watch.left}"
    assert not watch.console, f"errors in the console: {watch.console}"
    for forbidden in ("Traceback", "StreamlitAPIException", "This app has encountered an error"):
        assert not any(forbidden in text for text in texts), forbidden
