"""The page during a soak: its server as a process of its own, people who click in a browser, sessions that come and go.

A browser clicks through the views as a person does. Sessions without a browser speak the WebSocket of the page's
server: one message with an address, then all it sends until its script has run through. They cost next to nothing here,
so many of them come and go, and whatever the server would keep of each shows in its memory.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlparse

from playwright.sync_api import Error, Page, expect, sync_playwright
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from tests.browser.conftest import Site, Visit, chromium_file
from tokenpaths.backend.settings import load_settings
from tokenpaths.cli.support.processes import Child
from tokenpaths.cli.up import plan
from tokenpaths.frontend.page.selection import VIEWS

if TYPE_CHECKING:
    from benchmarks.crew import Crew
    from tests.faults.soak import Soak

TABS = {
    "routes": ("Explore", "Routes"),
    "paths": ("Explore", "Paths"),
    "samples": ("Explore", "Samples"),
    "work": ("Explore", "Work"),
    "modules": ("Explore", "Modules"),
    "compare": ("Compare", None),
    "importance": ("Experiment", "Importance"),
    "home": ("Home", None),
}
"""view → its place, and its name there where the place has several"""
PATIENCE_S = 120.0
SEEN = """() => {
  window.tpSeen = [];
  const note = (kind, text) => { window.tpSeen = [...window.tpSeen.slice(-11), `${kind} ${text}`]; };
  for (const kind of ["pointerdown", "pointerup", "click"])
    addEventListener(kind, event => note(kind, (event.target.textContent || "").slice(0, 20)), true);
  for (const name of ["pushState", "replaceState"]) {
    const change = history[name];
    history[name] = function (...values) { note(name, values[2]); return change.apply(this, values); };
  }
  const send = WebSocket.prototype.send;
  WebSocket.prototype.send = function (data) {
    note("sent", data.byteLength ?? data.length);
    return send.call(this, data);
  };
}"""
"""keeps the last events of a window, which tell what became of a click"""
BAD = ("Traceback (most recent call last)", "StreamlitAPIException", "This app has encountered an error")


def page_of(crew: Crew, folder: Path) -> Child:
    """The page's server for the API of a crew that has not been started yet; it is not started either."""
    settings = load_settings(data_dir=crew.data_dir, host="127.0.0.1", port=crew.port, worker_port=0, page_port=0)
    page = plan(settings)[-1]
    page.log_file = folder / "page.log"
    page.environment["TOKENPATHS_API_URL"] = f"http://127.0.0.1:{crew.port}"
    return page


def url_of(page: Child) -> str:
    """Where it listens."""
    return page.health_url.removesuffix("/_stcore/health")


def addresses(chance: random.Random) -> Iterator[dict[str, str]]:
    """What people have in their address bars, without an end."""
    while True:
        address = {"view": chance.choice(list(VIEWS)), "run": chance.choice(("vision", "text"))}
        if chance.random() < 0.3:
            address["label"] = chance.choice(("circle", "english", "nobody"))
        if chance.random() < 0.3:
            address["through"] = f"{chance.randrange(4)}.{chance.randrange(6)}"
        if address["view"] == "samples" and chance.random() < 0.7:
            address["sample"] = str(chance.randrange(40))
        if address["view"] == "paths" and chance.random() < 0.5:
            address["inspect"] = f"path:{chance.randrange(1, 12)}"
        yield address


def session(url: str, visits: list[dict[str, str]]) -> Iterator[tuple[dict[str, str], float, int, list[str]]]:
    """One session over the WebSocket: for each address (it, seconds, messages, exceptions that the page shows).

    TimeoutError where a page is not through after ``PATIENCE_S``; WebSocketException where the server hung up.
    """
    with connect(
        f"ws://{urlparse(url).netloc}/_stcore/stream",
        subprotocols=["streamlit"],
        origin=url,
        proxy=None,
        max_size=None,
        open_timeout=PATIENCE_S,
        close_timeout=10,
    ) as socket:
        for address in visits:
            ask = BackMsg()
            ask.rerun_script.query_string = urlencode(address)
            began, messages, said = time.monotonic(), 0, []
            socket.send(ask.SerializeToString())
            while True:
                answer = ForwardMsg()
                answer.ParseFromString(socket.recv(timeout=began + PATIENCE_S - time.monotonic()))
                messages += 1
                if answer.delta.new_element.WhichOneof("type") == "exception":
                    said.append(answer.delta.new_element.exception.message)
                through = answer.WhichOneof("type") == "script_finished"  # and not because it begins anew
                if through and answer.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
                    break
            yield address, time.monotonic() - began, messages, said


