"""Check of the ``Host`` header on every HTTP request.

Streamlit checks ``server.allowedHosts`` only for its WebSocket. With DNS rebinding another site's name resolves to this
machine; without this check that site could read the page's files and uploaded images.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# Private, but also used for the WebSocket: both checks must agree on wildcards, ports and IPv6.
from streamlit.web.server.starlette.starlette_websocket import is_host_allowed

REFUSED = "This name is not one of the page's; add it to `allowed_hosts`.\n"


class HostCheck:
    """ASGI middleware: 400 if ``Host`` is missing, repeated or not in ``server.allowedHosts``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = Headers(scope=scope).getlist("host") if scope["type"] == "http" else []
        if scope["type"] == "http" and (len(hosts) != 1 or not is_host_allowed(hosts[0])):
            await PlainTextResponse(REFUSED, status_code=400)(scope, receive, send)
            return
        await self.app(scope, receive, send)
