"""A real browser: a page of another site, hostile texts on our page, names that are not ours."""

from __future__ import annotations

import http.server
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlparse

import httpx
import pytest
from playwright.sync_api import Browser

from tests.backend.conftest import API, TOKEN, Serve
from tests.browser.conftest import Site, Visit, Windows
from tests.faults.conftest import Keep
from tests.support.page_server import page_server
from tests.support.runs import make, make_run

pytestmark = [pytest.mark.slow_fault, pytest.mark.timeout(400)]
SCRIPT = "<script>window.bad = 1</script><img src=x onerror='window.bad = 2'> [a](javascript:alert(1)) **bold**"


@contextmanager
def page_of(html: str) -> Iterator[int]:
    """The port of a server whose every page is ``html``."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *arguments: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def test_a_page_of_another_site_changes_nothing(serve: Serve, browser: Browser, figure: Keep) -> None:
    """Chromium opens a page under another name that sends fetch, forms and pictures to the API"""
    served = serve()
    make_run(served.runs_dir, "vision", samples=2)
    base = str(served.client.base_url).rstrip("/")
    attack = """
        <form id="form" method="POST" enctype="multipart/form-data" action="BASEAPI/traces" target="frame">
        <input name="model" value="m"><input name="text" value="x"></form><iframe name="frame"></iframe>
        <script>
        window.attack = async () => {
            const said = [];
            for (const [method, path, mode, type] of TRIALS) {
                const body = ["POST", "PUT"].includes(method) ? '{"kind": "trace", "request": {}}' : undefined;
                const headers = type ? {"content-type": type} : {};
                try {
                    const answer = await fetch("BASE" + path, {method, mode, body, headers});
                    said.push([method, path, mode, answer.type, answer.status]);
                } catch (error) { said.push([method, path, mode, "blocked", 0]); }
            }
            document.getElementById("form").submit();
            await new Promise((done) => { const picture = new Image(); picture.onload = picture.onerror = done;
                                          picture.src = "BASEAPI/runs/vision/samples/0/image"; });
            return said;
        }
        </script>"""
    trials = [
        [method, f"{API}{path}", mode, kind]
        for method, path in (
            ("POST", "/traces"),
            ("POST", "/jobs"),
            ("DELETE", "/runs/vision"),
            ("PUT", "/searches/x"),
            ("GET", "/runs"),
            ("GET", "/runs/vision/export/token.csv"),
        )
        for mode, kind in (("cors", "application/json"), ("no-cors", "text/plain"), ("cors", ""))
    ]
    html = attack.replace("TRIALS", json.dumps(trials)).replace("BASEAPI", base + API).replace("BASE", base)
    with page_of(html) as port:
        page = browser.new_page()
        page.goto(f"http://evil.localhost:{port}/")
        said = page.evaluate("window.attack()")
        page.wait_for_load_state("networkidle")
        page.close()
    assert len(said) == len(trials)
    assert all(kind in ("blocked", "opaque") for *_, kind, _ in said), said
    text = served.client.get("/metrics").text
    counted = re.findall(r'^tokenpaths_requests_total\{.*status="(\d+)"\} (\d+)', text, re.M)
    answered = Counter({int(status): 0 for status, _ in counted})
    for status, number in counted:
        answered[int(status)] += int(number)
    assert set(answered) <= {403}, answered
    assert answered[403] > 10
    assert [file.stem for file in served.runs_dir.glob("*.duckdb")] == ["vision"]
    assert served.get("/jobs").json()["jobs"] == []
    assert served.get("/searches").json().get("searches", []) == []
    figure(19, f"browser: {len(trials) + 2} tries, {answered[403]} requests, all 403; nothing changed")


def test_other_names_do_not_reach_the_page(site: Site, figure: Keep) -> None:
    """`Host: evil.example` to the page server, for its files and for the handshake of its WebSocket"""
    url = urlparse(site.url)
    with httpx.Client(base_url=site.url, trust_env=False) as client:
        refused = [
            client.get(path, headers={"host": host}).status_code
            for host in ("evil.example", f"evil.example:{url.port}", f"127.0.0.1.evil.example:{url.port}")
            for path in ("/", "/_stcore/health", "/_stcore/host-config")
        ]
        assert client.get("/").status_code == 200
    handshakes = []
    for host, origin in (("evil.example", "http://evil.example"), (url.netloc, "http://evil.example")):
        request = (
            f"GET /_stcore/stream HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n"
        )
        with socket.create_connection((url.hostname, url.port), timeout=10) as connection:
            connection.sendall(request.encode())
            handshakes.append(int(connection.recv(1000).split()[1]))
    assert set(refused) <= {400, 403}, refused
    assert set(handshakes) <= {400, 403}, handshakes
    figure(
        20,
        f"page: {len(refused)} of {len(refused)} requests and {len(handshakes)} of {len(handshakes)} WebSocket "
        f"handshakes refused ({', '.join(map(str, sorted({*refused, *handshakes})))})",
    )


def test_hostile_texts_are_shown_as_texts(site: Site, windows: Windows, figure: Keep) -> None:
    """A run whose text, label and source are markup, in every view; and what the page asks for elsewhere"""
    made = make("hostile", "text", samples=3, seed=5)
    batch = made.batches[0]
    lengths = [len(sample.text or "") for sample in batch.samples]
    samples = [
        replace(sample, label=SCRIPT[:60], source=SCRIPT, text=(SCRIPT * 9)[:length])
        for sample, length in zip(batch.samples, lengths, strict=True)
    ]
    replace(made, batches=[replace(batch, samples=samples)]).write(Path(site.data_dir) / "runs")
    windows.watch.left.clear()
    page = windows.page(1280, False)
    views = ("routes", "paths", "samples", "work", "modules")
    for view in views:
        Visit(page, site).open(view=view, run="hostile", sample=0, inspect="token:0.1")
        assert page.evaluate("window.bad") is None, view
    assert page.locator("img[src=x]").count() == 0
    page.close()
    assert windows.watch.left == []
    figure(14, f"browser: markup in text, label and source inert in {len(views)} views")
    figure(22, f"browser: {len(views)} views, 0 requests left the machine")


def test_the_page_asks_for_the_token_once(tmp_path: Path, browser: Browser, figure: Keep) -> None:
    """A page server with a token: its files, its socket and its health without it, then a browser that gives it"""
    with page_server(tmp_path, TOKEN) as served:
        url = served.url
        with served.client() as client:
            paths = ("/", "/?view=routes", "/static/x.js", "/media/x.png", "/_stcore/host-config", "/_stcore/metrics")
            assert {client.get(path).status_code for path in paths} == {401}
        assert served.handshake() == 403
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{url}/?view=paths")
        page.get_by_label("Access token").fill("wrong-token-of-mine")
        page.get_by_role("button", name="Open").click()
        page.get_by_text("That is not the token").wait_for(timeout=60_000)
        page.get_by_label("Access token").fill(TOKEN)
        page.get_by_role("button", name="Open").click()
        page.locator(".tp-brand").wait_for(timeout=120_000)
        assert page.url.startswith(f"{url}/?view=paths")
        assert TOKEN not in page.url
        assert TOKEN not in page.content()
        assert page.evaluate("document.cookie").find("tokenpaths") == -1, "no script can read it"
        page.reload()
        page.locator(".tp-brand").wait_for(timeout=120_000)
        context.close()
    assert TOKEN not in served.log.read_text()
    figure(21, f"page: {len(paths)} of {len(paths)} paths 401, WebSocket 403 without the token; it asks for it once")
