"""Connections of a server: no more than its descriptors allow, and none that only waits for long.

A client that opens a thousand connections and sends half a request head on each must not keep others out: connections
that no request is being answered on have time limits, and the oldest of them makes room for a new one.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tokenpaths.backend.logs import LastingWarning
from tokenpaths.backend.problems import MEDIA_TYPE, Problem

HEAD_BYTES = 65_536
"""maximum size of a request's headers or trailers: llhttp (httptools) itself limits neither"""
HEAD_SECONDS = 10.0
"""time limit of a request head, from its first byte to its last"""
SILENT_SECONDS = 60.0
"""after which a connection on which nothing was ever sent is closed"""
STALL_SECONDS = 30.0
"""after which a client that does not read its answer is dropped, unless told otherwise"""
QUIET_SECONDS = 60.0
"""after which a lack of connections or descriptors counts as over, and the log says how many were closed"""
RESERVED_DESCRIPTORS = 256
"""left for run files, the job table, files and child processes; half of all where there are fewer than twice that"""
MOST_DESCRIPTORS = 65_536
HEALTH_CONNECTIONS = 32
"""connections above the maximum on which only /healthz is answered, while all others are busy"""
ACCEPTED_AT_ONCE = 64
"""connections accepted in one turn of the event loop, so that those that are open get their turn as well"""
LISTEN_BACKLOG = 2048
SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
log = logging.getLogger(__name__)


