"""Shards on many workers: start them, repeat those that were lost, stop where no second try would help.

A worker that the cluster calls lost may live on, or its lock outlive it: the next try then finds the shard held by
another process, and tries go on until that ends.

A worker runs ``tokenpaths trace --shard i/N``, or a piece of a sealing (``tokenpaths seal-piece``), and nothing else,
so whatever can run a command can be a cluster: here processes of this machine, and Ray. The workers share a folder for
the shards.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tokenpaths.cli.support.processes import die_with_parent
from tokenpaths.engine.base.errors import Held, UserError

TRIES = 3
"""how often a shard is started before the run is given up"""
HELD_TRIES, HELD_SECONDS = 15, 10.0
"""how often a shard that another process holds is started, and the pause before each: longer than a lease of NFS 4"""
IN_PARTS_TOKENS = 20_000_000
"""a run of fewer tokens that is traced in shards by one command is sealed into one file"""
_LOCAL = "local"


@dataclass(frozen=True)
class Outcome:
    """How one try of a shard ended."""

    shard: int
    code: int | None
    """exit code; None: the worker was lost"""
    last_line: str
    """of its output, for people"""


class Cluster(Protocol):
    """Something that runs commands."""

    slots: int
    """how many shards are worth having under way at once"""

    def start(self, shard: int, arguments: Sequence[str]) -> None:
        """Begin ``tokenpaths <arguments>`` somewhere."""

    def wait(self) -> Outcome:
        """Wait for the next shard to end, however it ends."""

    def close(self) -> None:
        """Stop what is under way and let go of the workers."""


@dataclass
class Following:
    """How far a set of shards is."""

    of: int
    done: int = 0
    tries: dict[int, int] = field(default_factory=dict)
    """shard → how often it was started and not found held by another process"""
    lost: int = 0
    """tries that ended without a shard and were repeated"""
    held: int = 0
    """times that a shard was found held by another process"""


def run_shards(
    cluster: Cluster,
    arguments_of: Callable[[int], Sequence[str]],
    of: int,
    on_progress: Callable[[Following], None] = lambda following: None,
    tries: int = TRIES,
    *,
    noun: str = "shard",
    kept: str = "finished shards are kept: the same command goes on with the others",
) -> Following:
    """Run ``tokenpaths <arguments_of(shard)>`` for shards 1 … ``of``; a lost one is started again.

    ``noun`` and ``kept`` are what a message calls a piece, and what it says of those that are finished.

    Raises:
        UserError: a shard was refused (exit code 2), lost ``tries`` times, or held by another process ``HELD_TRIES``
            times. The others are stopped; finished ones stay, and are not traced again by the same command.
    """
    following, waiting, running = Following(of), deque(range(1, of + 1)), 0
    held: Counter[int] = Counter()
    not_before: dict[int, float] = {}
    try:
        while waiting or running:
            while waiting and running < cluster.slots:
                shard = waiting.popleft()
                # It came behind all others that were waiting, so at most those that were lost since wait with it.
                time.sleep(max(0.0, not_before.pop(shard, 0.0) - time.monotonic()))
                following.tries[shard] = following.tries.get(shard, 0) + 1
                cluster.start(shard, arguments_of(shard))
                running += 1
            outcome = cluster.wait()
            running -= 1
            if outcome.code == 0:
                following.done += 1
            elif outcome.code == UserError.exit_code:
                raise UserError(f"{noun} {outcome.shard} of {of}: {_said(outcome)}", field="shards")
            elif outcome.code == Held.exit_code:
                following.tries[outcome.shard] -= 1
                following.held += 1
                held[outcome.shard] += 1
                if held[outcome.shard] >= HELD_TRIES:
                    raise UserError(f"{noun} {outcome.shard} of {of}: {_said(outcome)}; {kept}", field="shards")
                not_before[outcome.shard] = time.monotonic() + HELD_SECONDS
                waiting.append(outcome.shard)
            elif following.tries[outcome.shard] >= tries:
                raise UserError(
                    f"{noun} {outcome.shard} of {of} was lost {tries} times ({_why(outcome)}); {kept}", field="shards"
                )
            else:
                following.lost += 1
                waiting.append(outcome.shard)
            on_progress(following)
    finally:
        cluster.close()
    return following


def _said(outcome: Outcome) -> str:
    return outcome.last_line.removeprefix("tokenpaths: ")


def _why(outcome: Outcome) -> str:
    if outcome.code is None:
        return outcome.last_line or "the worker is gone"
    if outcome.code < 0:
        return f"ended by signal {signal.Signals(-outcome.code).name}"
    return outcome.last_line or f"exit code {outcome.code}"


class LocalCluster:
    """Workers are processes of this machine, which share its cores."""

    def __init__(self, slots: int, environment: Mapping[str, str] | None = None) -> None:
        self.slots = slots
        cores = max(1, (os.cpu_count() or 1) // slots)
        self._environment = {"OMP_NUM_THREADS": str(cores), **os.environ, **(environment or {})}
        self._ended: queue.Queue[Outcome] = queue.Queue()
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, shard: int, arguments: Sequence[str]) -> None:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tokenpaths", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env=self._environment,
            preexec_fn=die_with_parent(),
        )
        self.processes[shard] = process
        threading.Thread(target=self._follow, args=(shard, process), name=f"shard {shard}", daemon=True).start()

    def _follow(self, shard: int, process: subprocess.Popen[str]) -> None:
        _, errors = process.communicate()
        self._ended.put(Outcome(shard, process.returncode, _last_line(errors)))

    def wait(self) -> Outcome:
        outcome = self._ended.get()
        self.processes.pop(outcome.shard)
        return outcome

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        self.processes.clear()


class RayCluster:
    """Workers are tasks of a Ray cluster; each traces in its own process, and dies with it.

    ``address``: ``local`` starts a cluster on this machine, ``auto`` finds the running one, else as ``ray.init``
    takes it. tokenpaths is installed on every node, and the folder of the shards is the same for all.

    Raises:
        UserError: Ray is not installed, or there is no such cluster.
    """

    def __init__(self, address: str, cores: float = 1.0, environment: Mapping[str, str] | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise UserError(
                "Ray is not installed: pip install 'tokenpaths[ray]', or leave out --ray.", field="ray"
            ) from None
        self._ray = ray
        _refuse_silent(address)
        shared = {"env_vars": dict(environment)} if environment else None
        try:
            ray.init(
                None if address == _LOCAL else address,
                log_to_driver=False,
                include_dashboard=False if address == _LOCAL else None,
                runtime_env=shared,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(
                f"no Ray cluster at {address[:100]!r} ({str(error).splitlines()[0][:200]}): start one "
                "with `ray start --head`, or say --ray local",
                field="ray",
            ) from error
        # Ray's own retries are off: a lost shard is restarted here, where attempts are counted.
        self._trace = ray.remote(max_retries=0, num_cpus=cores)(run_here)
        self.slots = max(1, int(ray.cluster_resources().get("CPU", 1) // cores))
        self._shard_of: dict[Any, int] = {}

    def start(self, shard: int, arguments: Sequence[str]) -> None:
        self._shard_of[self._trace.remote(list(arguments))] = shard

    def wait(self) -> Outcome:
        (ended, *_), _ = self._ray.wait(list(self._shard_of), num_returns=1)
        shard = self._shard_of.pop(ended)
        try:
            code, last_line = self._ray.get(ended)
        except self._ray.exceptions.RayError as error:
            return Outcome(shard, None, str(error).strip().splitlines()[0][:200])
        return Outcome(shard, code, last_line)

    def close(self) -> None:
        for reference in self._shard_of:
            self._ray.cancel(reference, force=True)
        self._shard_of.clear()
        self._ray.shutdown()


def _refuse_silent(address: str) -> None:
    """An address where nobody listens: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), 10).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster at {address[:100]!r} ({getattr(error, 'strerror', None) or error}): start one with "
            "`ray start --head`, or say --ray local",
            field="ray",
        ) from error


