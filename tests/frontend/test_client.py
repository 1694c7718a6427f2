"""Every failure of the API becomes a sentence with something to do; answers are kept by ETag."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from tokenpaths.frontend.api.client import ApiError, Client, Down, NotFound, Refused


def client(answer, **options) -> Client:
    """A client whose every request is given to ``answer``."""
    return Client("http://api.test", options.get("token", ""), transport=httpx.MockTransport(answer))


def problem(status: int, detail: str | None = None, **headers: str) -> httpx.Response:
    body = {"type": "about:blank", "title": "Title", "status": status} | ({"detail": detail} if detail else {})
    return httpx.Response(
        status, text=json.dumps(body), headers={"content-type": "application/problem+json", **headers}
    )


@pytest.mark.parametrize(
    ("status", "kind", "todo"),
    [
        (401, Refused, "TOKENPATHS_TOKEN"),
        (403, Refused, "TOKENPATHS_TOKEN"),
        (404, NotFound, "Home"),
        (413, Refused, ""),
        (415, Refused, ""),
        (422, Refused, ""),
        (429, ApiError, "again"),
        (500, ApiError, "log"),
        (503, ApiError, "again"),
        (507, ApiError, "space"),
        (307, ApiError, ""),
    ],
)
def test_every_status_is_a_sentence(status, kind, todo):
    with pytest.raises(kind) as told:
        client(lambda request: problem(status, "What was wrong, and what is right.")).runs()
    assert told.value.sentence == "What was wrong, and what is right."
    assert told.value.status == status
    assert todo in told.value.todo


@pytest.mark.parametrize(
    ("status", "given", "kept"),
    [
        (409, "0a1b2c3d4e5f", "0a1b2c3d4e5f"),
        (500, "0a1b2c3d4e5f", "0a1b2c3d4e5f"),
        (409, "**bold**", ""),
        (503, "0a1b2c3d4e5f", ""),
        (429, "0a1b2c3d4e5f", ""),
    ],
)
def test_an_error_knows_the_line_of_the_log_where_there_is_one(status, given, kept):
    with pytest.raises(ApiError) as told:
        client(lambda request: problem(status, "It was wrong.", **{"x-request-id": given})).runs()
    assert told.value.request == kept


@pytest.mark.parametrize("body", ["", "<html>502 Bad Gateway</html>", "[1, 2]", "null", '{"detail": null}'])
@pytest.mark.parametrize("status", [404, 422, 500, 502])
def test_an_error_without_a_sentence_gets_one(status, body):
    with pytest.raises(ApiError) as told:
        client(lambda request: httpx.Response(status, text=body)).ask("demo", "")
    assert len(told.value.sentence) > 15
    assert "Traceback" not in told.value.sentence


@pytest.mark.parametrize("body", ["", "hello", "[]", "<html></html>", "12"])
def test_something_else_at_the_address_is_recognised(body):
    with pytest.raises(ApiError, match="JSON|not understand|does not speak"):
        client(lambda request: httpx.Response(200, text=body)).ask("demo", "")


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError,
        httpx.ConnectTimeout,
        httpx.ReadTimeout,
        httpx.RemoteProtocolError,
        httpx.ReadError,
        httpx.WriteError,
        httpx.PoolTimeout,
    ],
)
def test_no_exception_of_the_transport_comes_through(error):
    def fail(request):
        raise error("boom")

    with pytest.raises(ApiError) as told:
        client(fail).trace("m", text="hello")
    assert "boom" not in told.value.sentence
    assert told.value.todo


def test_nobody_at_the_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(Down, match="does not answer") as told:
        Client(url, "").runs()
    assert "tokenpaths up" in told.value.todo


@pytest.mark.parametrize("url", ["not a url", "http://[", "ftp://x", "http://:99999"])
def test_an_address_that_is_none(url):
    with pytest.raises(ApiError):
        Client(url, "").runs()


def test_answers_are_kept_by_etag_and_asked_for_again():
    seen = []

    def answer(request):
        seen.append(request.headers.get("if-none-match"))
        return (
            httpx.Response(304)
            if seen[-1] == '"1"'
            else httpx.Response(200, json={"run": "demo"}, headers={"etag": '"1"'})
        )

    api = client(answer)
    assert api.ask("demo", "") == api.ask("demo", "") == {"run": "demo"}
    assert seen == [None, '"1"']


def test_a_deleted_run_is_not_served_from_what_was_kept():
    answers = [
        httpx.Response(200, json={"run": "demo"}, headers={"etag": '"1"'}),
        problem(404, "There is no run `demo`."),
    ]
    api = client(lambda request: answers.pop(0))
    api.ask("demo", "")
    with pytest.raises(NotFound, match="no run"):
        api.ask("demo", "")


def test_pages_are_joined_up_to_what_was_asked():
    def answer(request):
        query = dict(request.url.params)
        start, limit = int(query.get("next", 0)), int(query["limit"])
        rows = [{"sample": i} for i in range(start, min(start + limit, 1200))]
        return httpx.Response(
            200, json={"samples": rows, "total": 1200, "next": str(start + limit) if start + limit < 1200 else None}
        )

    assert [row["sample"] for row in client(answer).ask("demo", "samples", most=1100)["samples"]] == list(range(1100))
    assert len(client(answer).ask("demo", "samples", most=5000)["samples"]) == 1200


def test_empty_filters_are_not_sent_and_full_ones_are():
    seen = {}

    def answer(request):
        seen.update(request.url.params)
        return httpx.Response(200, json={})

    client(answer).ask("demo", "flow", label=None, through=("2.7", "3.4"), paths=(), steps="0:5", min_share=None)
    assert seen == {"through": "2.7,3.4", "steps": "0:5"}


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a?b#c", "", "é", "\ud800", "a%2fb"])
def test_an_odd_name_stays_one_segment(name):
    seen = []

    def answer(request):
        seen.append(request.url.raw_path.decode())
        return problem(404, "no")

    with pytest.raises(NotFound):
        client(answer).ask(name, "")
    assert seen[0].startswith("/api/v1/runs/")
    assert "/" not in seen[0].removeprefix("/api/v1/runs/")
    assert "?" not in seen[0]


def test_the_token_goes_along_and_uploads_are_multipart():
    def answer(request):
        assert request.headers["authorization"] == "Bearer secret"
        assert b'name="model"' in request.content
        assert b"PNGDATA" in request.content
        return httpx.Response(201, json={"run": "r", "sample": 0})

    assert client(answer, token="secret").trace("m", image=("a.png", b"PNGDATA"))["run"] == "r"


def test_lone_surrogates_do_not_break_the_question():
    assert client(lambda request: httpx.Response(201, json={"run": "r"})).trace("m", text="a\ud800b")["run"] == "r"
