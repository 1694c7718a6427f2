"""What paths know, what is specific, searched tokens and saved searches, over a real server."""

from __future__ import annotations

import json

import pytest

from tests.backend.conftest import API, Serve, Served, problem
from tokenpaths.engine.store.ask.run import Run


def test_search_answers_as_the_run_does(api: Served) -> None:
    with Run.open(api.runs_dir / "text.duckdb") as run:
        for query, asked in (
            ({"q": "the"}, {"q": "the"}),
            ({"kind": "punctuation", "reading": "token", "limit": 3}, {"kind": "punctuation", "reading": "token"}),
            (
                {"label": "code", "ranks": "1:5", "compute": "0:.9", "through": "0.1"},
                {"label": "code", "ranks": (1, 5), "compute": (0.0, 0.9), "through": ((0, 1),)},
            ),
        ):
            told = api.get("/runs/text/tokens/search", params=query)
            assert told.status_code == 200, told.text
            expected = run.search_tokens(**asked, limit=query.get("limit", 20))
            assert told.json()["found"] == expected["found"]
            assert [p["rank"] for p in told.json()["paths"]] == [p["rank"] for p in expected["paths"]]
            assert told.json()["modules"] == json.loads(json.dumps(expected["modules"]))
        assert api.get("/runs/text/paths/knowledge").json() == json.loads(json.dumps(run.knowledge()))
        assert api.get("/runs/text/specific", params={"of": "module", "least": 5}).json()["rows"] == json.loads(
            json.dumps(run.specific("module", least=5)["rows"])
        )


def test_answers_have_an_etag(api: Served) -> None:
    for path in ("/runs/text/paths/knowledge", "/runs/text/specific", "/runs/text/tokens/search?q=the"):
        first = api.get(path)
        again = api.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (first.status_code, again.status_code) == (200, 304)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"q": "x" * 10_000}, "q"),
        ({"q": "*"}, "q"),
        ({"q": "two words"}, "q"),
        ({"kind": "verb"}, "kind"),
        ({"reading": "letters"}, "reading"),
        ({"ranks": "5"}, "ranks"),
        ({"ranks": "5:1"}, "ranks"),
        ({"ranks": "1:9999999999"}, "ranks"),
        ({"compute": "a:b"}, "compute"),
        ({"compute": "0:7"}, "compute"),
        ({"reuse": "nan:1"}, "reuse"),
        ({"label": "nobody"}, "label"),
        ({"through": "0"}, "through"),
        ({"paths": "0"}, "paths"),
        ({"limit": "101"}, "limit"),
        ({"examples": "-1"}, "examples"),
        ({"word": "a"}, "word"),
    ],
)
def test_bad_questions_are_refused_by_name(api: Served, query: dict[str, str], field: str) -> None:
    told = problem(api.get("/runs/text/tokens/search", params=query), 422, field)
    assert len(told["detail"]) < 400


def test_images_have_no_words(api: Served) -> None:
    assert "no words" in problem(api.get("/runs/vision/tokens/search?q=the"), 422, "q")["detail"]
    found = api.get("/runs/vision/tokens/search?ranks=1:2&examples=2").json()
    assert found["examples"][0]["patch"].startswith("data:image/png")


def test_a_search_is_saved_listed_replaced_and_deleted(serve: Serve) -> None:
    served = serve()
    address = API + "/searches/plural-nouns"
    assert served.get("/searches").json() == {"searches": []}
    query = {"view": "paths", "run": "text", "kind": "ends_in_s", "label": "naïve 東京"}
    first = served.client.put(address, json={"query": query})
    assert first.status_code == 201, first.text
    assert first.json()["query"] == query
    assert served.client.put(address, json={"query": {"view": "routes"}}).status_code == 200
    assert served.get("/searches/plural-nouns").json()["query"] == {"view": "routes"}
    served.client.put(API + "/searches/another", json={"query": query})
    (served.settings.data_dir / "searches" / "broken.json").write_text("{")
    assert [row["name"] for row in served.get("/searches").json()["searches"]] == ["another", "plural-nouns"]
    assert served.client.delete(address).status_code == 204
    problem(served.client.delete(address), 404, "name")
    problem(served.get("/searches/plural-nouns"), 404, "name")


@pytest.mark.parametrize(
    ("name", "body", "status", "field"),
    [
        ("..%2Fx", {"query": {"a": "b"}}, 404, None),
        (".hidden", {"query": {"a": "b"}}, 422, "name"),
        ("x" * 65, {"query": {"a": "b"}}, 422, "name"),
        ("con", {"query": {"a": "b"}}, 422, "name"),
        ("a", {}, 422, "query"),
        ("a", {"query": {}}, 422, "query"),
        ("a", {"query": {"a": 1}}, 422, "query"),
        ("a", {"query": {"A-": "b"}}, 422, "query"),
        ("a", {"query": {"a": "b"}, "more": 1}, 422, "query"),
        ("a", {"query": {"a": "b" * 2_000_000}}, 413, None),
        ("a", [], 422, "query"),
    ],
)
def test_what_cannot_be_saved_is_refused(serve: Serve, name: str, body: object, status: int, field: str | None) -> None:
    served = serve()
    problem(served.client.put(f"{API}/searches/{name}", json=body), status, field)
    assert served.get("/searches").json() == {"searches": []}


def test_a_search_needs_json_and_no_other_site(serve: Serve) -> None:
    served = serve()
    address = API + "/searches/a"
    problem(served.client.put(address, content=b"query=1"), 415, "Content-Type")
    problem(served.client.put(address, content=b"{", headers={"content-type": "application/json"}), 422, "body")
    lone = b'{"query": {"q": "\\ud800"}}'
    problem(served.client.put(address, content=lone, headers={"content-type": "application/json"}), 422, "body")
    problem(served.client.put(address, json={"query": {"a": "b"}}, headers={"origin": "http://evil.example"}), 403)
