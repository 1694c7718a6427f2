"""``tokenpaths docs``: the built site on this machine's loopback."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.command_line import TOKENPATHS, plain_environment, read_until
from tokenpaths.cli import docs
from tokenpaths.cli.main import main
from tokenpaths.cli.support.terminal import open_browser

STARTED = (
    "import sys; from pathlib import Path; from tokenpaths.cli import docs; from tokenpaths.cli.main import main; "
)
STARTED += "docs.SITE = Path(sys.argv[1]); sys.exit(main(['docs', *sys.argv[2:]]))"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<title>Start</title>")
    (folder / "assets" / "one.css").write_text("a{}")
    (tmp_path / "secret.txt").write_text("SECRET")
    return folder


@pytest.fixture
def client(site: Path) -> Iterator[httpx.Client]:
    server = docs.documentation_server(0, site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", trust_env=False) as client:
        yield client
    server.shutdown()
    server.server_close()
    thread.join()


def test_files_of_the_site_are_served_and_nothing_else(client: httpx.Client) -> None:
    assert client.get("/").text == client.get("/index.html").text == "<title>Start</title>"
    assert client.get("/assets/one.css").headers["content-type"].startswith("text/css")
    for path in ("/assets/", "/nowhere", "/../secret.txt", "/%2e%2e/secret.txt"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "SECRET" not in answer.text
        assert "one.css" not in answer.text
    assert client.post("/index.html").status_code == 501


def test_the_command_prints_an_address_that_answers_and_stops_at_ctrl_c(site: Path) -> None:
    command = [sys.executable, "-P", "-c", STARTED, str(site), "--no-open"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plain_environment(PYTHONUNBUFFERED="1")
    )
    try:
        line = read_until(process, "Ctrl-C")[0]
        address = re.search(r"http://127\.0\.0\.1:\d+/index\.html", line)[0]  # type: ignore[index]
        assert httpx.get(address, trust_env=False).text == "<title>Start</title>"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert errors.strip() == "Stopped."
    assert process.returncode == 130


def test_a_site_that_is_not_built_and_a_port_in_use_are_sentences(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "SITE", tmp_path / "nowhere")
    assert main(["docs", "--no-open"]) == 2
    assert "`make docs` builds it" in capsys.readouterr().err
    monkeypatch.setattr(docs, "SITE", site)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["docs", "--no-open", "--port", str(taken.getsockname()[1])]) == 2
    error = capsys.readouterr().err
    assert "cannot be listened on" in error
    assert len(error.splitlines()) == 1


def test_a_browser_is_opened_where_there_is_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) is None)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    if sys.platform != "darwin":
        assert not open_browser("http://127.0.0.1:1")
        assert opened == []
    monkeypatch.setenv("BROWSER", "firefox")
    assert open_browser("http://127.0.0.1:1")
    assert opened == ["http://127.0.0.1:1"]


def test_the_command_is_documented() -> None:
    done = subprocess.run([*TOKENPATHS, "docs", "--help"], capture_output=True, text=True, env=plain_environment())
    assert done.returncode == 0
    assert "--no-open" in done.stdout
    assert "--port" in done.stdout
