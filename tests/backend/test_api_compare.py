"""Comparisons, similar samples and tokens, maps over REST."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backend.conftest import SECRET, Served, api_for, problem, serving
from tests.support.runs import make, make_experts, make_run


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An API with a worker over runs that fit and runs that do not."""
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.backend.worker.worker import create_worker

    data_dir: Path = tmp_path_factory.mktemp("pairs")
    runs = data_dir / "runs"
    first = make("first", samples=6, seed=1, twin=False)
    first.write(runs)
    for batch in first.batches:
        batch.module_ids[::3] = (batch.module_ids[::3] + 1) % 6
    replace(first, info=replace(first.info, run_id="second")).write(runs)
    make_run(runs, "texts", "text", samples=40, twin=False)
    make_run(runs, "many", "text", samples=400, twin=False)
    make_run(runs, "one", samples=1, seed=1, labels=False, twin=False)
    for at in (10, 20):
        make_experts(f"at-{at}", series=("training", at), drift=1 - at / 20, samples=3).write(runs)
    (runs / "cut.duckdb").write_bytes((runs / "first.duckdb").read_bytes()[:9000])
    options = {"data_dir": data_dir, "worker_secret": SECRET, "warm_models": False}
    with serving(create_worker(load_settings(**options))) as url, api_for(worker_url=url, **options) as served:
        yield served


def test_two_runs_side_by_side(pairs: Served) -> None:
    answer = pairs.get("/compare?a=first&b=second&measure=compute&limit=2&links=4&points=5")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["a"]["run"], body["b"]["run"], body["measure"]) == ("first", "second", "compute")
    assert body["matched"]["num"] == 6
    assert (len(body["points"]), body["points_of"], len(body["most"])) == (5, 6, 2)
    assert len(body["flow"]["links"]) == 4
    assert "NaN" not in answer.text
    again = pairs.get(
        "/compare?a=first&b=second&measure=compute&limit=2&links=4&points=5",
        headers={"if-none-match": answer.headers["etag"]},
    )
    assert again.status_code == 304
    assert pairs.get("/compare?a=second&b=first").headers["etag"] != answer.headers["etag"]


@pytest.mark.parametrize(
    ("path", "status", "field", "words"),
    [
        ("/compare?a=first&b=first", 409, "b", "given twice"),
        ("/compare?a=first&b=texts", 409, "b", "is of vision, 'texts' of text"),
        ("/compare?a=texts&b=at-10", 409, "b", "no sample in common"),
        ("/compare?a=first&b=nobody", 422, "b", "There is no run `nobody`"),
        ("/compare?a=nobody&b=first", 422, "a", "There is no run `nobody`"),
        ("/compare?a=first&b=cut", 409, None, "cut"),
        ("/compare?a=first", 422, "b", "`b`"),
        ("/compare?b=first", 422, "a", "`a` is missing"),
        ("/compare?runs=first,nobody", 422, "runs", "There is no run `nobody`"),
        ("/compare?runs=first,first", 422, "runs", "given twice"),
        ("/compare?runs=", 422, "runs", "0 runs were given"),
        ("/compare?runs=" + ",".join(["first"] * 33), 422, "runs", "1 to 32"),
        ("/compare?runs=first,second&a=first", 422, "a", "about two runs"),
        ("/compare?runs=first,cut", 409, None, "cut"),
        ("/compare?a=first&b=second&measure=speed", 422, "measure", "`measure`"),
        ("/compare?a=first&b=second&steps=1", 422, "steps", "steps"),
        ("/runs/first/series", 404, "run", "belongs to no series"),
        ("/runs/one/samples/0/similar", 422, "sample", "has one sample"),
        ("/runs/first/samples/99/similar", 404, "sample", "has samples 0 to 5"),
        ("/runs/first/samples/0/similar?limit=0", 422, "limit", "`limit`"),
        ("/runs/first/tokens/similar?sample=0&token=64", 404, "token", "has the tokens 0 to 63"),
        ("/runs/first/tokens/similar?sample=0", 422, "token", "`token`"),
        ("/runs/one/map", 422, "run", "a map needs three"),
        ("/runs/first/map?method=tsne", 422, "method", "`method`"),
    ],
)
def test_what_cannot_be_answered_is_a_problem(
    pairs: Served, path: str, status: int, field: str | None, words: str
) -> None:
    assert words in problem(pairs.get(path), status, field)["detail"]


def test_any_number_of_runs_in_numbers(pairs: Served) -> None:
    answer = pairs.get("/compare?runs=first,second,texts,at-10")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert [one["run"] for one in body["runs"]] == ["first", "second", "texts", "at-10"]
    assert body["runs"][3]["series"] == {"name": "training", "iteration": 10}
    assert body["runs"][2]["reason"] == "first is of vision, texts of text"
    reuse = next(one for one in body["rows"] if one["name"] == "mean_reuse")
    assert len(reuse["values"]) == len(reuse["differences"]) == len(reuse["reasons"]) == 4
    assert "NaN" not in answer.text
    etag = {"if-none-match": answer.headers["etag"]}
    assert pairs.get("/compare?runs=first,second,texts,at-10", headers=etag).status_code == 304
    turned = pairs.get("/compare?runs=second,first,texts,at-10", headers=etag)
    assert turned.status_code == 200
    assert turned.json()["runs"][0]["run"] == "second"


def test_the_measure_by_which_two_differ_most(pairs: Served) -> None:
    body = pairs.get("/compare?a=first&b=second&measure=auto").json()
    assert body["measure"] in ("reuse", "compute")
    row = next(one for one in body["correlations"] if one["measure"] == body["measure"])
    assert row["pearson"] is not None
    assert any(point["a"] != point["b"] for point in body["points"])


