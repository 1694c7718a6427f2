"""Limits of the page's connections, with a real uvicorn server and short times."""

from __future__ import annotations

import asyncio
import logging.config
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import uvicorn

from tokenpaths.frontend.server import connections
from tokenpaths.frontend.server.connections import HEAD_BYTES, LimitedConfig, LimitedProtocol

LONG = 50_000_000
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body of a POST, answers, and says how many bytes there were."""
    size, more = 0, scope["method"] == "POST"
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    if scope["path"] == "/slow":
        await asyncio.sleep(3)
    body = b"x" * LONG if scope["path"] == "/long" else str(size).encode()
    length = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.6)
    monkeypatch.setattr(connections, "BODY_GRACE_SECONDS", 0.6)
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.6)
    monkeypatch.setattr(LimitedProtocol, "most_connections", 20)
    server = uvicorn.Server(LimitedConfig(app, port=0, lifespan="off", log_config=None))
    server.config.backlog = 128  # more than connect at once: others would wait a second to try again
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(20)


def connect(port: int, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(data)
    return connection


def rest(connection: socket.socket) -> bytes:
    """All that is answered until the connection is closed."""
    received = b""
    with suppress(ConnectionError):
        while data := connection.recv(65536):
            received += data
    return received


def status(answer: bytes) -> int:
    return int(answer.split()[1]) if answer else 0


def answered(port: int) -> bool:
    return status(rest(connect(port, HEAD + b"Connection: close\r\n\r\n"))) == 200


def test_a_request_is_answered_and_the_connection_kept(port: int) -> None:
    with connect(port) as connection:
        for _ in range(3):
            connection.sendall(HEAD + b"\r\n")
            answer = b""
            while not answer.endswith(b"\r\n\r\n0"):
                answer += connection.recv(1000)
            assert status(answer) == 200
            time.sleep(0.4)  # together longer than a head may take


@pytest.mark.parametrize("sent", [b"", b"G", HEAD, HEAD + b"\r\nGET"])
def test_an_unfinished_head_is_not_waited_for(port: int, sent: bytes) -> None:
    began = time.monotonic()
    answer = rest(connect(port, sent))
    assert time.monotonic() - began < 5
    assert status(answer) == {b"": 0, b"G": 408, HEAD: 408}.get(sent, 200)
    assert answered(port)


def test_bytes_now_and_then_do_not_prolong_a_head(port: int) -> None:
    connection = connect(port, HEAD)
    began = time.monotonic()
    with suppress(ConnectionError):
        for _ in range(100):
            connection.sendall(b"x: y\r\n")
            time.sleep(0.05)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("start", [HEAD, b"GET /"])
def test_an_endless_head_is_refused(port: int, start: bytes) -> None:
    connection = connect(port, start)
    line = b"a" * 8192 if start.endswith(b"/") else b"a: " + b"b" * 8187 + b"\r\n"
    sent = 0
    with suppress(ConnectionError):
        for _ in range(1000):
            connection.sendall(line)
            sent += len(line)
    assert status(rest(connection)) in (431, 0)
    assert sent < HEAD_BYTES + 3_000_000, "what the kernel took, at most"
    assert answered(port)


def test_a_body_that_trickles_is_dropped_and_a_long_one_is_not(port: int) -> None:
    post = b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n"
    began = time.monotonic()
    assert rest(connect(port, post)) == b""
    assert time.monotonic() - began < 5
    connection = connect(port, post)
    for _ in range(10):
        connection.sendall(b"x" * 10_000)
        time.sleep(0.15)
    assert rest(connection).endswith(b"100000")


def test_the_rest_of_a_body_that_nobody_reads_is_not_waited_for(port: int) -> None:
    connection = connect(port, b"PUT / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nx")
    began = time.monotonic()
    assert status(rest(connection)) == 200
    assert time.monotonic() - began < 0.5


def test_a_new_connection_takes_the_place_of_the_one_that_waits_longest(port: int) -> None:
    waiting = [connect(port, HEAD) for _ in range(40)]
    assert answered(port)
    assert rest(waiting[0]) == b"", "made room before its time was over"
    assert status(rest(waiting[-1])) == 408
    for connection in waiting:
        connection.close()


@pytest.mark.parametrize("sent", [HEAD, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000\r\n\r\nx"])
def test_what_waits_keeps_nobody_out(port: int, sent: bytes) -> None:
    waiting = [connect(port, sent) for _ in range(60)]
    assert all(answered(port) for _ in range(5))
    for connection in waiting:
        connection.close()


def test_requests_in_progress_are_not_interrupted_for_new_ones(port: int) -> None:
    busy = [connect(port, b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") for _ in range(20)]
    time.sleep(0.2)
    assert status(rest(connect(port, HEAD + b"\r\n"))) == 503
    assert {status(rest(connection)) for connection in busy} == {200}
    assert answered(port)


def test_a_client_that_does_not_read_is_dropped(port: int) -> None:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)  # what was sent is read at 4 kB in 100 seconds
    connection.sendall(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
    time.sleep(1.5)
    assert len(rest(connection)) < LONG


def test_answers_without_the_app_refuse_frames_and_leave_no_line(port: int, caplog: pytest.LogCaptureFixture) -> None:
    answer = rest(connect(port, b"NONSENSE\r\n\r\n")).lower()
    assert status(answer) == 400
    assert b"x-frame-options: deny" in answer
    assert b"frame-ancestors 'none'" in answer
    assert not caplog.records


def test_a_malformed_request_leaves_no_line_after_uvicorn_set_its_loggers_back(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    loggers = {name: logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "uvicorn.access")}
    before = {name: (one.level, one.handlers, one.propagate) for name, one in loggers.items()}
    logging.config.dictConfig(uvicorn.config.LOGGING_CONFIG)
    try:
        loggers["uvicorn"].propagate = True
        assert status(rest(connect(port, b"NONSENSE\r\n\r\n"))) == 400
        assert not caplog.records
    finally:
        for name, one in loggers.items():
            one.level, one.handlers, one.propagate = before[name]
