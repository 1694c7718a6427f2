"""How ``tokenpaths up`` tends its processes: small ones that hang, die or print a lot stand for API and worker."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tokenpaths.backend.process_states import VARIABLE, ProcessState, read_states
from tokenpaths.cli.support import processes
from tokenpaths.cli.support.log_files import LogFile
from tokenpaths.cli.support.processes import Child, pick_port, wait_until_healthy, watch
from tokenpaths.engine.base.errors import UserError

WELL = """
import http.server, json, os, sys, threading, time
answer = json.dumps({"restart": False}).encode(), 200
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global answer
        if self.path == "/burn":
            while True: pass
        if self.path == "/refuse":
            answer = json.dumps({"problem": "A thread is stuck.", "restart": True}).encode(), 503
        if self.path == "/wait":
            answer = json.dumps({"problem": "The folder is gone.", "restart": False}).encode(), 503
        if self.headers["x-secret"] != "known":
            self.send_error(401)
            return
        self.send_response(answer[1]); self.end_headers(); self.wfile.write(answer[0])
    def log_message(self, *arguments): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
DEAD = "import sys; sys.exit('no such library')"


def child(folder: Path, name: str, code: str = WELL, **options: object) -> Child:
    port = pick_port("127.0.0.1", 0, "--port")
    command, url = [sys.executable, "-c", code, str(port)], f"http://127.0.0.1:{port}/healthz"
    return Child(
        name, command, url, folder / "logs" / f"{name}.log", dict(os.environ), {"x-secret": "known"}, **options
    )


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    """Start children and watch them; returns what is said at the terminal."""
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(processes, "FIRST_PAUSE_SECONDS", 1.0)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "processes.json"))
    over, threads, started = threading.Event(), [], []

    def start(*children: Child, dispensable: tuple[str, ...] = (), awaits_s: float = 0.0) -> list[str]:
        said: list[str] = []
        for one in children:
            one.start()
            started.append(one)
        wait_until_healthy(children, 60, dispensable)
        time.sleep(awaits_s)
        arguments = (children, said.append, over.is_set, tmp_path / "processes.json")
        threads.append(threading.Thread(target=watch, args=arguments))
        threads[-1].start()
        return said

    yield start
    over.set()
    for thread in threads:
        thread.join()
    for one in started:
        one.stop()


def until(condition: Callable[[], object], limit_s: float = 60) -> None:
    ends = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)


def pid(one: Child) -> int:
    assert one.process is not None
    return one.process.pid


