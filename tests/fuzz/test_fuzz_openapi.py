"""Requests made from the OpenAPI document: no server error, and every answer is what the document says.

schemathesis makes the requests, right ones and wrong ones; names of real runs take the place of most drawn ones, so
that they come to something.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from jsonschema import Draft202012Validator
from schemathesis import Case, GenerationMode
from schemathesis.schemas import APIOperation
from starlette.testclient import TestClient

from tests.fuzz.conftest import Fuzzed
from tests.fuzz.fuzz_settings import fuzzed_with
from tokenpaths.backend.app import create_app
from tokenpaths.backend.settings import load_settings

NO_WORKER = ("/api/v1/models", "/api/v1/models/{model}", "/api/v1/traces")
"""need a worker, which is not there: 503"""
EXAMPLES = 6


@cache
def document() -> dict[str, Any]:
    return create_app(load_settings(data_dir=Path("unused"))).openapi()


def operations() -> list[APIOperation]:
    """Every method of every route."""
    return [found.ok() for found in schemathesis.openapi.from_dict(document()).get_all_operations()]


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` with the parts that it refers to."""
    return {**schema, "components": document()["components"]}


def send(case: Case, client: TestClient) -> Any:
    """The answer to ``case``."""
    wanted = requests.Request(**case.as_transport_kwargs(base_url="http://127.0.0.1")).prepare()
    headers = {name: value for name, value in wanted.headers.items() if name.lower() != "content-length"}
    return client.request(wanted.method or "GET", wanted.url or "", headers=headers, content=wanted.body or b"")


def check(case: Case, answer: Any) -> None:
    """The status and the body are those of the document; a refusal is a problem with a sentence."""
    template, method, status = case.operation.path, case.operation.method.lower(), answer.status_code
    about = f"{method.upper()} {answer.request.url} {case.body!r:.300}: {status} {answer.text[:600]}"
    promised = document()["paths"][template][method]["responses"]
    assert str(status) in promised, f"not in the document: {about}"
    assert status < 500 or (status == 503 and template in NO_WORKER), about
    assert "Traceback" not in answer.text, about
    kind = answer.headers.get("content-type", "").partition(";")[0]
    content = promised[str(status)].get("content", {})
    if status >= 400:
        assert kind == "application/problem+json", about
        body = answer.json()
        assert body["status"] == status, about
        assert len(body["detail"]) > 10, about
        assert not re.search(r"Error\b|Exception|0x[0-9a-f]{6}|/site-packages/", body["detail"]), about
    elif content:
        assert kind in content, about
    if kind.endswith("json") and content:
        schema = resolved(content[kind]["schema"])
        wrong = next(Draft202012Validator(schema).iter_errors(strict_json(answer.content)), None)
        assert wrong is None, f"{wrong.message if wrong else ''}: {about}"


def strict_json(data: bytes) -> Any:
    """JSON without NaN, which browsers refuse."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(data, parse_constant=refuse)


def with_real_names(draw: st.DrawFn, case: Case, fuzzed: Fuzzed) -> Case:
    """``case`` about what exists, most of the time; nothing that exists is deleted."""
    real = draw(st.integers(0, 9)) > 0 and case.method.upper() != "DELETE"
    if not real:
        return case
    places = dict(case.path_parameters or {})
    number = st.integers(0, 9)
    drawn = {
        "run": st.sampled_from(fuzzed.runs),
        "rank": number,
        "sample": number,
        "model": st.just("dna-vision-top1"),
        "measure": st.sampled_from(["compute", "reuse", "loss", "gate_entropy"]),
        "format": st.sampled_from(["csv", "parquet", "arrow"]),
        "table": st.sampled_from(["token", "path", "sample", "flow", "usage", "module", "run", "edge"]),
    }
    for name in places.keys() & drawn.keys():
        places[name] = draw(drawn[name])
    case.path_parameters = places
    query = dict(case.query or {})
    for name in ("a", "b", "of"):
        if name in query and draw(st.booleans()) and "effect" in case.path + "compare":
            query[name] = draw(st.sampled_from(fuzzed.runs))
    for name, some in SOME.items():
        if name in query and draw(st.integers(0, 2)) == 0:
            query[name] = draw(some)
    case.query = query
    return case


SOME: dict[str, st.SearchStrategy[Any]] = {
    "label": st.sampled_from(["circle", "square", "english", "code", "", "nothing"]),
    "through": st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=4).map(
        lambda points: ",".join(f"{step}.{module}" for step, module in points)
    ),
    "steps": st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda ends: f"{ends[0]}:{ends[1]}"),
    "paths": st.lists(st.integers(0, 40), max_size=6).map(lambda ranks: ",".join(map(str, ranks))),
    "ranks": st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda ends: f"{ends[0]}:{ends[1]}"),
    "compute": st.tuples(st.floats(0, 1), st.floats(0, 1)).map(lambda ends: f"{ends[0]}:{ends[1]}"),
    "reuse": st.tuples(st.floats(0, 1), st.floats(0, 1)).map(lambda ends: f"{ends[0]}:{ends[1]}"),
    "q": st.sampled_from(["the", "circle", ".*", "(", "\\d", "", " ", "é", "t*e", "[a-z]+"]),
    "limit": st.integers(1, 50),
    "sample": st.integers(0, 9),
    "token": st.integers(0, 20),
    "step": st.integers(0, 5),
    "draws": st.integers(0, 5),
}
"""what means something in a run, since drawn strings seldom do"""


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize("operation", operations(), ids=lambda one: f"{one.method.upper()} {one.path}")
def test_answers_are_what_the_document_says(operation: APIOperation, mode: GenerationMode, fuzzed: Fuzzed) -> None:
    cases = operation.as_strategy(generation_mode=mode)

    @fuzzed_with(EXAMPLES)
    @given(st.data())
    def ask(data: st.DataObject) -> None:
        case = data.draw(st.composite(lambda draw: with_real_names(draw, draw(cases), fuzzed))())
        check(case, send(case, fuzzed.client))

    try:
        ask()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE
        pytest.skip("no request to this route is wrong")
