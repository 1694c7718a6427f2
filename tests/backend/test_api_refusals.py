"""What is refused, and how: always a problem that names what was wrong."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.backend.conftest import API, Served, problem, raw


@pytest.mark.parametrize(
    ("path", "field", "hint"),
    [
        ("/runs?limt=3", "limt", "`limit`"),
        ("/runs/vision/flow?lable=circle", "lable", "`label`"),
        ("/runs/vision/flow?min-share=0.1", "min-share", "`min_share`"),
        ("/runs/vision/paths?ordr=rank", "ordr", "`order`"),
        ("/runs/vision?x=1", "x", "allowed: `labels`"),
        ("/runs/vision/samples/0?token=1", "token", "allowed: `labels`"),
        ("/runs/vision/samples?limit=1&limit=2", "limit", "twice"),
        ("/models?q=a", "q", "none is allowed"),
        ("/runs/vision/export/path.csv?limit=1", "limit", "none is allowed"),
    ],
)
def test_unknown_key_is_refused_with_the_nearest(api: Served, path: str, field: str, hint: str) -> None:
    assert hint in problem(api.get(path), 422, field)["detail"]


def test_every_route_refuses_unknown_keys(api: Served) -> None:
    schema = api.client.get("/openapi.json").json()
    for path, methods in schema["paths"].items():
        address = path.replace("{run}", "vision").replace("{rank}", "1").replace("{sample}", "0")
        address = address.replace("{measure}", "compute").replace("{table}", "path").replace("{format}", "csv")
        for method in methods:
            problem(api.client.request(method, address, params={"surprise": "1"}), 422, "surprise")
    assert (api.runs_dir / "vision.duckdb").exists()


def test_every_route_refuses_a_query_that_is_no_utf8(api: Served) -> None:
    """Half a character was asked for as U+FFFD before, and found what nobody had asked for."""
    schema = api.client.get("/openapi.json").json()
    for path, methods in schema["paths"].items():
        address = path.replace("{run}", "vision").replace("{rank}", "1").replace("{sample}", "0")
        for method in methods:
            said = problem(api.client.request(method, f"{address}?a=%C3%A9&label=%ff"), 422, "label")["detail"]
            assert "no UTF-8" in said, address
    assert (api.runs_dir / "vision.duckdb").exists()


@pytest.mark.parametrize("text", ["%ff", "a%C3", "%ed%a0%80", "%C3+%A9", "%c0%af", "a%ff%26label=circle"])
def test_text_that_is_no_utf8_is_refused_by_its_key(api: Served, text: str) -> None:
    problem(api.get(f"/runs/vision/samples?q={text}"), 422, "q")
    problem(api.get(f"/runs/vision/samples?{text}=1"), 422)


def test_text_of_any_language_is_asked_for_as_it_is(api: Served) -> None:
    for text in ("é", "%", "%25ff", "中文", "🜁", "a+b", "\ufffd"):
        assert api.get(f"/runs/vision/samples?q={quote(text)}").json()["samples"] == []
    host = f"Host: 127.0.0.1:{api.client.base_url.port}"
    answer = raw(api, f"GET {API}/runs?limit=é HTTP/1.1\r\n{host}\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith((b"HTTP/1.1 422", b"HTTP/1.1 400"))


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/runs?limit=0", "limit"),
        ("/runs?limit=1001", "limit"),
        ("/runs?limit=ten", "limit"),
        ("/runs/vision/flow?limit=2001", "limit"),
        ("/runs/vision/flow?min_share=2", "min_share"),
        ("/runs/vision/flow?min_share=nan", "min_share"),
        ("/runs/vision/flow?steps=5", "steps"),
        ("/runs/vision/flow?steps=3:1", "steps"),
        ("/runs/vision/flow?steps=0:99", "steps"),
        ("/runs/vision/flow?paths=0", "paths"),
        ("/runs/vision/flow?paths=1;2", "paths"),
        ("/runs/vision/flow?paths=999999", "paths"),
        ("/runs/vision/flow?through=1", "through"),
        ("/runs/vision/flow?through=9.9", "through"),
        ("/runs/vision/flow?label=nothing", "label"),
        ("/runs/vision/paths?order=size", "order"),
        ("/runs/vision/paths?limit=-1", "limit"),
        ("/runs/vision/paths/0/examples", "rank"),
        ("/runs/vision/paths/x/examples", "rank"),
        ("/runs/vision/paths/1/examples?limit=201", "limit"),
        ("/runs/vision/paths/1/examples?seed=-1", "seed"),
        ("/runs/vision/samples?order=text", "order"),
        ("/runs/vision/samples?descending=perhaps", "descending"),
        ("/runs/vision/samples/-1", "sample"),
        ("/runs/vision/samples/99999999999999999999", "sample"),
        ("/runs/vision/distributions/size", "measure"),
        ("/runs/vision/distributions/compute?per=path", "per"),
        ("/runs/vision/distributions/compute?bins=0", "bins"),
        ("/runs/vision/distributions/loss?per=token", "measure"),
        ("/runs/vision/export/path.xml", "format"),
    ],
)
def test_wrong_values_name_the_field(api: Served, path: str, field: str) -> None:
    problem(api.get(path), 422, field)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/runs/visoin", "run"),
        ("/runs/visoin/flow", "run"),
        ("/runs/vision/paths/999999/examples", "rank"),
        ("/runs/vision/samples/30", "sample"),
        ("/runs/vision/samples/30/image", "sample"),
        ("/runs/vision/export/secrets.csv", "table"),
        ("/runs/vision/export/path%0aSet-Cookie.csv", "table"),
    ],
)
def test_missing_things_are_404(api: Served, path: str, field: str) -> None:
    problem(api.get(path), 404, field)


def test_a_near_miss_names_the_right_run(api: Served) -> None:
    assert "did you mean `vision`" in problem(api.get("/runs/visoin"), 404)["detail"]


def test_what_is_missing_is_named_in_words(api: Served) -> None:
    said = problem(api.get("/compare?a=vision"), 422, "b")["detail"]
    assert said == "`b` is missing: give `a` and `b`, or any number of runs as `runs`."


@pytest.mark.parametrize("path", ["/", "/api", f"{API}", f"{API}/run", f"{API}/runs/", f"{API}/job", "/robots.txt"])
def test_unknown_addresses(api: Served, path: str) -> None:
    problem(api.client.get(path), 404)


def test_wrong_method_says_what_is_possible(api: Served) -> None:
    answer = api.client.post(f"{API}/runs")
    assert "GET" in problem(answer, 405)["detail"]
    assert answer.headers["allow"] == "GET, HEAD"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_any_text_as_a_filter(api: Served, text: str) -> None:
    """Bound parameters: whatever is typed finds rows or is refused, and never breaks anything."""
    word = quote(text, errors="surrogatepass")
    for path in (f"/runs/vision/samples?q={word}", f"/runs/vision/flow?label={word}"):
        answer = api.get(path)
        assert answer.status_code in (200, 422), (text, answer.text)
        if answer.status_code == 422:
            problem(answer, 422)


@pytest.mark.parametrize("text", ["'; DROP TABLE token; --", "%", "_", "\\", "circle\x00", "\u202e", "<script>"])
def test_hostile_search_finds_nothing(api: Served, text: str) -> None:
    answer = api.get("/runs/vision/samples", params={"q": text})
    assert answer.status_code in (200, 422)
    if answer.status_code == 200 and text not in ("_",):
        assert answer.json()["total"] == 0


def test_an_unforeseen_error_is_a_bare_500(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenpaths.engine.store.ask.run import Run

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the house")

    monkeypatch.setattr(Run, "usage", broken)
    answer = api.get("/runs/vision/usage?label=square")
    problem(answer, 500)
    assert "secret of the house" not in answer.text
    assert api.get("/runs/vision/flow").status_code == 200
