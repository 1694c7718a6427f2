"""Calls a function in a confined child process (``tokenpaths.engine.confined.child``), for bytes of strangers."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http import HTTPStatus
from typing import Any, Literal

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.confined.limits import Limits, child_environment
from tokenpaths.engine.confined.messages import MAX_SENTENCE, BadMessage, read_message, write_message

log = logging.getLogger(__name__)
Reason = Literal["died", "time", "memory", "failed", "start", "busy"]
PIPE_BYTES = 1 << 20
"""size of the pipes where the system lets it be set: large messages need fewer switches between the processes"""

EXIT_SECONDS = 5.0
CLIENT_ERRORS = frozenset(status.value for status in HTTPStatus if 400 <= status < 500)


class ReaderEnded(UserError):
    """Reading ended without an answer; ``reason`` says how.

    ``died``: the process ended (a crash of a library, or killed). ``time``, ``memory``: it needed more than its limit.
    ``failed``: an exception that is no ``UserError``, such as a Rust panic. ``start``: it could not be started.
    ``busy``: other calls hold it.
    """

    def __init__(self, message: str, reason: Reason, *, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.reason = reason


class RemoteError(UserError):
    """A ``UserError`` that was raised in the child; ``kind`` is the name of its class, ``status`` its HTTP status."""

    def __init__(self, message: str, *, field: str | None, kind: str, status: int | None) -> None:
        super().__init__(message, field=field)
        self.kind = kind
        if status is not None:
            self.status = status


class Confined:
    """A function in a confined child, started when first called and again after it ended; safe between threads.

    Args:
        entry: ``module:function``. The function takes keyword arguments that ``write_message`` can send, and returns
            or yields such values.
        limits: of the child.
        what: names what is read in sentences, for example "the picture".
        field: of the errors raised here.
    """

    def __init__(self, entry: str, limits: Limits | None = None, what: str = "the file", field: str | None = None):
        self.entry, self.limits, self.what, self.field = entry, limits or Limits(), what, field
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._late = False
        self._end_with_self: weakref.finalize[Any, Any] | None = None

    def call(self, **values: Any) -> Any:
        """The function's value.

        Raises:
            UserError: the function raised one (``RemoteError``), or there is no answer (``ReaderEnded``).
        """
        with self._held(), contextlib.closing(self._exchange(values)) as parts:
            while True:
                try:
                    next(parts)  # parts that nobody asked for
                except StopIteration as stop:
                    return stop.value

    def stream(self, **values: Any) -> Generator[Any, None, Any]:
        """Yields what the function yields, and returns its value; raises as ``call``.

        The child is held until the last value; a stream that is given up ends it.
        """
        with self._held():
            return (yield from self._exchange(values))

    def start(self) -> None:
        """Start the child in advance."""
        with self._lock:
            self._running()

    def kill(self) -> None:
        """End the child, also while it is called; the next call starts another."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the child and wait for it; waits for a call in progress."""
        with self._lock:
            self._stop()

    def __enter__(self) -> Confined:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process that is running now, if any."""
        return None if self._child is None else self._child.pid

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=self.limits.seconds):
            raise self._ended("busy", f"The process that reads {self.what} is busy with others; try again in a moment")
        try:
            yield
        finally:
            self._lock.release()

    def _exchange(self, values: dict[str, Any]) -> Generator[Any, None, Any]:
        """One request and its answers; a child that has not given its last one is ended, whatever the reason."""
        try:
            return (yield from self._answers(values))
        except UserError:  # it has answered, or was stopped
            raise
        except BaseException:  # what it still sends would be taken for the answer to the next request
            self._stop()
            raise

    def _answers(self, values: dict[str, Any]) -> Generator[Any, None, Any]:
        """The answers to one request. A child that had served before and died is tried anew once."""
        fresh = self._child is None or self._child.poll() is not None
        begun = False
        ends = time.monotonic() + self.limits.seconds if self.limits.whole_stream else math.inf
        while True:
            child = self._running()  # once: a child that dies after the request must not be replaced before the answer
            self._late = False  # not between the two: the child may be killed when the request is just written
            try:
                self._limited(child, ends, lambda child: write_message(child.stdin, values))
                while True:
                    answer = self._limited(
                        child, ends, lambda child: read_message(child.stdout, self.limits.message_megabytes << 20)
                    )
                    if not isinstance(answer, dict) or not isinstance(answer.get("kind"), str):
                        raise BadMessage("an answer that says not of which kind it is")
                    if answer["kind"] != "part":
                        return self._value(answer)
                    begun = True
                    yield answer.get("value")
            except (OSError, EOFError, BadMessage) as error:
                if not isinstance(error, BadMessage) and self._child is not None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._child.wait(EXIT_SECONDS)  # its pipe closes a moment before its code is known
                code = self._stop()
                if self._late:
                    raise self._ended(
                        "time", f"Reading {self.what} took longer than {self.limits.seconds:g} s"
                    ) from None
                if isinstance(error, BadMessage):  # it was this process that ended it
                    log.warning("a confined reader of %s answered %s", self.what, error)
                    raise self._unintelligible() from None
                if fresh or begun:
                    raise self._died(code) from None
                log.warning("the process that reads %s had ended (%s); trying once more", self.what, _how(code))
                fresh = True

    def _limited(self, child: subprocess.Popen[bytes], ends: float, act: Any) -> Any:
        """Run ``act`` on the child, which is killed when it takes longer than its limit, or beyond ``ends``."""

        def give_up() -> None:
            self._late = True
            child.kill()

        left = min(self.limits.seconds, ends - time.monotonic())
        if left <= 0:
            give_up()
            raise EOFError
        timer = threading.Timer(left, give_up)
        timer.daemon = True
        timer.start()
        try:
            return act(child)
        finally:
            timer.cancel()

    def _value(self, answer: dict[str, Any]) -> Any:
        kind, sentence, error = answer["kind"], _text(answer, "sentence", MAX_SENTENCE), _text(answer, "error", 80)
        if kind == "value":
            return answer.get("value")
        if kind == "user":
            status = answer.get("status")
            raise RemoteError(
                sentence,
                field=_text(answer, "field", 80) or self.field,
                kind=error,
                status=status if type(status) is int and status in CLIENT_ERRORS else None,
            )
        if kind == "memory":
            raise self._ended(
                "memory",
                f"Reading {self.what} needs more memory than its reader may use ({self.limits.memory_megabytes:,} MB)",
            )
        self._stop()
        if kind != "failed":
            raise self._unintelligible()
        log.warning("reading %s failed: %s: %s", self.what, error, sentence)
        raise self._ended(
            "failed",
            f"Reading {self.what} failed in the library that reads it ({error}): it is damaged or was made to do harm",
        )

    def _died(self, code: int | None) -> ReaderEnded:
        return self._ended(
            "died",
            f"Reading {self.what} ended the process that read it ({_how(code)}): it is damaged, was made to do harm, "
            f"or needs more than {self.limits.memory_megabytes:,} MB of memory",
        )

    def _unintelligible(self) -> ReaderEnded:
        return self._ended("died", f"Reading {self.what} gave no answer that can be understood")

    def _ended(self, reason: Reason, sentence: str) -> ReaderEnded:
        return ReaderEnded(sentence, reason, field=self.field)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is not None:
            self._stop()
        if self._child is None:
            try:
                self._child = _starter().submit(_start, self.entry, self.limits).result()
            except OSError as error:
                raise self._ended(
                    "start",
                    f"The process that is to read {self.what} could not be started ({error.strerror or error}): the "
                    "machine is short of memory or processes",
                ) from None
            self._end_with_self = weakref.finalize(self, _end, self._child)
        return self._child

    def _stop(self) -> int | None:
        child, self._child = self._child, None
        if child is None:
            return None
        if self._end_with_self is not None:
            self._end_with_self.detach()
        return _end(child)


class ReaderPool:
    """Children with one entry that are lent one at a time; an idle one is kept for whoever comes next."""

    def __init__(self, entry: str, limits: Limits, what: str, field: str | None = None, most_idle: int = 1) -> None:
        self._made_of = (entry, limits, what, field)
        self._most_idle = most_idle
        self._idle: list[Confined] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one(self) -> Iterator[Confined]:
        """A child that nobody else uses until the context is left."""
        with self._lock:
            reader = self._idle.pop() if self._idle else Confined(*self._made_of)
        try:
            yield reader
        finally:
            with self._lock:
                keep = len(self._idle) < self._most_idle
                if keep:
                    self._idle.append(reader)
            if not keep:
                reader.close()


@cache
def _starter() -> ThreadPoolExecutor:
    """The thread that starts all children: on Linux a child ends with the thread that started it."""
    return ThreadPoolExecutor(1, thread_name_prefix="starts confined readers")


def _start(entry: str, limits: Limits) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "tokenpaths.engine.confined.child", entry, limits.to_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(threads=limits.threads),
        start_new_session=True,
    )
    if sys.platform == "linux":
        import fcntl

        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)  # type: ignore[union-attr]
    return child


def _end(child: subprocess.Popen[bytes]) -> int:
    """Kill the child; returns how it ended: by itself, or −9."""
    code = child.poll()
    child.kill()
    for pipe in (child.stdin, child.stdout):
        with contextlib.suppress(OSError):
            pipe.close()  # type: ignore[union-attr]
    child.wait()
    return child.returncode if code is None else code


def _text(answer: dict[str, Any], name: str, longest: int) -> str:
    """A text of an answer; empty where the child sent anything else."""
    value = answer.get(name)
    return value[:longest] if isinstance(value, str) else ""


def _how(code: int | None) -> str:
    if code is not None and -code in signal.valid_signals():
        return signal.Signals(-code).name
    return "it closed its pipe" if code is None else f"code {code}"
