"""Every GET of a run: shape, numbers that hang together, ETag, paging."""

from __future__ import annotations

import asyncio
import io
import time
import zipfile
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image
from starlette.requests import Request

from tests.backend.conftest import API, Serve, Served, problem
from tests.support.coroutines import run_alone
from tests.support.runs import make_run
from tokenpaths.backend.http.paging import binding_of, encode_cursor
from tokenpaths.backend.http.watchdog import Watchdog
from tokenpaths.backend.problems import Problem
from tokenpaths.engine.base.errors import QueryTimeout
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.schemas import flow_schema, path_schema, run_schema, sample_schema, work_schema
from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel

EVERY_GET: list[tuple[str, type[AnswerModel]]] = [
    ("", run_schema.RunDetails),
    ("/flow", flow_schema.Flow),
    ("/flow?steps=1:3&min_share=0.02&limit=5", flow_schema.Flow),
    ("/flow?through=1.2,2.0&paths=1,2", flow_schema.Flow),
    ("/paths", path_schema.PathList),
    ("/paths?order=compute&limit=3", path_schema.PathList),
    ("/paths/fit", path_schema.PathFit),
    ("/paths/law?draws=2", path_schema.PathLaw),
    ("/paths/slopes?draws=2", path_schema.PathSlopes),
    ("/paths/1/examples", path_schema.PathExamples),
    ("/usage", flow_schema.Usage),
    ("/samples", sample_schema.SampleList),
    ("/samples?order=loss&descending=true", sample_schema.SampleList),
    ("/samples/0", sample_schema.SampleDetails),
    ("/distributions/compute", sample_schema.Distribution),
    ("/distributions/reuse?per=token&bins=7", sample_schema.Distribution),
    ("/distributions/gate_entropy?per=token", sample_schema.Distribution),
    ("/distributions/loss", sample_schema.Distribution),
    ("/skip_and_reuse", work_schema.SkipAndReuse),
    ("/export", run_schema.TableList),
]


@pytest.mark.parametrize("run", ["vision", "text", "top2"])
@pytest.mark.parametrize(("path", "model"), EVERY_GET)
def test_every_question_is_answered_as_documented(api: Served, run: str, path: str, model: type[AnswerModel]) -> None:
    """The documented keys are there, and nothing that is not documented."""
    answer = api.get(f"/runs/{run}{path}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = model.model_validate(answer.json())
    assert undocumented(body) == []
    assert body.model_dump(exclude_unset=True) == answer.json()


HEADS = ["", "/flow?limit=5", "/samples/0/image", "/samples/999", "/flow?nothing=1", "/export/token.parquet"]


@pytest.mark.parametrize("path", [f"{API}/runs", "/healthz", "/docs", *(f"{API}/runs/vision{path}" for path in HEADS)])
def test_head_is_get_without_a_body(api: Served, path: str) -> None:
    """Status and headers are those of GET, errors included; the connection stays in step."""
    head, get = api.client.head(path), api.client.get(path)
    assert head.status_code == get.status_code
    assert head.content == b""
    # How a body comes is nothing of an answer that has none: RFC 9110, section 9.3.2.
    changing = ("date", "x-request-id", "transfer-encoding", *(["content-length"] if path == "/healthz" else []))
    assert {k: v for k, v in head.headers.items() if k not in changing} == {
        k: v for k, v in get.headers.items() if k not in changing
    }
    if "etag" in get.headers:
        assert api.client.head(path, headers={"if-none-match": get.headers["etag"]}).status_code == 304
    assert f'method="HEAD",route="{template(path)}"' in api.client.get("/metrics").text


def template(path: str) -> str:
    """The route of one of the addresses above, as the metrics name it."""
    path = path.partition("?")[0].removeprefix(API).replace("/runs/vision", "/runs/{run}")
    return path.replace("token.parquet", "{table}.{format}").replace("/0/", "/{sample}/").replace("/999", "/{sample}")


def test_head_of_an_export_does_not_stream_it(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks: list[int] = []

    def endless(self: Run, table: str, file_format: str) -> Iterator[bytes]:
        while True:
            chunks.append(len(chunks))
            yield b"row\n"

    monkeypatch.setattr(Run, "export", endless)
    assert api.client.head(f"{API}/runs/vision/export/token.csv").status_code == 200
    time.sleep(1.0)
    made = len(chunks)
    time.sleep(0.3)
    assert len(chunks) == made


def undocumented(shape: AnswerModel) -> list[str]:
    """Keys of an answer that its model does not name."""
    found = [f"{type(shape).__name__}.{name}" for name in shape.model_extra or {}]
    for name in type(shape).model_fields:
        value = getattr(shape, name)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, AnswerModel):
                found += undocumented(part)
    return found


def test_list_of_runs(api: Served) -> None:
    cards = api.get("/runs").json()["runs"]
    assert {card["run"] for card in cards} == {"vision", "text", "top2"}
    assert [card["created_at"] for card in cards] == sorted((c["created_at"] for c in cards), reverse=True)
    vision = next(card for card in cards if card["run"] == "vision")
    assert (vision["num_samples"], vision["num_tokens"], vision["status"]) == (30, 30 * 64, "sealed")


def test_answers_are_those_of_the_store(api: Served) -> None:
    """The API adds nothing but cursors."""
    with Run.open(api.runs_dir / "vision.duckdb") as run:
        asked = run.flow(label="circle", through=[(1, 2)], min_share=0.01)
        assert api.get("/runs/vision/flow?label=circle&through=1.2&min_share=0.01").json() == asked
        assert api.get("/runs/vision/usage?label=circle").json() == run.usage(label="circle")
        assert api.get("/runs/vision/paths/2/examples?limit=5&seed=3").json() == run.examples(2, 5, 3)
        samples = run.samples(order="reuse", descending=True, q="circ", limit=1000)
        assert api.get("/runs/vision/samples?order=reuse&descending=true&q=circ&limit=1000").json() == samples


def test_flow_counts_hang_together(api: Served) -> None:
    """Links of each step, with what is summed in `other`, are all tokens."""
    for query in ("", "?min_share=0.05", "?limit=3", "?label=circle", "?through=1.2"):
        flow = api.get(f"/runs/vision/flow{query}").json()
        for step in flow["steps"][:-1]:
            shown = sum(link["count"] for link in flow["links"] if link["step"] == step)
            hidden = sum(other["count"] for other in flow["other"] if other["step"] == step)
            assert shown + hidden == pytest.approx(flow["num_tokens"])


def test_image(api: Served) -> None:
    answer = api.get("/runs/vision/samples/0/image")
    assert answer.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(answer.content)).size == (64, 64)
    problem(api.get("/runs/text/samples/0/image"), 404, "sample")


