"""``tokenpaths up``: API, engine worker and page, until Ctrl-C."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenpaths.cli.support.options import folder_option
from tokenpaths.cli.support.refusals import make_data_folders
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import PROGRAM_DIR

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings
    from tokenpaths.cli.demo import DemoRun
    from tokenpaths.cli.support.processes import Child

PAGE_FILE = PROGRAM_DIR / "frontend" / "app.py"
FIRST_RUNS_SECONDS = 120.0
"""longest time that the page's address waits for the first runs of ``--demo``"""


def up(
    data_dir: Annotated[
        Path | None, folder_option("Folder of runs, models and logs [default: the user's data folder].")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port of the API, 0 = any free one [default: 8000].")] = None,
    page_port: Annotated[int | None, typer.Option(help="Port of the page, 0 = any free one [default: 8501].")] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address the API listens on; other than loopback needs a token [default: 127.0.0.1]."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="Bearer token that requests must carry. Better in TOKENPATHS_TOKEN: flags show in process lists."
        ),
    ] = None,
    settings_file: Annotated[Path | None, typer.Option("--settings", help="Settings file (TOML).")] = None,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Also start the page.")] = True,
    demo: Annotated[bool, typer.Option("--demo", help="Trace the bundled samples too, once; see `demo`.")] = False,
) -> None:
    """Start the API, the engine worker and the page; Ctrl-C stops all three.

    Example: tokenpaths up --demo; tokenpaths up --data-dir ./my-runs --port 9000

    Then open the page at the address that is printed. A process that dies or hangs is started again; one that keeps
    dying is paused for a while, and the others go on.
    """
    from tokenpaths.backend.settings import load_settings, require_safe_bind
    from tokenpaths.cli.support.processes import watch

    settings = load_settings(settings_file, data_dir=data_dir, port=port, page_port=page_port, host=host, token=token)
    require_safe_bind(settings)
    make_data_folders(settings)
    awaited = _queue_demo(settings) if demo else []
    with _noted_signals() as stop_signals, tempfile.TemporaryDirectory(prefix="tokenpaths-up-") as folder:
        states_file = Path(folder) / "processes.json"
        children = plan(settings, page=page, settings_file=settings_file, states_file=states_file)
        say(f"Starting {', '.join(child.name for child in children)} …")

        def stopped() -> bool:
            return bool(stop_signals)

        try:
            _start(children, settings, awaited, stopped)
            watch(children, say, stopped, states_file)
        finally:
            for child in reversed(children):
                child.stop()
    if stop_signals[0] == signal.SIGTERM:  # of Ctrl-C every command says it at its end; of SIGHUP nobody can read it
        say("Stopped.")
    raise typer.Exit(128 + stop_signals[0])


def _start(children: list[Child], settings: Settings, awaited: list[DemoRun], stopped: Callable[[], bool]) -> None:
    """Start the processes, wait until they answer and ``awaited`` are there, and say where they are."""
    from tokenpaths.cli.support.processes import START_SECONDS, wait_until_healthy

    for child in children:
        child.start()
    wait_until_healthy(children, START_SECONDS, dispensable=("worker",), stopped=stopped)
    if awaited:
        _wait_for_runs(awaited, settings, children, stopped)
    if stopped():
        return
    for child in children:
        if child.name != "worker":
            say(f"  {child.name:5}{_address(child)}")
    say(f"  data {settings.data_dir}")
    say("Ctrl-C stops it.")


def _queue_demo(settings: Settings) -> list[DemoRun]:
    """Queue what is missing of the demo; returns the runs that the page should not open without."""
    from tokenpaths.cli.demo import FIRST, alone, missing_runs, queue_runs

    with alone(settings):
        missing = missing_runs(settings)
        queue_runs(missing, settings)
    if missing:
        say(f"Tracing the bundled samples with the shipped models: {len(missing)} runs, once.")
    return [run for run in missing if run.run_id in FIRST]


