"""Which requests reach the page: host names, origins, methods; and the security headers of every answer.

Streamlit checks ``server.allowedHosts`` only for its WebSocket, and lets that be opened from any port of this machine.
With DNS rebinding another site's name resolves to this machine; without these checks that site could read the page's
files and uploaded images, and whatever listens at another port of this host could drive the page.
"""

from __future__ import annotations

from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Private, but also used for the WebSocket: both checks must agree on wildcards, ports and IPv6.
from streamlit.web.server.starlette.starlette_websocket import is_host_allowed

from tokenpaths.frontend.server.embedding import ancestors, is_framed_view, is_opened_in_frame

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
UPLOADS = "/_stcore/upload_file/"
MOST_SOCKETS = 300
"""open WebSockets, each of which is a session with a thread and memory of its own"""
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: browsers would then send the login form with `Origin: null`.
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
NOT_OURS = (
    "This name is not one of the page's: add it to `allowed_hosts` of `tokenpaths up`, or, to the services of "
    "docker-compose.yml, as TOKENPATHS_PAGE_NAME."
)
NO_PAGE_POLICY = "default-src 'none'; frame-ancestors 'none'"
"""policy of answers that are no pages, should a browser show one as if it were"""


def page_policy(inline_scripts: tuple[str, ...], framed_by: tuple[str, ...] = ()) -> str:
    """The Content-Security-Policy of the page: nothing from elsewhere, whatever stands in a text.

    Streamlit sets styles inline and imports the scripts of this project's components from ``blob:``.

    Args:
        inline_scripts: Hashes (``sha256-…``) of the scripts that stand in ``index.html``.
        framed_by: Origins of the sites that may frame it.
    """
    hashes = "".join(f" '{digest}'" for digest in inline_scripts)
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' blob:{hashes}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "media-src 'self' data: blob:",
            "connect-src 'self'",
            "worker-src 'self' blob:",
            "manifest-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            f"frame-ancestors {ancestors(framed_by)}",
        )
    )


class Guard:
    """ASGI middleware: 400 for other hosts, 403 for other origins, 405 for methods that the page does not have."""

    def __init__(self, app: ASGIApp, inline_scripts: tuple[str, ...] = (), embed_origins: tuple[str, ...] = ()) -> None:
        self.app, self.embed_origins = app, embed_origins
        self.policy = page_policy(inline_scripts)
        self.framed_policy = page_policy(inline_scripts, embed_origins)
        self.sockets = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._open_socket(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _open_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if refusal(scope) is not None or self.sockets >= MOST_SOCKETS:
            await send({"type": "websocket.close", "code": 1008})
            return
        self.sockets += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.sockets -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = refusal(scope, self.embed_origins)
        framed = refused is None and is_framed_view(scope, self.embed_origins)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    if not (framed and name == "x-frame-options"):  # it can name no origin
                        headers.setdefault(name, value)
                page = headers.get("content-type", "").startswith("text/html") and not _is_medium(scope["path"])
                policy = self.framed_policy if framed else self.policy
                headers.setdefault("content-security-policy", policy if page else NO_PAGE_POLICY)
            await send(message)

        if refused is not None:
            status, sentence = refused
            await PlainTextResponse(f"{sentence}\n", status)(scope, receive, send_with_headers)
            return
        with suppress(ClientDisconnect):  # whoever hangs up in the middle leaves no traceback in the log
            await self.app(scope, receive, send_with_headers)


def _is_medium(path: str) -> bool:
    """Whether a file was handed to Streamlit by the page or by a visitor, whatever it says it is."""
    return path.startswith(("/media/", "/component/", UPLOADS))


def refusal(scope: Scope, embed_origins: tuple[str, ...] = ()) -> tuple[int, str] | None:
    """Status and sentence for a request that is not served; None for any other."""
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_host_allowed(hosts[0]):
        return 400, NOT_OURS
    method = scope.get("method", "GET")
    if scope["type"] == "websocket" or method not in SAFE_METHODS:
        own = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
        if any(origin.strip().lower() not in own for origin in headers.getlist("origin")):
            return 403, "Requests from other origins are refused; a proxy must hand on the `Host` that browsers send."
    own_site = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    framed = is_framed_view(scope, embed_origins) and is_opened_in_frame(scope)
    if not (own_site or framed or _is_followed_link(method, headers)):
        return 403, "Requests from other web sites are refused."
    if method not in SAFE_METHODS and scope["path"] != "/" and not scope["path"].startswith(UPLOADS):
        return 405, "The page has no such method here."
    return None


def _is_followed_link(method: str, headers: Headers) -> bool:
    """Whether a browser opens a window's own page, not a part of another page such as a frame or a picture."""
    return (
        method in SAFE_METHODS
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest", "document") == "document"
    )
