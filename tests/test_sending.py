"""The client of the receiver: what it takes for an answer, what it tries again, and what it raises."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import tokenpaths
from tokenpaths.engine.base.errors import UserError
from tokenpaths.sending import lines

TAKEN = json.dumps({"run": "live", "received": 1}).encode()


@contextmanager
def server(*replies: tuple[int, dict[str, str], bytes]) -> Iterator[tuple[str, list[str]]]:
    """A server that gives these replies one after the other, and the last again; yields its address and what came."""
    came: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.reply()

        def do_GET(self) -> None:
            self.reply()

        def reply(self) -> None:
            status, headers, body = replies[min(len(came), len(replies) - 1)]
            came.append(f"{self.command} {self.path}")
            self.send_response(status)
            for name, value in ({"content-length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}", came
        finally:
            served.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenpaths.sending.FIRST_PAUSE_S", 0.0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    log = json.dumps({"run": "live", "responses": 0, "received": 0}).encode()
    with (
        server((status, {"location": "/elsewhere"}, b""), (200, {}, log)) as (url, came),
        pytest.raises(UserError, match="sends its callers to /elsewhere"),
    ):
        tokenpaths.send({}, run="live", url=url)
    assert came == ["POST /api/v1/logs/live"]


def test_a_reply_that_is_cut_off_is_asked_for_again() -> None:
    with server((200, {"content-length": "1000"}, b"{"), (200, {}, TAKEN)) as (url, came):
        assert tokenpaths.send({}, run="live", url=url)["received"] == 1
    assert len(came) == 2
    with (
        server((200, {"content-length": "1000"}, b"{")) as (url, came),
        pytest.raises(UserError, match="nobody takes responses"),
    ):
        tokenpaths.send({}, run="live", url=url)
    assert len(came) == 4


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"run": "live", "responses": 3}'])
def test_a_reply_of_something_else_is_no_success(body: bytes) -> None:
    with server((200, {}, body)) as (url, _), pytest.raises(UserError, match="something else than Tokenpaths answers"):
        tokenpaths.send({}, run="live", url=url)


def test_this_machine_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with server((200, {}, TAKEN)) as (url, _):
        assert tokenpaths.send({}, run="live", url=url)["received"] == 1


def test_what_cannot_be_sent_is_a_sentence() -> None:
    with pytest.raises(UserError, match="is no address"):
        tokenpaths.send({}, run="live", url="localhost")
    with pytest.raises(UserError, match="^the answer cannot be written as JSON"):
        tokenpaths.send({"a": {1}}, run="live")
    with server((200, {}, TAKEN)) as (url, _), pytest.raises(UserError, match="token"):
        tokenpaths.send({}, run="live", url=url, token="\u2014")


class Unread:
    """As a response of httpx whose body is a stream."""

    @property
    def content(self) -> bytes:
        raise RuntimeError("the body was not read")


class Broken:
    def model_dump(self, mode: str) -> object:
        raise ValueError("no dump")


ODD: dict[str, tuple[object, dict[str, object], str]] = {
    "unread": (Unread(), {}, "is a Unread that cannot be read \\(the body was not read\\)"),
    "broken": (Broken(), {}, "is a Broken that cannot be read \\(no dump\\)"),
    "surrogate": ({}, {"run": "\ud800"}, r"the run '\\ud800' holds characters"),
    "number": ({}, {"run": 3}, "run is a int, it should be a text"),
    "address": ({}, {"url": "http://127.0.0.1:1/ü"}, r"the url 'http://127.0.0.1:1/\\xfc' holds characters"),
    "no address": ({}, {"url": "http://[::1"}, "is no address of an API"),
    "address of bytes": ({}, {"url": b"http://127.0.0.1"}, "url is a bytes"),
    "token": ({}, {"token": "a\nb"}, "the token holds characters"),
    "time": ({}, {"timeout_s": -1}, "timeout_s is -1, it should be above 0"),
    "endless": ({}, {"timeout_s": 1e300}, "timeout_s is 1e\\+300, it should be above 0"),
    "not a time": ({}, {"timeout_s": None}, "timeout_s is None, it should be above 0"),
    "layers": ({}, {"layers": "\ud800"}, "layers is .*, it should be a whole number"),
}


@pytest.mark.parametrize("case", ODD)
def test_whatever_is_odd_is_said_by_its_name(case: str) -> None:
    answer, changes, words = ODD[case]
    with server((200, {}, TAKEN)) as (url, came), pytest.raises(UserError, match=words):
        tokenpaths.send(answer, **{"run": "live", "url": url, **changes})
    assert came == []


def test_json_lines_and_events_are_passed_as_they_are() -> None:
    assert lines('{"id": "a"}\r\n\n{"id": "b"}\n') == b'{"id": "a"}\n{"id": "b"}\n'
    assert lines(b'{"id": "a"}\n{"id"') == b'{"id": "a"}\n{"id"\n'
    events = 'event: x\ndata: {"id": "a"}\n\ndata: [DONE]\n\n'
    sent = b'event: x\ndata: {"id": "a"}\ndata: [DONE]\n'
    assert lines(events) == sent
    assert lines([{"id": "b"}, events]) == sent + b'{"id": "b"}\n'


def test_an_answer_over_several_lines_is_one() -> None:
    assert lines('{"id":\r\n "a"}\r\n') == b'{"id":  "a"}\n'
    assert lines(b'{"id":\r"a"}').count(b"\r") == 0
