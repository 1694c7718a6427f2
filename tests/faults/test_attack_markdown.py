"""Hostile texts in all that the API answers: every element of every view, as Streamlit sends it and in Chromium."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from playwright.sync_api import Error, Locator
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import Served, api_for
from tests.browser.conftest import Site, Visit, Windows
from tests.faults.conftest import Keep
from tests.faults.hostile_texts import EVIL, active, poisoned
from tests.frontend.test_family_pages import family_api
from tests.frontend.test_family_pages_dipaco_raytracing import lights_api
from tests.frontend.test_pages import showing
from tests.support.page_server import page_server
from tests.support.runs import make, make_run
from tests.support.runs.experts import make_experts
from tests.support.runs.soft import make_soft
from tokenpaths.frontend.api.client import Client
from tokenpaths.frontend.page import markdown
from tokenpaths.frontend.page.selection import VIEWS

RUNS = ("pictures", "texts")
OF_NO_RUN = ("home", "jobs")
INSPECTED = ("module:1.1", "path:1", "sample:0", "token:0.1")
ADDRESSES: list[dict[str, str]] = [
    *({"view": view, "run": run, "sample": "0"} for view in VIEWS for run in RUNS if view not in OF_NO_RUN),
    *({"view": view} for view in OF_NO_RUN),
    *({"view": "routes", "run": run, "inspect": thing} for run in RUNS for thing in INSPECTED),
    *({"view": "family", "run": run, "sample": "0"} for run in ("at-10", "soft", "bare")),
    {"view": "paths", "run": "bare"},
    {"view": "compare", "run": "at-10"},
    {"view": "home", "q": EVIL},
    {"view": "jobs", "job": "abc"},
    {"view": "compare", "run": "pictures", "against": "moved"},
    {"view": "modules", "run": "texts", "inspect": "module:1.1", "pinned": "path:2"},
    {"view": "samples", "run": "pictures"},
    {"view": "routes", "run": "pictures", "other": "*"},
    {"view": "routes", "run": "pictures", "other": EVIL, "label": EVIL},
    {"view": "paths", "run": "texts", "find": "the", "paths": "1,2"},
    {"view": "paths", "run": "texts", "find": EVIL},
    {"view": "samples", "run": "texts", "sample": "1", "token": "2"},
    {"view": "samples", "run": "pictures", "q": EVIL},
    {"view": "change", "run": "texts", "sample": "1", "through": "1.1>2.2"},
    {"view": "routes", "run": "pictures", "steps": EVIL},
    {"view": "paths", "run": EVIL},
    {"view": EVIL},
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Runs of every kind, a damaged one, and a job of every kind."""
    data_dir: Path = tmp_path_factory.mktemp("markdown")
    runs = data_dir / "runs"
    pictures = make("pictures", samples=9, seed=1)
    pictures.write(runs)
    for batch in pictures.batches:
        batch.module_ids[::3] = (batch.module_ids[::3] + 1) % 6
    replace(pictures, info=replace(pictures.info, run_id="moved", checkpoint_sha256="1" * 64)).write(runs)
    make_run(runs, "texts", "text", samples=6, top_k=2, seed=2)
    make_run(runs, "bare", samples=1, steps=1, modules=1, identities=0, labels=False, twin=False, split="try")
    for at in (10, 20):
        make_experts(f"at-{at}", series=("training", at), drift=1 - at / 20, samples=4).write(runs)
    make_soft("soft").write(runs)
    (runs / "cut.duckdb").write_bytes((runs / "pictures.duckdb").read_bytes()[:9000])
    with api_for(data_dir) as served:
        for kind in ("trace", "import", "dream", "reroute"):
            served.app.state.services.jobs.table.submit(kind, {"model": EVIL, "data": EVIL, "run": "pictures"})
        yield served


def texts(part: Message, kind: str = "") -> Iterator[str]:
    """All Markdown of an element or block."""
    for field, value in part.ListFields():
        members = list(value) if field.is_repeated else [value]
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.name not in markdown.RAW:
            for member in members:
                yield from texts(member, field.name) if isinstance(member, Message) else ()
        elif field.type == FieldDescriptor.TYPE_STRING and (
            field.name in markdown.FIELDS or field.name == "options" and kind in markdown.OPTIONS
        ):
            yield from members


