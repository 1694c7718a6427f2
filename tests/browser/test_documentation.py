"""The documentation as a site, as the page serves it: every page, wide and light, narrow and dark, in Chromium."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlparse

import pytest
import uvicorn
from playwright.sync_api import Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount
from streamlit import config

from tests.browser.conftest import ROOT, Visit, Windows
from tokenpaths.frontend.server.documentation import PATH, SITE, Documentation
from tokenpaths.frontend.server.guard import Guard

RUNNING = ("http://127.0.0.1:8501/", "http://127.0.0.1:8000/docs")
"""addresses of the program itself"""
LOOK = """async () => {
  const images = [...document.images];
  images.forEach(image => { image.loading = "eager"; });
  await Promise.all(images.map(image => image.decode().catch(() => null)));
  const beyond = [...document.querySelectorAll("article *")]
    .filter(element => element.getBoundingClientRect().right > innerWidth + 0.5
      && !element.closest("pre, .md-typeset__scrollwrap, .highlight, .tabbed-labels"))
    .map(element => `${element.tagName} ${element.textContent.slice(0, 40)}`);
  return {
    links: [...document.querySelectorAll("a[href]")].map(link => link.href),
    ids: [...document.querySelectorAll("[id]")].map(element => element.id),
    broken: images.filter(image => !image.naturalWidth).map(image => image.src),
    unnamed: images.filter(image => !image.alt).map(image => image.src),
    width: document.documentElement.scrollWidth,
    beyond: beyond.slice(-5),
    background: getComputedStyle(document.body).backgroundColor,
  };
}"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this tree, built strictly."""
    folder = tmp_path_factory.mktemp("built") / "site"
    subprocess.run(["make", "-s", "tree"], check=True, cwd=ROOT)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    """Where it is served, with the page's guard before it."""
    get_option = config.get_option
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            config, "get_option", lambda name: ["127.0.0.1"] if name == "server.allowedHosts" else get_option(name)
        )
        app = Guard(Starlette(routes=[Mount(PATH, Documentation(built))]))
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.02)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}{PATH}/"
        server.should_exit = True
        thread.join()


def open_page(page: Page, url: str) -> None:
    answer = page.goto(url, wait_until="load")
    assert answer is not None
    assert answer.status == 200, url


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)], ids=["wide-light", "narrow-dark"])
def test_every_page_is_whole_and_asks_nobody_else(
    built: Path, address: str, windows: Windows, width: int, dark: bool
) -> None:
    windows.watch.console.clear()
    windows.watch.left.clear()
    page = windows.page(width, dark)
    looks = {}
    for file in sorted(built.rglob("*.html")):
        url = address + file.relative_to(built).as_posix()
        open_page(page, url)
        looks[url] = page.evaluate(LOOK)
    page.close()
    assert len(looks) > 30
    assert [
        (url, look["broken"] + look["unnamed"]) for url, look in looks.items() if look["broken"] + look["unnamed"]
    ] == []
    assert [(url, look["width"], look["beyond"]) for url, look in looks.items() if look["width"] > width] == []
    dead = [
        (url, link) for url, look in looks.items() for link in look["links"] if is_dead(link, built, address, looks)
    ]
    assert dead == []
    shades = {int(look["background"].removeprefix("rgb(").split(",")[0]) for look in looks.values()}
    assert (max(shades) < 100) if dark else (min(shades) > 200), shades
    assert windows.watch.left == []
    assert windows.watch.console == []


def is_dead(link: str, built: Path, address: str, looks: dict[str, dict[str, list[str]]]) -> bool:
    """Whether a link into the site leads to a file or an anchor that is not there; pages elsewhere are not visited."""
    target, anchor = urldefrag(link)
    if not target.startswith(address):
        return urlparse(target).scheme not in ("https", "mailto") and target not in RUNNING
    target = urljoin(target, "index.html") if target.endswith("/") else target
    if target not in looks:
        return not (built / target.removeprefix(address)).is_file()
    return bool(anchor) and anchor not in looks[target]["ids"]


def test_search_works_without_a_network(address: str, windows: Windows) -> None:
    """In a worker, with the site's own index"""
    windows.watch.console.clear()
    windows.watch.left.clear()
    page = windows.page(1280, False)
    open_page(page, address)
    page.locator(".md-search__input").fill("effective top-k")
    result = page.locator(".md-search-result__link").first
    expect(result).to_be_visible()
    result.click()
    expect(page.locator("article h1")).to_be_visible()
    assert urlparse(page.url).path.startswith(PATH + "/")
    page.close()
    assert windows.watch.left == []
    assert windows.watch.console == []


def test_the_site_is_small_enough_for_the_wheel(built: Path) -> None:
    """And holds no picture that no page shows"""
    assert sum(file.stat().st_size for file in built.rglob("*") if file.is_file()) < 10e6
    texts = "".join(file.read_text() for file in built.rglob("*.html"))
    assert [file.name for file in built.rglob("*.png") if file.name not in texts] == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_the_page_leads_to_it(visit: Callable[..., Visit], width: int, dark: bool) -> None:
    """In a window of its own, so that the view stays"""
    opened = visit(width=width, dark=dark).open(view="home")
    link = opened.page.get_by_role("link", name="Documentation", exact=True)
    expect(link).to_be_visible()
    assert urlparse(link.evaluate("link => link.href")).path == f"{PATH}/index.html"
    opened.no_sideways_scroll()
    if (SITE / "index.html").is_file():
        with opened.page.expect_popup() as popup:
            link.click()
        expect(popup.value.get_by_role("heading", name="Tokenpaths", level=1)).to_be_visible()
        popup.value.close()