def raise_descriptor_limit() -> int:
    """Raise the soft limit on open files to the hard one, at most ``MOST_DESCRIPTORS``; returns what holds then."""
    if sys.platform == "win32":
        return MOST_DESCRIPTORS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    with suppress(OSError, ValueError):  # macOS has a lower limit that it does not tell
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def most_connections(descriptors: int) -> int:
    """Connections that may be open at once under a limit of ``descriptors`` open files.

    >>> most_connections(1024), most_connections(64), most_connections(65536)
    (768, 32, 65280)
    """
    return descriptors - min(RESERVED_DESCRIPTORS, descriptors // 2)


class Connections:
    """The open connections of one server.

    Args:
        most: maximum number; above it the one that has waited longest is closed for a new one.
        stall_s: seconds after which a client that does not read its answer is dropped.
    """

    def __init__(self, most: int, stall_s: float = STALL_SECONDS) -> None:
        self.most, self.stall_s = most, stall_s
        self.num_open = 0
        self.waiting: dict[LimitedProtocol, float] = {}
        """connections on which no request is being answered, with the time since when; the oldest first"""
        self.stalled: dict[LimitedProtocol, float] = {}
        """connections whose client does not read, with the time since when"""
        self._num_closed = 0
        self._closed_at = 0.0
        self._warning = LastingWarning(log)

    def add(self, connection: LimitedProtocol, now: float) -> None:
        """Count a new connection and make room for it, if need be."""
        self.num_open += 1
        if self.num_open > self.most and not self.close_oldest():
            connection.crowded = True
            if self.num_open > self.most + HEALTH_CONNECTIONS:
                connection.transport.abort()
        self.waiting[connection] = now

    def remove(self, connection: LimitedProtocol) -> None:
        """Forget a connection that was closed."""
        self.num_open -= 1
        self.waiting.pop(connection, None)
        self.stalled.pop(connection, None)

    def close_oldest(self) -> bool:
        """Close the connection that has waited longest; False if none waits."""
        for connection in self.waiting:
            if not connection.transport.is_closing():
                connection.transport.abort()
                self._num_closed += 1
                self._closed_at = connection.loop.time()
                self._warning.warn(
                    f"there are more than {self.most:,} connections, or no file can be opened any more: those that "
                    "have waited longest are closed (docs/reliability.md, fault 27)"
                )
                return True
        return False

    def enforce_limits(self, now: float) -> None:
        """Close what has exceeded its time; called once a second."""
        for connection, since in list(self.waiting.items()):
            if connection.head_began is not None and now - connection.head_began > HEAD_SECONDS:
                connection.refuse(408, f"The head of a request has to arrive within {HEAD_SECONDS:g} seconds.")
            elif now - since > SILENT_SECONDS:
                connection.transport.abort()
        for connection, since in list(self.stalled.items()):
            if now - since > self.stall_s:
                connection.transport.abort()
        if self._num_closed and now - self._closed_at > QUIET_SECONDS:
            self._warning.over(f"{self._num_closed:,} connections that only waited were closed; there is room again")
            self._num_closed = 0


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's llhttp protocol with limits on the size and time of request heads and on clients that do not read."""

    unread = 0
    """bytes received since the last complete header block or body chunk"""
    num_requests = 0
    """requests that are being answered or wait for that (pipelining)"""
    head_began: float | None = None
    """loop time at which the first byte of an incomplete head arrived"""
    crowded = False
    """whether it exceeds the maximum number of connections, so that only health checks are answered"""

    def __init__(self, *args: Any, limits: Connections, **options: Any) -> None:
        super().__init__(*args, **options)
        self.limits = limits

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.limits.add(self, self.loop.time())

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.unread += len(data)
        if self.head_began is None and not self.num_requests:
            self.head_began = self.loop.time()
        super().data_received(data)
        if self.unread > HEAD_BYTES and not self.transport.is_closing():
            self.refuse(400, f"The head of a request is at most {HEAD_BYTES:,} bytes.")

    def on_headers_complete(self) -> None:
        self.unread = 0
        self.head_began = None
        self.num_requests += 1
        self.limits.waiting.pop(self, None)
        if self.crowded:
            self.scope["state"]["crowded"] = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.unread = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.num_requests -= 1
        if not self.num_requests and not self.transport.is_closing():
            self.limits.waiting[self] = self.loop.time()

    def pause_writing(self) -> None:
        self.limits.stalled[self] = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.limits.stalled.pop(self, None)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Of uvicorn, for bytes that are no HTTP: a problem, as every other error is."""
        self.refuse(400, f"What was sent is no HTTP request, or its address is longer than {HEAD_BYTES:,} bytes.")

    def refuse(self, status: int, detail: str) -> None:
        """Send a problem without routing anything, and close the connection."""
        body = json.dumps(Problem(status, "head", detail).body()).encode()
        head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


class Listener(socket.socket):
    """Listening socket for asyncio that neither spins nor floods the log when no file can be opened any more.

    asyncio itself logs a traceback for each of ``backlog`` attempts, once a second (python/cpython#106527). This one
    keeps a descriptor in reserve: it gives that up to accept and at once close the next connection, so that clients
    are turned away instead of kept waiting.
    """

    limits: Connections
    _spare: int | None = None
    _warning = LastingWarning(log)

    def listen(self, _accepted_at_once: int = 0, /) -> None:
        super().listen(LISTEN_BACKLOG)  # asyncio has one number for the queue and for connections accepted at once
        self._keep_spare()

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in SCARCE:
                raise
            self._turn_away(error)
            raise BlockingIOError from None  # asyncio: nothing to accept now

    def close(self) -> None:
        super().close()
        self._drop_spare()

    def _keep_spare(self) -> None:
        if self._spare is None:
            with suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def _drop_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _turn_away(self, error: OSError) -> None:
        self._warning.warn(f"no connection can be accepted: {error.strerror}; clients are turned away")
        self.limits.close_oldest()
        had_spare = self._spare is not None
        self._drop_spare()
        try:
            connection, _ = super().accept()
            connection.close()
        except OSError:
            if not had_spare:  # nothing can be done, and the loop is called again at once: give others the processor
                time.sleep(0.01)
        finally:
            self._keep_spare()


def listen(host: str, port: int, limits: Connections) -> list[Listener]:
    """Bound sockets for all addresses of ``host``; raises OSError."""
    listeners: list[Listener] = []
    infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            listener = Listener(family, kind, protocol)
            listeners.append(listener)
            listener.limits = limits
            if os.name != "nt":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners
