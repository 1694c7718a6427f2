"""Views in frames of other sites: who may frame what, and that nothing can be changed from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from streamlit import config
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import api_for
from tests.support.coroutines import run_alone
from tests.support.pages import showing
from tests.support.runs import make_run
from tokenpaths.backend.settings import load_settings
from tokenpaths.engine.base.errors import UserError
from tokenpaths.frontend.api.client import Client, Refused
from tokenpaths.frontend.page.selection import VIEWS
from tokenpaths.frontend.server.embedding import MOST_FIELDS, MOST_QUERY, asks_to_embed
from tokenpaths.frontend.server.guard import Guard
from tokenpaths.frontend.server.login import Login
from tokenpaths.web_origins import read_origins

ORIGINS = ("https://docs.example.com", "http://127.0.0.1:3000")
FRAME = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
VIEW = "/?embed=1&view=routes"
TOKEN = "a-token-of-the-tests"


@pytest.fixture(autouse=True)
def hosts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "show" not in request.fixturenames:
        monkeypatch.setattr(config, "get_option", lambda name: ["127.0.0.1"])


def ask(
    path: str, origins: tuple[str, ...] = ORIGINS, token: str = "", method: str = "GET", **headers: str
) -> httpx.Response:
    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": b"PAGE"})

    async def one() -> httpx.Response:
        app = Guard(Login(behind, token, origins), (), origins)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8501") as client:
            return await client.request(method, path, headers=headers)

    return run_alone(one())


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_named_site_frames_a_view_and_nothing_else(site: str) -> None:
    answer = ask(VIEW, **FRAME | {"sec-fetch-site": site})
    assert answer.text == "PAGE"
    assert "x-frame-options" not in answer.headers
    assert f"frame-ancestors {' '.join(ORIGINS)}" in answer.headers["content-security-policy"]
    for path in ("/", "/?view=routes", "/media/x.html?embed=1", "/_stcore/host-config?embed=1", "/login?embed=1"):
        assert ask(path, **FRAME).status_code == 403
    for other in ("object", "embed", "frame", "fencedframe", "image", "script", "empty", ""):
        assert ask(VIEW, **FRAME | {"sec-fetch-dest": other}).status_code == 403
    assert ask(VIEW, **FRAME | {"sec-fetch-mode": "no-cors"}).status_code == 403
    assert ask(VIEW, method="POST", **FRAME).status_code == 403


@pytest.mark.parametrize("path", ["/", "/?view=jobs", "/?embed=true", "/?embed=0", "/nowhere?embed=1"])
def test_every_other_answer_refuses_frames_as_before(path: str) -> None:
    answer = ask(path)
    assert answer.headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_by_default_nobody_may_frame_anything() -> None:
    assert ask(VIEW, (), **FRAME).status_code == 403
    answer = ask(VIEW, ())
    assert answer.headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "embed=true",
        "embed=01",
        "embed=",
        "Embed=1",
        "embed=1&embed=1",
        "embed=1&embed=true",
        "embed=1&EMBED=true",
        "view=routes&embed=2",
        "embed=1&q=" + "x" * MOST_QUERY,
        "embed=1" + "&a=1" * MOST_FIELDS,
        "aembed=1",
    ],
)
def test_only_one_plain_address_asks_for_a_frame(query: str) -> None:
    """Streamlit forgets an address of too many fields: the session would be the whole page, in a frame."""
    assert not asks_to_embed(query)
    assert ask(f"/?{query}", **FRAME).status_code == 403


def test_a_token_is_never_asked_for_in_a_frame() -> None:
    answer = ask(VIEW, token=TOKEN, **FRAME)
    assert answer.status_code == 401
    assert "<form" not in answer.text
    assert "<input" not in answer.text
    assert "window of its own" in answer.text
    assert f"frame-ancestors {' '.join(ORIGINS)}" in answer.headers["content-security-policy"]
    window = ask(VIEW, token=TOKEN, **FRAME | {"sec-fetch-dest": "document"})
    assert "<form" in window.text
    assert "frame-ancestors 'none'" in window.headers["content-security-policy"]


@pytest.mark.parametrize(
    "word",
    [
        "*",
        "https://*",
        "https://*.example.com",
        "docs.example.com",
        "https://docs.example.com/path",
        "https://docs.example.com?x",
        "https://user@docs.example.com",
        "https://docs.example.com:0",
        "https://docs.example.com:65536",
        "ftp://docs.example.com",
        "null",
        "'self'",
        "https://a;script-src",
        "https://a..b",
        "https://",
    ],
)
def test_what_is_no_origin_is_refused_in_a_sentence(word: str) -> None:
    with pytest.raises(ValueError, match="for example https://docs.example.com"):
        read_origins(f"https://fine.example.com {word}")
    with pytest.raises(UserError, match="embed_origins"):
        load_settings(embed_origins=word)


def test_origins_are_written_as_browsers_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENPATHS_EMBED_ORIGINS", "https://Docs.Example.com:443/, http://[::1]:80  http://a:8080")
    assert load_settings().embed_origins == ("https://docs.example.com", "http://[::1]", "http://a:8080")
    assert load_settings(embed_origins=("http://a", "http://b")).embed_origins == ("http://a", "http://b")


CHANGES: list[Callable[[Client], Any]] = [
    lambda client: client.delete("demo"),
    lambda client: client.trace("model", text="words"),
    lambda client: client.submit_job("dream", {}),
    lambda client: client.cancel_job("a"),
    lambda client: client.retry_job("a"),
    lambda client: client.remove_job("a"),
    lambda client: client.save_search("a", {}),
    lambda client: client.delete_search("a"),
    lambda client: client.put_into_inbox("a", b""),
    lambda client: client.save_name("a", "path:1"),
    lambda client: client.place_model("hf:a", "/b"),
    lambda client: client.put_into_series("a", "b", 1),
    lambda client: client.seal_received("a"),
    lambda client: client.import_names("a", {}),
    lambda client: client.delete_name("a", "path:1"),
]


def test_a_client_that_reads_sends_nothing_else() -> None:
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.method)
        return httpx.Response(200, json={"runs": [], "next": None})

    client = Client("http://api.test", transport=httpx.MockTransport(answer), reads_only=lambda: True)
    for change in CHANGES:
        with pytest.raises(Refused, match="starts, changes and deletes nothing"):
            change(client)
    assert sent == []
    assert client.runs() == []
    assert sent == ["GET"]
    own = {name for name, value in vars(Client).items() if callable(value) and not name.startswith("_")}
    reading = {"runs", "ask", "image", "export", "report", "export_url", "compare", "same_groups", "models", "model"}
    reading |= {"jobs", "problems", "job", "artifact", "searches", "names", "export_names", "compare_runs"}
    reading |= {"compare_load", "received", "agreement", "sample_agreement"}
    changing = {name for change in CHANGES for name in change.__code__.co_names}
    assert own == reading | changing, "a new call of the client reads, or stands in CHANGES"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir = tmp_path_factory.mktemp("embedded")
    make_run(data_dir / "runs", "pictures", samples=9, seed=1)
    make_run(data_dir / "runs", "texts", "text", samples=6, seed=2)
    with api_for(data_dir) as served:
        yield str(served.client.base_url).rstrip("/")


@pytest.fixture
def show(api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AppTest]]:
    with showing(api, monkeypatch) as draw:
        yield draw


ACTS = ("Dream", "Run it", "Trace", "Import", "Cancel", "Remove", "Save", "Draw it by t-SNE", "Ask at each", "Forget")


def labels(page: AppTest) -> list[str]:
    return [element.label for element in page.button]


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_drawn_alone_and_offers_nothing_that_changes(show: Callable[..., AppTest], view: str) -> None:
    page = show(view=view, run="pictures", embed=1)
    assert [error.value for error in page.error] == []
    assert not any(label.startswith(ACTS) for label in labels(page)), labels(page)
    assert not any(label.startswith("run") for label in labels(page))
    assert not page.get("file_uploader")
    assert not [text.value for text in page.markdown if "frame" in text.value], "a docstring of the script"
    assert "in_view" not in page.session_state, "the navigation"
    html = " ".join(str(element.proto.body) for element in page.get("html"))
    assert "tp-brand" not in html.replace(".tp-brand", "")
    assert 'stHeader"], footer { display: none' in html


def test_the_same_view_offers_it_in_a_window(show: Callable[..., AppTest]) -> None:
    assert "Draw it by t-SNE" in labels(show(view="samples", run="pictures"))


def test_a_session_in_a_frame_stays_one_whatever_its_address_becomes(show: Callable[..., AppTest]) -> None:
    page = show(view="routes", run="pictures", embed=1)
    page.query_params.clear()
    page.query_params["view"] = "jobs"
    page.run()
    assert page.session_state["embedded"]
    assert "starts work" in page.info[0].value
    assert not labels(page)


def test_controls_in_the_address_start_no_work_in_a_frame(show: Callable[..., AppTest]) -> None:
    """The site that frames a view writes its address; elsewhere this one would trace the sample again."""
    page = show(view="change", run="pictures", sample=0, controls="ban:0.1", embed=1)
    assert "starts work" in page.info[0].value
