"""The page's files from memory: the same bytes as Streamlit's, cacheable, compressed for others, nothing besides."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from streamlit import file_util

from tests.support.coroutines import run_alone
from tokenpaths.frontend.page.selection import VIEWS
from tokenpaths.frontend.server.static_files import ELEMENTS, WIDGETS, CachedFiles, Files

FOLDER = Path(file_util.get_static_dir())
SCRIPT = next(file for file in sorted(FOLDER.glob("static/js/react-dom.*.js")))
ADDRESS = "/" + SCRIPT.relative_to(FOLDER).as_posix()


@pytest.fixture(scope="module")
def files() -> Files:
    return Files(FOLDER)


async def behind(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b"handed on"})


def ask(files: Files, path: str, method: str = "GET", *, client: str = "127.0.0.1", **headers: str) -> httpx.Response:
    async def one() -> httpx.Response:
        transport = httpx.ASGITransport(CachedFiles(behind, files), client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as browser:
            return await browser.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return run_alone(one())


def test_a_script_is_what_streamlit_has_and_is_kept_for_good(files: Files) -> None:
    answer = ask(files, ADDRESS)
    assert (answer.status_code, answer.content) == (200, SCRIPT.read_bytes())
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]
    head = ask(files, ADDRESS, "HEAD")
    assert (head.content, head.headers["content-length"]) == (b"", str(SCRIPT.stat().st_size))


@pytest.mark.parametrize(("client", "small"), [("127.0.0.1", False), ("::1", False), ("192.168.0.9", True)])
def test_scripts_are_compressed_for_other_machines_only(files: Files, client: str, small: bool) -> None:
    answer = ask(files, ADDRESS, client=client, accept_encoding="gzip")
    assert (answer.headers.get("content-encoding") == "gzip") == small
    assert answer.content == SCRIPT.read_bytes()
    if small:
        assert int(answer.headers["content-length"]) < SCRIPT.stat().st_size / 2
        assert gzip.decompress(files.body(ADDRESS, small=True) or b"") == SCRIPT.read_bytes()
    assert "content-encoding" not in ask(files, ADDRESS, client=client, accept_encoding="identity").headers


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/", {}),
        ("GET", "/_stcore/health", {}),
        ("GET", "/media/a.png", {}),
        ("GET", "/index.html", {}),
        ("GET", "/static/js/none.js", {}),
        ("GET", "/static/%2e%2e/index.html", {}),
        ("GET", "/static/js/", {}),
        ("GET", "//static/js/x.js", {}),
        ("GET", ADDRESS, {"range": "bytes=0-9"}),
        ("PUT", ADDRESS, {}),
    ],
)
def test_everything_else_is_handed_on(files: Files, method: str, path: str, headers: dict[str, str]) -> None:
    assert ask(files, path, method, **headers).content == b"handed on"


def test_the_page_is_asked_for_anew_and_names_what_its_view_draws(files: Files) -> None:
    plain = (FOLDER / "index.html").read_text(encoding="utf-8")
    answer = ask(files, "/?view=routes&run=x")
    assert answer.headers["cache-control"] == "no-cache"
    told = re.findall(r'<link rel="modulepreload" crossorigin href="\./(static/js/[^"]+)">', answer.text)
    assert len(told) == len(set(told))
    assert all((FOLDER / name).is_file() for name in told)
    for element in ("ArrowVegaLiteChart", "embed", "TextInput", "Selectbox"):
        assert any(name.startswith(f"static/js/{element}.") for name in told), f"Streamlit has no script {element}"
    without = re.sub(r" *<link rel=\"modulepreload\"[^>]*>\n| ", "", answer.text)
    assert without == re.sub(r" *<link rel=\"modulepreload\"[^>]*>\n| ", "", plain), "nothing but hints is added"
    again = ask(files, "/?view=routes", if_none_match=answer.headers["etag"])
    assert (again.status_code, again.content) == (304, b"")
    assert ask(files, "/?view=paths").headers["etag"] != answer.headers["etag"]
    assert ask(files, "/").content == ask(files, "/?view=home").content
    assert ask(files, "/?view=%00&view=..").status_code == 200


@pytest.mark.parametrize("view", list(VIEWS))
def test_what_a_view_needs_is_all_that_its_elements_import(files: Files, view: str) -> None:
    """Beside a walk of its own over the scripts on the disk."""
    folder = FOLDER / "static/js"

    def walk(name: str, seen: set[str]) -> set[str]:
        if name not in seen:
            seen.add(name)
            for words in re.findall(r'\b(?:from|import)\s*"\./([^"]+)"', (folder / name).read_text(errors="replace")):
                walk(words, seen)
        return seen

    elements = (*WIDGETS, *ELEMENTS.get(view, ()))
    wanted: set[str] = set()
    for element in elements:
        found = list(folder.glob(f"{element}.*.js"))
        assert found, f"Streamlit has no script {element}"
        for file in found:
            walk(file.name, wanted)
    assert set(files.needed(elements)) == wanted


def test_a_streamlit_without_these_files_serves_itself(tmp_path: Path) -> None:
    (tmp_path / "static" / "js").mkdir(parents=True)
    (tmp_path / "static" / "js" / "index.abc.js").write_text('import"./gone.js";')
    other = Files(tmp_path)
    assert ask(other, "/").content == b"handed on"
    (tmp_path / "index.html").write_text("<head><title>Streamlit</title></head>")
    assert ask(other, "/?view=routes").text == "<head><title>Streamlit</title>  </head>"
    assert other.needed(["index"]) == ["index.abc.js"]


def test_host_and_token_are_asked_for_before_any_file() -> None:
    """Of the application that is served, not of a list of it: a foreign host, then no token, then a file."""
    script = (
        "import os, sys; os.environ['TOKENPATHS_TOKEN'] = 'a-token'\n"
        "import httpx; from tests.support.coroutines import run_alone; from tokenpaths.frontend.asgi import app\n"
        "from streamlit import config; config.set_option('server.allowedHosts', ['page.test'])\n"
        "async def ask(host):\n"
        "    transport = httpx.ASGITransport(app._build_starlette_app())\n"
        "    async with httpx.AsyncClient(transport=transport, base_url='http://page.test') as browser:\n"
        f"        return (await browser.get({ADDRESS!r}, headers={{'host': host}})).status_code\n"
        "print([run_alone(ask(host)) for host in ('evil.test', 'page.test')])\n"
        "print([one.cls.__name__ for one in app._user_middleware])\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split("\n")[:2] == ["[400, 401]", "['Guard', 'Login', 'Ahead', 'CachedFiles']"], ran.stderr
