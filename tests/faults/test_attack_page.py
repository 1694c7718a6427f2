"""The page's server, attacked: frames, other ports, endless and unfinished requests."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from tests.backend.conftest import TOKEN
from tests.faults.conftest import Keep, memory
from tests.faults.test_fault_browser import page_of
from tests.support.page_server import PageServer, page_server
from tokenpaths.frontend.server.connections import HEAD_BYTES

FORM = {"content-type": "application/x-www-form-urlencoded"}
PATHS = (
    "/",
    "/?view=jobs",
    "/_stcore/health",
    "/_stcore/host-config",
    "/favicon.png",
    "/media/x.png",
    "/nowhere",
    "//",
)
OTHER_PORTS = ("http://127.0.0.1:1", "http://127.0.0.1", "http://localhost:8501", "http://evil.example", "null")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """A page with a token, which may open 1,024 files."""
    with page_server(tmp_path_factory.mktemp("page"), TOKEN, before=["prlimit", "--nofile=1024:1024"]) as served:
        yield served


def cookie_of(page: PageServer) -> tuple[str, str]:
    """(cookie, all of its header) of a browser that gave the token."""
    with page.client() as client:
        answer = client.post("/", content=f"token={TOKEN}", headers=FORM | {"origin": page.url})
    assert answer.status_code == 303, answer.text
    header = answer.headers["set-cookie"]
    return header.partition(";")[0], header


def test_no_answer_of_the_page_may_be_framed(locked: PageServer, figure: Keep) -> None:
    """Every kind of answer, logged in and not, malformed requests too; then what a browser sends for a frame"""
    cookie, _ = cookie_of(locked)
    answers = []
    with locked.client() as client:
        script = next(part for part in client.get("/", headers={"cookie": cookie}).text.split('"') if ".js" in part)
        for path, headers in itertools.product((*PATHS, script.removeprefix(".")), ({}, {"cookie": cookie})):
            answers += [client.get(path, headers=headers), client.get(path, headers=headers | {"host": "evil.example"})]
        frame = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
        assert client.get("/", headers=frame | {"cookie": cookie}).status_code == 403
    for answer in answers:
        assert answer.headers["x-frame-options"] == "DENY", answer.url
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"], answer.url
    with socket.create_connection(("127.0.0.1", locked.port), timeout=10) as connection:
        connection.sendall(b"NONSENSE\r\n\r\n")
        assert b"x-frame-options: DENY" in connection.recv(1000)
    figure(26, f"{len(answers) + 1} answers of {len(PATHS) + 1} addresses: all refuse frames; a frame's request 403")


@pytest.mark.slow_fault
@pytest.mark.timeout(300)
def test_a_page_in_a_frame_stays_empty(browser: Browser, tmp_path: Path, figure: Keep) -> None:
    """Chromium opens another site's page that frames a page without a token, by name and by address"""
    with page_server(tmp_path) as page:
        for host in ("127.0.0.1", "localhost"):
            framed = f'<iframe src="http://{host}:{page.port}/?view=jobs" width=900 height=700></iframe>'
            with page_of(framed) as port:
                window = browser.new_page()
                window.goto(f"http://evil.localhost:{port}/")
                window.wait_for_timeout(3000)
                assert window.frames[1].url.startswith("chrome-error"), window.frames[1].url
                assert window.frames[1].locator("button").count() == 0
                window.close()
    figure(26, "Chromium: the frame of another site shows nothing to click on")


def test_the_cookie_opens_one_page_at_one_port(locked: PageServer, tmp_path: Path, figure: Keep) -> None:
    """The cookie of a page, sent to another page with the same token and to the same page started again"""
    cookie, header = cookie_of(locked)
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in header.split(";")}
    assert TOKEN not in header
    with locked.client() as client:
        assert client.get("/", headers={"cookie": cookie}).status_code == 200
    assert locked.handshake(cookie=cookie, origin=locked.url) == 101
    refused = [locked.handshake(cookie=cookie, origin=origin) for origin in OTHER_PORTS]
    with locked.client() as client:
        for method, origin in itertools.product(("POST", "PUT", "DELETE"), OTHER_PORTS):
            headers = {"cookie": cookie, "origin": origin}
            refused.append(client.request(method, "/_stcore/upload_file/a/b", headers=headers).status_code)
    assert set(refused) == {403}
    with page_server(tmp_path, TOKEN) as other:
        replays = [_replayed(other, cookie), _replayed(other, cookie.replace(str(locked.port), str(other.port)))]
        own, _ = cookie_of(other)
    with page_server(tmp_path, TOKEN, port=other.port) as again:
        replays.append(_replayed(again, own))
    assert set(replays) == {(401, 403)}
    figure(33, f"{len(refused)} of {len(refused)} requests from other ports 403; the cookie opens no other page")


def _replayed(page: PageServer, cookie: str) -> tuple[int, int]:
    """Statuses of a request and of a WebSocket's handshake with a cookie."""
    with page.client() as client:
        return client.get("/", headers={"cookie": cookie}).status_code, page.handshake(cookie=cookie, origin=page.url)


@pytest.mark.parametrize("start", [b"GET /?", b"GET / HTTP/1.1\r\nHost: localhost\r\n"], ids=["address", "headers"])
def test_an_endless_head_is_refused_before_the_token(locked: PageServer, start: bytes, figure: Keep) -> None:
    """An address or headers without an end, 64 MB of them if the page would take them"""
    before, sent = memory(locked.process.pid, "VmRSS"), 0
    piece = b"a" * 65536 if start.endswith(b"?") else (b"x: " + b"a" * 8000 + b"\r\n") * 8
    with socket.create_connection(("127.0.0.1", locked.port), timeout=10) as connection:
        connection.sendall(start)
        with suppress(ConnectionError):
            while sent < 64_000_000:
                connection.sendall(piece)
                sent += len(piece)
    assert sent < 16_000_000, "what the kernel holds, at most"
    grown = max(0, memory(locked.process.pid, "VmRSS") - before)
    assert grown < 16_000_000
    figure(32, f"refused after {HEAD_BYTES // 1024} KiB; memory grew by {grown / 1e6:.1f} MB")


@pytest.mark.slow_fault
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "half",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nx-half: ",
        b"",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: 400\r\n\r\ntoken=",
    ],
    ids=["head", "nothing", "form"],
)
def test_unfinished_requests_keep_nobody_out(locked: PageServer, half: bytes, figure: Keep) -> None:
    """1,100 connections that send half a head, nothing, or half a form, to a page that may open 1,024 files"""
    before, opened, seconds = locked.log.stat().st_size, [], list[float]()
    try:
        for number in range(1100):
            connection = socket.create_connection(("127.0.0.1", locked.port), timeout=30)
            opened.append(connection)
            with suppress(ConnectionError):
                connection.sendall(half)
            if number % 100 == 99:
                seconds.append(_seconds_of(locked))
        for _ in range(20):
            seconds.append(_seconds_of(locked))
            time.sleep(0.05)
    finally:
        for connection in opened:
            connection.close()
    grown = locked.log.stat().st_size - before
    assert max(seconds) < 2
    assert grown < 100_000
    figure(27, f"page: 1,100 connections, health within {max(seconds) * 1000:.0f} ms; {grown:,} bytes of log")


def _seconds_of(page: PageServer) -> float:
    began = time.monotonic()
    assert httpx.get(f"{page.url}/_stcore/health", trust_env=False, timeout=20).status_code == 200
    return time.monotonic() - began