def come_and_go(soak: Soak, seed: int) -> None:
    """People who open the page, look at a few views and close the window; each is a new session."""
    chance = random.Random(seed)
    wanted = addresses(chance)
    while not soak.over.wait(chance.uniform(1, 4)):
        try:
            for address, seconds, messages, said in session(soak.page_url, [next(wanted) for _ in range(4)]):
                soak.answers.append((soak.now(), "page", 200, seconds))
                if said or messages < 10:
                    soak.lost.append(f"page {address}: {messages} messages; {said}")
                if soak.over.wait(chance.uniform(0.2, 1)):
                    break
        except (OSError, WebSocketException) as error:
            soak.lost.append(f"page: {type(error).__name__} {error} at {soak.now():.0f} s")


def click(soak: Soak, seed: int) -> None:
    """Somebody with a browser, who clicks from view to view; where none is installed, another session without one."""
    chance = random.Random(seed)
    with sync_playwright() as playwright:
        file = chromium_file(playwright)
        if file is None:
            soak.browser = "none: sessions without one only"
            return come_and_go(soak, seed)
        browser = playwright.chromium.launch(executable_path=file, args=["--no-sandbox", "--disable-gpu"])
        soak.browser = f"Chromium {browser.version}"
        expect.set_options(timeout=PATIENCE_S * 1000)
        while not soak.over.is_set():
            _click_for_a_while(soak, chance, browser)
        browser.close()
    return None


def _evidence(page: Page) -> str:
    """The last events of a window, and which of its buttons are chosen."""
    try:
        chosen = page.get_by_role("radio", checked=True).all_inner_texts()
        return f"chosen: {', '.join(chosen)}; before: {'; '.join(page.evaluate('window.tpSeen'))}"[:900]
    except Error as error:
        return f"nothing to be seen: {str(error)[:100]}"


def _click_for_a_while(soak: Soak, chance: random.Random, browser: object) -> None:
    """A window, twelve clicks, and it is closed; what goes wrong is noted."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_S * 1000)
    page, wrong = context.new_page(), []
    page.add_init_script(f"({SEEN})()")
    page.on("pageerror", lambda error: wrong.append(str(error)))
    here = Visit(page, Site(soak.page_url, Path()))
    doing = "opening"
    try:
        here.open(view="routes", run=chance.choice(("vision", "text")))
        for _ in range(12):
            if soak.over.wait(chance.uniform(1, 4)):
                break
            view = chance.choice([view for view in TABS if view != here.query().get("view", "home")])
            place, name = TABS[view]
            doing, began = f"clicking at {name or place}", time.monotonic()
            page.get_by_role("radio", name=place, exact=True).click()
            if name is not None:
                # Of the bar: *Compare*, which may still stand there, has a part that is called *Routes* too.
                page.locator(".st-key-place_views").get_by_role("radio", name=name, exact=True).click()
            here.expect_query(view=None if view == "home" else view)
            soak.answers.append((soak.now(), "click", 200, time.monotonic() - began))
            if view == "routes":
                doing = "clicking at a circle of the flow"
                here.click_for(here.mark("node: 2."), "inspect")
            words = page.locator("[data-testid=stMain]").inner_text()
            wrong += [bad for bad in BAD if bad in words] + re.findall(r"The view .* failed.*", words)
    except (Error, AssertionError) as error:
        if not soak.over.is_set():
            soak.lost.append(f"browser, {doing}: {str(error)[:300]} at {soak.now():.0f} s; {_evidence(page)}")
    soak.lost.extend(f"browser, {doing}: {words[:300]}" for words in wrong)
    context.close()
