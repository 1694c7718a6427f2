"""A data folder with a small run of every kind, and the API over it in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.support.runs import make, make_experts, make_run, make_soft
from tokenpaths.backend.app import create_app
from tokenpaths.backend.settings import load_settings


@dataclass
class Fuzzed:
    """An API in this process, and the names of what lies in its data folder."""

    client: TestClient
    document: dict[str, Any]
    runs: list[str]
    jobs: list[str] = field(default_factory=list)


def make_runs(runs: Path) -> None:
    """Pictures, texts, two modules a step, experts with and without texts, a series, soft runs, an edited run."""
    made = make("vision", samples=8, seed=1)
    made.write(runs)
    make_run(runs, "text", "text", samples=8, seed=2)
    make_run(runs, "top2", samples=3, top_k=2, seed=3, twin=False)
    make_run(runs, "bare", samples=2, steps=2, modules=2, seed=4, labels=False, twin=False)
    make_experts("moe", samples=4).write(runs)
    make_experts("log", text=False, token_ids=False, labels=False, samples=3).write(runs)
    for iteration in (10, 20):
        make_experts(f"at{iteration}", series=("mine", iteration), drift=iteration / 100, samples=3).write(runs)
    rng = np.random.default_rng(0)
    make_soft(
        edges=rng.random((6, 3, 4, 4)).astype(np.float32),
        gates=rng.random((6, 2, 4, 3)).astype(np.float32),
        blocks=(rng.random((6, 5, 3)) > 0.5).astype(np.float32),
    ).write(runs)
    again = replace(made, info=replace(made.info, run_id="edited", config={**made.info.config, "edits": ["step 1"]}))
    again.write(runs)


@pytest.fixture(scope="session")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    """The API over runs of every kind, or over the folder that ``FUZZ_DATA`` names (only read, except for jobs)."""
    for name in [name for name in os.environ if name.startswith("TOKENPATHS_")]:
        os.environ.pop(name)
    given = os.environ.get("FUZZ_DATA")
    data_dir = Path(given) if given else tmp_path_factory.mktemp("fuzzed")
    if not given:
        make_runs(data_dir / "runs")
    settings = load_settings(
        data_dir=data_dir,
        worker_port=9,
        worker_secret="a-secret-for-the-tests",
        query_seconds=60,
        query_wait_seconds=60,
    )
    app = create_app(settings)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=True) as client:
        found = [run["run"] for run in client.get("/api/v1/runs?limit=1000").json()["runs"]]
        yield Fuzzed(client, app.openapi(), found)
