"""Child processes of ``tokenpaths up``: start, watch, start again, stop.

Children live in sessions of their own, so that Ctrl-C reaches only the parent, which then stops them in order.
On Linux the kernel ends them when the parent is killed outright.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenpaths.engine.base.errors import UserError

RESTARTS = 5
RESTART_WINDOW_SECONDS = 60.0
STOP_SECONDS = 8.0
MAX_LOG_BYTES = 10_000_000


@dataclass
class Child:
    """One process, how to start it and how to see that it is well."""

    name: str
    command: Sequence[str]
    health_url: str
    log_file: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    starts: deque[float] = field(default_factory=deque)

    def start(self) -> None:
        """Start it; its output goes to the log file."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        if self.log_file.exists() and self.log_file.stat().st_size > MAX_LOG_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(
                list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        self.starts.append(time.monotonic())

    def has_ended(self) -> bool:
        """Whether it is not running."""
        return self.process is None or self.process.poll() is not None

    def may_restart(self) -> bool:
        """Whether it was started fewer times than the limit in the last minute."""
        while self.starts and time.monotonic() - self.starts[0] > RESTART_WINDOW_SECONDS:
            self.starts.popleft()
        return len(self.starts) <= RESTARTS

    def is_healthy(self) -> bool:
        """Whether it answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self.health_url, timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError, ValueError):
            return False

    def stop(self) -> None:
        """Ask it to end, wait, then make it."""
        if self.process is None or self.has_ended():
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_words(self) -> str:
        """The last line of its log that says something."""
        with contextlib.suppress(OSError):
            lines = self.log_file.read_bytes()[-4000:].decode("utf-8", "replace").splitlines()
            return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
        return ""


def die_with_parent() -> Callable[[], None] | None:
    """Linux: have the kernel end the child when the parent dies, however it dies."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # resolved before the fork

    def ask_kernel() -> None:
        prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG

    return ask_kernel


def pick_port(host: str, port: int, flag: str) -> int:
    """``port`` if it is free on ``host``, a free one for 0; UserError when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name != "nt":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OverflowError:
            raise UserError(f"{port} is not a port; give 1 to 65535 with {flag}.", field=flag) from None
        except OSError as error:
            raise UserError(
                f"Port {port} on {host} cannot be used ({error.strerror or error}): stop the program that has it "
                f"(perhaps another `tokenpaths up`), or choose another with {flag}.",
                field=flag,
            ) from None
        return int(probe.getsockname()[1])


def wait_until_healthy(children: Sequence[Child], limit_s: float) -> None:
    """Return when all answer; UserError with the end of the log when one died or takes too long."""
    ends = time.monotonic() + limit_s
    waiting = list(children)
    while waiting:
        for child in waiting:
            if child.has_ended():
                raise UserError(f"The {child.name} did not start: {child.last_words()} (log: {child.log_file})")
        waiting = [child for child in waiting if not child.is_healthy()]
        if waiting and time.monotonic() > ends:
            late = waiting[0]
            raise UserError(f"The {late.name} did not answer within {limit_s:g} s (log: {late.log_file})")
        if waiting:
            time.sleep(0.15)


def watch(children: Sequence[Child], say: Callable[[str], None], stopped: Callable[[], bool]) -> int:
    """Restart children that end until ``stopped``; 1 when one keeps ending, else 0."""
    while not stopped():
        for child in children:
            if not child.has_ended():
                continue
            code = child.process.returncode if child.process else None
            if not child.may_restart():
                say(f"The {child.name} ended {RESTARTS + 1} times within a minute; giving up. Log: {child.log_file}")
                return 1
            say(f"The {child.name} ended (code {code}); starting it again. Log: {child.log_file}")
            child.start()
        time.sleep(0.3)
    return 0
