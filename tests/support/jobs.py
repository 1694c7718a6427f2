"""The job kind ``count`` of the tests, and processes that have it: ``python -m tests.support.jobs worker`` or ``api``.

``count`` makes a chain of hashes, one an iteration, so that its end tells whether every iteration was made once and in
order. It keeps its state every ``every`` iterations, and notes each iteration that it makes in ``made.txt``, so that a
test can count what was made twice.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.jobs.registry import JobContext, Progress, register, write_artifact


class Panic(BaseException):
    """As ``PanicException`` of pyo3: the panic of a Rust library, and no ``Exception``."""


class Mute(Exception):
    """An error whose message cannot be read."""

    def __str__(self) -> str:
        raise ZeroDivisionError


RAISED: dict[str, type[BaseException]] = {
    "bug": ZeroDivisionError,
    "panic": Panic,
    "mute": Mute,
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "stop": StopIteration,
    "cancel": asyncio.CancelledError,
    "generator": GeneratorExit,
    "memory": MemoryError,
}


class CountRequest(BaseModel):
    """How far to count, and what is to go wrong."""

    model_config = ConfigDict(extra="forbid")

    iterations: int = Field(ge=1, le=10_000_000)
    seconds: float = Field(0.0, ge=0, le=10, description="of each iteration")
    every: int = Field(64, ge=1)
    frame_bytes: int = Field(0, ge=0)
    fail_at: int | None = None
    fail_with: str = "user"
    run: str | None = None
    """that it would make"""


class CountJob:
    """Counts to ``iterations`` with a hash per number, and fails where the request says so."""

    kind: ClassVar[str] = "count"
    Request: ClassVar[type[BaseModel]] = CountRequest

    def __init__(self, request: CountRequest, folder: Path) -> None:
        self.request, self.folder = request, folder
        state = folder / "state.json"
        kept = json.loads(state.read_bytes()) if state.is_file() else {"done": 0, "value": "", "curve": []}
        self.done, self.value, self.curve = kept["done"], kept["value"], kept["curve"]
        self.made = open(folder / "made.txt", "a", encoding="ascii")  # noqa: SIM115

    @classmethod
    def check(cls, request: CountRequest, context: JobContext) -> None:
        if request.iterations == 13:
            raise UserError("13 iterations bring bad luck; take 12 or 14.", field="iterations")

    @classmethod
    def start(cls, request: CountRequest, folder: Path, context: JobContext) -> CountJob:
        return cls(request, folder)

    def advance(self) -> Progress:
        ends = time.monotonic() + 0.2
        while self.done < self.request.iterations and time.monotonic() < ends:
            if self.done == self.request.fail_at:
                self._fail()
            time.sleep(self.request.seconds)
            self.value = chained(self.value, self.done)
            self.done += 1
            self.made.write(f"{self.done}\n")
            self.made.flush()
            if self.done % self.request.every == 0 or self.done == self.request.iterations:
                self._keep()
        over = self.done == self.request.iterations
        total = self.request.iterations
        result: dict[str, Any] = {"value": object() if self.request.fail_with == "result" else self.value}
        return Progress(self.done, total, "iterations", "counting", finished=over, result=result)

    def _keep(self) -> None:
        self.curve.append([self.done, int(self.value[:4], 16) / 65536])
        write_artifact(self.folder, f"frame-{self.done:06d}.png", picture(self.done) + bytes(self.request.frame_bytes))
        x, y = [point[0] for point in self.curve], [point[1] for point in self.curve]
        curve = {"x": "iteration", "y": "objective", "series": [{"name": "", "x": x, "y": y}]}
        write_artifact(self.folder, "curve.json", json.dumps(curve).encode())
        state = {"done": self.done, "value": self.value, "curve": self.curve}
        write_atomically(self.folder / "state.json", json.dumps(state).encode())

    def _fail(self) -> None:
        if self.request.fail_with == "kill":
            os._exit(9)
        if self.request.fail_with == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.request.fail_with == "hang":
            threading.Event().wait()
        if self.request.fail_with in RAISED:
            raise RAISED[self.request.fail_with]("a secret that no client should see")
        raise UserError("It was asked to fail here.", field="fail_at")

    def close(self) -> None:
        self.made.close()


def chained(value: str, done: int) -> str:
    """The next hash of the chain."""
    return hashlib.sha256(f"{value}{done}".encode()).hexdigest()


def counted(iterations: int) -> str:
    """The final hash of an uninterrupted count."""
    value = ""
    for done in range(iterations):
        value = chained(value, done)
    return value


def picture(number: int) -> bytes:
    """A small frame that is different for each number."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (96, 96), (number * 3 % 256, 90, 160)).save(buffer, "PNG")
    return buffer.getvalue()


def register_count() -> None:
    """Register ``count`` in this process."""
    register("count", "tests.support.jobs:CountJob")


if __name__ == "__main__":
    import faulthandler
    import signal

    from tokenpaths.backend.serve import main

    if hasattr(signal, "SIGUSR1"):  # dump tracebacks of a hanging process
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    register_count()
    sys.exit(main(sys.argv[1:]))
