"""Dark, narrow, broken, empty: the page stays readable and says what to do."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PATIENCE_S, ROOT, Site

VIEWS = ("home", "routes", "paths", "samples", "work", "modules", "change", "importance")


def test_dark_mode_reaches_charts_and_components(visit):
    here = visit(dark=True).open(view="samples", run="pictures", sample=1)
    svg = here.page.locator('[data-testid="stVegaLiteChart"] svg').first
    expect(svg).to_be_visible()
    assert "rgb(17, 21, 28)" in svg.get_attribute("style")
    bar = here.page.locator(".tp-bar").first.evaluate("bar => bar.style.background")
    first = [int(part) for part in re.search(r"rgb\((\d+), (\d+), (\d+)\)", bar).groups()]
    assert sum(first) > 400, f"what many take is light here, not {bar}"


@pytest.mark.parametrize("run", ["pictures", "texts"])
def test_nothing_scrolls_sideways_at_400_pixels(visit, run):
    here = visit(width=400)
    for view in VIEWS:
        here.open(view=view, **({} if view == "home" else {"run": run}))
        here.no_sideways_scroll()
    for thing in ("module:1.2", "path:1", "sample:2", "token:2.3"):
        here.open(view="routes", run=run, inspect=thing)
        here.no_sideways_scroll()


def test_at_400_pixels_no_number_is_cut_and_no_count_lies_on_a_placeholder(visit):
    here = visit(width=400).open(view="samples", run="pictures", sample=1)
    first = here.page.locator(".tp-flow .tp-words text").first
    expect(first).to_be_visible()
    flow, text, legend = (
        box.evaluate("box => { const r = box.getBoundingClientRect(); return [r.top, r.bottom]; }")
        for box in (here.page.locator(".tp-flow").first, first, here.page.locator(".tp-legend").first)
    )
    clipped = here.page.locator(".tp-flow").first.evaluate("flow => getComputedStyle(flow).overflowY !== 'visible'")
    assert not clipped or text[0] >= flow[0], "a step number is cut off"
    assert text[0] >= legend[1], "a step number lies on the legend"
    field = here.page.locator(".st-key-find_box input")
    field.focus()
    field.press("a")
    expect(here.page.locator(".st-key-find_box [data-testid=InputInstructions]")).to_be_hidden()
    here.no_sideways_scroll()


SCROLLED = """document.querySelector('[data-testid="stMain"]').scrollTop"""


def test_a_view_opens_at_its_top_and_a_button_that_names_a_heading_leads_there(visit):
    """The browser stays where it was scrolled to: a question at the end of Home opened the middle of Paths."""
    here = visit(width=400).open()
    question = here.page.get_by_role("button", name="Which paths do ends of sentences take?")
    question.scroll_into_view_if_needed()
    assert here.page.evaluate(SCROLLED) > 200
    question.click()
    here.heading("Which paths exist?")
    here.settled()
    assert here.page.evaluate(SCROLLED) == 0
    here.open(view="modules", run="texts")
    here.page.get_by_role("button", name="What do paths know?").click()
    expect(here.page.get_by_role("heading", name="What do paths know?")).to_be_in_viewport()
    assert here.page.evaluate(SCROLLED) > 200


COUNT_SENT = """() => {
  window.tpSent = 0;
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (data) { window.tpSent += 1; return send.call(this, data); };
}"""


def test_a_second_click_on_what_is_chosen_sends_nothing_that_could_undo_the_next(visit):
    """It let go of the place, which the page chose again; meanwhile the next click said once more to let go."""
    here = visit().open(view="paths", run="pictures")
    here.page.evaluate(COUNT_SENT)
    here.page.get_by_role("radio", name="Explore", exact=True).click()
    here.page.get_by_role("radio", name="Paths", exact=True).click()
    here.page.wait_for_timeout(1000)
    assert here.page.evaluate("window.tpSent") == 0
    here.page.get_by_role("radio", name="Samples", exact=True).click()
    here.expect_query(view="samples")
    assert here.page.evaluate("window.tpSent") > 0


def test_a_run_that_is_gone_says_so_and_the_others_work(visit, site):
    here = visit().open(view="routes", run="doomed")
    here.heading("Where do tokens go?")
    (site.data_dir / "runs" / "doomed.duckdb").unlink()
    here.open(view="routes", run="doomed")
    here.alert("doomed")
    here.open(view="routes", run="cut")
    here.alert("cut")
    here.open(view="routes", run="pictures")
    here.heading("Where do tokens go?")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"view": "routes", "run": "pictures", "steps": "abc"}, "not understood"),
        ({"view": "nothing"}, "not understood"),
        ({"view": "routes", "run": "../../etc/passwd"}, "not understood"),
        ({"view": "samples", "run": "pictures", "sample": "99999"}, "99"),
        ({"view": "paths", "run": "pictures", "inspect": "path:999999"}, "999"),
        ({"view": "routes", "run": "pictures", "label": "no such label"}, "label"),
        ({"view": "routes", "run": "pictures", "through": "0.0,0.1"}, "No token passes"),
    ],
)
def test_an_odd_address_is_answered_with_a_sentence(visit, query, words):
    here = visit().open(**query)
    here.alert(words)


@pytest.fixture(scope="module")
def page_without_api() -> Iterator[Site]:
    """The page alone; nobody listens where its API should be."""
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    command = [sys.executable, "-m", "streamlit", "run", str(ROOT / "frontend" / "app.py"), f"--server.port={ports[0]}"]
    environment = os.environ | {"TOKENPATHS_API_URL": f"http://127.0.0.1:{ports[1]}"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{ports[0]}"
    try:
        until = time.monotonic() + 2 * PATIENCE_S
        while True:
            try:
                urllib.request.urlopen(f"{url}/_stcore/health", timeout=2)
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.2)
        yield Site(url, ROOT)
    finally:
        process.terminate()
        process.wait(30)


def test_without_an_api_every_view_says_how_to_start_it(visit, page_without_api):
    here = visit(on=page_without_api)
    for query in ({}, {"view": "routes", "run": "pictures"}, {"view": "home"}):
        here.open(**query)
        here.alert("does not answer")
        here.alert("tokenpaths up")
        expect(here.page.get_by_role("button", name="Try again")).to_be_visible()