def ask(one: Child, path: str) -> None:
    """Send a request and do not wait for its answer."""
    port = int(one.command[-1])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nx-secret: known\r\n\r\n".encode())
        time.sleep(0.2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize(("how", "at_most_s"), [("stopped", 10), ("busy", 30), ("says so", 10), ("killed", 10)])
def test_what_hangs_or_dies_is_started_again_and_the_others_go_on(
    watched: Callable[..., list[str]], tmp_path: Path, how: str, at_most_s: float
) -> None:
    # Beside one that burns a core the other may have to wait for its turn.
    api, worker = child(tmp_path, "API", hung_s=60.0), child(tmp_path, "worker", hung_s=1.0)
    said = watched(api, worker)
    until(lambda: read_states().get("worker") == ProcessState("up"))
    first, other, began = pid(worker), pid(api), time.monotonic()
    if how == "stopped":
        os.kill(first, signal.SIGSTOP)
    elif how == "busy":
        ask(worker, "/burn")
    elif how == "says so":
        ask(worker, "/refuse")
    else:
        os.kill(first, signal.SIGKILL)
    until(lambda: pid(worker) != first)
    took_s = time.monotonic() - began
    assert took_s < at_most_s
    assert took_s > (4 if how == "busy" else 0), "one that is busy has four times as long"
    until(lambda: worker.answered and worker.state == "up")
    assert pid(api) == other
    assert len(said) == 1
    assert "starting it again" in said[0]
    assert {"stopped": "has not answered", "busy": "has not", "says so": "A thread is stuck.", "killed": "code -9"}[
        how
    ] in said[0]


def test_what_nobody_asked_for_long_is_not_taken_for_hung(watched: Callable[..., list[str]], tmp_path: Path) -> None:
    """The runs of the demo are awaited between start and watch, for longer than a silence may last."""
    api = child(tmp_path, "API", hung_s=1.0)
    said = watched(api, awaits_s=1.5)
    first = pid(api)
    time.sleep(1.0)
    assert pid(api) == first
    assert said == []


def test_what_waits_for_its_folder_is_not_started_again(watched: Callable[..., list[str]], tmp_path: Path) -> None:
    worker = child(tmp_path, "worker", hung_s=1.0)
    said = watched(worker)
    ask(worker, "/wait")
    before = pid(worker)
    time.sleep(3)
    assert pid(worker) == before
    assert said == []


def test_what_dies_at_every_start_is_paused_for_longer_and_longer(
    watched: Callable[..., list[str]], tmp_path: Path
) -> None:
    worker, api = child(tmp_path, "worker", DEAD), child(tmp_path, "API")
    said = watched(worker, api, dispensable=("worker",))
    until(lambda: sum("paused" in line for line in said) >= 3)
    other = pid(api)
    assert [line.partition("after ")[2].split()[0] for line in said if "paused" in line][:3] == ["1", "2", "4"]
    assert "no such library" in said[-1]
    state = read_states()["worker"]
    assert "paused" in str(state.problem)
    assert "4 times in a row" in said[3]
    assert read_states()["API"] == ProcessState("up")
    worker.command = child(tmp_path, "worker", WELL.replace("sys.argv[1]", worker.command[-1])).command
    until(lambda: read_states()["worker"].state == "up")
    assert pid(api) == other


def test_a_needed_process_that_does_not_start_ends_the_start(tmp_path: Path) -> None:
    one = child(tmp_path, "API", DEAD)
    one.start()
    with pytest.raises(UserError, match="The API did not start: no such library"):
        wait_until_healthy([one], 60, ("worker",))
    one.stop()


def test_states_that_cannot_be_read_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_states() == {}
    for text in ("", "{", "[]", '{"worker": 7}', '{"worker": {"odd": 1}}'):
        (tmp_path / "states").write_text(text)
        monkeypatch.setenv(VARIABLE, str(tmp_path / "states"))
        assert read_states() == {}


# -- logs ---------------------------------------------------------------------------------------


def test_a_log_is_rotated_while_it_is_written(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "logs" / "api.log", most_bytes=10_000)
    for number in range(3000):
        log.write(f"line {chr(97 + number % 26) * (number % 50)} of many\n".encode())
    log.close()
    sizes = [(tmp_path / "logs" / name).stat().st_size for name in ("api.log", "api.log.1")]
    assert max(sizes) < 10_300
    assert sorted(file.name for file in (tmp_path / "logs").iterdir()) == ["api.log", "api.log.1"]


def test_a_repeated_line_is_counted_and_a_traceback_goes_with_its_line(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "page.log")
    for number in range(5000):
        log.write(f"Uncaught exception {number}\n".encode())
        log.write(b"  File somewhere\n")
    log.write(b"something else\n")
    log.close()
    lines = (tmp_path / "page.log").read_text().splitlines()
    assert lines.count("  File somewhere") == 100
    assert "something else" in lines
    assert lines[-1] == "4900 more like: Uncaught exception #"


def test_a_log_that_was_moved_or_deleted_is_begun_again(tmp_path: Path) -> None:
    file = tmp_path / "data" / "logs" / "api.log"
    file.parent.parent.mkdir()
    log = LogFile(file)
    log.write(b"one\n")
    file.rename(file.with_name("old.log"))
    log.write(b"two\n")
    assert file.read_text() == "two\n"
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    log.write(b"lost\n")
    assert not (tmp_path / "data").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "data")
    log.write(b"three\n")
    assert file.read_text() == "two\n1 lines could not be written here\nthree\n"
    log.close()


def test_the_lines_of_a_child_reach_its_log(tmp_path: Path) -> None:
    code = "import os; print('out', flush=True); os.write(2, b'from C\\n' + b'x' * 200_000 + b'\\nend')"
    one = child(tmp_path, "worker", code)
    one.start()
    until(one.has_ended)
    until(lambda: one.log.last_line == "end")
    one.stop()
    text = one.log_file.read_text()
    assert text.startswith("out\nfrom C\nxxx")
    assert json.dumps(text).count("x") == 200_000