class Watch:
    """What the page sent: before and after the last defence, and what of it was more than text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen, self.unescaped, self.active = 0, [], list[tuple[str, list[str]]]()
        make_inert = markdown.make_inert

        def watched(message: ForwardMsg) -> None:
            delta = message.delta
            kind = delta.WhichOneof("type")
            part = getattr(delta, kind) if kind in ("new_element", "add_block") else None
            self.unescaped += _active(part)
            make_inert(message)
            self.active += _active(part)
            self.seen += sum("evil" in text for text in texts(part)) if part is not None else 0

        monkeypatch.setattr(markdown, "make_inert", watched)


def _active(part: Message | None) -> list[tuple[str, list[str]]]:
    return [] if part is None else [(text, more) for text in texts(part) if (more := active(text))]


@pytest.fixture
def show(api: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AppTest]]:
    read = Client._json
    monkeypatch.setattr(Client, "_json", lambda self, answer: poisoned(read(self, answer)))
    with showing(str(api.client.base_url).rstrip("/"), monkeypatch) as draw:
        yield draw


def test_every_text_of_every_view_is_a_text(
    show: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch, figure: Keep
) -> None:
    """Markup added to every text that the API answers, in every view; every Markdown field is parsed"""
    watch = Watch(monkeypatch)
    for address in ADDRESSES:
        page = show(**address)
        failed = [error.value for error in page.error if "fault of the page" in error.value]
        assert not failed, (address, failed)
        assert not watch.unescaped, (address, watch.unescaped[:3])
        assert not watch.active, (address, watch.active[:3])
    assert watch.seen > 60
    figure(29, f"{len(ADDRESSES)} addresses, {watch.seen} hostile texts in Markdown: all escaped")


FAMILIES = [
    *({"view": "family", "run": "hmodel", "sample": str(sample)} for sample in (0, 5)),
    *({"view": "family", "run": "directional", "sample": "0", "other": label} for label in ("", EVIL)),
    *({"view": "family", "run": run, "sample": "0"} for run in ("lights", "shards", "lone", "once")),
    *(
        {"view": view, "run": run, "sample": "0"}
        for view in ("dream", "change", "importance")
        for run in ("hmodel", "shards")
    ),
]


@pytest.mark.slow_fault
@pytest.mark.timeout(600)
def test_every_text_of_every_family_is_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Keep) -> None:
    """The same in the views of H-Model, Directional Routing, RayTracing and DiPaCo, with a worker and their models"""
    read = Client._json
    monkeypatch.setattr(Client, "_json", lambda self, answer: poisoned(read(self, answer)))
    watch = Watch(monkeypatch)
    for number, site in enumerate((family_api, lights_api)):
        with site(tmp_path / str(number)) as url, showing(url, monkeypatch) as draw:
            for address in FAMILIES:
                page = draw(**address)
                failed = [error.value for error in page.error if "fault of the page" in error.value]
                assert not failed, (address, failed)
                assert not watch.unescaped, (address, watch.unescaped[:3])
                assert not watch.active, (address, watch.active[:3])
    figure(29, f"families: {2 * len(FAMILIES)} addresses, {watch.seen} hostile texts in Markdown: all escaped")


@pytest.mark.slow_fault
@pytest.mark.timeout(400)
def test_what_a_view_forgets_to_escape_still_loads_nothing(
    show: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch, figure: Keep
) -> None:
    """The same with `escape` taken away from the views"""
    monkeypatch.setattr("tokenpaths.frontend.page.widgets.escape", lambda text: text)
    monkeypatch.setattr("tokenpaths.frontend.page.filter_chips.escape", lambda text: text)
    watch = Watch(monkeypatch)
    for address in ADDRESSES:
        show(**address)
    assert len(watch.unescaped) > 40
    loading = [(text, more) for text, more in watch.active if set(more) - {":red["}]  # a colour is all that is left
    assert not loading, loading[:3]
    figure(29, f"{len(watch.unescaped)} texts not escaped at all: nothing of them loads, links or runs")


@contextmanager
def poisoning(api: str) -> Iterator[str]:
    """The address of a proxy before the API that adds markup to every text of its answers."""
    client = httpx.Client(base_url=api, trust_env=False, timeout=60)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = client.get(self.path)
            body = answer.content
            if "json" in answer.headers.get("content-type", ""):
                body = json.dumps(poisoned(answer.json())).encode()
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers.get("content-type", "text/plain"))
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        client.close()


LIVE = """() => [...document.querySelectorAll("a[href], img, iframe, object, embed, script, link, .katex")]
  .filter(e => e.matches(".katex") || /evil/.test(e.outerHTML)).map(e => e.outerHTML.slice(0, 200))"""
OPEN = """() => document.querySelectorAll("details:not([open]) > summary").forEach(summary => summary.click())"""


def point_at(mark: Locator) -> None:
    """Hover over a mark, which moves while what was folded opens above it."""
    for _ in range(5):
        try:
            return mark.hover(force=True, timeout=2000) if mark.is_visible() else None
        except Error as moved:
            last = moved
            mark.page.wait_for_timeout(300)
    raise last


@pytest.mark.slow_fault
@pytest.mark.timeout(900)
def test_nothing_of_it_lives_in_a_browser(api: Served, tmp_path: Path, windows: Windows, figure: Keep) -> None:
    """Chromium walks the same addresses, opens what folds, points at charts; then a picture is put into the page"""
    windows.watch.left.clear()
    windows.watch.console.clear()
    page = windows.page(1280, False)
    with poisoning(str(api.client.base_url).rstrip("/")) as proxy, page_server(tmp_path, api=proxy) as served:
        site = Site(served.url, tmp_path)
        for address in ADDRESSES:
            here = Visit(page, site).open(**address)
            page.evaluate(OPEN)
            here.settled()
            for mark in page.locator('[data-testid="stVegaLiteChart"] path[aria-label]').all()[:3]:
                point_at(mark)
            assert page.evaluate(LIVE) == [], address
            assert page.evaluate("window.bad") is None, address
        assert not windows.watch.left
        assert not windows.watch.console
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=\"http://evil.test/x.png\">')")
        page.wait_for_timeout(500)
        assert any("Content Security Policy" in line or "violates" in line for line in windows.watch.console)
        assert not windows.watch.left, "no request was even tried"
    page.close()
    figure(29, f"Chromium: {len(ADDRESSES)} addresses, no picture, link, frame or script; the policy stops a picture")
