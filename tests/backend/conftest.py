"""Real servers for the tests: uvicorn on a random port, DuckDB files written by the real writer."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from starlette.types import ASGIApp

from tests.support.runs import make_run
from tokenpaths.backend.app import create_app
from tokenpaths.backend.serve import server_of
from tokenpaths.backend.services import Services
from tokenpaths.backend.settings import Settings, load_settings

SECRET = "a-secret-for-the-tests"
TOKEN = "a-token-for-the-tests"
API = "/api/v1"


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """``app`` behind a real uvicorn in a thread; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = server_of(app, "127.0.0.1", port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(2)
        server.force_exit = True  # a test may have left a connection open
        thread.join(10)


@dataclass
class Served:
    """A running API: its settings, a client, and where its runs lie."""

    settings: Settings
    client: httpx.Client
    app: Any

    @property
    def runs_dir(self) -> Path:
        return self.settings.runs_dir

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET below /api/v1."""
        return self.client.get(API + path, **options)


Serve = Callable[..., Served]


@contextmanager
def api_for(data_dir: Path, **changes: Any) -> Iterator[Served]:
    """An API over ``data_dir`` on a random port."""
    options = {"worker_port": 9, "worker_secret": SECRET} | changes
    settings = load_settings(data_dir=data_dir, **options)
    app = create_app(settings)
    with serving(app) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        yield Served(settings, client, app)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings from the machine that the tests run on."""
    import os

    for name in list(os.environ):
        if name.startswith("TOKENPATHS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))


@pytest.fixture(scope="session")
def shared_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with three runs, for tests that only read: vision, text and top2."""
    data_dir = tmp_path_factory.mktemp("shared")
    make_run(data_dir / "runs", "vision", samples=30, seed=1)
    make_run(data_dir / "runs", "text", "text", samples=14, seed=2)
    make_run(data_dir / "runs", "top2", samples=6, top_k=2, seed=3, twin=False)
    return data_dir


@pytest.fixture(scope="session")
def api(shared_data_dir: Path) -> Iterator[Served]:
    """An API over the shared data folder; nothing may change there."""
    with api_for(shared_data_dir) as served:
        yield served


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start an API over a folder of its own, with other settings if given."""
    with ExitStack() as stack:
        yield lambda data_dir=tmp_path / "data", **changes: stack.enter_context(api_for(data_dir, **changes))


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny models."""
    return make_models(tmp_path_factory.mktemp("models"))


def make_models(folder: Path) -> Path:
    """Two tiny untrained models, saved like real ones: tiny-vision and tiny-text."""
    import torch

    from tokenpaths.engine.data.tokenizer import TextTokenizer
    from tokenpaths.engine.models.checkpoint import save_checkpoint
    from tokenpaths.engine.models.dna import DNA, DNAConfig

    small = {"width": 16, "heads": 2, "mlp_width": 32, "backbone": 1, "steps": 3, "transformers": 3, "identities": 1}
    torch.manual_seed(0)
    vision = DNAConfig(modality="vision", image_size=32, patch_size=8, num_classes=3, **small)
    save_checkpoint(folder / "tiny-vision", DNA(vision), classes=("cat", "dog", "bird"))
    (folder / "tiny-vision" / "card.md").write_text("# tiny-vision\n\nUntrained, for tests.\n")
    tokenizer = TextTokenizer.train(["the cat sat on the mat and looked at the moon"] * 3, vocab_size=300)
    tokenizer.save(folder / "tiny-text" / "tokenizer.json")
    text = DNAConfig(modality="text", vocab_size=tokenizer.vocab_size, context=64, **small)
    save_checkpoint(folder / "tiny-text", DNA(text))
    return folder


@pytest.fixture(scope="session")
def tracing(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An API with a real worker behind it that holds the tiny models."""
    from tokenpaths.backend.worker.worker import create_worker

    data_dir = tmp_path_factory.mktemp("tracing")
    make_run(data_dir / "runs", "vision", samples=3)
    common = {"data_dir": data_dir, "models_dirs": (models_dir,), "worker_secret": SECRET, "warm_models": False}
    common |= {"trace_seconds": 250, "decode_seconds": 60}  # a busy machine is no failure
    worker = create_worker(load_settings(**common))
    with serving(worker) as worker_url:
        options = {key: value for key, value in common.items() if key != "data_dir"}
        with api_for(data_dir, worker_url=worker_url, **options) as served:
            served.app.state.worker = worker.state.worker
            yield served


@pytest.fixture(scope="module")
def working(tmp_path_factory: pytest.TempPathFactory, models_dir: Path) -> Iterator[Served]:
    """An API and a worker, both of which know the kind ``count``."""
    from tests.support.jobs import register_count
    from tokenpaths.backend.worker.worker import create_worker

    register_count()
    options = {"data_dir": tmp_path_factory.mktemp("jobs"), "worker_secret": SECRET, "warm_models": False}
    options |= {"models_dirs": (models_dir,), "trace_seconds": 250}
    with serving(create_worker(load_settings(**options))) as url, api_for(worker_url=url, **options) as served:
        yield served


def png(width: int = 40, height: int = 30, mode: str = "RGB") -> bytes:
    """A small picture."""
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


def problem(answer: httpx.Response, status: int, field: str | None = None) -> dict[str, Any]:
    """The problem in ``answer``, after checking that it is one and leaks nothing."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert body["title"]
    assert len(body["detail"]) > 10
    assert "Traceback" not in answer.text
    assert 'File \\"' not in answer.text
    if field is not None:
        assert body["field"] == field
    return body


def raw(served: Served, data: bytes, *, timeout: float = 10) -> bytes:
    """What the server says to exactly these bytes, until it closes the connection or says nothing more."""
    url = served.client.base_url
    with socket.create_connection((url.host, url.port), timeout=timeout) as connection:
        connection.sendall(data)
        answer = b""
        with suppress(TimeoutError, ConnectionResetError):
            while chunk := connection.recv(65536):
                answer += chunk
        return answer


def services_for(tmp_path: Path, **options: Any) -> Services:
    """What the routes work with, without a server."""
    made = Services.from_settings(load_settings(data_dir=tmp_path / "data", worker_secret=SECRET, **options))
    made.folder.make()
    made.settings.runs_dir.mkdir(exist_ok=True)
    return made


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    made = services_for(tmp_path)
    yield made
    made.jobs.close()
    made.registry.close()