@pytest.mark.parametrize("run", ["vision", "text", "top2"])
def test_exports_hold_the_same_rows(api: Served, run: str) -> None:
    parquet = pa.parquet.read_table(io.BytesIO(api.get(f"/runs/{run}/export/path.parquet").content))
    arrow = pa.ipc.open_file(api.get(f"/runs/{run}/export/path.arrow").content).read_all()
    answer = api.get(f"/runs/{run}/export/path.csv")
    assert answer.headers["content-disposition"] == f'attachment; filename="{run}-path.csv"'
    assert answer.headers["content-type"].startswith("text/csv")
    assert parquet.equals(arrow)
    assert parquet.num_rows == len(answer.text.splitlines()) - 1 == api.get(f"/runs/{run}").json()["num_paths"]


def test_a_run_as_a_data_set(api: Served) -> None:
    answer = api.get("/runs/text/dataset.zip")
    assert answer.headers["content-disposition"] == 'attachment; filename="text-dataset.zip"'
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        tokens = pa.ipc.open_stream(archive.read("text/tokens/data-00000-of-00001.arrow")).read_all()
    assert tokens.num_rows == api.get("/runs/text").json()["num_tokens"]
    problem(api.get("/runs/nothing/dataset.zip"), 404, "run")


def test_a_big_export_streams_whole(serve: Serve) -> None:
    """More rows than one batch of the store."""
    served = serve()
    make_run(served.runs_dir, "big", samples=1100, twin=False)
    answer = served.get("/runs/big/export/token.parquet")
    assert pa.parquet.read_table(io.BytesIO(answer.content)).num_rows == 1100 * 64


ETAGGED = [path for path, _ in EVERY_GET] + ["/samples/0/image", "/export/path.csv"]


