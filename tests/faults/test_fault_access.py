"""Who may ask, under which name, from which site; and what no name and no address reaches."""

from __future__ import annotations

import http.server
import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.backend.conftest import API, TOKEN, Serve, Served, problem, raw
from tests.backend.test_api_security import HOSTILE_HOSTS, HOSTILE_ORIGINS
from tests.faults.conftest import Keep
from tests.faults.figures import ROOT
from tests.faults.routes import Route, routes
from tests.support.command_line import TOKENPATHS
from tests.support.runs import make_run
from tokenpaths.engine.jobs.registry import KINDS, find_kind, write_artifact

TRAVERSALS = [
    "..",
    ".",
    "../vision",
    "..%2fvision",
    "%2e%2e%2fvision",
    "..%5cvision",
    "%2fetc%2fpasswd",
    "vision%00",
    "vision%0a",
    "vision.duckdb",
    "-vision",
    "_vision",
    "a" * 65,
    "vi%20sion",
    "CON",
    "nul",
    "%c3%a9",
    "%ff%fe",
    "~root",
    "file:%2f%2f%2fetc%2fpasswd",
    "http:%2f%2fevil.example%2fx",
    "..%2f..%2foutside",
    "..%2foutside.duckdb",
]
NUMBERS = ("rank", "sample", "step", "module", "format")
WRONG_TOKENS: list[dict[str, str]] = [
    {},
    {"authorization": "Bearer wrong"},
    {"authorization": TOKEN},
    {"authorization": f"Basic {TOKEN}"},
    {"authorization": f"Bearer {TOKEN}x"},
    {"authorization": "Bearer"},
]


def test_no_name_leads_out_of_the_folder(serve: Serve, figure: Keep) -> None:
    """Every path parameter of every route gets names such as `..%2foutside`, sent as raw bytes"""
    served = serve()
    make_run(served.runs_dir, "vision", samples=3)
    outside = served.settings.data_dir / "outside.duckdb"
    outside.write_bytes(b"SECRET" * 1000)
    (served.settings.data_dir / "outside").mkdir()
    before = _files(served.settings.data_dir)
    asked = 0
    for route in routes(served.client):
        for place, name in itertools.product(route.places, TRAVERSALS):
            if place in NUMBERS:
                continue
            address = route.address(**{place: name})
            head = f"{route.method} {address} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            answer = raw(served, head)
            status = int(answer.split()[1])
            assert status in (404, 405, 415, 422, 503), (route.method, address, answer)
            assert status != 503 or place == "model" or "/models" in address, (address, answer)
            assert b"application/problem+json" in answer
            assert b"SECRET" not in answer
            assert b"root:" not in answer
            asked += 1
    assert _files(served.settings.data_dir) == before
    assert asked > 10 * len(TRAVERSALS)
    figure(18, f"{asked} requests with {len(TRAVERSALS)} names: all refused, no file read or changed")


def _files(folder: Path) -> dict[str, int]:
    """Names and sizes of everything but the list of jobs, which is made when it is first asked for."""
    return {str(path): path.stat().st_size for path in folder.rglob("*") if "jobs.sqlite" not in path.name}


def test_other_sites_change_nothing(api: Served, figure: Keep) -> None:
    """Every way in which a browser marks a request from elsewhere, at every route that changes something"""
    before, refused = sorted(api.runs_dir.iterdir()), 0
    changing = [route for route in routes(api.client) if route.method != "GET"]
    changing += [Route(method, f"{API}/runs/vision") for method in ("POST", "PUT", "PATCH", "DELETE")]
    for route, headers in itertools.product(changing, HOSTILE_ORIGINS):
        problem(api.client.request(route.method, route.address(), headers=headers), 403)
        refused += 1
    assert sorted(api.runs_dir.iterdir()) == before
    figure(19, f"{refused} of {refused} requests 403 ({len(changing)} routes and methods)")


def test_other_host_names_are_refused(api: Served, figure: Keep) -> None:
    """Other names, doubled headers and a WebSocket handshake at the API"""
    for host, path in itertools.product(HOSTILE_HOSTS, ("/healthz", f"{API}/runs")):
        problem(api.client.get(path, headers={"host": host}), 400)
    doubled = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert raw(api, doubled).startswith(b"HTTP/1.1 400 ")
    handshake = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "host": "evil.example"}
    answer = api.client.get(f"{API}/runs", headers=handshake | {"sec-websocket-key": "x3JJHMbDL1EzLkh9GBhXDw=="})
    assert answer.status_code == 400
    figure(20, f"API: {2 * len(HOSTILE_HOSTS) + 2} of {2 * len(HOSTILE_HOSTS) + 2} refused with 400, WebSocket too")


