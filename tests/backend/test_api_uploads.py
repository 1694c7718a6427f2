"""Forms from strangers: caps while streaming, broken multipart, clients that stall. No worker is needed here."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.backend.conftest import API, Serve, Served, png, problem, raw

FILE = {"image": ("a.png", png(), "image/png")}
MEGABYTE = 1_000_000
BOUNDARY = "b0undary"


def part(name: str, value: bytes, *, file_name: str | None = None) -> bytes:
    """One part of a form."""
    extra = f'; filename="{file_name}"' if file_name else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def form(*parts: bytes, end: bool = True) -> bytes:
    return b"".join(parts) + (f"--{BOUNDARY}--\r\n".encode() if end else b"")


def post(served: Served, body: bytes | Iterator[bytes], **headers: str) -> httpx.Response:
    """POST /traces with exactly this body."""
    kind = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    return served.client.post(f"{API}/traces", content=body, headers=kind | headers)


def test_declared_size_is_refused(serve: Serve) -> None:
    served = serve(max_upload_megabytes=1)
    big = form(part("model", b"m"), part("image", b"x" * (2 * MEGABYTE), file_name="a.png"))
    assert "1 MB" in problem(post(served, big), 413)["detail"]


def test_chunked_size_is_refused(serve: Serve) -> None:
    """Without Content-Length the cap holds while the body streams."""
    served = serve(max_upload_megabytes=1)

    def chunks() -> Iterator[bytes]:
        yield part("model", b"m") + part("image", b"", file_name="a.png")[:-2]
        for _ in range(20):
            yield b"x" * 100_000

    problem(post(served, chunks()), 413)


def test_just_below_the_cap_is_received(serve: Serve) -> None:
    """Past the cap check, the worker is asked, which is away in this test."""
    served = serve(max_upload_megabytes=1)
    body = form(part("model", b"m"), part("image", b"x" * MEGABYTE, file_name="a.png"))
    assert problem(post(served, body), 503)["type"] == "urn:tokenpaths:worker-away"


def test_long_text_is_refused(serve: Serve) -> None:
    served = serve(max_text_kilobytes=1)
    body = form(part("model", b"m"), part("text", b"word " * 300))
    problem(post(served, body), 413, "text")


@pytest.mark.parametrize(
    ("parts", "status", "field"),
    [
        ([], 422, "model"),
        ([part("model", b"")], 422, "model"),
        ([part("image", png())], 422, "model"),
        ([part("model", b"m")], 422, "image"),
        ([part("model", b"m"), part("image", png()), part("text", b"x")], 422, "image"),
        ([part("model", b"m"), part("image", b"")], 422, "image"),
        ([part("model", b"m"), part("text", b"")], 422, "text"),
        ([part("model", b"m"), part("text", b" \n\t ")], 422, "text"),
        ([part("model", b"m"), part("text", b"\xed\xa0\x80 lone surrogate")], 422, "text"),
        ([part("model", b"m"), part("text", b"\xff\xfe")], 422, "text"),
        ([part("model", b"m"), part("text", "café".encode("latin-1"))], 422, "text"),
        ([part("model", b"m"), part("model", b"m"), part("text", b"x")], 422, "model"),
        ([part("model", b"m"), part("txt", b"x")], 422, "txt"),
        ([part("model", b"m"), part("url", b"http://evil.example/x.png")], 422, "url"),
        ([part("model", b"../../etc/passwd"), part("text", b"x")], 422, "model"),
        ([part("model", b"http://evil.example/m"), part("text", b"x")], 422, "model"),
        ([part("model", b"m\n"), part("text", b"x")], 422, "model"),
        ([part("model", b"x" * 10_000), part("text", b"x")], 422, "model"),
        ([part("model", b"\xff\xff"), part("text", b"x")], 422, "model"),
    ],
)
def test_wrong_forms_name_the_field(api: Served, parts: list[bytes], status: int, field: str) -> None:
    problem(post(api, form(*parts)), status, field)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing of the kind",
        form(part("model", b"m"), part("text", b"x"), end=False),
        form(part("model", b"m"), part("text", b"x"))[:-20],
        b"--other--\r\n",
        b"--" + BOUNDARY.encode() + b"\r\nContent-Disposition: form-data\r\n\r\nx\r\n",
        b"--" + BOUNDARY.encode() + b"\r\n" + b"A: b\r\n" * 500 + b"\r\n",
        b"--" + BOUNDARY.encode() + b"\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
def test_broken_multipart(api: Served, body: bytes) -> None:
    answer = post(api, body)
    assert answer.status_code in (400, 422)
    problem(answer, answer.status_code)


@pytest.mark.parametrize(
    "kind", ["application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/mixed; boundary=x", ""]
)
def test_other_media_types(api: Served, kind: str) -> None:
    problem(api.client.post(f"{API}/traces", content=b"{}", headers={"content-type": kind}), 415, "Content-Type")


@pytest.mark.parametrize("kind", ["multipart/form-data", f"multipart/form-data; boundary={'b' * 2000}"])
def test_no_usable_boundary(api: Served, kind: str) -> None:
    problem(api.client.post(f"{API}/traces", content=b"x", headers={"content-type": kind}), 400, "Content-Type")


def test_a_client_that_stalls_is_dropped(serve: Serve) -> None:
    """It promised 1 000 bytes and sent a few: it gets 408 and the connection closes."""
    served = serve(upload_stall_seconds=0.2, upload_slots=1)
    request = (
        f"POST {API}/traces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n--{BOUNDARY}\r\n"
    )
    answer = raw(served, request.encode(), timeout=20)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"urn:tokenpaths:upload-stalled" in answer
    problem(post(served, form(part("model", b"m"))), 422)  # the one slot is free again


def test_a_client_that_drips_is_dropped(serve: Serve) -> None:
    """A byte now and then beats the stall limit, not the limit of the whole upload."""
    served = serve(upload_stall_seconds=5, upload_seconds=0.5)
    head = (
        f"POST {API}/traces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    url = served.client.base_url
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        connection.sendall(head.encode())
        dripped = part("model", b"m" * 100)
        for i in range(100):
            try:
                connection.sendall(dripped[i : i + 1])
            except OSError:
                break
            time.sleep(0.02)
            connection.setblocking(False)
            try:
                answer = connection.recv(1000)
                break
            except BlockingIOError:
                answer = b""
            finally:
                connection.setblocking(True)
    assert b" 408 " in answer or answer == b""


def test_a_client_that_leaves_frees_its_place(serve: Serve) -> None:
    served = serve(upload_slots=1)
    head = (
        f"POST {API}/traces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n--b"
    )
    url = served.client.base_url
    for _ in range(3):
        with socket.create_connection((url.host, url.port)) as connection:
            connection.sendall(head.encode())
    problem(post(served, form(part("model", b"m"))), 422)


def test_worker_away_is_a_problem(api: Served) -> None:
    """Nobody listens where the worker should be: tracing says so, reading goes on."""
    answer = api.client.post(f"{API}/traces", data={"model": "m"}, files=FILE)
    assert problem(answer, 503)["type"] == "urn:tokenpaths:worker-away"
    assert int(answer.headers["retry-after"]) > 0
    problem(api.get("/models"), 503)
    problem(api.get("/models/m"), 503)
    assert api.get("/runs").status_code == 200


def test_uploads_that_wait_for_the_worker_are_bounded(serve: Serve) -> None:
    """Each is in memory until the worker has answered; one more is not read at all."""
    body = form(part("model", b"m"), part("image", b"x" * MEGABYTE, file_name="a.png"))
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(2) as pool:
        served = serve(
            worker_url=f"http://127.0.0.1:{silent.getsockname()[1]}",
            trace_seconds=30,
            trace_queue_length=1,
            query_wait_seconds=0.2,
        )
        services = served.app.state.services
        waiting = [pool.submit(post, served, body) for _ in range(2)]
        ends = time.monotonic() + 20
        while not (services.trace_limit.semaphore.locked() and services.upload_limit.semaphore._value == 4):
            assert time.monotonic() < ends
            time.sleep(0.01)
        answer = post(served, body)
        assert "other traces (2 at a time)" in problem(answer, 503)["detail"]
        assert answer.headers["retry-after"]
        assert served.get("/runs").status_code == 200
        for _ in waiting:  # a worker that hangs up
            silent.accept()[0].close()
        for one in waiting:
            assert problem(one.result(), 503)["type"] == "urn:tokenpaths:worker-away"
    assert services.trace_limit.semaphore._value == 2


def test_a_list_of_models_does_not_wait_as_long_as_a_trace(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is just starting takes connections and answers later."""
    monkeypatch.setattr("tokenpaths.backend.worker.client.LIST_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        served = serve(worker_url=f"http://127.0.0.1:{silent.getsockname()[1]}", trace_seconds=600)
        for path in ("/models", "/models/m"):
            found = problem(served.get(path), 503)
            assert found["type"] == "urn:tokenpaths:worker-slow"
            assert "is starting" in found["detail"]
        assert served.get("/runs").status_code == 200
