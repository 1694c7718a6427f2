"""Logging as one JSON object per line on stderr, where `tokenpaths up` collects it.

Every request has an id. It is in each log line about the request, in the response header ``x-request-id``, and beside
each API error that the page shows.
"""

from __future__ import annotations

import atexit
import json
import logging
import re
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from typing import TextIO

from tokenpaths.backend.loops import keep_running

REQUEST_ID_HEADER = "x-request-id"
REPEAT_SECONDS = 600.0
SAY_COUNTS_SECONDS = 10.0
MOST_KINDS = 1000
"""kinds of lines that are told apart at a time"""
request_id: ContextVar[str] = ContextVar("request_id", default="")
"""id of the current request; empty outside of one"""


def new_request_id() -> str:
    """Twelve random letters and digits."""
    return secrets.token_hex(6)


def checked_request_id(value: str | None) -> str:
    """``value`` if it has the form of a request id, else a new one.

    >>> checked_request_id("0a1b2c3d4e5f"), len(checked_request_id("<script>"))
    ('0a1b2c3d4e5f', 12)
    """
    return value if value is not None and re.fullmatch(r"[0-9a-f]{12}", value) else new_request_id()


class LastingWarning:
    """Logs a persistent problem once, again when its message changes, else every ``REPEAT_SECONDS``."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self.log, self.clock = log, clock
        self._last: tuple[str, float] | None = None

    def warn(self, message: str) -> None:
        """Log the problem, unless it was logged recently."""
        now = self.clock()
        if self._last is None or self._last[0] != message or now - self._last[1] >= REPEAT_SECONDS:
            self._last = (message, now)
            self.log.warning("%s", message)

    def over(self, message: str) -> None:
        """Log ``message`` if a problem was logged before; the next problem is logged at once."""
        if self._last is not None:
            self._last = None
            self.log.info("%s", message)


class JsonLines(logging.Formatter):
    """Formats time (UTC), level, logger, message and, if present, request id, ``about`` and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if known := request_id.get():
            line["request"] = known
        line |= getattr(record, "about", {})
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(line, ensure_ascii=True)


class Repeats:
    """Which of many similar lines are written: the first few of a while, then how many more there were.

    Args:
        most: Lines of one kind that are written within ``seconds``.
        clock: Seconds; for tests.
    """

    def __init__(self, most: int = 20, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.seconds, self.clock = most, seconds, clock
        self._whiles: dict[str, tuple[float, int]] = {}
        """kind of line → when its while began, lines left out since then"""
        self._written: dict[str, int] = {}
        self._lock = threading.Lock()

    def admits(self, kind: str, most: int | None = None) -> bool:
        """Whether one more line of this kind is written; counted if not. ``most`` in place of the usual number."""
        with self._lock:
            if kind not in self._whiles and len(self._whiles) >= MOST_KINDS:
                kind = "others"
            began, left_out = self._whiles.setdefault(kind, (self.clock(), 0))
            if self._written.get(kind, 0) < (self.most if most is None else most):
                self._written[kind] = self._written.get(kind, 0) + 1
                return True
            self._whiles[kind] = began, left_out + 1
            return False

    def counts(self, *, every: bool = False) -> list[tuple[str, int]]:
        """(kind, lines left out) of the whiles that are over, or of all; each count is given once."""
        with self._lock:
            now = self.clock()
            over = [kind for kind, (began, _) in self._whiles.items() if every or now - began >= self.seconds]
            counts = [(kind, self._whiles.pop(kind)[1]) for kind in over]
            for kind in over:
                self._written.pop(kind, None)
            return [(kind, count) for kind, count in counts if count]


def kind_of_line(text: str) -> str:
    """What lines that differ in numbers and ids alone have in common.

    >>> kind_of_line("job trace-20261121-0a1b2c failed after 17 s")
    'job trace-#-# failed after # s'
    """
    return re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "#", text[:200])


class CountedLines(logging.StreamHandler[TextIO]):
    """Writes JSON lines to stderr: of a trouble that repeats the first lines of a minute, then their number.

    What has a traceback is written once a minute. Counts come a minute later at most, and when the process ends.
    """

    def __init__(self, stream: TextIO, repeats: Repeats | None = None) -> None:
        super().__init__(stream)
        self.setFormatter(JsonLines())
        self.repeats = repeats if repeats is not None else Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it."""
        error = record.exc_info[1] if record.exc_info else None
        about = getattr(record, "about", {})
        what = [record.name, record.levelname]
        if "route" in about:  # the method is the client's word
            what += [str(about.get(key, "")) for key in ("route", "status", "problem")]
        else:
            what += [kind_of_line(record.getMessage()), type(error).__name__ if error is not None else ""]
        if self.repeats.admits(" ".join(filter(None, what)), 1 if error is not None else None):
            super().emit(record)

    def say_counts(self, *, every: bool = False) -> None:
        """Write how many lines were left out of those whose minute is over, or of all."""
        for kind, count in self.repeats.counts(every=every):
            record = logging.LogRecord(__name__, logging.WARNING, "", 0, "%d more like: %s", (count, kind), None)
            super().emit(record)


def set_up_logging(level: str) -> None:
    """Log everything from ``level`` on to stderr as JSON lines, what ends a thread included."""
    handler = CountedLines(sys.stderr)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    threading.excepthook = _log_end_of_thread

    def say_counts() -> None:
        while True:
            time.sleep(SAY_COUNTS_SECONDS)
            handler.say_counts()

    keep_running("counting log lines", say_counts)
    atexit.register(say_all_counts)


def say_all_counts() -> None:
    """Write how many lines were left out so far, before the process ends."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, CountedLines):
            handler.say_counts(every=True)


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread is not None else "unknown"
    logging.getLogger(__name__).error("the thread %r ended by an error", name, exc_info=ended.exc_value)
