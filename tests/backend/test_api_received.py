"""Responses of running engines: taken as they come, kept over restarts, counted, sealed as runs, forgotten."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import tokenpaths
from tests.backend.conftest import API, SECRET, TOKEN, Serve, Served, api_for, problem, serving
from tests.engine.adapters.logs.engine_logs import EXPERTS, IDS, LAYERS, ROWS, TOP_K, sglang, stream, vllm_chat
from tests.support.jobs_over_rest import until
from tests.support.runs import make_run
from tokenpaths.backend.routes.received import look_after, settle
from tokenpaths.backend.services import LOG_LOOKS
from tokenpaths.backend.settings import load_settings
from tokenpaths.backend.worker.worker import create_worker
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.sending import lines


@contextmanager
def with_worker(data_dir: Path, **options: Any) -> Iterator[Served]:
    """An API with a worker that does its jobs."""
    common = {"worker_secret": SECRET, "warm_models": False}
    worker = create_worker(load_settings(data_dir=data_dir, models_dirs=(), **common))
    with serving(worker) as url, api_for(data_dir, worker_url=url, **common, **options) as served:
        yield served


def url_of(served: Served) -> str:
    return str(served.client.base_url)


def answer(number: int, **changes: Any) -> dict[str, Any]:
    return {**vllm_chat(number), "id": f"chat-{number}", **changes}


@pytest.mark.parametrize("at_end", [False, True])
def test_a_stream_of_events_is_one_response(tmp_path: Path, at_end: bool) -> None:
    events = stream(tmp_path / "events.txt", at_end).read_bytes()
    other = events.replace(b'"id": "s"', b'"id": "t"')
    between = b"\n\n".join(b for pair in zip(events.split(b"\n\n"), other.split(b"\n\n"), strict=True) for b in pair)
    data_dir = tmp_path / "data"
    with with_worker(data_dir) as served:
        first = served.client.post(f"{API}/logs/live", content=events, headers={"content-type": "text/event-stream"})
        assert (first.status_code, first.json()["received"], first.json()["tokens"]) == (200, 1, ROWS)
        both = served.client.post(f"{API}/logs/live", content=b": opened\n\n" + between)
        assert (both.status_code, both.json()["received"], both.json()["known"]) == (200, 1, 1)
        job = served.client.post(f"{API}/logs/live/seal").json()["job"]
        until(served, job, "succeeded")
        with Run.open(served.runs_dir / "live.duckdb") as run:
            assert run.card()["num_samples"] == 2
            assert [token["ribbon"] for token in run.sample(1)["tokens"]] == IDS[0].tolist()


def test_a_stream_and_answers_are_sent_together(tmp_path: Path, serve: Serve) -> None:
    served = serve()
    several = [
        json.dumps(answer(0)) + "\n" + json.dumps(answer(1)),
        answer(2),
        stream(tmp_path / "events").read_bytes(),
    ]
    told = tokenpaths.send(several, run="live", url=url_of(served))
    assert (told["received"], told["num_refused"], told["tokens"]) == (4, 0, 4 * ROWS)


def test_an_event_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with api_for(tmp_path / "data") as served:
        said = problem(served.client.post(f"{API}/logs/live", content=b'event: x\n\ndata: {"id": 1\n\n'), 422)
        assert said["field"] == "body"
        assert "event line 2: is not JSON" in said["detail"]
        assert served.get("/logs/live").status_code == 404


def gone(served: Served, run: str) -> None:
    ends = time.monotonic() + 60
    while served.get(f"/logs/{run}").status_code != 404:
        assert time.monotonic() < ends
        settle(served.app.state.services)
        time.sleep(0.05)


def test_from_the_first_response_to_a_run(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with api_for(data_dir) as served:
        first = tokenpaths.send(answer(0), run="live", url=url_of(served))
        assert (first["received"], first["known"], first["tokens"]) == (1, 0, ROWS)
        both = tokenpaths.send([answer(0), json.dumps(answer(1))], run="live", url=url_of(served))
        assert (both["received"], both["known"], both["responses"]) == (1, 1, 2)
    with with_worker(data_dir) as served:  # another process: nothing is lost
        before = served.get("/logs/live").json()
        assert (before["responses"], before["tokens"], before["experts"] <= EXPERTS) == (2, 2 * ROWS, True)
        third = served.client.post(f"{API}/logs/live", content=lines(answer(2)))
        assert (third.status_code, third.json()["received"]) == (200, 1)
        about = served.get("/logs/live").json()
        assert served.get("/logs").json()["logs"] == [about]
        assert about["last_at"] >= about["began_at"]
        for row in about["load"]:
            counts = [0] * EXPERTS
            for ids in IDS:
                for token in range(ROWS):
                    for slot in range(TOP_K):
                        counts[int(ids[token, row["layer"] - 1, slot])] += 1
            shares = np.array(counts)[np.array(counts) > 0] / sum(counts)
            assert row["choices"] == 3 * ROWS * TOP_K
            assert row["load_entropy"] == pytest.approx(-(shares * np.log(shares)).sum() / np.log(about["experts"]))
        assert [row["layer"] for row in about["load"]] == list(range(1, LAYERS + 1))  # the first is dense
        job = served.client.post(f"{API}/logs/live/seal")
        assert job.status_code == 202
        assert job.headers["location"] == f"{API}/jobs/{job.json()['job']}"
        until(served, job.json()["job"], "succeeded")
        gone(served, "live")
        assert list((data_dir / "inbox").iterdir()) == []
        assert list((data_dir / "received").iterdir()) == []
        with Run.open(served.runs_dir / "live.duckdb") as run:
            assert (run.card()["num_samples"], run.card()["num_tokens"]) == (3, 3 * ROWS)
            assert [token["ribbon"] for token in run.sample(1)["tokens"]] == IDS[1].tolist()
        taken = served.client.post(f"{API}/logs/live", content=lines(answer(0)))
        assert problem(taken, 409)["type"] == "urn:tokenpaths:run-exists"


def test_flat_ids_take_their_sizes_once(serve: Serve) -> None:
    served = serve()
    sizes = {"layers": LAYERS + 1, "top_k": TOP_K}
    with pytest.raises(UserError, match="flat row"):
        tokenpaths.send(sglang(0), run="flat", url=url_of(served))
    assert served.get("/logs").json()["logs"] == []
    assert tokenpaths.send(sglang(0), run="flat", url=url_of(served), **sizes)["received"] == 1
    assert tokenpaths.send([sglang(1), sglang(2)], run="flat", url=url_of(served))["received"] == 2
    with pytest.raises(UserError, match="began with layers 5, not 7"):
        tokenpaths.send(sglang(0), run="flat", url=url_of(served), layers=7)
    with pytest.raises(UserError, match="began without `experts`; leave it out"):
        tokenpaths.send(sglang(0), run="flat", url=url_of(served), experts=64)


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "it holds no response"),
    "no json": (lambda: b"hello", "is not JSON"),
    "a number": (lambda: b"3", "should be an object"),
    "no decisions": (lambda: b'{"choices": [{"index": 0}]}', "has no routed_experts"),
    "of a training": (
        lambda: lines({"step": 1, "layer": 2, "top_indices": [[0, 3]]}),
        "it has step, layer, top_indices. A log that does not hold responses goes into the inbox (PUT /inbox/NAME), "
        "and a job `import` makes a run of it",
    ),
    "of layers": (lambda: lines({"layer_idx": 0, "token_idx": 0, "selected_ids": [1]}), "a job `import` makes a run"),
    "an error": (lambda: lines({"error": {"message": "cancelled"}}), "has no routed_experts; start the engine with"),
    "bad base64": (lambda: lines({"choices": [{"routed_experts": "@@"}]}), "response 0"),
    "a pickle": (lambda: lines({"choices": [{"routed_experts": "gASVAAAAAAAA"}]}), "response 0"),
    "deep": (lambda: b"[" * 100_000, "is not JSON"),
    "negative": (lambda: lines({"choices": [{"routed_experts": [[[-3]]]}]}), "expert -3 at layer 0 is negative"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_no_response_is_refused_and_leaves_nothing(serve: Serve, fault: str) -> None:
    served = serve()
    body, words = REFUSED[fault]
    refused = served.client.post(f"{API}/logs/live", content=body())
    problem(refused, 422)
    assert words in refused.json()["detail"]
    assert served.get("/logs").json()["logs"] == []
    assert not list((served.settings.data_dir / "received").glob("*"))


def test_good_lines_beside_bad_ones_are_taken(serve: Serve) -> None:
    served = serve()
    other = answer(1, model="another")
    narrow = answer(2, id="narrow")
    narrow["choices"] = [{"index": 0, "routed_experts": IDS[2][:, :2].tolist()}]
    tokenpaths.send(answer(0, model="one"), run="live", url=url_of(served))
    told = tokenpaths.send([other, narrow, b"{", answer(2, model="one")], run="live", url=url_of(served))
    assert (told["received"], told["num_refused"]) == (1, 3)
    reasons = [row["reason"] for row in told["refused"]]
    assert "is not JSON" in reasons[0] or "is of the model" in reasons[0]
    assert any("is of the model 'another', the log began with 'one'" in reason for reason in reasons)
    assert any("it has 2 layers of 2 experts, the log began with 5 of 2" in reason for reason in reasons)


def test_one_without_an_id_is_known_by_its_bytes(serve: Serve) -> None:
    served = serve()
    plain = {name: value for name, value in vllm_chat(0).items() if name != "id"}
    assert tokenpaths.send(plain, run="live", url=url_of(served))["received"] == 1
    assert tokenpaths.send(plain, run="live", url=url_of(served))["known"] == 1


def test_many_senders_at_once_lose_and_double_nothing(serve: Serve) -> None:
    served = serve(upload_slots=8)

    def send(number: int) -> int:
        return int(
            tokenpaths.send(answer(number % 3, id=f"r{number % 12}"), run="live", url=url_of(served))["received"]
        )

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(send, range(24))) == 12
    assert served.get("/logs/live").json()["responses"] == 12


def test_a_log_is_bounded(serve: Serve) -> None:
    served = serve(log_responses=2, max_upload_megabytes=0.02)
    tokenpaths.send([answer(0), answer(1)], run="live", url=url_of(served))
    full = served.client.post(f"{API}/logs/live", content=lines(answer(2)))
    assert problem(full, 413)["type"] == "urn:tokenpaths:log-full"
    assert served.get("/logs/live").json()["responses"] == 2
    assert served.client.post(f"{API}/logs/other", content=b" " * 40_000).status_code == 413


def test_it_is_forgotten(serve: Serve) -> None:
    served = serve()
    tokenpaths.send(answer(0), run="live", url=url_of(served))
    assert served.client.delete(f"{API}/logs/live").status_code == 204
    for path in ("/logs/live", "/logs/..%2Fup", "/logs/no.name"):
        assert served.get(path).status_code == 404
    assert problem(served.client.post(f"{API}/logs/live/seal"), 404)
    assert problem(served.client.delete(f"{API}/logs/live"), 404)
    assert not list((served.settings.data_dir / "received").glob("*"))


def test_a_run_of_the_name_is_not_touched(serve: Serve) -> None:
    served = serve()
    make_run(served.runs_dir, "there", samples=2, twin=False)
    assert problem(served.client.post(f"{API}/logs/there", content=lines(answer(0))), 409)
    with pytest.raises(UserError, match="There is a run there already"):
        tokenpaths.send(answer(0), run="there", url=url_of(served))


def test_it_asks_for_the_token(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(token=TOKEN)
    for method, path in (("POST", "/logs/live"), ("GET", "/logs"), ("POST", "/logs/live/seal"), ("DELETE", "/logs/a")):
        assert served.client.request(method, API + path).status_code == 401
    with pytest.raises(UserError, match="oken"):
        tokenpaths.send(answer(0), run="live", url=url_of(served))
    monkeypatch.setenv("TOKENPATHS_TOKEN", TOKEN)
    monkeypatch.setenv("TOKENPATHS_API_URL", url_of(served))
    assert tokenpaths.send(answer(0), run="live")["received"] == 1
    from_a_site = httpx.post(
        f"{url_of(served)}{API}/logs/live".replace("//api", "/api"),
        content=lines(answer(1)),
        headers={"authorization": f"Bearer {TOKEN}", "origin": "https://evil.example"},
        trust_env=False,
    )
    assert from_a_site.status_code == 403


def test_a_quiet_log_is_sealed_by_itself_and_a_failed_sealing_keeps_all(tmp_path: Path) -> None:
    twice = answer(0)
    twice["choices"] = [{"index": 0, "routed_experts": np.repeat(IDS[0][:, :1], 2, axis=1).tolist()}]  # equal layers
    with with_worker(tmp_path / "data", log_quiet_seconds=0.2) as served:
        tokenpaths.send(twice, run="odd", url=url_of(served))
        time.sleep(0.3)
        look_after(served.app.state.services)
        job = served.get("/logs/odd").json()["job"]
        assert job is not None
        sending = served.client.post(f"{API}/logs/odd", content=lines(answer(1)))
        assert problem(sending, 409)["type"] == "urn:tokenpaths:sealing"
        assert "same" in until(served, job, "failed")["problem"]["detail"]
        time.sleep(0.3)
        for _ in range(2):  # it is not tried again before more has come
            look_after(served.app.state.services)
        left = served.get("/logs/odd").json()
        assert (left["job"], left["responses"]) == (None, 1)
        again = served.client.post(f"{API}/logs/odd/seal?although=true").json()["job"]
        until(served, again, "succeeded")
        gone(served, "odd")
        assert (served.runs_dir / "odd.duckdb").exists()


def test_a_sealing_that_failed_is_not_tried_again_without_its_log(tmp_path: Path) -> None:
    twice = answer(0)
    twice["choices"] = [{"index": 0, "routed_experts": np.repeat(IDS[0][:, :1], 2, axis=1).tolist()}]  # equal layers
    with with_worker(tmp_path / "data") as served:
        tokenpaths.send(twice, run="odd", url=url_of(served))
        job = served.client.post(f"{API}/logs/odd/seal").json()["job"]
        until(served, job, "failed")
        settle(served.app.state.services)
        again = problem(served.client.post(f"{API}/jobs/{job}/retry"), 409)
        assert "POST /logs/odd/seal" in again["detail"]
        assert served.get(f"/jobs/{job}").json()["state"] == "failed"
        (tmp_path / "data" / "inbox" / "other.jsonl").write_text("{}")
        other = served.app.state.services.jobs.table.submit("import", {"file": "gone.jsonl"}).job
        until(served, other, "failed")
        assert "PUT /inbox/gone.jsonl" in problem(served.client.post(f"{API}/jobs/{other}/retry"), 409)["detail"]


def test_looks_at_logs_do_not_take_all_threads(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(query_wait_seconds=30)
    for number in range(3):
        tokenpaths.send(answer(number), run=f"live-{number}", url=url_of(served))
    logs, inside, most = served.app.state.services.received, [], []
    real = logs.about

    def slow(run: str) -> Any:
        inside.append(run)
        most.append(len(inside))
        time.sleep(0.1)
        inside.pop()
        return real(run)

    monkeypatch.setattr(logs, "about", slow)
    with ThreadPoolExecutor(12) as pool:
        assert {one.status_code for one in pool.map(served.get, ["/logs/live-0"] * 12)} == {200}
    assert max(most) <= LOG_LOOKS
    monkeypatch.setattr("tokenpaths.backend.runs.received_logs.BUSY_SECONDS", 0.3)
    with logs._lock:  # as while a sender's responses are kept
        began = time.monotonic()
        problem(served.get("/logs"), 503)
        assert time.monotonic() - began < 0.8, "the lock is waited for once, not for each log"
    assert len(served.get("/logs").json()["logs"]) == 3


def test_nobody_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenpaths.sending.FIRST_PAUSE_S", 0.0)
    with pytest.raises(UserError, match="nobody takes responses at http://127.0.0.1:9 .*: is it running"):
        tokenpaths.send(answer(0), run="live", url="http://127.0.0.1:9")


def test_what_engines_clients_return_can_be_sent() -> None:
    class Model:
        def model_dump(self, mode: str) -> dict[str, str]:
            return {"id": mode}

    assert lines(Model()) == b'{"id": "json"}\n'
    assert lines(httpx.Response(200, content=b'{"id":\n "a"}')) == b'{"id":  "a"}\n'
    with pytest.raises(UserError, match="the answer is a int"):
        lines(3)
