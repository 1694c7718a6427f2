"""Questions that a page will ask, asked while the browser still loads the page's scripts.

Between the request of an address and the first run of the page's script lies a second in which the browser is busy and
the API is not. It opens the run and works out the answers meanwhile; the client keeps them, and the script finds them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

MOST_AT_ONCE = 2
"""visits whose questions are asked at a time; of more, the script asks itself"""
MOST_QUERY = 4000
"""bytes of an address"""

log = logging.getLogger("tokenpaths.page")


class Ahead:
    """ASGI middleware: ``ask`` gets the query of each page that is requested, in a thread of its own.

    It stands behind the login. Whatever ``ask`` raises is left to the script, which asks again.
    """

    def __init__(self, app: ASGIApp, ask: Callable[[Mapping[str, str]], None]) -> None:
        self.app, self.ask = app, ask
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == "/":
            query = scope.get("query_string", b"")
            if len(query) <= MOST_QUERY and self._free.acquire(blocking=False):
                pairs = parse_qsl(query.decode("latin-1"))
                threading.Thread(target=self._asked, args=(dict(pairs),), name="ahead", daemon=True).start()
        await self.app(scope, receive, send)

    def _asked(self, query: Mapping[str, str]) -> None:
        try:
            self.ask(query)
        except Exception as error:  # the script meets the same one, and says it
            log.debug("asking ahead failed: %s", error)
        finally:
            self._free.release()