def test_every_route_but_health_wants_the_token(serve: Serve, figure: Keep) -> None:
    """Walks the OpenAPI document, events and artifacts of a real job included, with six wrong tokens"""
    served = serve(token=TOKEN)
    make_run(served.runs_dir, "vision", samples=2)
    job = served.app.state.services.jobs.table.submit("trace", {}).job
    folder = served.settings.data_dir / "jobs" / job
    folder.mkdir(parents=True)
    write_artifact(folder, "note.txt", b"SECRET")
    right = {"authorization": f"Bearer {TOKEN}"}
    found = list(routes(served.client, headers=right))
    assert {f"{API}/jobs/{{job}}/events", f"{API}/jobs/{{job}}/artifacts/{{name}}"} <= {r.template for r in found}
    found += [Route("GET", path) for path in ("/docs", "/openapi.json", "/docs/start.js", "/nowhere")]
    walked = 0
    for route, headers in itertools.product(found, WRONG_TOKENS):
        answer = served.client.request(route.method, route.address(job=job, name="note.txt"), headers=headers)
        if route.template == "/healthz":
            assert answer.status_code == 200
            continue
        problem(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "SECRET" not in answer.text
        walked += 1
    artifact = served.client.get(f"{API}/jobs/{job}/artifacts/note.txt", headers=right)
    assert artifact.content == b"SECRET"
    with served.client.stream("GET", f"{API}/jobs/{job}/events", headers=right) as stream:
        assert stream.status_code == 200
    twice = [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer other")]
    problem(served.client.get(f"{API}/runs", headers=twice), 401)
    figure(21, f"{walked} of {walked} requests to {len(found) - 1} routes and methods 401")


def test_a_reachable_address_without_a_token_does_not_start(tmp_path: Path, figure: Keep) -> None:
    """The API and `tokenpaths up` as processes, told to listen on 0.0.0.0"""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TOKENPATHS_")}
    plain |= {"TOKENPATHS_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(ROOT)}
    for command, host in (
        ([sys.executable, "-m", "tokenpaths.backend.serve", "api"], {"TOKENPATHS_HOST": "0.0.0.0"}),
        ([*TOKENPATHS, "up", "--no-page"], {"TOKENPATHS_HOST": "0.0.0.0"}),
        ([*TOKENPATHS, "up"], {"TOKENPATHS_PAGE_HOST": "::"}),
    ):
        done = subprocess.run(
            command, env=plain | host, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 2, done
        assert "no token is set" in done.stderr
        assert "Traceback" not in done.stderr
    figure(21, "3 of 3 processes end with code 2 and a sentence")


class Canary:
    """A server that must not be visited."""

    def __init__(self) -> None:
        self.visits: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.visits.append(self.path)
                self.send_response(200)
                self.end_headers()

            do_HEAD = do_POST = do_GET

            def log_message(self, *arguments: Any) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret.png"


@contextmanager
def canary() -> Iterator[Canary]:
    """A canary that listens as long as the block."""
    made = Canary()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()


def test_no_address_is_fetched(tracing: Served, figure: Keep) -> None:
    """The address of a server of the test's own, in every query key, path, form field and field of a job"""
    with canary() as bird:
        asked = 0
        for route in routes(tracing.client):
            if route.method != "GET" or route.template.endswith("/events"):
                continue
            trials = [(route.address(), {name: bird.url}) for name in route.queries]
            quoted = re.sub(r"[:/]", lambda c: f"%{ord(c[0]):02x}", bird.url)
            trials += [(route.address(**{place: quoted}), {}) for place in route.places]
            for address, query in trials:
                assert tracing.client.get(address, params=query).status_code in (200, 404, 409, 422), (address, query)
                asked += 1
        jobs = list(_jobs_with(bird.url))
        for body in jobs:
            answer = tracing.client.post(f"{API}/jobs", json=body)
            assert answer.status_code in (202, 422), answer.text
            if answer.status_code == 202:
                tracing.client.delete(f"{API}/jobs/{answer.json()['job']}")
        svg = f'<svg xmlns="http://www.w3.org/2000/svg"><image href="{bird.url}"/></svg>'.encode()
        for form in (
            {"model": (None, bird.url), "text": (None, "x")},
            {"model": (None, "tiny-text"), "text": (None, bird.url)},
            {"model": (None, "tiny-vision"), "image": (bird.url, svg, "image/svg+xml")},
            {"model": (None, "tiny-vision"), "url": (None, bird.url)},
            {"model": (None, "tiny-text"), "text": (None, "x"), "controls": (None, f'{{"edits": "{bird.url}"}}')},
        ):
            assert tracing.client.post(f"{API}/traces", files=form).status_code in (201, 415, 422)
            asked += 1
        assert bird.visits == []
        figure(22, f"{asked + len(jobs)} requests with an address of ours: 0 fetched")


def _jobs_with(url: str) -> Iterator[dict[str, Any]]:
    """Requests of every kind of job with the address in one field after the other."""
    for kind in KINDS:
        for name in find_kind(kind).Request.model_fields:
            common = {"model": "tiny-vision", "data": "bundled:shapes", "run": "vision", "sample": 0}
            fields = find_kind(kind).Request.model_fields.keys()
            yield {"kind": kind, "request": {key: common[key] for key in common if key in fields} | {name: url}}
            yield {"kind": kind, "request": {name: f"hf:{url}"}}
