"""A sample against a reference run over REST: found by default, named, refused, absent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.backend.conftest import Serve, Served, problem
from tests.support.runs import make


def write(runs: Path, run_id: str, samples: int = 6, config: dict | None = None, **info: str) -> None:
    made = make(run_id, samples=samples, twin=False, seed=samples)
    about = {"config": made.info.config | (config or {}), **info}
    replace(made, info=replace(made.info, **about)).write(runs)


def test_an_upload_finds_its_reference_by_its_weights(serve: Serve) -> None:
    served: Served = serve()
    runs = served.runs_dir
    write(runs, "mine", samples=1, split="try")
    alone = served.get("/runs/mine/samples/0/reference").json()
    assert (alone["reference"], alone["tokens"], alone["num_known"]) == (None, [], None)
    assert "tokenpaths trace --model toy-vision" in alone["reason"]
    write(runs, "named-alike", samples=9, checkpoint_sha256="b" * 64)
    by_name = served.get("/runs/mine/samples/0/reference").json()
    assert (by_name["reference"]["run"], by_name["found_by"]) == ("named-alike", "model")
    write(runs, "small", samples=2)
    write(runs, "seen", samples=4)
    write(runs, "edited", samples=12, config={"controls": {"ban": "2.3"}})
    write(runs, "other-upload", samples=11, split="detour")
    answer = served.get("/runs/mine/samples/0/reference?similar=2&unusual=1&each=3")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["reference"]["run"], found["found_by"], found["reason"]) == ("seen", "checkpoint", None)
    assert len(found["tokens"]) == found["num_tokens"] == 64
    assert found["num_known"] == sum(row["path_tokens"] > 0 for row in found["tokens"])
    assert (len(found["similar"]), len(found["unusual"])) == (2, 1)
    again = served.get(
        "/runs/mine/samples/0/reference?similar=2&unusual=1&each=3", headers={"if-none-match": answer.headers["etag"]}
    )
    assert again.status_code == 304
    served.client.delete("/api/v1/runs/seen").raise_for_status()
    later = served.get("/runs/mine/samples/0/reference?similar=2&unusual=1&each=3").json()
    assert later["reference"]["run"] == "small"


def test_a_named_reference_is_taken_or_refused(serve: Serve) -> None:
    served: Served = serve()
    write(served.runs_dir, "mine", samples=1, split="try")
    write(served.runs_dir, "small", samples=2)
    make("words", "text", samples=2, twin=False).write(served.runs_dir)
    named = served.get("/runs/mine/samples/0/reference?reference=small").json()
    assert (named["reference"]["run"], named["found_by"]) == ("small", "named")
    problem(served.get("/runs/mine/samples/0/reference?reference=words"), 422, "reference")
    problem(served.get("/runs/mine/samples/0/reference?reference=mine"), 422, "reference")
    problem(served.get("/runs/mine/samples/0/reference?reference=nothing"), 422, "reference")
    problem(served.get("/runs/mine/samples/7/reference"), 404, "sample")
    problem(served.get("/runs/nothing/samples/0/reference"), 404, "run")
