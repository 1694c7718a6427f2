"""Starts one server process: ``python -m tokenpaths.backend.serve api`` or ``… worker``.

Settings come from the environment and the settings file, so that no secret appears in the process list. ``tokenpaths
up`` starts both roles; containers start them one by one.
"""

from __future__ import annotations

import functools
import gc
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tokenpaths.backend.logs import set_up_logging
from tokenpaths.backend.settings import Settings, load_settings
from tokenpaths.engine.base.errors import UserError

GRACE_SECONDS = 5
FIRST = ("pandas", "PIL.Image", "tokenpaths.engine.store.ask.run")
"""imported before the server listens, since nearly every response needs them: DuckDB looks for pandas at the first
parameter (0.2 s); during the first request that would take twice as long
"""
LATER = ("tokenpaths.engine.analysis.power_law",)
"""imported after ``QUIET_SECONDS`` without requests, since only some responses need them: the power law of paths takes
SciPy (0.4 s)
"""
QUIET_SECONDS = 2.0
GC_AFTER = 10_000
"""new objects between garbage collections: a request makes some hundred, none of them in cycles"""
HEAD_BYTES = 65_536
"""maximum size of a request's headers or trailers: llhttp (httptools) itself limits neither"""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's llhttp protocol, but responds 400 and closes if the headers are longer than ``HEAD_BYTES``."""

    unread = 0
    """bytes received since the last complete header block or body chunk"""

    def data_received(self, data: bytes) -> None:
        self.unread += len(data)
        super().data_received(data)
        if self.unread > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of a request is at most {HEAD_BYTES:,} bytes.")

    def on_headers_complete(self) -> None:
        self.unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.unread = 0
        super().on_body(body)


def server_of(app: ASGIApp, host: str, port: int) -> uvicorn.Server:
    """A uvicorn server with our defaults: proxy headers ignored, no WebSockets, no access log."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        ws="none",
        http=LimitedProtocol,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        lifespan="on",
        backlog=2048,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(config)


def make_app(role: str, settings: Settings) -> tuple[ASGIApp, str, int]:
    """(app, host, port) of the API or the worker."""
    if role == "worker":
        from tokenpaths.backend.worker.worker import create_worker

        return create_worker(settings), settings.worker_host, settings.worker_port
    from tokenpaths.backend.app import create_app

    return create_app(settings), settings.host, settings.port


def preload() -> None:
    """Import what the first responses need, and trigger lazy initialisation of DuckDB, Arrow and threads."""
    import anyio.to_thread

    from tokenpaths.engine.store.file.open_file import warm_up

    for name in FIRST:
        importlib.import_module(name)
    warm_up()
    anyio.run(functools.partial(anyio.to_thread.run_sync, int))
    gc.collect()
    gc.freeze()  # do not scan half a million library objects again and again
    gc.set_threshold(GC_AFTER, *gc.get_threshold()[1:])


def import_when_idle(request_count: Callable[[], float]) -> None:
    """Import ``LATER`` once ``request_count`` has not grown for ``QUIET_SECONDS``."""
    before = -1.0
    while (now := request_count()) != before:
        before = now
        time.sleep(QUIET_SECONDS)
    for name in LATER:
        importlib.import_module(name)
    gc.freeze()


def main(arguments: list[str]) -> int:
    """Serve until stopped; returns 2 for invalid settings, with one line on stderr."""
    if arguments not in (["api"], ["worker"]):
        print("usage: python -m tokenpaths.backend.serve api|worker", file=sys.stderr)
        return 2
    try:
        settings = load_settings()
        set_up_logging(settings.log_level)
        os.environ.update(OFFLINE)
        app, host, port = make_app(arguments[0], settings)
    except UserError as error:
        print(f"tokenpaths: {error}", file=sys.stderr)
        return 2
    server = server_of(app, host, port)
    if arguments == ["worker"] and hasattr(os, "nice"):  # not available on Windows
        os.nice(settings.worker_nice)
    if arguments == ["api"]:
        preload()
        request_count = functools.partial(getattr, server.server_state, "total_requests")
        threading.Thread(target=import_when_idle, args=(request_count,), name="imports", daemon=True).start()
    try:
        server.run()
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # uvicorn ends the process when it cannot bind
        return int(end.code or 1) if isinstance(end.code, int) else 1
    if not server.started:
        logging.getLogger(__name__).error("could not listen on %s:%s", host, port)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
