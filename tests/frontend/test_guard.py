"""Which requests reach the page, and what every answer says to browsers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from streamlit import config

from tests.support.coroutines import run_alone
from tokenpaths.frontend.server import guard
from tokenpaths.frontend.server.guard import NO_PAGE_POLICY, Guard, page_policy

SITE = "http://127.0.0.1:8501"
FRAME = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
UPLOAD = "/_stcore/upload_file/session/file"


@pytest.fixture(autouse=True)
def hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "get_option", lambda name: ["127.0.0.1"])


def ask(method: str, path: str, kind: str = "text/html; charset=utf-8", **headers: str) -> httpx.Response:
    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})
        await send({"type": "http.response.body", "body": b"SECRET"})

    async def one() -> httpx.Response:
        transport = httpx.ASGITransport(Guard(behind, ("sha256-abc=",)))
        async with httpx.AsyncClient(transport=transport, base_url=SITE) as client:
            return await client.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return run_alone(one())


def opens(door: Guard, **headers: str) -> bool:
    """Whether a WebSocket reaches what is behind the guard."""
    messages: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    run_alone(door({"type": "websocket", "path": "/_stcore/stream", "headers": raw}, None, send))
    return messages[0]["type"] == "websocket.accept"


async def accept(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:8502",
        "http://127.0.0.1",
        "http://localhost:8501",
        "http://evil.example",
        "null",
        "",
        SITE + "1",
    ],
)
def test_what_changes_something_comes_from_this_port_alone(method: str, origin: str) -> None:
    assert ask(method, UPLOAD, origin=origin).status_code == 403
    assert ask(method, UPLOAD, origin=SITE).text == "SECRET"
    assert ask(method, UPLOAD).text == "SECRET", "no browser"
    assert not opens(Guard(accept), host="127.0.0.1:8501", origin=origin)


def test_a_socket_opens_to_its_own_page_and_to_no_browser() -> None:
    assert opens(Guard(accept), host="127.0.0.1:8501", origin=SITE)
    assert opens(Guard(accept), host="127.0.0.1:8501", origin="https://127.0.0.1:8501")
    assert opens(Guard(accept), host="127.0.0.1:8501")
    assert not opens(Guard(accept), host="evil.example", origin="http://evil.example")


def test_sockets_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST_SOCKETS", 1)
    inner: list[bool] = []

    async def another(scope: Any, receive: Any, send: Any) -> None:
        messages: list[dict[str, Any]] = []

        async def note(message: dict[str, Any]) -> None:
            messages.append(message)

        if not inner:
            inner.append(True)
            await door(scope, receive, note)
            inner.append(messages[0]["type"] == "websocket.accept")
        await send({"type": "websocket.accept"})

    door = Guard(another)
    assert opens(door, host="127.0.0.1:8501")
    assert inner == [True, False], "a second one while the first is open"
    assert opens(door, host="127.0.0.1:8501"), "the first is over"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_follow_links_and_nothing_else(site: str) -> None:
    assert ask("GET", "/", **LINK | {"sec-fetch-site": site}).text == "SECRET"
    for other in (
        FRAME,
        LINK | {"sec-fetch-dest": "object"},
        {"sec-fetch-mode": "no-cors"},
        {"sec-fetch-mode": "cors"},
    ):
        assert ask("GET", "/", **other | {"sec-fetch-site": site}).status_code == 403
    assert ask("POST", "/", **LINK | {"sec-fetch-site": site}).status_code == 403
    assert ask("GET", "/", **FRAME | {"sec-fetch-site": "same-origin"}).text == "SECRET"


@pytest.mark.parametrize("path", ["/_stcore/agent/interact", "/media/x", "/static/js/x.js", "/_stcore/upload_fileX/a"])
def test_only_uploads_and_the_login_have_a_body(path: str) -> None:
    assert ask("POST", path).status_code == 405


@pytest.mark.parametrize(
    ("path", "kind", "policy"),
    [
        ("/", "text/html; charset=utf-8", page_policy(("sha256-abc=",))),
        ("/static/js/x.js", "text/javascript", NO_PAGE_POLICY),
        ("/media/x.html", "text/html", NO_PAGE_POLICY),
        ("/media/x.svg", "image/svg+xml", NO_PAGE_POLICY),
        ("/nowhere", "text/plain", NO_PAGE_POLICY),
    ],
)
def test_every_answer_refuses_frames_and_says_what_may_load(path: str, kind: str, policy: str) -> None:
    for answer in (ask("GET", path, kind), ask("GET", path, kind, host="evil.example")):
        assert answer.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert ask("GET", path, kind).headers["content-security-policy"] == policy


def test_the_page_loads_nothing_from_elsewhere() -> None:
    rules = dict(rule.split(" ", 1) for rule in page_policy(("sha256-abc=",)).split("; "))
    assert rules["default-src"] == "'none'"
    assert "'unsafe-inline'" not in rules["script-src"]
    assert "'unsafe-eval'" not in rules["script-src"]
    assert "'sha256-abc='" in rules["script-src"]
    assert not any("*" in rule or "http" in rule for rule in rules.values())
