"""What the places of the page ask of a large run is what the benchmark of questions measures, filters included."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.queries_asked import QUESTIONS, About
from tests.backend.conftest import api_for
from tests.support.runs.synthetic import SyntheticRun, write_run
from tokenpaths.frontend.api.client import Client

FILTERS = {"label", "through", "paths", "q", "merge_share"}
"""arguments that decide from which rows an answer is worked out"""
VIEWS = ("routes", "paths", "samples", "modules", "work")
ADDRESSES: tuple[dict[str, str], ...] = (
    {},
    {"label": "chat"},
    {"label": "chat", "inspect": "module:3.4"},
    {"inspect": "path:3"},
    {"inspect": "token:2.3"},
    {"through": "3.4"},
    {"merge": "5"},
    {"sample": "2", "token": "3"},
    {"measure": "reuse", "per": "token", "label": "chat"},
)
Shape = tuple[str, str, frozenset[str]]


def shape(question: str, arguments: dict[str, object]) -> Shape:
    """The question without names and numbers; per what, and whether without draws; and its filters."""
    template = re.sub(r"^(distributions|outcomes|means)/[^/]+", r"\1/*", question.strip("/"))
    template = re.sub(r"(?<=/)(\{\w+\}|[\d.]+)", "*", template)
    given = {name for name, value in arguments.items() if value not in (None, (), "", [])}
    per = str(arguments["per"]) if "per" in given else ""
    draws = " without draws" if arguments.get("draws") == 0 else ""
    return template, per + draws, frozenset(given & FILTERS)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("asked")
    write_run(SyntheticRun("queried", 3000), folder / "runs")
    with api_for(folder) as served:
        yield str(served.client.base_url).rstrip("/")


def test_the_benchmark_measures_what_the_page_asks(show, api, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[Shape, str] = {}
    plain = Client.ask

    def ask(self, run, question, *, most=None, **arguments):
        asked.setdefault(shape(question, arguments), f"{question} {arguments}")
        return plain(self, run, question, most=most, **arguments)

    monkeypatch.setattr(Client, "ask", ask)
    for view in VIEWS:
        for more in ADDRESSES:
            assert not show(view=view, run="queried", **more).error
    about = About.of(plain(Client(api), "queried", ""))
    rng = np.random.default_rng(0)
    measured = {shape(*question.ask(rng, about)) for question in QUESTIONS}
    assert len(asked) > 30
    assert {words for one, words in asked.items() if one not in measured} == set()
