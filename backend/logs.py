"""Logs as one JSON object a line on stderr, where `tokenpaths up` collects them.

Every request has an id: it stands in each line about it, in the header ``x-request-id`` of the answer, and in small
letters behind each error of the API that the page shows, so that the line for it can be found.
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
SAID_AGAIN_SECONDS = 600.0
request_id: ContextVar[str] = ContextVar("request_id", default="")
"""of the request at hand; empty outside of one"""


def new_request_id() -> str:
    """Twelve letters and digits that no other request has."""
    return secrets.token_hex(6)


def taken_over(given: str | None) -> str:
    """The id that another process of ours sent along, or a new one where it is none.

    >>> taken_over("0a1b2c3d4e5f"), len(taken_over("<script>"))
    ('0a1b2c3d4e5f', 12)
    """
    return given if given is not None and re.fullmatch(r"[0-9a-f]{12}", given) else new_request_id()


class OnceInAWhile:
    """Says a trouble that lasts once, again when its words change, and else every ``SAID_AGAIN_SECONDS``."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self.log, self.clock = log, clock
        self._last: tuple[str, float] | None = None

    def warn(self, words: str) -> None:
        """The trouble is there."""
        now = self.clock()
        if self._last is None or self._last[0] != words or now - self._last[1] >= SAID_AGAIN_SECONDS:
            self._last = (words, now)
            self.log.warning("%s", words)

    def over(self, words: str) -> None:
        """It is not, or no longer: then ``words`` say so, and the next one is said at once."""
        if self._last is not None:
            self._last = None
            self.log.info("%s", words)


class JsonLines(logging.Formatter):
    """time (UTC), level, logger, message; where there is one, the request's id, what is ``about`` it, the traceback."""

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
    """Send everything to stderr as JSON lines, from ``level`` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
