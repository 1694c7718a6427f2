"""The page's door, without Streamlit behind it."""

from __future__ import annotations

import hmac
import re
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from tests.support.coroutines import run_alone
from tokenpaths.frontend.server import login
from tokenpaths.frontend.server.login import COOKIE, Login

TOKEN = "a-token-for-the-tests"
FORM = {"content-type": "application/x-www-form-urlencoded"}


async def behind(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"SECRET"})


DOOR = Login(behind, TOKEN)
SITE = "http://127.0.0.1:8501"


def ask(method: str, path: str, door: Login = DOOR, site: str = SITE, **options: Any) -> httpx.Response:
    async def one() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(door), base_url=site) as client:
            return await client.request(method, path, **options)

    return run_alone(one())


def cookie_of(door: Login, port: int = 8501, scheme: str = "http") -> str:
    return "=".join(door.session_cookie({"server": ("127.0.0.1", port), "scheme": scheme, "headers": []}))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "WRONG_SECONDS", 0)


PATHS = ["/", "/?view=routes", "/static/js/index.js", "/media/x.png", "/_stcore/upload_file/a/b"]
BODIES = [
    "",
    "token=",
    "token=wrong",
    f"token={TOKEN}x",
    f"other={TOKEN}",
    f"token={TOKEN}" + "x" * 9000,
    "token=%ff%fe",
    f"token=wrong&token={TOKEN}",
]


WRONG_COOKIES = [
    f"{COOKIE}_8501=",
    f"{COOKIE}_8501={TOKEN}",
    f"{COOKIE}_8501=\u00e9",
    cookie_of(DOOR)[:-1],
    cookie_of(DOOR, port=8502),
    cookie_of(DOOR, port=8502).replace("8502", "8501"),
    cookie_of(DOOR, scheme="https"),
    cookie_of(DOOR).replace("_8501", ""),
    cookie_of(Login(behind, "another-token-entirely")),
    cookie_of(Login(behind, TOKEN)),  # the same page, started again
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("cookie", WRONG_COOKIES, ids=range(len(WRONG_COOKIES)))  # drawn anew by each process
def test_nothing_is_there_without_the_token(path: str, cookie: str) -> None:
    answer = ask("GET", path, headers={"cookie": cookie.encode()})
    assert answer.status_code == 401
    assert "SECRET" not in answer.text
    assert ('type="password"' if path.partition("?")[0] == "/" else "Log in at the front page") in answer.text


def test_the_cookie_of_a_page_opens_no_other_page() -> None:
    """Not at another port, nor another page with the same token at the same port."""
    cookie = {"cookie": cookie_of(DOOR)}
    assert ask("GET", "/", headers=cookie).text == "SECRET"
    assert ask("GET", "/", site="http://127.0.0.1:8502", headers=cookie).status_code == 401
    assert ask("GET", "/", door=Login(behind, TOKEN), headers=cookie).status_code == 401


@pytest.mark.parametrize(("site", "headers"), [("https://a.test", {}), (SITE, {"x-forwarded-proto": "https"})])
def test_where_the_connection_is_encrypted_the_cookie_is_bound_to_its_host(site: str, headers: dict[str, str]) -> None:
    given = ask("POST", "/", site=site, content=f"token={TOKEN}", headers=FORM | headers).headers["set-cookie"]
    assert given.startswith(f"__Host-{COOKIE}_")
    assert "Secure" in given
    assert "Path=/" in given
    assert "Domain" not in given
    assert ask("GET", "/", site=site, headers=headers | {"cookie": given.partition(";")[0]}).text == "SECRET"


@pytest.mark.parametrize(("site", "reloads"), [("cross-site", True), ("same-site", True), ("same-origin", False)])
def test_a_link_from_elsewhere_is_followed_once_more_from_here(site: str, reloads: bool) -> None:
    """Browsers keep a SameSite=Strict cookie back the first time."""
    answer = ask("GET", "/?view=routes", headers={"sec-fetch-site": site})
    assert answer.status_code == 401
    assert ('http-equiv="refresh"' in answer.text) is reloads


def test_the_token_is_asked_for_once_and_stays_out_of_addresses() -> None:
    answer = ask("POST", "/?view=routes&run=x%26y", content=f"token={TOKEN}", headers=FORM)
    assert (answer.status_code, answer.headers["location"]) == (303, "./?view=routes&run=x%26y")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in str(answer.headers)
    assert ask("GET", "/media/x.png", headers={"cookie": f"a=b; {cookie.partition(';')[0]}"}).text == "SECRET"


@pytest.mark.parametrize("path", ["/documentation", "/documentation/", "/documentation/a/b.html?x=/y/"])
def test_behind_a_proxy_that_takes_a_path_off_the_front_door_is_found(path: str) -> None:
    """The browser resolves addresses against the one that it shows."""
    link = re.search(r'href="(.+?)"', ask("GET", path).text)
    assert link is not None
    assert urljoin(f"https://hub.example/user/a/paths{path}", link.group(1)) == "https://hub.example/user/a/paths/"
    opened = ask("POST", "/?view=work", content=f"token={TOKEN}", headers=FORM).headers["location"]
    assert urljoin("https://hub.example/paths/?view=work", opened) == "https://hub.example/paths/?view=work"


@pytest.mark.parametrize("path", ["/a%2Fb%2Fc", "/documentation/"])
def test_a_token_is_typed_at_the_front_door_alone(path: str) -> None:
    """An encoded slash lies elsewhere for a browser: behind a proxy the form would lead out of what is ours."""
    assert "<form" not in ask("GET", path).text
    assert "<form" in ask("GET", "/").text


@pytest.mark.parametrize("body", BODIES)
def test_a_wrong_token_is_told_so(body: str) -> None:
    answer = ask("POST", "/", content=body, headers=FORM)
    assert answer.status_code == 401
    assert "That is not the token" in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(("method", "path"), [("POST", "/_stcore/upload_file/a"), ("PUT", "/")])
def test_only_the_front_door_takes_a_token(method: str, path: str) -> None:
    assert ask(method, path, content=f"token={TOKEN}", headers=FORM).status_code == 401


def test_health_is_open_and_without_a_token_everything_is() -> None:
    assert ask("GET", "/_stcore/health").text == "SECRET"
    assert ask("GET", "/", door=Login(behind, "")).text == "SECRET"


def test_a_socket_is_closed_before_its_handshake() -> None:
    said: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    scope = {"type": "websocket", "path": "/_stcore/stream", "headers": []}
    run_alone(Login(behind, TOKEN)(scope, None, send))
    assert said == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(("given", "verdict"), [(TOKEN, False), ("wrong", True)])
def test_nothing_but_the_comparison_in_constant_time_decides(
    monkeypatch: pytest.MonkeyPatch, given: str, verdict: bool
) -> None:
    """Of the token in the form, and of the cookie."""
    cookie = {"cookie": cookie_of(DOOR) + ("" if given == TOKEN else "x")}
    monkeypatch.setattr(hmac, "compare_digest", lambda *both: verdict)
    assert ask("POST", "/", content=f"token={given}", headers=FORM).status_code == (303 if verdict else 401)
    assert ask("GET", "/media/x.png", headers=cookie).status_code == (200 if verdict else 401)
