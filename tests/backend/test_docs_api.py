"""Every example in docs/api.md runs, and its answer looks as the page says.

Refresh the answers on the page: python -m tests.backend.test_docs_api
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.backend.conftest import SECRET, Served, api_for, make_models, png, serving
from tests.support.runs import make, make_experts, make_run, make_soft
from tests.support.runs.counted import make_load_run
from tests.support.runs.margins import with_margins
from tokenpaths.backend.settings import load_settings
from tokenpaths.backend.worker.worker import create_worker
from tokenpaths.engine.jobs.registry import write_artifact

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "api.md"
BLOCK = re.compile(r"```sh\n(curl .*?)\n```\n(?:\n`(\d+)`(?:, [^\n]*)?\n)?(?:\n```json\n(.*?)\n```\n)?", re.DOTALL)
CUT = "…"


def examples() -> list[tuple[str, str, str]]:
    """(command, status, answer) of every example on the page."""
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


@contextmanager
def example_server(folder: Path) -> Iterator[Served]:
    """An API with the runs and models that the page speaks of."""
    models = folder / "data" / "models"
    made = make_models(folder / "made")
    shutil.copytree(made / "tiny-vision", models / "my-vision-model")
    shutil.copytree(made / "tiny-text", models / "my-text-model")
    for name, modality in (("old-run", "vision"), ("texts", "text"), ("scenes", "vision")):
        make_run(folder / "data" / "runs", name, modality, samples=12)
    make_run(folder / "data" / "runs", "scenes-edited", "vision", samples=12, seed=1)
    draw = np.random.default_rng(0).random
    make_soft(edges=draw((6, 2, 3, 3)), gates=draw((6, 2, 2, 2)), blocks=draw((6, 3, 4))).write(
        folder / "data" / "runs"
    )
    for name, iteration, drift in (("experts", 2000, 0.0), ("experts-early", 500, 0.6)):
        made = make_experts(name, series=("my-training", iteration), drift=drift, samples=12)
        made.write(folder / "data" / "runs")
    with_margins(make("scored", "text", samples=12)).write(folder / "data" / "runs")
    for number, name in enumerate(("counted", "counted-later")):
        make_load_run(folder / "data" / "runs", name, number)
    options = {"data_dir": folder / "data", "worker_secret": SECRET, "warm_models": False}
    with (
        serving(create_worker(load_settings(**options))) as url,
        api_for(folder / "data", worker_url=url, worker_secret=SECRET) as served,
    ):
        make_job(served, "my-job", {"limit": 2})
        cut = folder / "data" / "inbox" / "cut.png"
        cut.parent.mkdir(exist_ok=True)
        cut.write_bytes(png()[:100])
        make_job(served, "my-failed-job", {"data": "cut.png"})
        yield served


def make_job(served: Served, name: str, request: dict[str, Any]) -> None:
    """A trace job that is over, called ``name``."""
    jobs = served.app.state.services.jobs
    job = jobs.submit("trace", {"model": "my-vision-model", "data": "bundled:scenes", **request})["job"]
    ends = time.monotonic() + 120
    while not (row := jobs.table.get(job)).ended:
        assert time.monotonic() < ends
        time.sleep(0.02)
    if row.result:  # the list of runs is about others
        served.app.state.services.registry.delete(row.result["run"])
    with jobs.table.connection.writing() as con:
        for table in ("job", "event"):
            con.execute(f"UPDATE {table} SET job = ? WHERE job = ?", (name, job))
    folder = served.settings.data_dir / "jobs" / name
    (served.settings.data_dir / "jobs" / job).rename(folder)
    write_artifact(folder, "curve.json", b'{"x": "iteration", "y": "objective", "series": []}')


def perform(served: Served, command: str) -> httpx.Response:
    """What ``curl`` would send."""
    words = shlex.split(command)[1:]
    method, form, address, headers, body = "GET", {}, "", {}, None
    while words:
        word = words.pop(0)
        if word == "-X":
            method = words.pop(0)
        elif word in ("-o", "-N"):
            words = words[word == "-o" :]
        elif word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "-d":
            method, body = "POST", words.pop(0)
        elif word == "-F":
            name, _, value = words.pop(0).partition("=")
            form[name] = ("picture.png", png()) if value.startswith("@") else (None, value)
        else:
            address = word
    assert address.startswith("http://127.0.0.1:8000/"), command
    path = address.removeprefix("http://127.0.0.1:8000")
    if form:
        return served.client.post(path, files=form)  # type: ignore[arg-type]
    return served.client.request(method, path, headers=headers, content=body)


def shortened(value: Any) -> Any:
    """``value`` with long lists and long texts cut."""
    if isinstance(value, dict):
        return {key: shortened(part) for key, part in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], dict) and len(value) > 1:
            return [shortened(value[0]), CUT]
        return [shortened(part) for part in value[:6]] + ([CUT] if len(value) > 6 else [])
    if isinstance(value, str) and len(value) > 90:
        return value[:60] + CUT
    return float(f"{value:.4g}") if isinstance(value, float) else value


def shape(value: Any) -> Any:
    """Keys, all the way down; of a list, those of its first entry."""
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items() if key not in ("config", "validation")}
    if isinstance(value, list):
        return [shape(value[0])] if value and value[0] != CUT else []
    return None


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with example_server(tmp_path_factory.mktemp("docs")) as served:
        yield served


@pytest.mark.parametrize(("command", "status", "answer"), examples())
def test_example_runs(documented: Served, command: str, status: str, answer: str) -> None:
    got = perform(documented, command)
    assert got.status_code == int(status or 200), got.text
    if answer:
        assert shape(json.loads(answer)) == shape(json.loads(json.dumps(shortened(got.json()))))


def test_every_route_has_an_example() -> None:
    schema = json.loads((PAGE.parent.parent / "tests" / "goldens" / "openapi.json").read_text(encoding="utf-8"))
    paths = [re.sub(r"\{name\}|\{node\}", "[^/?]+", path) for path in schema["paths"]]  # may hold a dot
    paths = [re.sub(r"\{.*?\}", "[^/?.]+", path) + r"(\?.*)?$" for path in paths]
    shown = [shlex.split(command)[-1].removeprefix("http://127.0.0.1:8000") for command, _, _ in examples()]
    for path in paths:
        assert any(re.match(path, address) for address in shown), path
    assert len(shown) >= len(paths)


def refresh() -> None:
    """Put what a server really answers under each example."""
    with tempfile.TemporaryDirectory() as folder, example_server(Path(folder)) as served:

        def answered(match: re.Match[str]) -> str:
            got = perform(served, match[1])
            kind = got.headers.get("content-type", "")
            note = f"\n`{got.status_code}`" + (f", {kind}" if kind and "json" not in kind else "") + "\n"
            if "json" not in kind:
                return f"```sh\n{match[1]}\n```\n{note}"
            text = json.dumps(shortened(got.json()), indent=1, ensure_ascii=False)
            text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text)
            return f"```sh\n{match[1]}\n```\n{note}\n```json\n{text}\n```\n"

        PAGE.write_text(BLOCK.sub(answered, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    refresh()
    print(f"wrote {PAGE}")