def test_a_run_of_one_sample_has_numbers_but_no_correlation(pairs: Served) -> None:
    body = pairs.get("/compare?a=one&b=first").json()
    assert (body["matched"]["num"], body["matched"]["only_a"], body["matched"]["only_b"]) == (1, 0, 5)
    assert all(row["pearson"] is None and "takes four" in row["reason"] for row in body["correlations"])
    assert len(body["points"]) == 1
    assert body["grouping"]["num_tokens"] == 64
    assert pairs.get("/compare/grouping?a=one&b=first").json() == {"a": "one", "b": "first"} | {
        "grouping": body["grouping"]
    }
    assert pairs.get("/compare?a=one&b=first&grouping=false").json() == body | {"grouping": None}


def test_which_decisions_are_the_same(pairs: Served) -> None:
    body = pairs.get("/compare/agreement?a=at-10&b=at-20&limit=2").json()
    assert (body["a"], body["b"], body["matched"]["num"], len(body["samples"])) == ("at-10", "at-20", 3, 2)
    overall = body["overall"]
    assert overall["tokens"]["share"] < overall["sets"]["low"] < overall["sets"]["share"] < overall["overlap"]["mean"]
    assert [row["step"] for row in body["steps"]] == [0, 1, 2, 3]
    assert sum(row["decisions"] for row in body["steps"]) == overall["decisions"] == 4 * body["matched"]["num_tokens"]
    turned = pairs.get("/compare/agreement?a=at-20&b=at-10").json()["overall"]
    assert (turned["sets"], turned["chance"]) == (overall["sets"], pytest.approx(overall["chance"]))
    row = body["samples"][0]
    one = pairs.get(f"/compare/agreement/sample?a=at-10&b=at-20&sample={row['sample']}").json()
    assert (one["partner"], one["num_tokens"], len(one["tokens"])) == (row["partner"], row["num_tokens"], 24)
    shares = [overlap for token in one["tokens"] for overlap in token["overlap"]]
    assert sum(share == 1 for share in shares) / len(shares) == pytest.approx(row["sets"])
    assert sum(any(share < 1 for share in token["overlap"]) for token in one["tokens"]) == row["differ"]
    assert problem(pairs.get("/compare/agreement/sample?a=at-10&b=at-20&sample=3"), 404)["field"] == "sample"
    late = "/compare/agreement/sample?a=at-10&b=at-20&sample=0&first=24"
    assert "it should be 0 to 23" in problem(pairs.get(late), 422)["detail"]
    refused = problem(pairs.get("/compare/agreement?a=first&b=texts"), 409)
    assert refused["field"] == "b"
    assert problem(pairs.get("/compare/agreement?a=first&b=nobody"), 422)["field"] == "b"


def test_checkpoints_of_a_training(pairs: Served) -> None:
    body = pairs.get("/runs/at-10/series").json()
    assert (body["run"], body["series"]) == ("at-10", "training")
    assert [point["iteration"] for point in body["points"]] == [10, 20]
    assert body["untrained"] is None
    assert [step["kept"] is None for step in body["points"][1]["steps"]] == [False] * 4


def test_similar_samples_tokens_and_a_map(pairs: Served) -> None:
    body = pairs.get("/runs/texts/samples/3/similar?limit=4").json()
    distances = [row["distance"] for row in body["similar"]]
    assert len(distances) == 4
    assert distances == sorted(distances)
    assert 3 not in [row["sample"] for row in body["similar"]]
    body = pairs.get("/runs/first/tokens/similar?sample=1&token=9&limit=3&each=2").json()
    assert body["paths"][0]["distance"] == 0
    assert body["paths"][0]["rank"] == body["rank"]
    assert all(len(path["examples"]) <= 2 for path in body["paths"])
    body = pairs.get("/runs/first/map?thumbnails=true&limit=4").json()
    assert (body["num_samples"], body["of_samples"], body["method"]) == (4, 6, "pca")
    assert all(point["thumbnail"].startswith("data:image/webp;base64,") for point in body["points"])


def test_a_map_is_a_job_that_ends_or_is_cancelled(pairs: Served) -> None:
    def asked(run: str, **request: object) -> str:
        answer = pairs.client.post("/api/v1/jobs", json={"kind": "map", "request": {"run": run, **request}})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job"])

    def until(job: str, *states: str) -> dict:
        ends = time.monotonic() + 120
        while (found := pairs.get(f"/jobs/{job}").json())["state"] not in states:
            assert time.monotonic() < ends, found
            time.sleep(0.05)
        return found

    done = until(asked("texts", perplexity=8, iterations=300), "succeeded", "failed")
    assert done["state"] == "succeeded", done["problem"]
    made = pairs.get(f"/jobs/{done['job']}/artifacts/map.json").json()
    plane = pairs.get("/runs/texts/map").json()
    assert made["points"][0].keys() == plane["points"][0].keys()
    assert (made["method"], made["explained"], made["num_samples"]) == ("tsne", None, 40)

    # Several slices even on a fast machine: 5,000 iterations of 40 samples fit into one.
    long = asked("many", perplexity=30, iterations=5000)
    until(long, "running")
    pairs.client.delete(f"/api/v1/jobs/{long}")
    assert until(long, "cancelled", "succeeded")["state"] == "cancelled"
    answer = pairs.client.post("/api/v1/jobs", json={"kind": "map", "request": {"run": "one"}})
    assert "t-SNE needs four" in problem(answer, 422, "request.run")["detail"]