def run_here(arguments: list[str]) -> tuple[int, str]:
    """``python -m tokenpaths <arguments>`` in this process: exit code, and the last line of its output."""
    import contextlib
    import io
    import runpy

    output = io.StringIO()
    sys.argv = ["tokenpaths", *arguments]
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(io.StringIO()):
        try:
            runpy.run_module("tokenpaths", run_name="__main__")
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, _last_line(output.getvalue())


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:500] if lines else ""


@dataclass
class CommandWorkers:
    """Workers of a sealing: each piece is a command, on a cluster that is started anew for each pass."""

    cluster: Callable[[], Cluster]
    slots: int

    def run(self, name: str, folder: Path, num: int, on_done: Callable[[int], None]) -> None:
        """``engine.store.write.parts.workers.Workers.run``."""

        def show(following: Following) -> None:
            on_done(following.done)

        def piece(number: int) -> list[str]:
            return ["seal-piece", name, str(number - 1), str(folder)]

        kept = "the shards are as they were: seal again"
        run_shards(self.cluster(), piece, num, show, noun="piece", kept=kept)


def seal_workers(workers: int | None, ray: str | None) -> CommandWorkers | None:
    """The workers that ``--workers`` and ``--ray`` name; None where neither is given.

    Raises:
        UserError: there is no such cluster.
    """
    if ray is not None:
        first = RayCluster(ray)
        slots = first.slots
        first.close()
        return CommandWorkers(lambda: RayCluster(ray), slots)
    return None if workers is None else CommandWorkers(lambda: LocalCluster(workers), workers)
