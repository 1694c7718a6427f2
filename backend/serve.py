"""Starts one server process: ``python -m tokenpaths.backend.serve api`` or ``… worker``.

Settings come from the environment and the settings file, so that no secret appears in the process list. ``tokenpaths
up`` starts both roles; containers start them one by one.
"""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from tokenpaths.backend.http.connections import (
    ACCEPTED_AT_ONCE,
    STALL_SECONDS,
    Connections,
    LimitedProtocol,
    listen,
    most_connections,
    raise_descriptor_limit,
)
from tokenpaths.backend.logs import say_all_counts, set_up_logging
from tokenpaths.backend.settings import Settings, load_settings
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import never_make
from tokenpaths.engine.base.shared_cores import stand_back, wait_asleep

GRACE_SECONDS = 5
FIRST = ("pandas", "PIL.Image", "tokenpaths.engine.store.ask.run")
"""imported before the server listens, since nearly every response needs them: DuckDB looks for pandas at the first
parameter (0.2 s); during the first request that would take twice as long
"""
STUCK_EXIT_CODE = 75
"""exit code of an API that ends on purpose, to be started anew by `tokenpaths up` or a container's restart policy:
threads hang in questions that cannot be interrupted (``http.watchdog``)
"""
LATER = ("tokenpaths.engine.analysis.power_law",)
"""imported after ``QUIET_SECONDS`` without requests, since only some responses need them: the power law of paths takes
SciPy (0.4 s)
"""
QUIET_SECONDS = 2.0
GC_AFTER = 10_000
"""new objects between garbage collections: a request makes some hundred, none of them in cycles"""
log = logging.getLogger(__name__)
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


class Server(uvicorn.Server):
    """uvicorn with limits on connections."""

    def __init__(self, config: uvicorn.Config, limits: Connections) -> None:
        super().__init__(config)
        self.limits = limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            listeners = listen(self.config.host, self.config.port, self.limits)
        except OSError as error:
            log.error("%s", error)
            sys.exit(1)
        await super().startup([*listeners])
        self._log_started_message(listeners)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, and say what the log left out: a signal ends the process behind this."""
        await super().shutdown(sockets)
        say_all_counts()

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # a tenth of a second each
            self.limits.enforce_limits(asyncio.get_running_loop().time())
        return await super().on_tick(counter)


def server_of(app: ASGIApp, host: str, port: int, *, stall_s: float = STALL_SECONDS) -> Server:
    """A uvicorn server with our defaults: proxy headers ignored, no WebSockets, no access log, limited connections."""
    limits = Connections(most_connections(raise_descriptor_limit()), stall_s)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        ws="none",
        http=functools.partial(LimitedProtocol, limits=limits),  # type: ignore[arg-type]
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        lifespan="on",
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return Server(config, limits)


def make_app(role: str, settings: Settings) -> tuple[ASGIApp, str, int]:
    """(app, host, port) of the API or the worker."""
    if role == "worker":
        from tokenpaths.backend.worker.worker import create_worker

        return create_worker(settings), settings.worker_host, settings.worker_port
    from tokenpaths.backend.app import create_app

    return create_app(settings), settings.host, settings.port


def preload(app: ASGIApp) -> None:
    """Import what the first responses need, and trigger lazy initialisation of routes, DuckDB, Arrow and threads."""
    import anyio.to_thread

    from tokenpaths.engine.store.file.open_file import warm_up

    for name in FIRST:
        importlib.import_module(name)
    warm_up()
    work_out_routes(app)
    anyio.run(functools.partial(anyio.to_thread.run_sync, int))
    gc.collect()
    gc.freeze()  # do not scan half a million library objects again and again
    gc.set_threshold(GC_AFTER, *gc.get_threshold()[1:])


def work_out_routes(app: ASGIApp) -> None:
    """What FastAPI would do at the first request: see what each route takes, which is 65 ms of all of them."""
    nowhere = {"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []}
    for route in getattr(app, "routes", ()):
        route.matches(nowhere)


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
    wait_asleep()
    try:
        settings = load_settings()
        set_up_logging(settings.log_level)
        os.environ.update(OFFLINE)
        never_make(settings.data_dir)
        app, host, port = make_app(arguments[0], settings)
    except UserError as error:
        print(f"tokenpaths: {error}", file=sys.stderr)
        return 2
    if hasattr(signal, "SIGUSR1"):  # `tokenpaths up` asks a hung process where its threads stand before it ends it
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    server = server_of(app, host, port, stall_s=settings.send_stall_seconds)
    if arguments == ["worker"]:
        stand_back(settings.worker_nice)
    if arguments == ["api"]:
        preload(app)
        request_count = functools.partial(getattr, server.server_state, "total_requests")
        threading.Thread(target=import_when_idle, args=(request_count,), name="imports", daemon=True).start()
        watchdog = app.state.services.registry.watchdog  # type: ignore[attr-defined]
        watchdog.give_up = functools.partial(end_to_start_anew, server)
        code = serve(server)
        if watchdog.stuck:
            logging.shutdown()
            os._exit(STUCK_EXIT_CODE if watchdog.has_given_up else code)  # Python would wait for the stuck threads
        return code
    return serve(server)


def end_to_start_anew(server: Server) -> None:
    """End with ``STUCK_EXIT_CODE``: other requests have ``GRACE_SECONDS`` to be answered."""
    server.should_exit = True
    backstop = threading.Timer(3 * GRACE_SECONDS, os._exit, (STUCK_EXIT_CODE,))
    backstop.daemon = True
    backstop.start()


def serve(server: Server) -> int:
    """Serve until stopped; returns the exit code."""
    try:
        server.run()
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # uvicorn ends the process when it cannot bind
        return int(end.code or 1) if isinstance(end.code, int) else 1
    if not server.started:
        log.error("could not listen on %s:%s", server.config.host, server.config.port)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
