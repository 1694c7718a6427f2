"""Answers that skip the routes are the answers of the routes; heads of requests have an end."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.backend.conftest import API, TOKEN, Serve, Served, problem, raw
from tests.support.coroutines import run_alone
from tests.support.runs import make_run
from tokenpaths.backend.http.concurrency import ConcurrencyLimit
from tokenpaths.backend.http.connections import HEAD_BYTES
from tokenpaths.backend.http.response_cache import MOST, ResponseCache
from tokenpaths.backend.problems import Problem

PATHS = ("/runs/vision", "/runs/vision/flow?min_share=0.01", "/runs/vision/paths?limit=3", "/runs/text/samples/2")


def count(served: Served, name: str, **labels: str) -> float:
    """What a counter of /metrics says."""
    text = served.client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"}).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_the_second_answer_is_the_first(serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "vision", samples=4, seed=1)
    make_run(served.runs_dir, "text", "text", samples=4, seed=2)
    for path in PATHS:
        first, again = served.get(path), served.get(path)
        assert first.status_code == again.status_code == 200
        assert first.content == again.content
        own = {"date", "x-request-id"}
        assert [pair for pair in first.headers.items() if pair[0] not in own] == [
            pair for pair in again.headers.items() if pair[0] not in own
        ]
        etag = first.headers["etag"]
        for given in (etag, f"W/{etag}", f'"x", {etag}', "*"):
            fresh = served.get(path, headers={"if-none-match": given})
            assert (fresh.status_code, fresh.content, fresh.headers["etag"]) == (304, b"", etag)
        assert served.get(path, headers={"if-none-match": '"other"'}).content == first.content
        assert served.client.head(API + path).headers["content-length"] == str(len(first.content))
    assert count(served, "tokenpaths_answers_total", how="computed") == len(PATHS)
    assert count(served, "tokenpaths_requests_total", route="other") == 0, "the metrics know the route all the same"


def test_a_run_that_is_replaced_or_deleted_is_asked_anew(serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "vision", samples=4, seed=1)
    old = [served.get("/runs/vision/flow") for _ in range(2)][1]
    make_run(served.runs_dir, "vision", samples=5, seed=7, overwrite=True)
    new = served.get("/runs/vision/flow")
    assert new.status_code == 200
    assert new.headers["etag"] != old.headers["etag"]
    assert served.get("/runs/vision/flow", headers={"if-none-match": old.headers["etag"]}).status_code == 200
    served.client.delete(f"{API}/runs/vision")
    problem(served.get("/runs/vision/flow"), 404)


def test_what_is_known_still_wants_the_token(serve: Serve) -> None:
    served = serve(token=TOKEN)
    make_run(served.runs_dir, "vision", samples=2)
    right = {"authorization": f"Bearer {TOKEN}"}
    assert [served.get("/runs/vision", headers=right).status_code for _ in range(2)] == [200, 200]
    problem(served.get("/runs/vision"), 401)
    problem(served.get("/runs/vision", headers=right | {"host": "evil.example"}), 400)


def test_refusals_are_not_remembered(serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "vision", samples=2)
    for _ in range(2):
        problem(served.get("/runs/vision/flow?labels=x"), 422, "labels")
        problem(served.get("/runs/vision/samples/99"), 404)
    assert served.client.post(f"{API}/runs/vision").status_code == 405


def test_many_ask_the_same_and_one_is_computed(serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "vision", samples=30)
    with ThreadPoolExecutor(16) as many:
        answers = list(many.map(lambda _: served.get("/runs/vision/paths/law?draws=20"), range(48)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert count(served, "tokenpaths_answers_total", how="computed") == 1
    assert count(served, "tokenpaths_answers_total") == 48


def test_addresses_are_forgotten_in_the_end() -> None:
    known = ResponseCache(lambda run_id: "same")
    for n in range(MOST + 10):
        scope = {"method": "GET", "path": "/runs", "raw_path": b"/runs", "query_string": f"n={n}".encode()}
        known.remember(scope, "a", "same", '"tag"')
        assert known.find(scope) is not None
    assert len(known._targets) == MOST
    long = {"method": "GET", "path": "/", "raw_path": b"/", "query_string": b"x" * 5000}
    known.remember(long, "a", "same", '"tag"')
    assert known.find(long) is None


@pytest.mark.parametrize("way", ["one header", "many headers", "address", "trailer"])
def test_a_head_without_an_end_is_refused(api: Served, way: str) -> None:
    """And the connection is closed after little more than the limit, however much would follow."""
    start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    endless = {
        "one header": start + b"x-long: " + b"a" * (8 * HEAD_BYTES),
        "many headers": start + b"x-one: 1\r\n" * HEAD_BYTES,
        "address": b"GET /" + b"a" * (8 * HEAD_BYTES),
        "trailer": b"POST /api/v1/traces HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx-t: "
        + b"a" * (8 * HEAD_BYTES),
    }[way]
    url = api.client.base_url
    with socket.create_connection((url.host, url.port), timeout=30) as connection, suppress(ConnectionError):
        connection.sendall(endless)  # a server that waits for the end would let the next line time out
        assert b" 4" in (connection.recv(65536).split(b"\r\n")[0] or b" 4")
    assert api.client.get("/healthz").status_code == 200


def test_a_head_of_the_usual_length_is_read(api: Served) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nx-long: " + b"a" * 20_000 + b"\r\n\r\n"
    assert raw(api, head).startswith(b"HTTP/1.1 200")


def test_time_in_which_nobody_could_work_is_no_waiting() -> None:
    """A crowd that holds up the loop for longer than the longest wait does not turn away who waits for a slot."""

    async def held_up() -> str:
        slots = ConcurrencyLimit(1, 0.05, "this test")
        release = asyncio.Event()

        async def first() -> None:
            async with slots.take():
                await release.wait()

        async def second() -> str:
            async with slots.take():
                return "answered"

        tasks = [asyncio.create_task(first()), asyncio.create_task(second())]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        release.set()
        time.sleep(0.5)  # the loop is busy with ten thousand others
        return [await task for task in tasks][1]

    async def waited() -> None:
        slots = ConcurrencyLimit(1, 0.05, "this test")
        async with slots.take(), slots.take():
            pass

    assert run_alone(held_up()) == "answered"
    with pytest.raises(Problem, match="busy with this test"):
        run_alone(waited())
