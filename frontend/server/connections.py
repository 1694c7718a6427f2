"""Limits of the page's connections: size and time of request heads, speed of bodies, number of connections.

They act in uvicorn's protocol, before any middleware and therefore before the token. Streamlit creates the
``uvicorn.Config`` itself and has no option for them, so ``limit_connections`` gives ``uvicorn.Config`` other defaults.
"""

from __future__ import annotations

import asyncio
import logging
import time
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 65_536
"""maximum size of a request's headers; llhttp (httptools) has no limit of its own"""
HEAD_SECONDS = 10.0
"""a head must be complete this long after its connection, or after its first byte on a kept-alive one"""
BODY_GRACE_SECONDS = 20.0
BODY_BYTES_PER_SECOND = 1024
"""a body that is slower than this on average, after the grace period, ends its connection"""
STALL_SECONDS = 30.0
"""after which a client that does not read its answer is dropped"""
MOST_CONNECTIONS = 1000
MOST_DESCRIPTORS = 16_384
BACKLOG = 128
"""connections that asyncio accepts in one go: before ``connection_made`` can refuse any of them"""
GRACE_SECONDS = 5
log = logging.getLogger("uvicorn.error.page")
# A line for each malformed request would let anybody fill the disk. A filter, because the level of every logger under
# ``uvicorn.error`` is set back when uvicorn configures its own.
log.addFilter(lambda record: record.levelno >= logging.ERROR)
RAW_HEADERS = {
    "content-type": "text/plain; charset=utf-8",
    "connection": "close",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""headers of the answers that uvicorn gives without the app"""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's llhttp protocol with the limits of this module.

    When all connections are taken, a new one takes the place of the one that has waited longest for a head or for the
    next piece of a body; a connection whose request is complete is never closed for another.
    """

    most_connections = MOST_CONNECTIONS
    unread = 0
    """bytes received since the last complete head or piece of a body"""
    waiting_since: float | None = None
    """when this connection began to wait for a head, or for the next piece of a body; None while it is answered"""
    receiving = False
    """whether the body of the current request is incomplete"""
    body_began = 0.0
    body_bytes = 0
    deadline: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = log

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waiting_since = time.monotonic()
        self._set_deadline(HEAD_SECONDS, self._head_is_late)
        if len(self.connections) > self.most_connections:
            self._make_room()

    def _make_room(self) -> None:
        waiting = [c for c in self.connections if isinstance(c, LimitedProtocol) and c.waiting_since is not None]
        longest = min((c for c in waiting if c is not self), key=lambda c: c.waiting_since or 0.0, default=None)
        if longest is None:
            self.refuse(503, "All connections of this page are taken; try again in a moment.", "retry-after: 2\r\n")
            return
        longest.connections.discard(longest)
        longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.unread += len(data)
        super().data_received(data)
        if self.unread > HEAD_BYTES and not self.transport.is_closing():
            self.refuse(431, f"The head of a request is at most {HEAD_BYTES:,} bytes.")

    def on_message_begin(self) -> None:
        if self.deadline is None:
            self._set_deadline(HEAD_SECONDS, self._head_is_late)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.unread, self.body_bytes, self.receiving = 0, 0, True
        self.waiting_since = self.body_began = time.monotonic()
        self._set_deadline(BODY_GRACE_SECONDS, self._body_may_be_late)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.unread, self.waiting_since = 0, time.monotonic()
        self.body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.receiving, self.waiting_since = False, None
        self._set_deadline(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.receiving:  # answered before the body was read: the rest of it is not waited for
            self.transport.close()
        elif not self.pipeline:
            self.waiting_since = time.monotonic()

    def pause_writing(self) -> None:
        if not self.receiving:
            self._set_deadline(STALL_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if not self.receiving:
            self._set_deadline(None)
        super().resume_writing()

    def handle_websocket_upgrade(self) -> None:
        self._set_deadline(None)
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, msg)

    def refuse(self, status: int, sentence: str, more_headers: str = "") -> None:
        """Answer without the app, and close."""
        headers = "".join(f"{name}: {value}\r\n" for name, value in RAW_HEADERS.items()) + more_headers
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{headers}content-length: {len(sentence)}\r\n\r\n"
        self.transport.write((head + sentence).encode("ascii", "replace"))
        self.transport.close()

    def _set_deadline(self, seconds: float | None, late: Any = None) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        self.deadline = None if seconds is None else self.loop.call_later(seconds, late)

    def _head_is_late(self) -> None:
        if self.transport.is_closing():
            return
        if self.unread:
            self.refuse(408, f"The head of a request did not arrive within {HEAD_SECONDS:g} seconds.")
        else:  # a browser's connection in reserve
            self.transport.close()

    def _body_may_be_late(self) -> None:
        if self.transport.is_closing():
            return
        seconds = time.monotonic() - self.body_began
        if self.body_bytes < BODY_BYTES_PER_SECOND * (seconds - BODY_GRACE_SECONDS / 2) and not self.flow.read_paused:
            self.transport.abort()
        else:
            self._set_deadline(BODY_GRACE_SECONDS / 2, self._body_may_be_late)


class LimitedConfig(uvicorn.Config):
    """``uvicorn.Config`` with our protocol; the client's address is that of the connection, whatever headers say."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        own = {
            "http": LimitedProtocol,
            "backlog": min(BACKLOG, max(16, LimitedProtocol.most_connections // 4)),
            "proxy_headers": False,
            "server_header": False,
            "timeout_graceful_shutdown": GRACE_SECONDS,
        }
        super().__init__(*arguments, **(options | own))


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files as far as permitted; returns it."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def limit_connections() -> None:
    """Make every uvicorn server of this process a limited one, with half of its descriptors for connections."""
    LimitedProtocol.most_connections = min(MOST_CONNECTIONS, max(8, raise_descriptor_limit() // 2))
    setattr(uvicorn, "Config", LimitedConfig)  # noqa: B010 - mypy refuses a plain assignment to a class
