"""Login with the access token for everything that the page server serves.

The middleware covers files, images, uploads and the WebSocket. The token is sent in a form, never in a URL; the browser
keeps an HTTP-only cookie derived from it, so a new token invalidates all cookies. Neither is encrypted in transit: use
TLS between machines.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "tokenpaths_page"
OPEN_PATHS = frozenset({"/_stcore/health"})
MOST_FORM_BYTES = 4096
WRONG_SECONDS = 0.5
"""delay of the response to a wrong token, in seconds"""
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
FORM = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tokenpaths</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<style>body{{font:16px system-ui,sans-serif;display:grid;place-items:center;min-height:90vh;margin:1rem}}
form{{display:grid;gap:.7rem;max-width:22rem}}input,button{{font:inherit;padding:.5rem}}p{{margin:0}}</style></head>
<body><form method="post"><h1>Tokenpaths</h1><p>{message}</p>
<label for="token">Access token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Open</button></form></body></html>"""
TOKEN_NEEDED = "This page needs the token that it was started with (TOKENPATHS_TOKEN)."
WRONG = "That is not the token. It is the value of TOKENPATHS_TOKEN on the machine that runs Tokenpaths."


def session_cookie(token: str) -> str:
    """The cookie value for ``token``."""
    return hmac.new(token.encode(), b"a visit to the page", hashlib.sha256).hexdigest()


class Login:
    """ASGI middleware that requires a login; disabled if ``token`` is empty."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token
        self.cookie = session_cookie(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.token or scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or self._is_logged_in(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            request = Request(scope, receive)
            answer = await self._check_form(request) if _is_form(request) else _login_page(TOKEN_NEEDED)
            await answer(scope, receive, send)

    def _is_logged_in(self, scope: Scope) -> bool:
        """Whether the request has a valid session cookie; compared in constant time."""
        headers = [value.decode("latin-1") for name, value in scope.get("headers", []) if name == b"cookie"]
        pairs = (pair.strip().partition("=") for header in headers for pair in header.split(";"))
        values = [value for name, _, value in pairs if name == COOKIE]
        return any(hmac.compare_digest(value.encode("latin-1"), self.cookie.encode()) for value in values)

    async def _check_form(self, request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_FORM_BYTES:
                return _login_page(WRONG)
        token = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0]
        if not hmac.compare_digest(token.strip().encode("utf-8", "replace"), self.token.encode()):
            await asyncio.sleep(WRONG_SECONDS)
            return _login_page(WRONG)
        answer = RedirectResponse(f"/?{request.url.query}" if request.url.query else "/", 303, headers=HEADERS)
        # Lax: a link from another site leads to the view and not to the login form again.
        answer.set_cookie(COOKIE, self.cookie, httponly=True, samesite="lax", secure=request.url.scheme == "https")
        return answer


def _is_form(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return (request.method, request.url.path, kind) == ("POST", "/", "application/x-www-form-urlencoded")


def _login_page(message: str) -> Response:
    return HTMLResponse(FORM.format(message=html.escape(message)), status_code=401, headers=HEADERS)
