"""Health check of a container: ``python -m tokenpaths.cli.support.healthy URL`` ends with 0 if the answer is 200.

The standard library alone: it runs every few seconds. A worker wants its secret (TOKENPATHS_WORKER_SECRET).
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

SECONDS = 4.0
# That of `backend.settings`, whose import takes longer than a health check may; a test asks a worker with both.
SECRET_HEADER = "x-tokenpaths-worker-secret"


def is_healthy(url: str) -> bool:
    """Whether ``url`` answers 200 within SECONDS; proxies of the environment are passed by."""
    request = urllib.request.Request(url)
    if secret := os.environ.get("TOKENPATHS_WORKER_SECRET"):
        request.add_header(SECRET_HEADER, secret)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=SECONDS) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


if __name__ == "__main__":
    sys.exit(0 if is_healthy(sys.argv[1]) else 1)
