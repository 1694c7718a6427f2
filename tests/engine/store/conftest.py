"""Runs of every layout, written once for all tests of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.naive_store import Case, Naive
from tests.support.runs import RunArrays, make, with_unused
from tokenpaths.engine.store.ask.run import Run

KINDS = {
    "top1": {"modality": "vision"},
    "text": {"modality": "text", "samples": 20},
    "top2": {"modality": "vision", "top_k": 2, "identities": 2},
    "top3": {"modality": "text", "top_k": 3, "steps": 3},
    "packed": {"modality": "vision", "steps": 9, "modules": 12, "top_k": 8, "samples": 4},
    "wide": {"modality": "text", "steps": 5, "modules": 400, "top_k": 14, "samples": 4},
    "chunked": {"modality": "text", "steps": 5, "modules": 300, "top_k": 6, "samples": 9, "chunk": 4},
    "unlabelled": {"modality": "text", "labels": False, "twin": False},
    "one_step": {"modality": "text", "steps": 1},
    "dropped": {"modality": "text", "top_k": 1, "unused": 0.2},
    "varied": {"modality": "text", "top_k": 2, "unused": 0.2},
    "varied_packed": {"modality": "vision", "steps": 9, "modules": 12, "top_k": 8, "samples": 4, "unused": 0.3},
    "varied_wide": {
        "modality": "text",
        "steps": 4,
        "modules": 300,
        "top_k": 6,
        "samples": 6,
        "unused": 0.3,
        "chunk": 4,
    },
}
"""``unused``: the share of slots that hold no module"""


@pytest.fixture(scope="session")
def _cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Case]]:
    folder: Path = tmp_path_factory.mktemp("runs")
    cases = {}
    for kind, given in KINDS.items():
        arguments = dict(given)
        unused = arguments.pop("unused", 0.0)
        made = make(kind, **arguments)
        made = with_unused(made, unused) if unused else made
        cases[kind] = Case(Run.open(made.write(folder)), Naive(made))
    yield cases
    for case in cases.values():
        case.run.close()


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, _cases: dict[str, Case]) -> Case:
    return _cases[request.param]


@pytest.fixture
def top1(_cases: dict[str, Case]) -> Case:
    return _cases["top1"]


@pytest.fixture
def text(_cases: dict[str, Case]) -> Case:
    return _cases["text"]


@pytest.fixture
def unlabelled(_cases: dict[str, Case]) -> Case:
    return _cases["unlabelled"]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., list[Run]]]:
    """Write runs and open them; closed at the end."""
    runs: list[Run] = []

    def write(*made: RunArrays) -> list[Run]:
        runs.extend(Run.open(one.write(tmp_path)) for one in made)
        return runs[-len(made) :]

    yield write
    for run in runs:
        run.close()
