"""A view in the frame of another site: drawn for the origins that are named, for no other, and read-only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from tests.browser.conftest import PATIENCE_S, Site, serving
from tests.support.runs import make_run

TOKEN = "a-token-of-the-embedding-tests"


class OtherSite(BaseHTTPRequestHandler):
    """Frames what its address names."""

    def do_GET(self) -> None:
        source = parse_qs(urlparse(self.path).query).get("frame", ["about:blank"])[0]
        frame = f'<iframe width="100%" height="800" src="{escape(source)}">'
        body = f"<!doctype html><title>other</title><h1>Our docs</h1>{frame}"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def other_site() -> Iterator[int]:
    """The port of a web server of somebody else."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), OtherSite)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.fixture(scope="module")
def friend() -> Iterator[int]:
    with other_site() as port:
        yield port


@pytest.fixture(scope="module")
def framed(tmp_path_factory: pytest.TempPathFactory, friend: int) -> Iterator[Site]:
    """A page with a token that two origins of one server may frame; one of them is of another site (localhost)."""
    data_dir = tmp_path_factory.mktemp("framed")
    make_run(data_dir / "runs", "pictures", samples=9, seed=1)
    origins = f"http://127.0.0.1:{friend} http://localhost:{friend}"
    with serving(data_dir, TOKENPATHS_EMBED_ORIGINS=origins, TOKENPATHS_TOKEN=TOKEN) as served:
        yield served


@pytest.fixture(scope="module")
def context(browser: Browser, framed: Site) -> Iterator[BrowserContext]:
    """A browser that logged in at the page."""
    context = browser.new_context(viewport={"width": 1100, "height": 960})
    context.set_default_timeout(PATIENCE_S * 1000)
    page = context.new_page()
    page.goto(framed.url)
    page.get_by_label("Access token").fill(TOKEN)
    page.get_by_role("button", name="Open").click()
    expect(page.locator(".tp-brand")).to_be_visible()
    page.close()
    yield context
    context.close()


@pytest.fixture
def embed(context: BrowserContext) -> Iterator[Callable[..., tuple[Page, list[str]]]]:
    """Open another site that frames an address; the page, and the errors of its console."""
    pages: list[Page] = []

    def open_site(port: int, address: str, host: str = "127.0.0.1") -> tuple[Page, list[str]]:
        page = context.new_page()
        pages.append(page)
        errors: list[str] = []

        def heard(message: ConsoleMessage) -> None:
            if message.type == "error":
                errors.append(message.text)

        page.on("console", heard)
        page.goto(f"http://{host}:{port}/?frame={address.replace('&', '%26')}")
        return page, errors

    yield open_site
    for page in pages:
        page.close()


def refused(page: Page) -> bool:
    """Whether the browser shows nothing of the page in the frame."""
    page.wait_for_timeout(1500)
    return page.frame_locator("iframe").locator('[data-testid="stApp"]').count() == 0


def test_a_named_site_shows_a_view_alone(
    embed: Callable[..., tuple[Page, list[str]]], framed: Site, friend: int
) -> None:
    page, errors = embed(friend, framed.address(embed=1, view="samples", run="pictures", sample=2))
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("heading", name="What happened inside this image?")).to_be_visible()
    token = frame.locator('[data-token="9"]')
    token.click()
    expect(frame.get_by_role("heading", name="Patch r1 c1")).to_be_visible()
    for chrome in (".tp-brand", ".st-key-views", ".st-key-keys_help", '[data-testid="stHeader"]', "footer"):
        expect(frame.locator(chrome).filter(visible=True)).to_have_count(0)
    assert not errors
    # Messages of the site that frames it steer nothing.
    assert page.request.get(framed.url + "/_stcore/host-config").json()["allowedOrigins"] == []
    message = {"stCommVersion": 1, "type": "UPDATE_FROM_QUERY_PARAMS", "queryParams": "view=jobs"}
    page.evaluate("message => frames[0].postMessage(message, '*')", message)
    page.wait_for_timeout(1500)
    expect(frame.get_by_role("heading", name="What happened inside this image?")).to_be_visible()


def test_the_whole_page_is_framed_by_nobody(
    embed: Callable[..., tuple[Page, list[str]]], framed: Site, friend: int
) -> None:
    for query in ({}, {"view": "jobs"}, {"embed": "true", "view": "routes"}):
        page, _ = embed(friend, framed.address(**query))
        assert refused(page), query
    page, _ = embed(friend, framed.address(embed=1, view="routes", run="pictures"))
    expect(page.frame_locator("iframe").get_by_role("heading", name="Where do tokens go?")).to_be_visible()
    page.evaluate("address => { document.querySelector('iframe').src = address; }", framed.address(view="jobs"))
    assert refused(page)


def test_no_other_origin_shows_it(embed: Callable[..., tuple[Page, list[str]]], framed: Site) -> None:
    with other_site() as stranger:
        page, errors = embed(stranger, framed.address(embed=1, view="routes", run="pictures"))
        assert refused(page)
        assert any("frame-ancestors" in error for error in errors), errors


def test_views_that_start_work_are_a_sentence_in_a_frame(
    embed: Callable[..., tuple[Page, list[str]]], framed: Site, friend: int
) -> None:
    page, errors = embed(friend, framed.address(embed=1, view="jobs"))
    frame = page.frame_locator("iframe")
    expect(frame.get_by_text("starts work, so it is not shown")).to_be_visible()
    expect(frame.get_by_role("button").filter(visible=True)).to_have_count(0)
    assert frame.get_by_role("link", name="window of its own").get_attribute("target") == "_blank"
    assert not errors


def test_a_site_of_another_domain_gets_a_sentence_and_no_form(
    embed: Callable[..., tuple[Page, list[str]]], framed: Site, friend: int
) -> None:
    """Browsers keep the login's cookie from it: localhost and 127.0.0.1 are two sites."""
    page, _ = embed(friend, framed.address(embed=1, view="routes", run="pictures"), host="localhost")
    frame = page.frame_locator("iframe")
    expect(frame.get_by_text("This view needs a login")).to_be_visible()
    expect(frame.locator("form, input")).to_have_count(0)


def test_the_frame_has_the_same_view_in_both_schemes(context: BrowserContext, framed: Site, tmp_path: Path) -> None:
    """Opened in a window of its own, too, and narrow: nothing wider than the window."""
    page = context.new_page()
    page.set_viewport_size({"width": 400, "height": 800})
    page.emulate_media(color_scheme="dark")
    page.goto(framed.address(embed=1, view="routes", run="pictures"))
    expect(page.get_by_role("heading", name="Where do tokens go?")).to_be_visible()
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth") <= 400
    page.close()
