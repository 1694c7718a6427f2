"""Login with the access token for everything that the page server serves.

The middleware covers files, images, uploads and the WebSocket. The token is sent in a form, never in a URL; the browser
keeps an HTTP-only cookie derived from it. Browsers send a cookie to every port of its host, so its value is made with a
key that each start of a page draws anew: it opens this page until it ends, and no other. Neither is encrypted in
transit: use TLS between machines.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
import secrets
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tokenpaths.frontend.server.embedding import ancestors, is_framed_view, is_opened_in_frame

COOKIE = "tokenpaths_page"
"""name of the cookie before ``_`` and the port"""
OPEN_PATHS = frozenset({"/_stcore/health"})
MOST_FORM_BYTES = 4096
FORM_SECONDS = 10.0
WRONG_SECONDS = 0.5
"""delay of the response to a wrong token, in seconds"""
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
}
"""beside those of ``guard.SECURITY_HEADERS``"""
FORM = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tokenpaths</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
{again}
<style>body{{font:16px system-ui,sans-serif;display:grid;place-items:center;min-height:90vh;margin:1rem}}
form{{display:grid;gap:.7rem;max-width:22rem}}input,button{{font:inherit;padding:.5rem}}p{{margin:0}}</style></head>
<body><form method="post"><h1>Tokenpaths</h1><p>{message}</p>
<label for="token">Access token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Open</button></form></body></html>"""
ELSEWHERE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tokenpaths</title>
<meta name="color-scheme" content="light dark"><style>body{{font:16px system-ui,sans-serif;margin:1rem}}</style></head>
<body><p>This page needs a login. <a href="{front}">Log in at the front page</a>, then open this address again.</p>
</body></html>"""
"""of other addresses than the front page's. Never the form: an address with encoded slashes lies elsewhere for a
browser than here, and where a proxy takes a path off, the token would be sent to what else that name has"""
FRAMED = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tokenpaths</title>
<meta name="color-scheme" content="light dark"><style>body{font:16px system-ui,sans-serif;margin:1rem}</style></head>
<body><p>This view needs a login. <a href="./" target="_blank" rel="noopener">Log in in a window of its own</a>, then
load this page again. Browsers keep a login from frames of sites that do not share the domain of Tokenpaths.</p></body>
</html>"""
"""never the form: a token is not to be typed into the frame of another site"""
TOKEN_NEEDED = "This page needs the token that it was started with (TOKENPATHS_TOKEN)."
WRONG = "That is not the token. It is the value of TOKENPATHS_TOKEN on the machine that runs Tokenpaths."


class Login:
    """ASGI middleware that requires a login; disabled if ``token`` is empty."""

    def __init__(self, app: ASGIApp, token: str, embed_origins: tuple[str, ...] = ()) -> None:
        self.app, self.token, self.embed_origins = app, token, embed_origins
        self.key = secrets.token_bytes(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.token or scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or self._is_logged_in(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif is_framed_view(scope, self.embed_origins) and is_opened_in_frame(scope):
            rules = ("default-src 'none'", "style-src 'unsafe-inline'", "base-uri 'none'")
            policy = "; ".join((*rules, f"frame-ancestors {ancestors(self.embed_origins)}"))
            await HTMLResponse(FRAMED, 401, HEADERS | {"content-security-policy": policy})(scope, receive, send)
        else:
            request = Request(scope, receive)
            answer = await self._check_form(request) if _is_form(request) else _login_page(TOKEN_NEEDED, request)
            await answer(scope, receive, send)

    def session_cookie(self, scope: Scope) -> tuple[str, str]:
        """Name and value of the cookie of a logged-in browser, for the port that it reaches the page at.

        ``__Host-`` (where the connection is encrypted) keeps other hosts of the domain from setting it.
        """
        port = (scope.get("server") or ("", None))[1]
        name = f"{COOKIE}_{port}"
        value = hmac.new(self.key, f"{name} {self.token}".encode(), hashlib.sha256).hexdigest()
        return (f"__Host-{name}" if _is_encrypted(scope) else name), value

    def _is_logged_in(self, scope: Scope) -> bool:
        """Whether the request has a valid session cookie; compared in constant time."""
        headers = [value.decode("latin-1") for name, value in scope.get("headers", []) if name == b"cookie"]
        pairs = (pair.strip().partition("=") for header in headers for pair in header.split(";"))
        expected, right = self.session_cookie(scope)
        values = [value for name, _, value in pairs if name == expected]
        return any(hmac.compare_digest(value.encode("latin-1"), right.encode()) for value in values)

    async def _check_form(self, request: Request) -> Response:
        try:
            body = await asyncio.wait_for(_read_form(request), FORM_SECONDS)
        except TimeoutError:
            return PlainTextResponse("The form did not arrive in time.\n", 408)
        token = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0]
        if not hmac.compare_digest(token.strip().encode("utf-8", "replace"), self.token.encode()):
            await asyncio.sleep(WRONG_SECONDS)
            return _login_page(WRONG)
        # Relative: a proxy may have taken a path off the address that the browser shows.
        answer = RedirectResponse(f"./?{request.url.query}" if request.url.query else "./", 303, headers=HEADERS)
        name, value = self.session_cookie(request.scope)
        answer.set_cookie(name, value, httponly=True, samesite="strict", secure=_is_encrypted(request.scope))
        return answer


def _is_encrypted(scope: Scope) -> bool:
    """Whether the browser speaks TLS, to this server or to a proxy before it that says so."""
    forwarded = Headers(scope=scope).get("x-forwarded-proto", "")
    return scope.get("scheme") in ("https", "wss") or forwarded.strip().lower() == "https"


async def _read_form(request: Request) -> bytes:
    """The body, or nothing if it is longer than a form."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_FORM_BYTES:
            return b""
    return body


def _is_form(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return (request.method, request.url.path, kind) == ("POST", "/", "application/x-www-form-urlencoded")


def _login_page(message: str, request: Request | None = None) -> Response:
    """The form.

    A link from another site arrives without the cookie, which is ``SameSite=Strict``; the form then reloads itself
    once, which this page asks for itself and a logged-in browser sends the cookie with.
    """
    elsewhere = request is not None and request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
    again = '<meta http-equiv="refresh" content="0">' if elsewhere else ""
    if request is not None and request.url.path != "/":
        front = "../" * (request.url.path.count("/") - 1) or "./"
        return HTMLResponse(ELSEWHERE.format(front=front), status_code=401, headers=HEADERS)
    page = FORM.format(message=html.escape(message), again=again)
    return HTMLResponse(page, status_code=401, headers=HEADERS)
