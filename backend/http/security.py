"""ASGI middleware in front of the app: Host allowlist (400), token (401), cross-site requests (403), security headers.

It runs before routing, so that it covers every route, and turns uncaught exceptions into problems.
"""

from __future__ import annotations

import hmac
import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenpaths.backend.logs import REQUEST_ID_HEADER, new_request_id, request_id
from tokenpaths.backend.problems import PROBLEM_KIND, Problem, problem_of
from tokenpaths.backend.settings import EVERYWHERE, Settings

log = logging.getLogger(__name__)

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITES = (None, "same-origin", "none")
"""values of Sec-Fetch-Site of programs, of this server's own pages, and of addresses that a person typed"""
OPEN_PATHS = frozenset({"/healthz"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-site",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
RAW_SECURITY_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


def host_name(host: str) -> str:
    """The name in a ``Host`` header without its port, lower case; empty when it is malformed.

    >>> host_name("LocalHost:8000"), host_name("[::1]:80"), host_name("a:b:c"), host_name("a@b")
    ('localhost', '[::1]', '', '')
    """
    host = host.strip().lower()
    if host.startswith("["):
        name, closed, rest = host.partition("]")
        name += closed
    else:
        name, colon, port = host.partition(":")
        rest = colon + port
    if rest and not (rest.startswith(":") and rest[1:].isdigit()):
        return ""
    return name if name and all(c.isalnum() or c in "-._[]:" for c in name) else ""


def allowed_names(settings: Settings) -> frozenset[str]:
    """Names that the ``Host`` header may have."""
    names = {name.lower() for name in settings.allowed_hosts} | LOOPBACK_NAMES
    if settings.host not in EVERYWHERE:
        names.add(f"[{settings.host}]" if ":" in settings.host else settings.host.lower())
    return frozenset(names)


class Guard:
    """ASGI middleware; see the module's docstring."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.names = allowed_names(settings)
        self.origins = frozenset(origin.lower().rstrip("/") for origin in settings.allowed_origins)
        self.token = settings.token.get_secret_value() if settings.token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no WebSocket routes: close before any handshake
            await send({"type": "websocket.close", "code": 1008})
            return
        started, known = False, new_request_id()
        request_id.set(known)

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = known
                there = {name for name, _ in headers.raw}
                headers.raw.extend(pair for pair in RAW_SECURITY_HEADERS if pair[0] not in there)
            await send(message)

        try:
            problem = self.check(scope)
            if problem is None:
                await self.app(scope, receive, send_with_headers)
                return
        except Exception as error:  # last resort for uncaught exceptions
            if isinstance(error, ClientDisconnect):  # nobody waits for an answer
                return
            if started:  # headers are sent: break the connection, so a partial body is not taken for a whole
                raise
            problem = problem_of(error)
        scope[PROBLEM_KIND] = problem.kind
        await problem.response(scope["path"])(scope, receive, send_with_headers)

    def check(self, scope: Scope) -> Problem | None:
        """The problem with a request before it is routed, or None."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or host_name(hosts[0]) not in self.names:
            if len(hosts) == 1:
                detail = f"Host {hosts[0][:80]!r} is not one of this server's names; add it to `allowed_hosts`."
            else:
                detail = f"The request has {len(hosts) or 'no'} `Host` headers; send one, with a name of this server."
            return Problem(400, "host", detail, field="Host")
        if self.token is not None and scope["path"] not in OPEN_PATHS and not self.has_token(headers):
            return Problem(
                401,
                "token",
                "This server wants a token: send `Authorization: Bearer <token>`.",
                field="Authorization",
                headers={"www-authenticate": "Bearer"},
            )
        return self.check_origin(scope["method"], headers, hosts[0])

    def has_token(self, headers: Headers) -> bool:
        """Whether exactly one token was sent and it is the right one; compared in constant time."""
        given = headers.getlist("authorization")
        scheme, _, value = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        right = hmac.compare_digest(value.strip().encode("latin-1", "replace"), (self.token or "").encode())
        return right and scheme.lower() == "bearer"

    def check_origin(self, method: str, headers: Headers, host: str) -> Problem | None:
        """Refuse cross-site requests of browsers; requests without an ``Origin`` or ``Sec-Fetch-Site`` header are
        allowed.
        """
        site = headers.get("sec-fetch-site")
        origins = headers.getlist("origin")
        if method in SAFE_METHODS:
            # Links from other sites may lead here; a frame is a navigation too, with another destination.
            navigates = headers.get("sec-fetch-mode") == "navigate"
            if site in OWN_SITES or (navigates and headers.get("sec-fetch-dest") in (None, "document")):
                return None
            header = "Sec-Fetch-Dest" if navigates else "Sec-Fetch-Site"
            return _cross_site(header, headers.get(header, ""), reads=True)
        if any(not self.is_own(origin, host) for origin in origins):
            return _cross_site("Origin", origins[0])
        allowed = bool(origins) and all(origin.strip().lower() in self.origins for origin in origins)
        if site not in OWN_SITES and not allowed:
            return _cross_site("Sec-Fetch-Site", str(site))
        return None

    def is_own(self, origin: str, host: str) -> bool:
        """Whether ``origin`` is this server under the requested host name, or an allowed origin."""
        origin = origin.strip().lower()
        return origin in self.origins or origin in (f"http://{host.lower()}", f"https://{host.lower()}")


def _cross_site(header: str, value: str, *, reads: bool = False) -> Problem:
    """Of a read without advice: answers are for pages of this server alone, whatever ``allowed_origins`` names."""
    advice = "" if reads else "; add the site to `allowed_origins`"
    return Problem(
        403, "cross-site", f"{header} {value[:80]!r}: requests from other web sites are refused{advice}.", field=header
    )
