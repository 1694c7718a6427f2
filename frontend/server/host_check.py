"""The names that the page answers to, for its files too.

Streamlit compares ``server.allowedHosts`` with the ``Host`` header of its WebSocket alone. A name of somebody else that
leads to this machine (DNS rebinding) would still get the page's files and pictures, so every request is compared here.
"""

from __future__ import annotations

from pathlib import Path

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit import file_util
from streamlit.web.server.starlette import starlette_app
from streamlit.web.server.starlette.starlette_websocket import is_host_allowed

from tokenpaths.frontend.server.login import Gate
from tokenpaths.frontend.server.static_files import CachedFiles, Files

REFUSED = "This name is not one of the page's; add it to `allowed_hosts`.\n"


class OwnHosts:
    """ASGI middleware: 400 for a ``Host`` that is missing, doubled or not in ``server.allowedHosts``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = Headers(scope=scope).getlist("host") if scope["type"] == "http" else []
        if scope["type"] == "http" and (len(hosts) != 1 or not is_host_allowed(hosts[0])):
            await PlainTextResponse(REFUSED, status_code=400)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def stand_before(token: str) -> Files:
    """Have every Streamlit server that this process starts from now on compare the ``Host``, ask for ``token`` and
    answer for the page's files, which are given back, from memory."""
    made = starlette_app.create_streamlit_middleware
    files = Files(Path(file_util.get_static_dir()))
    own = [Middleware(OwnHosts), Middleware(Gate, token=token), Middleware(CachedFiles, files=files)]
    starlette_app.create_streamlit_middleware = lambda: [*own, *made()]
    return files
