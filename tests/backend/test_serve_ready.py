"""What the API has at hand before it listens, and when it gets the rest."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import fastapi.routing
import pytest

from tests.backend.conftest import api_for
from tokenpaths.backend import serve
from tokenpaths.backend.app import create_app
from tokenpaths.backend.settings import Settings
from tokenpaths.engine.analysis.compiled import comparisons


def test_the_rest_is_loaded_when_nobody_asks(monkeypatch: pytest.MonkeyPatch):
    counts, imported = iter([3, 4, 4]), []
    monkeypatch.setattr(serve, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(serve.importlib, "import_module", imported.append)
    monkeypatch.setattr(serve.gc, "freeze", lambda: imported.append("frozen"))
    serve.import_when_idle(lambda: next(counts))
    assert imported == [*serve.LATER, "frozen"]
    with pytest.raises(StopIteration):  # it went on looking until two looks were alike
        next(counts)


def test_a_first_question_finds_its_libraries_loaded():
    names = [*serve.FIRST, "anyio._backends._asyncio", "duckdb"]
    code = (
        "import sys; from fastapi import FastAPI; from tokenpaths.backend import serve; serve.preload(FastAPI()); "
        f"print([name in sys.modules for name in {names!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([True] * len(names))


@pytest.mark.parametrize("ready", [True, False])
def test_a_first_question_finds_its_routes_worked_out(ready: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    app, late = create_app(Settings(data_dir=tmp_path)), []
    work_out = fastapi.routing.get_dependant
    if ready:
        serve.work_out_routes(app)
    monkeypatch.setattr(fastapi.routing, "get_dependant", lambda **k: late.append(k["path"]) or work_out(**k))
    asked = {"type": "http", "method": "GET", "path": "/api/v1/runs/demo/usage", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(asked)
    assert bool(late) is not ready


def test_loops_are_compiled_while_the_api_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    compiled, frozen = threading.Event(), threading.Event()
    monkeypatch.setattr(comparisons, "compile_if_wanted", lambda: not compiled.is_set() and (compiled.set() or True))
    monkeypatch.setattr("tokenpaths.backend.app.gc.freeze", frozen.set)
    with api_for(tmp_path):
        assert compiled.wait(10)
        assert frozen.wait(10)
