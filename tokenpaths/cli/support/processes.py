"""Child processes of ``tokenpaths up``: start, watch, start again, stop.

Children live in sessions of their own, so that Ctrl-C reaches only the parent, which then stops them in order.
On Linux the kernel ends them when the parent is killed outright. Each is watched by itself: one that dies or hangs is
started again, one that keeps dying is paused for longer and longer, and the others go on.
"""

from __future__ import annotations

import ctypes
import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tokenpaths.backend.loops import keep_running
from tokenpaths.backend.process_states import ProcessState, State, write_states
from tokenpaths.cli.support.log_files import LogFile, follow
from tokenpaths.engine.base.errors import UserError

RESTARTS = 3
"""times that a process is started again at once; then pauses grow"""
FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 300.0
LONGEST_PAUSE_AFTER_ANSWERS_SECONDS = 15.0
"""of a process that did answer, so that what ends it is not its start"""
CALM_SECONDS = 60.0
"""a process that lived this long has its failures forgotten"""
START_SECONDS = 180.0
"""longest time until the first answer"""
BUSY_TIMES = 4
"""how much longer a process may be silent that uses the processor meanwhile"""
LOOK_SECONDS = 1.0
STOP_SECONDS = 8.0
LOOK_BYTES = 10_000


@dataclass
class Child:
    """One process, how to start it and how to see that it is well."""

    name: str
    command: Sequence[str]
    health_url: str
    log_file: Path
    environment: dict[str, str]
    health_headers: Mapping[str, str] = field(default_factory=dict)
    hung_s: float = 30.0
    """longest silence of a process that does not use the processor"""
    process: subprocess.Popen[bytes] | None = None
    state: State = "starting"
    problem: str | None = None
    failures: int = 0
    """lives in a row that were shorter than ``CALM_SECONDS``"""
    answered: bool = False
    """whether it has answered since it was started"""
    refusal: str | None = None
    """why it says itself that it should be started again"""

    def __post_init__(self) -> None:
        self.log = LogFile(self.log_file)
        self.started_at = self.heard_at = self.again_at = 0.0
        self.cpu_when_heard = 0.0

    def start(self) -> None:
        """Start it; its output goes to the log file."""
        self.process = subprocess.Popen(
            list(self.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        assert self.process.stdout is not None
        follow(self.process.stdout, self.log)
        self.started_at = self.heard_at = time.monotonic()
        self.state, self.answered, self.refusal, self.cpu_when_heard = "starting", False, None, 0.0

    def has_ended(self) -> bool:
        """Whether it is not running."""
        return self.process is None or self.process.poll() is not None

    def look(self, timeout_s: float) -> None:
        """Ask for its health and note the answer, or that there is none; blocks for up to ``timeout_s``."""
        process = self.process
        request = urllib.request.Request(self.health_url, headers=dict(self.health_headers))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        refusal: str | None = None
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                return
            with error, suppress(ValueError, OSError, AttributeError):
                body = json.loads(error.read(LOOK_BYTES))
                refusal = str(body.get("problem") or "it says so") if body.get("restart") else None
        except (OSError, ValueError, http.client.HTTPException):  # URLError is an OSError
            return
        if process is not None and process is self.process:
            self.count_silence_from_now()
            self.answered, self.refusal = True, refusal

    def count_silence_from_now(self) -> None:
        """It was heard, or nobody has asked it until now."""
        self.heard_at = time.monotonic()
        self.cpu_when_heard = (cpu_seconds(self.process.pid) if self.process is not None else None) or 0.0

    def why_hung(self) -> str | None:
        """Why a running process counts as hung, in words that follow its name; None while it does not."""
        if self.refusal is not None:
            return f"hangs: {self.refusal}"
        silent_s = time.monotonic() - self.heard_at
        if not self.answered:
            return f"did not answer within {START_SECONDS:g} s of its start" if silent_s > START_SECONDS else None
        if silent_s < self.hung_s:
            return None
        cpu_s = cpu_seconds(self.process.pid) if self.process is not None else None
        stands_still = cpu_s is not None and cpu_s - self.cpu_when_heard < 0.01 * silent_s
        if stands_still or silent_s > BUSY_TIMES * self.hung_s:
            return f"has not answered for {silent_s:.0f} s"
        return None

    def tend(self, say: Callable[[str], None]) -> None:
        """Start it again if it ended, hangs, or its pause is over."""
        now = time.monotonic()
        if self.state == "paused":
            if now >= self.again_at:
                self.start()
        elif self.has_ended():
            code = self.process.returncode if self.process is not None else None
            self._fail(f"ended (code {code})", say)
        elif (why := self.why_hung()) is not None:
            self._kill_hung()
            self._fail(why, say)
        elif self.answered:
            self.state = "up"
            if now - self.started_at > CALM_SECONDS:
                self.failures, self.problem = 0, None

    def _fail(self, why: str, say: Callable[[str], None]) -> None:
        lived_s = time.monotonic() - self.started_at
        self.failures = 1 if lived_s > CALM_SECONDS else self.failures + 1
        if self.failures <= RESTARTS:
            self.problem = f"The {self.name} {why}; starting it again."
            say(f"{self.problem} Log: {self.log_file}")
            self.start()
            return
        longest_s = LONGEST_PAUSE_AFTER_ANSWERS_SECONDS if self.answered else LONGEST_PAUSE_SECONDS
        pause_s = min(longest_s, FIRST_PAUSE_SECONDS * 2.0 ** min(self.failures - RESTARTS - 1, 16))
        self.again_at, self.state = time.monotonic() + pause_s, "paused"
        last = f" Its last line: {self.log.last_line}" if self.log.last_line else ""
        self.problem = (
            f"The {self.name} {why}, {self.failures} times in a row; it is paused and started again after "
            f"{pause_s:g} s, the rest goes on. Its log, {self.log_file.name}, may say why."
        )
        say(f"{self.problem}{last}")

    def _kill_hung(self) -> None:
        """End it at once, after it wrote where its threads stand (``faulthandler`` in ``backend.serve``)."""
        if self.process is None:
            return
        with suppress(OSError):
            if self.answered and hasattr(signal, "SIGUSR1") and self.name != "page":
                self.process.send_signal(signal.SIGCONT)
                self.process.send_signal(signal.SIGUSR1)
                time.sleep(0.2)
            self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ask it to end, wait, then make it."""
        if self.process is not None and not self.has_ended():
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def cpu_seconds(pid: int) -> float | None:
    """Processor time that a process has used, in seconds; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


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
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise UserError(
                    f"{host!r} is no address of this machine ({error.strerror or error}): take 127.0.0.1, or one that "
                    "this machine has.",
                    field="host",
                ) from None
            taken = "stop the program that has it (perhaps another `tokenpaths up`), or "
            raise UserError(
                f"Port {port} on {host} cannot be used ({error.strerror or error}): "
                f"{taken if error.errno == errno.EADDRINUSE else ''}choose another with {flag}.",
                field=flag,
            ) from None
        return int(probe.getsockname()[1])


def wait_until_healthy(
    children: Sequence[Child],
    limit_s: float,
    dispensable: Sequence[str] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Return when all answer, or ``stopped``; UserError with the end of the log when one died or takes too long.

    Those called as in ``dispensable`` may die: ``watch`` starts them again.
    """
    ends = time.monotonic() + limit_s
    waiting = list(children)
    while waiting and not stopped():
        for child in list(waiting):
            if child.has_ended() and child.name in dispensable:
                waiting.remove(child)
            elif child.has_ended():
                time.sleep(0.1)  # its last line is on its way
                raise UserError(f"The {child.name} did not start: {child.log.last_line} (log: {child.log_file})")
        for child in waiting:
            child.look(2.0)
        waiting = [child for child in waiting if not child.answered]
        if waiting and time.monotonic() > ends:
            late = waiting[0]
            raise UserError(f"The {late.name} did not answer within {limit_s:g} s (log: {late.log_file})")
        if waiting:
            time.sleep(0.15)


def watch(
    children: Sequence[Child], say: Callable[[str], None], stopped: Callable[[], bool], states_file: Path | None = None
) -> None:
    """Tend each child until ``stopped``; their states go to ``states_file`` when they change."""
    for child in children:
        if child.answered:  # runs of the demo were awaited since, which takes minutes on a slow machine
            child.count_silence_from_now()
        keep_running(f"health of the {child.name}", partial(_look_again_and_again, child))
    told: dict[str, ProcessState] = {}
    while not stopped():
        for child in children:
            try:
                child.tend(say)
            except OSError as error:  # no process can be started now: no memory, no descriptors
                child.state, child.again_at = "paused", time.monotonic() + FIRST_PAUSE_SECONDS
                child.problem = f"The {child.name} cannot be started now ({error.strerror or error})."
        states = {child.name: ProcessState(child.state, child.problem) for child in children}
        if states != told and states_file is not None:
            with suppress(OSError):
                write_states(states_file, states)
                told = states
        time.sleep(0.3)


def _look_again_and_again(child: Child) -> None:
    while True:
        if child.state != "paused" and not child.has_ended():
            child.look(child.hung_s)
        time.sleep(LOOK_SECONDS)