def _wait_for_runs(runs: list[DemoRun], settings: Settings, children: list[Child], stopped: Callable[[], bool]) -> None:
    """Return when jobs have made ``runs``, or nothing can be expected of them."""
    from tokenpaths.cli.demo import is_awaited

    worker = next((child for child in children if child.name == "worker"), None)
    ends = time.monotonic() + FIRST_RUNS_SECONDS
    while time.monotonic() < ends and not (stopped() or worker is None or worker.has_ended()):
        if not any(is_awaited(settings, run) for run in runs):
            return
        time.sleep(0.3)


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Note Ctrl-C, SIGTERM and the terminal's end in the list; who waits looks there.

    An exception raised by a handler would be dropped where Python cannot pass it on, as inside a lock of ``logging``.
    """
    signals: list[int] = []

    def note(number: int, frame: object) -> None:
        signals.append(number)

    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # that is `nohup`
        former[signal.SIGHUP] = signal.signal(signal.SIGHUP, note)
    try:
        yield signals
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def say(line: str) -> None:
    """Tell the person at the terminal, at once."""
    print(line, flush=True)


def _address(child: Child) -> str:
    url = child.health_url.removesuffix("/_stcore/health").removesuffix("/healthz")
    return f"{url}/docs" if child.name == "API" else url


def plan(
    settings: Settings, *, page: bool = True, settings_file: Path | None = None, states_file: Path | None = None
) -> list[Child]:
    """The processes to start, in order; picks their ports."""
    from tokenpaths.backend.process_states import VARIABLE
    from tokenpaths.backend.settings import SECRET_HEADER
    from tokenpaths.cli.support.processes import Child, pick_port

    _refuse_shared_port(settings, page)
    port = pick_port(settings.host, settings.port, "--port")
    environment = _environment(settings, settings_file) | {"TOKENPATHS_PORT": str(port)}
    if states_file is not None:
        environment[VARIABLE] = str(states_file)
    hung_s = settings.hung_seconds
    children = []
    if settings.worker_url is None:
        worker_port = pick_port(settings.worker_host, settings.worker_port, "TOKENPATHS_WORKER_PORT")
        environment["TOKENPATHS_WORKER_PORT"] = str(worker_port)
        command = [sys.executable, "-P", "-m", "tokenpaths.backend.serve", "worker"]
        health = f"http://{_reachable(settings.worker_host)}:{worker_port}/healthz"
        secret = {SECRET_HEADER: environment["TOKENPATHS_WORKER_SECRET"]}
        children.append(Child("worker", command, health, settings.logs_dir / "worker.log", environment, secret, hung_s))
    api_url = f"http://{_reachable(settings.host)}:{port}"
    command = [sys.executable, "-P", "-m", "tokenpaths.backend.serve", "api"]
    log_file = settings.logs_dir / "api.log"
    children.append(Child("API", command, f"{api_url}/healthz", log_file, environment, hung_s=hung_s))
    if page:
        children.append(_page(settings, api_url, environment))
    return children


def _refuse_shared_port(settings: Settings, page: bool) -> None:
    """UserError for one port given to two processes: each finds it free, and the second to start would die of it."""
    from tokenpaths.backend.settings import EVERYWHERE, is_loopback

    places = {"the API (--port)": (settings.host, settings.port)}
    if page:
        places["the page (--page-port)"] = (settings.page_host, settings.page_port)
    if settings.worker_url is None:
        places["the worker (TOKENPATHS_WORKER_PORT)"] = (settings.worker_host, settings.worker_port)
    for (one, (host, port)), (other, (its_host, its_port)) in combinations(places.items(), 2):
        same = host == its_host or {host, its_host} & EVERYWHERE or is_loopback(host) and is_loopback(its_host)
        if port and port == its_port and same:
            raise UserError(f"Port {port} is given to {one} and {other}; each needs its own.", field="page_port")


def _page(settings: Settings, api_url: str, environment: dict[str, str]) -> Child:
    """Streamlit. Host names are repeated flags: Streamlit reads a comma list as one name."""
    from tokenpaths.backend.settings import EVERYWHERE
    from tokenpaths.cli.support.processes import Child, pick_port

    if not PAGE_FILE.is_file():
        raise UserError(f"The page {PAGE_FILE} is missing; use --no-page for the API alone.")
    port = pick_port(settings.page_host, settings.page_port, "--page-port")
    names = dict.fromkeys(["localhost", "127.0.0.1", "[::1]", *settings.allowed_hosts])
    if settings.page_host not in EVERYWHERE:
        names[settings.page_host] = None
    flags = {
        "server.address": settings.page_host,
        "server.port": str(port),
        "server.headless": "true",
        "server.maxUploadSize": str(int(settings.max_upload_megabytes)),
        "server.fileWatcherType": "none",
        "server.enableXsrfProtection": "true",
        "browser.gatherUsageStats": "false",
        "global.developmentMode": "false",
    }
    command = [sys.executable, "-P", "-m", "tokenpaths.frontend.server.serve"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    for name in names:
        command += ["--server.allowedHosts", name]
    hidden = ("TOKENPATHS_WORKER_SECRET", "TOKENPATHS_WORKER_PORT", "TOKENPATHS_WORKER_URL")
    own = {name: value for name, value in environment.items() if name not in hidden}
    health = f"http://{_reachable(settings.page_host)}:{port}/_stcore/health"
    own |= {"TOKENPATHS_API_URL": api_url}
    return Child("page", command, health, settings.logs_dir / "page.log", own, hung_s=settings.hung_seconds)


def _environment(settings: Settings, settings_file: Path | None) -> dict[str, str]:
    """What the children find in their environment: our choices, and a secret that nobody else knows."""
    secret = settings.worker_secret.get_secret_value() if settings.worker_secret else secrets.token_hex(32)
    chosen = {
        "TOKENPATHS_DATA_DIR": str(settings.data_dir),
        "TOKENPATHS_HOST": settings.host,
        "TOKENPATHS_WORKER_SECRET": secret,
        "PYTHONUNBUFFERED": "1",
    }
    if settings.embed_origins:
        chosen["TOKENPATHS_EMBED_ORIGINS"] = " ".join(settings.embed_origins)
    if settings.token is not None:
        chosen["TOKENPATHS_TOKEN"] = settings.token.get_secret_value()
    if settings_file is not None:
        chosen["TOKENPATHS_SETTINGS_FILE"] = str(settings_file.absolute())
    return {**os.environ, **chosen}


def _reachable(host: str) -> str:
    """How this machine reaches a server that listens on ``host``."""
    from tokenpaths.backend.settings import EVERYWHERE

    if host == "::":
        return "[::1]"
    if host in EVERYWHERE:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
