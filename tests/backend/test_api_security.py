"""Who may ask: Host, Origin, token, and where the server may listen."""

from __future__ import annotations

import hmac
import json
import re
from pathlib import Path

import httpx
import pytest

from tests.backend.conftest import API, TOKEN, Serve, Served, problem, raw
from tokenpaths.backend.settings import load_settings, require_safe_bind
from tokenpaths.backend.worker.client import WorkerClient
from tokenpaths.engine.base.errors import UserError

DOCS = Path(__file__).parents[2] / "docs"
HOSTILE_HOSTS = [
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "127.0.0.1@evil.example",
    "localhost:8000:9000",
    "",
    "[::1]evil",
    "0.0.0.0",
    "169.254.169.254",
    "localhost/evil",
    "127.0.0.1:80x",
]
HOSTILE_ORIGINS = [
    {"origin": "http://evil.example"},
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1.evil.example"},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "http://localhost:8501"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "unheard-of"},
    {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000"])
def test_own_host_names_are_welcome(api: Served, host: str) -> None:
    assert api.client.get("/healthz", headers={"host": host}).status_code == 200


def test_more_host_names_by_setting(serve: Serve) -> None:
    served = serve(allowed_hosts="paths.example.com other.example")
    assert served.client.get("/healthz", headers={"host": "Paths.example.com:443"}).status_code == 200
    problem(served.client.get("/healthz", headers={"host": "evil.example"}), 400)


def test_own_site_and_programs_may_delete(serve: Serve) -> None:
    """Both get past the guard, to a 404 for a run that does not exist."""
    served = serve()
    own = str(served.client.base_url).rstrip("/")
    for headers in ({}, {"origin": own}, {"origin": own, "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        problem(served.client.delete(f"{API}/runs/nothing", headers=headers), 404)


def test_allowed_origin_by_setting(serve: Serve) -> None:
    served = serve(allowed_origins="https://paths.example.com")
    friendly = {"origin": "https://paths.example.com", "sec-fetch-site": "cross-site"}
    problem(served.client.delete(f"{API}/runs/nothing", headers=friendly), 404)
    problem(served.client.delete(f"{API}/runs/nothing", headers={"origin": "https://evil.example"}), 403)
    # Behind a proxy with another `Host` the browser is at that origin itself, and asks nothing beforehand.
    proxied = friendly | {"sec-fetch-site": "same-origin"}
    problem(served.client.delete(f"{API}/runs/nothing", headers=proxied), 404)
    asking = friendly | {"access-control-request-method": "DELETE", "sec-fetch-mode": "cors"}
    preflight = served.client.options(f"{API}/runs/nothing", headers=asking)
    problem(preflight, 403, "Sec-Fetch-Site")
    assert not [name for name in preflight.headers if name.startswith("access-control-")]


def test_the_docs_say_what_allowed_origins_does_not_do() -> None:
    for page in ("deployment.md", "settings.md"):
        said = (DOCS / page).read_text(encoding="utf-8")
        assert "a proxy" in said.partition("allowed_origins`")[2][:200]
    assert "neither `PUT` nor `DELETE`" in (DOCS / "deployment.md").read_text(encoding="utf-8").replace("\n", " ")


def test_reading_by_other_sites(api: Served) -> None:
    """A link from elsewhere leads here; an embedded request does not, another port of this machine's included."""
    for site in ("cross-site", "same-site", "unheard-of"):
        elsewhere = {"sec-fetch-site": site}
        for mode in ("no-cors", "cors", "same-origin", "websocket"):
            problem(api.get("/runs", headers=elsewhere | {"sec-fetch-mode": mode}), 403, "Sec-Fetch-Site")
        problem(api.get("/runs", headers=elsewhere), 403, "Sec-Fetch-Site")
        link = elsewhere | {"sec-fetch-mode": "navigate"}
        for embedded in ("iframe", "frame", "object", "embed", "fencedframe", "empty", "image", "unheard-of", ""):
            problem(api.get("/runs", headers=link | {"sec-fetch-dest": embedded}), 403, "Sec-Fetch-Dest")
        assert api.get("/runs", headers=link).status_code == 200
        assert api.get("/runs", headers=link | {"sec-fetch-dest": "document"}).status_code == 200
    for own in ({}, {"sec-fetch-site": "same-origin", "sec-fetch-dest": "iframe"}, {"sec-fetch-site": "none"}):
        assert api.get("/runs", headers=own).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
@pytest.mark.parametrize("name", ["host", "page_host"])
def test_reachable_address_without_token_is_refused(host: str, name: str) -> None:
    with pytest.raises(UserError, match="no token is set"):
        require_safe_bind(load_settings(**{name: host}))
    require_safe_bind(load_settings(**{name: host}, token=TOKEN))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_loopback_needs_no_token(host: str) -> None:
    require_safe_bind(load_settings(host=host))


def test_security_headers_on_everything(api: Served) -> None:
    answers = [
        api.client.get("/healthz"),
        api.get("/runs"),
        api.get("/runs/nothing"),
        api.get("/runs", headers={"host": "evil.example"}),
        api.get("/runs/vision/samples/0/image"),
        api.client.get("/docs"),
        api.client.put(f"{API}/runs"),
    ]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


def test_docs_page_asks_nobody_else(api: Served) -> None:
    """Scripts and styles come from this server, and the policy forbids others."""
    page = api.client.get("/docs")
    assert not re.search(r"(src|href)=\"(https?:)?//", page.text)
    assert "script-src 'self';" in page.headers["content-security-policy"]
    for name in ("swagger-ui-bundle.js", "swagger-ui.css", "start.js", "favicon.png"):
        assert f"docs/{name}" in page.text
        assert api.client.get(f"/docs/{name}").status_code == 200
    for name in ("..%2f__init__.py", "core.py", "redoc.standalone.js"):
        problem(api.client.get(f"/docs/{name}"), 404)


@pytest.mark.parametrize(
    ("hosts", "words"),
    [("", b"has no `Host` header"), ("Host: localhost\r\nHost: localhost\r\n", b"has 2 `Host` headers")],
)
def test_a_missing_or_doubled_host_is_called_that(api: Served, hosts: str, words: bytes) -> None:
    answer = raw(api, f"GET /healthz HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 400")
    assert words in answer


@pytest.mark.parametrize(
    "sent", [b"HELLO\r\n\r\n", b"GET /healthz?" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"]
)
def test_what_is_no_http_is_answered_with_a_problem(api: Served, sent: bytes) -> None:
    head, _, body = raw(api, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"content-type: application/problem+json" in head
    assert json.loads(body)["detail"].startswith("What was sent is no HTTP request")


def test_no_websocket(api: Served) -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    answer = api.client.get(f"{API}/runs", headers=headers | {"sec-websocket-key": "x3JJHMbDL1EzLkh9GBhXDw=="})
    assert answer.status_code != 101


def test_head_without_body(api: Served) -> None:
    """Refusals of HEAD have no body either, or the connection gets out of step."""
    with httpx.Client(base_url=api.client.base_url, trust_env=False) as client:
        for _ in range(2):
            assert client.head(f"{API}/nothing").content == b""
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("given", "verdict", "status"), [(TOKEN, True, 200), (TOKEN, False, 401), ("wrong", True, 200)]
)
def test_nothing_but_the_comparison_in_constant_time_decides(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, given: str, verdict: bool, status: int
) -> None:
    """A comparison before it (of lengths, of the first letters) would tell by its time how much was right."""
    served, compared = serve(token=TOKEN), []
    monkeypatch.setattr(hmac, "compare_digest", lambda *both: compared.append(both) or verdict)
    assert served.get("/runs", headers={"authorization": f"Bearer {given}"}).status_code == status
    assert compared == [(given.encode(), TOKEN.encode())]


@pytest.mark.parametrize(
    ("url", "certificates_are_read"),
    [("http://gpu.lab:8001", False), ("HTTP://gpu.lab", False), ("https://gpu.lab", True), ("HTTPS://gpu.lab", True)],
)
def test_only_plain_http_to_the_worker_needs_no_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, certificates_are_read: bool
) -> None:
    asked = []
    monkeypatch.setattr(httpx, "AsyncClient", lambda **given: asked.append(given["verify"]))
    WorkerClient(load_settings(data_dir=tmp_path, worker_url=url))
    assert asked == [certificates_are_read]
