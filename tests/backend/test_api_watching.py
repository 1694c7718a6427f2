"""How those who run it see what it does: request ids, logs, metrics."""

from __future__ import annotations

import json
import logging
import re
import socket
import time

import pytest

from tests.backend.conftest import API, SECRET, Serve, Served, problem, serving
from tests.support.runs import make_run
from tokenpaths.backend.jobs.table import JobTable
from tokenpaths.backend.logs import JsonLines
from tokenpaths.backend.settings import load_settings


def test_an_error_names_the_line_of_the_log(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page shows of an unforeseen error finds its traceback; no query gets into the log."""
    from tokenpaths.engine.store.ask.run import Run

    api = serve()  # of its own: nothing is answered from memory
    make_run(api.runs_dir, "vision", samples=2)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the house")

    monkeypatch.setattr(Run, "usage", broken)
    lines: list[dict[str, object]] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(json.loads(JsonLines().format(record)))  # type: ignore[method-assign]
    logging.getLogger("tokenpaths.backend").addHandler(handler)
    try:
        answer = api.get("/runs/vision/usage?label=circle")
        ends = time.monotonic() + 20  # the line about the request comes after its last byte
        while not any(line.get("status") == 500 for line in lines) and time.monotonic() < ends:
            time.sleep(0.01)
    finally:
        logging.getLogger("tokenpaths.backend").removeHandler(handler)
    known = answer.headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{12}", known)
    assert f"under {known}" in problem(answer, 500)["detail"]
    about = [line for line in lines if line["request"] == known]
    assert any("a secret of the house" in str(line.get("traceback")) for line in about)
    told = next(line for line in about if line.get("status") == 500)
    assert (told["method"], told["route"]) == ("GET", "/runs/{run}/usage")
    assert "circle" not in json.dumps([told])
    assert api.get("/runs/vision").headers["x-request-id"] != known


def test_what_is_sent_as_an_id_is_not_believed(api: Served) -> None:
    answer = api.get("/runs", headers={"x-request-id": "<script>"})
    assert re.fullmatch("[0-9a-f]{12}", answer.headers["x-request-id"])


def test_metrics_tell_of_requests_jobs_queue_and_worker(serve: Serve) -> None:
    served = serve()
    JobTable(served.settings.jobs_file, clock=lambda: 1000.0).submit("count", {"iterations": 1})
    served.get("/runs")
    served.client.put(f"{API}/searches/one", json={"query": {"view": "routes"}})
    text = served.client.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['tokenpaths_jobs{state="waiting"}']) == 1
    assert float(values["tokenpaths_job_queue_seconds"]) > 1e9 - 1000
    assert float(values["tokenpaths_worker_up"]) == 0, "nobody listens where the worker should be"
    assert float(values["tokenpaths_requests_inside"]) == 1
    methods = {name.partition('method="')[2].partition('"')[0] for name in values if "requests_total{" in name}
    assert methods == {"GET", "PUT"}


def test_a_client_that_hangs_up_is_no_fault_of_the_server(serve: Serve) -> None:
    served = serve()
    url = served.client.base_url
    for line, kind, body in (
        (f"PUT {API}/searches/one", "application/json", "{"),
        (f"POST {API}/traces", "multipart/form-data; boundary=x", "--x\r\n"),
    ):
        head = f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: 1000\r\n\r\n"
        with socket.create_connection((url.host, url.port), 10) as connection:
            connection.sendall((head + body).encode())
            time.sleep(0.5)  # until its request is being answered

    def statuses() -> list[str]:
        text = served.client.get("/metrics").text
        return re.findall(r'requests_total\{method="(?:PUT|POST)",route="[^"]+",status="(\d+)"', text) + re.findall(
            r'traces_total\{status="(\d+)"', text
        )

    ends = time.monotonic() + 20
    while len(statuses()) < 3 and time.monotonic() < ends:
        time.sleep(0.05)
    assert statuses() == ["499"] * 3


def test_metrics_see_the_worker(tracing: Served) -> None:
    assert "tokenpaths_worker_up 1.0" in tracing.client.get("/metrics").text


def test_a_crowd_is_told_to_come_back_and_health_is_answered(serve: Serve) -> None:
    served = serve(requests_at_once=4)
    crowd = served.app
    while not hasattr(crowd, "num_inside"):
        crowd = crowd.middleware_stack if hasattr(crowd, "middleware_stack") else crowd.app
    crowd.num_inside += 4
    try:
        answer = served.get("/runs")
        assert problem(answer, 503)["type"] == "urn:tokenpaths:busy"
        assert answer.headers["retry-after"] == "1"
        assert served.client.get("/healthz").status_code == 200
        problem(served.get("/runs/events"), 503)  # no address of a job's events
        problem(served.get("/jobs/none/events"), 404)
    finally:
        crowd.num_inside -= 4
    assert served.get("/runs").status_code == 200
    assert "tokenpaths_requests_turned_away_total 2.0" in served.client.get("/metrics").text


def test_gpu_memory_is_told_where_a_gpu_is_used(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's numbers, (free, total), as used and total; nothing before a GPU is used."""
    import torch

    from tokenpaths.backend.worker.worker import create_worker, gpu_memory

    assert gpu_memory() == [] or torch.cuda.is_initialized()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (10 + number, 100))
    assert gpu_memory()[1] == {"device": "cuda:1", "used": 89, "total": 100}
    settings = load_settings(data_dir=serve().settings.data_dir, worker_secret=SECRET, warm_models=False)
    with serving(create_worker(settings)) as url:
        text = serve(worker_url=url).client.get("/metrics").text
    assert 'tokenpaths_gpu_memory_bytes{device="cuda:0",what="used"} 90.0' in text
