"""Logging as one JSON object per line on stderr, where `tokenpaths up` collects it.

Every request has an id. It is in each log line about the request, in the response header ``x-request-id``, and beside
each API error that the page shows.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
import traceback
from collections.abc import Callable
from contextvars import ContextVar

REQUEST_ID_HEADER = "x-request-id"
REPEAT_SECONDS = 600.0
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


def set_up_logging(level: str) -> None:
    """Log everything from ``level`` on to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