@pytest.mark.parametrize("path", ETAGGED)
def test_etag_saves_the_body(api: Served, path: str) -> None:
    first = api.get(f"/runs/vision{path}")
    etag = first.headers["etag"]
    assert first.headers["cache-control"] == "private, no-cache"
    again = api.get(f"/runs/vision{path}", headers={"if-none-match": etag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    for header in ("*", f'"other", W/{etag}'):
        assert api.get(f"/runs/vision{path}", headers={"if-none-match": header}).status_code == 304
    other = api.get(f"/runs/vision{path}", headers={"if-none-match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize("path", ["/samples/99999", "/paths/99999/examples", "/export/nothing.csv"])
def test_what_does_not_exist_is_never_unchanged(api: Served, path: str) -> None:
    problem(api.get(f"/runs/vision{path}", headers={"if-none-match": "*"}), 404)


def test_etag_belongs_to_file_and_query(serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "one", samples=4)
    make_run(served.runs_dir, "two", samples=4)
    addresses = ("/runs/one/flow", "/runs/one/flow?limit=5", "/runs/one/usage", "/runs/two/flow")
    tags = [served.get(address).headers["etag"] for address in addresses]
    assert len(set(tags)) == 4
    assert served.get("/runs/one/flow").headers["etag"] == tags[0]
    make_run(served.runs_dir, "one", samples=5, overwrite=True)
    renewed = served.get("/runs/one/flow", headers={"if-none-match": tags[0]})
    assert renewed.status_code == 200
    assert renewed.json()["num_tokens"] == 5 * 64


def test_etag_of_the_list_changes_with_the_folder(serve: Serve) -> None:
    served = serve()
    empty = served.get("/runs").headers["etag"]
    assert served.get("/runs", headers={"if-none-match": empty}).status_code == 304
    make_run(served.runs_dir, "one", samples=2)
    changed = served.get("/runs", headers={"if-none-match": empty})
    assert [card["run"] for card in changed.json()["runs"]] == ["one"]
    served.client.delete(f"{API}/runs/one")
    assert served.get("/runs").headers["etag"] == empty


def pages(served: Served, path: str, rows: str, **query: Any) -> list[list[dict[str, Any]]]:
    """All pages of a list, following `next` to the end."""
    found, cursor = [], None
    while True:
        answer = served.get(path, params=query | ({"next": cursor} if cursor else {}))
        assert answer.status_code == 200, answer.text
        found.append(answer.json()[rows])
        cursor = answer.json()["next"]
        if cursor is None:
            return found


@pytest.mark.parametrize(
    ("path", "rows", "key", "query"),
    [
        ("/runs/vision/paths", "paths", "rank", {"limit": 7}),
        ("/runs/vision/paths", "paths", "rank", {"limit": 7, "order": "reuse"}),
        ("/runs/vision/paths", "paths", "rank", {"limit": 5, "label": "circle", "through": "1.2"}),
        ("/runs/vision/samples", "samples", "sample", {"limit": 4}),
        ("/runs/vision/samples", "samples", "sample", {"limit": 10}),  # 30 samples: the last page is full
        ("/runs/vision/samples", "samples", "sample", {"limit": 3, "order": "loss", "descending": True}),
        ("/runs/text/samples", "samples", "sample", {"limit": 3, "order": "confidence"}),  # all null
        ("/runs", "runs", "run", {"limit": 1}),
    ],
)
def test_paging_has_neither_gaps_nor_repeats(
    api: Served, path: str, rows: str, key: str, query: dict[str, Any]
) -> None:
    whole = api.get(path, params=query | {"limit": 1000}).json()
    assert whole["next"] is None
    found = pages(api, path, rows, **query)
    assert [row[key] for page in found for row in page] == [row[key] for row in whole[rows]]
    assert all(len(page) == query["limit"] for page in found[:-1])
    assert found[-1]


def test_pages_of_runs_survive_a_deletion(serve: Serve) -> None:
    served = serve()
    for name in "abcde":
        make_run(served.runs_dir, name, samples=1)
    first = served.get("/runs", params={"limit": 2}).json()
    served.client.delete(f"{API}/runs/{first['runs'][0]['run']}")
    rest = served.get("/runs", params={"limit": 10, "next": first["next"]}).json()
    names = [card["run"] for card in first["runs"] + rest["runs"]]
    assert sorted(names) == list("abcde")


def test_cursor_belongs_to_its_question(serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "one", samples=8)
    cursor = served.get("/runs/one/samples?limit=2").json()["next"]
    assert served.get("/runs/one/samples", params={"limit": 3, "next": cursor}).status_code == 200
    for path, query in (("/runs/one/samples", {"order": "loss"}), ("/runs/one/paths", {}), ("/runs", {})):
        body = problem(served.get(path, params=query | {"next": cursor}), 422, "next")
        assert "another question" in body["detail"]
    make_run(served.runs_dir, "one", samples=9, overwrite=True)
    problem(served.get("/runs/one/samples", params={"limit": 2, "next": cursor}), 422, "next")


@pytest.mark.parametrize(
    "cursor", ["x", "=", "WzFd", "e30", "%00", "WyJhIiwgMV0", "WzFlOTk5LCAiYSJd", "W1tbW1tbW1tbW10", "é", "a" * 500]
)
def test_damaged_cursor(api: Served, cursor: str) -> None:
    for path in ("/runs", "/runs/vision/paths", "/runs/vision/samples"):
        problem(api.get(path, params={"next": cursor}), 422, "next")


@pytest.mark.parametrize(
    ("path", "position"), [("/jobs", "abc"), ("/runs/vision/paths", "abc"), ("/runs/vision/samples", "4"), ("/runs", 4)]
)
def test_cursor_whose_position_is_of_another_kind(api: Served, path: str, position: int | str) -> None:
    """A cursor is signed by nobody: whoever knows how it is made can put anything into it."""
    registry = api.app.state.services.registry
    identity = registry.identity("vision") if "vision" in path else path.removeprefix("/")
    request = Request({"type": "http", "path": API + path, "query_string": b"", "headers": [(b"host", b"a")]})
    cursor = encode_cursor(position, binding_of(request, identity))
    assert "not a cursor" in problem(api.get(path, params={"next": cursor}), 422, "next")["detail"]


def test_equal_questions_are_computed_once(serve: Serve) -> None:
    """Fifty at once, one computation."""
    served = serve(query_slots=1)
    make_run(served.runs_dir, "one", samples=20)

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=served.client.base_url, trust_env=False, timeout=30) as client:
            return await asyncio.gather(*[client.get(f"{API}/runs/one/flow?through=1.2") for _ in range(50)])

    answers = run_alone(ask())
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    counters = metrics_of(served)
    assert counters['tokenpaths_answers_total{how="computed"}'] == 1
    assert sum(value for name, value in counters.items() if name.startswith("tokenpaths_answers_total")) == 50


def metrics_of(served: Served) -> dict[str, float]:
    """/metrics as numbers."""
    lines = served.client.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_too_many_questions_are_told_to_come_back(serve: Serve) -> None:
    """One slot, held: the next question waits its time, then gets 503 with Retry-After; health still answers."""
    served = serve(query_slots=1, query_wait_seconds=0.05)
    make_run(served.runs_dir, "one", samples=2)
    slots = served.app.state.services.answers.queries
    slots.semaphore._value = 0  # as if a long question had it
    answer = served.get("/runs/one/flow")
    assert problem(answer, 503)["type"] == "urn:tokenpaths:busy"
    assert int(answer.headers["retry-after"]) >= 1
    assert served.client.get("/healthz").status_code == 200
    slots.semaphore.release()
    assert served.get("/runs/one/flow").status_code == 200


def test_slow_question_is_told_to_ask_for_less(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: Any, **__: Any) -> None:
        raise QueryTimeout("the question took longer than 10 seconds and was stopped: ask for fewer tokens")

    served = serve()
    make_run(served.runs_dir, "one", samples=2)
    monkeypatch.setattr(Run, "flow", slow)
    answer = served.get("/runs/one/flow")
    assert problem(answer, 503)["type"] == "urn:tokenpaths:too-slow"
    assert answer.headers["retry-after"]
    assert served.get("/runs/one/usage").status_code == 200


@pytest.mark.parametrize(("runs", "advice"), [(("one",), "ask for fewer tokens"), ((), "try again in a moment")])
def test_what_lasts_too_long_without_a_run_is_not_told_to_ask_for_fewer_tokens(
    runs: tuple[str, ...], advice: str
) -> None:
    with pytest.raises(Problem, match=advice):
        run_alone(Watchdog(seconds=0.05).run(lambda: time.sleep(0.3), *runs))


def test_health_and_metrics(api: Served) -> None:
    health = api.client.get("/healthz").json()
    assert health["status"] == "ok"
    assert health["uptime_seconds"] >= 0
    api.get("/runs/vision")
    counters = metrics_of(api)
    assert counters["tokenpaths_open_runs"] >= 1
    assert any('route="/runs/{run}"' in name for name in counters)
    assert not any("vision" in name for name in counters)


def test_answer_cache_stays_in_its_bounds() -> None:
    from tokenpaths.backend.runs.answers import Answer, AnswerCache

    cache = AnswerCache(100)
    for i in range(50):
        cache.put(str(i), Answer(b"x" * 20, "text/plain"))
        assert cache.num_bytes <= 100
    assert cache.get("49") is not None
    assert cache.get("0") is None
    cache.put("large", Answer(b"x" * 26, "text/plain"))  # over a quarter: would push out everything else
    assert cache.get("large") is None
