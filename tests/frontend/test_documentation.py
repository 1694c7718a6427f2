"""The documentation that the page serves: its files, nothing besides, and scripts of its own pages only."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.support.coroutines import run_alone
from tests.support.page_server import page_server
from tokenpaths.frontend.server.documentation import PATH, SITE, Documentation
from tokenpaths.frontend.server.static_files import script_hashes

INDEX = "<title>Start</title><script>first()</script><script>second()</script>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    (site / "assets").mkdir(parents=True)
    (site / "index.html").write_text(INDEX)
    (site / "assets" / "site.js").write_text("first = 1")
    (tmp_path / "secret.txt").write_text("SECRET")
    (site / "link.txt").symlink_to(tmp_path / "secret.txt")
    return site


def ask(folder: Path, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    app = Starlette(routes=[Mount(PATH, Documentation(folder))])

    async def one() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(
                method, PATH + path, headers={k.replace("_", "-"): v for k, v in headers.items()}
            )

    return run_alone(one())


@pytest.mark.parametrize("path", ["/", "/index.html"])
def test_a_page_may_run_its_own_inline_scripts_and_no_others(folder: Path, path: str) -> None:
    answer = ask(folder, path)
    assert (answer.status_code, answer.text) == (200, INDEX)
    scripts = next(
        rule for rule in answer.headers["content-security-policy"].split("; ") if rule.startswith("script-src")
    )
    assert all(f"'{digest}'" in scripts for digest in script_hashes(INDEX))
    assert len(script_hashes(INDEX)) == 2
    assert "'unsafe-inline'" not in scripts


def test_a_page_that_changed_gets_its_new_policy(folder: Path) -> None:
    before = ask(folder, "/")
    assert ask(folder, "/", if_none_match=before.headers["etag"]).status_code == 304
    (folder / "index.html").write_text("<script>third()</script>")
    after = ask(folder, "/", if_none_match=before.headers["etag"])
    assert after.text == "<script>third()</script>"
    assert script_hashes(after.text)[0] in after.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    ["/assets", "/assets/", "/nowhere.html", "/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/link.txt"]
    + ["//etc/passwd", "/%00", "/" + "x" * 5000],
)
def test_nothing_but_its_files(folder: Path, path: str) -> None:
    answer = ask(folder, path)
    assert answer.status_code == 404
    assert "SECRET" not in answer.text
    assert "site.js" not in answer.text


def test_nothing_is_written(folder: Path) -> None:
    assert [ask(folder, "/index.html", method).status_code for method in ("PUT", "POST", "DELETE")] == [405] * 3


def test_where_it_is_not_built_it_says_what_builds_it(tmp_path: Path) -> None:
    answer = ask(tmp_path / "site", "/index.html")
    assert answer.status_code == 404
    assert "`make docs` builds it" in answer.text


def test_the_page_serves_it_behind_its_login(tmp_path: Path) -> None:
    token = "a-token-for-the-tests"
    with page_server(tmp_path, token) as page, page.client() as client:
        closed = client.get(f"{PATH}/index.html")
        assert closed.status_code == 401
        assert '<a href="../">Log in at the front page</a>' in closed.text
        assert "<form" not in closed.text, "only the front door takes a token"
        form = {"content-type": "application/x-www-form-urlencoded", "origin": page.url}
        assert client.post("/", content=f"token={token}", headers=form).status_code == 303
        answer = client.get(f"{PATH}/index.html")
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.status_code == (200 if (SITE / "index.html").is_file() else 404)
        assert "Tokenpaths" in answer.text if answer.status_code == 200 else "make docs" in answer.text
        assert client.get(f"{PATH}/", headers={"host": "evil.example"}).status_code == 400
