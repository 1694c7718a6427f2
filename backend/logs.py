"""Logs as one JSON object a line on stderr, where `tokenpaths up` collects them."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback


class JsonLines(logging.Formatter):
    """time (UTC), level, logger, message and, where there was one, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(line, ensure_ascii=True)


def set_up_logging(level: str) -> None:
    """Send everything to stderr as JSON lines, from ``level`` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
