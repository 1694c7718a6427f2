"""Requests of every kind of job, made from the schema of the kind: taken, or refused with a sentence."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.schemas import APIOperation

from tests.fuzz.conftest import Fuzzed
from tests.fuzz.fuzz_settings import fuzzed_with
from tests.fuzz.test_fuzz_openapi import check, document
from tokenpaths.engine.jobs.registry import KINDS, find_kind

EXAMPLES = 25
REAL = {
    "model": st.sampled_from(["dna-vision-top1", "dna-text-top1", "raytracing-digits", "dipaco-2x2", "nothing"]),
    "data": st.sampled_from(["bundled:scenes", "bundled:texts", "bundled:digits", "bundled:photos", "nothing.npz"]),
    "run": st.sampled_from(["vision", "text", "moe", "new-1", "new-2"]),
    "of": st.sampled_from(["vision", "text", "moe"]),
    "file": st.sampled_from(["log.npz", "nothing.jsonl"]),
}


def submit(kind: str) -> APIOperation:
    """``POST /jobs`` whose body is a request of ``kind``."""
    described = copy.deepcopy(document())
    schema = find_kind(kind).Request.model_json_schema(ref_template="#/components/schemas/{model}")
    described["components"]["schemas"] |= schema.pop("$defs", {})
    body = {
        "type": "object",
        "required": ["kind", "request"],
        "additionalProperties": False,
        "properties": {"kind": {"const": kind}, "request": schema},
    }
    described["paths"] = {"/api/v1/jobs": {"post": described["paths"]["/api/v1/jobs"]["post"]}}
    described["paths"]["/api/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"] = body
    return next(found.ok() for found in schemathesis.openapi.from_dict(described).get_all_operations())


def with_real_names(draw: st.DrawFn, body: Any) -> Any:
    """``body`` with names of what exists, most of the time."""
    request = body.get("request") if isinstance(body, dict) else None
    if isinstance(request, dict):
        for name in request.keys() & REAL.keys():
            if draw(st.integers(0, 7)) > 0:
                request[name] = draw(REAL[name])
    return body


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_job_is_taken_or_refused(kind: str, mode: GenerationMode, fuzzed: Fuzzed) -> None:
    operation = submit(kind)
    cases = operation.as_strategy(generation_mode=mode)

    @fuzzed_with(EXAMPLES)
    @given(st.data())
    def ask(data: st.DataObject) -> None:
        case = data.draw(cases)
        body = data.draw(st.composite(lambda draw: with_real_names(draw, case.body))())
        try:
            answer = fuzzed.client.post("/api/v1/jobs", json=body)
        except (TypeError, ValueError):  # bytes and the like are no JSON
            return
        if answer.status_code == 503:  # a thousand wait already
            assert "retry-after" in answer.headers
            return
        check(case, answer)
        if answer.status_code == 202:
            fuzzed.client.delete(f"/api/v1/jobs/{answer.json()['job']}")

    ask()


FOUND: list[Any] = [
    {"kind": "trace", "request": {"model": "\ud800", "data": "bundled:scenes"}},
    {"kind": ["trace"], "request": {}},
    {"kind": "dream", "request": {"model": "dna-vision-top1", "image": {"iterations": math.inf}}},
]


@pytest.mark.parametrize("number", range(len(FOUND)))
def test_what_is_odd_is_refused(number: int, fuzzed: Fuzzed) -> None:
    answer = fuzzed.client.post(
        "/api/v1/jobs", content=json.dumps(FOUND[number]), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"]
