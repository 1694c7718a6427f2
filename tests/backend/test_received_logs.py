"""Logs of received responses: their states under traffic, after crashes and with damaged files; what fits into them."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.conftest import services_for
from tests.engine.adapters.logs.engine_logs import IDS, LAYERS, ROWS, TOP_K, npy64, run_batch, vllm_chat, with_dense
from tests.support.foreign_runs import unmarked
from tests.support.runs import make, make_run
from tokenpaths.backend.problems import Problem
from tokenpaths.backend.routes import received as route
from tokenpaths.backend.routes.received import look_after, seal, settle
from tokenpaths.backend.services import Services
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.pieces.announced import Announced
from tokenpaths.sending import lines


def answer(number: int = 0, ids: Any = None, **changes: Any) -> dict[str, Any]:
    record = {**vllm_chat(number % 3), "id": f"chat-{number}", **changes}
    if ids is not None:
        record["choices"] = [{"index": 0, "routed_experts": np.asarray(ids).tolist()}]
    return record


def send(services: Services, *answers: Any, run: str = "live") -> dict[str, Any]:
    return route._take(services, run, lines(list(answers)), Announced())


def refusal(act: Callable[[], object]) -> Problem:
    with pytest.raises(Problem) as caught:
        act()
    return caught.value


def end(services: Services, job: str, state: str) -> None:
    with services.jobs.table.connection.writing() as con:
        con.execute("UPDATE job SET state = ? WHERE job = ?", (state, job))


def made_by(services: Services, run: str, job: str) -> None:
    """A run as the job of a sealing makes it."""
    arrays = make(run, samples=2, twin=False)
    arrays.info.findings["job"] = job
    arrays.write(services.settings.runs_dir)


def jobs_of(services: Services) -> list[str]:
    return [row.job for row in services.jobs.table.page()]


def inbox(services: Services) -> list[Path]:
    return sorted((services.settings.data_dir / "inbox").glob("*"))


def test_nothing_is_taken_once_sealing_has_begun(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    send(services, answer(0))
    submit, refused = services.jobs.submit, list[str]()

    def late(kind: str, request: Any) -> dict[str, Any]:
        refused.append(refusal(lambda: send(services, answer(1))).kind)
        refused.append(refusal(lambda: seal(services, "live")).kind)
        refused.append(refusal(lambda: services.received.forget("live")).kind)
        return submit(kind, request)

    monkeypatch.setattr(services.jobs, "submit", late)
    job = seal(services, "live")["job"]
    assert refused == ["sealing"] * 3
    assert services.received.about("live")["job"] == job
    assert len(inbox(services)[0].read_bytes().splitlines()) == 1


def test_a_log_of_which_a_run_is_made_is_forgotten_after_its_job(services: Services) -> None:
    send(services, answer(0))
    job = seal(services, "live")["job"]
    refused = refusal(lambda: route.forget(services, "live"))
    assert (refused.status, refused.detail) == (
        409,
        f"The log live is being sealed by job {job}; cancel that job to forget it.",
    )
    assert len(inbox(services)) == 1, "the job has still to read it"
    end(services, job, "cancelled")
    route.forget(services, "live")
    assert services.received.names() == inbox(services) == []


def test_two_seals_at_once_make_one_job(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    send(services, answer(0))
    both, write_out, kinds = threading.Event(), services.received.write_out, list[str]()

    def slowly(sealing: Any) -> None:
        write_out(sealing)
        assert both.wait(60)

    monkeypatch.setattr(services.received, "write_out", slowly)
    first = threading.Thread(target=lambda: seal(services, "live"))
    first.start()
    while not services.received.sealings():
        assert first.is_alive()
        time.sleep(0.01)
    kinds.append(refusal(lambda: seal(services, "live")).kind)
    look_after(services)  # the pending log is left to the one who seals it
    both.set()
    first.join()
    assert kinds == ["sealing"]
    assert [sealing.job for sealing in services.received.sealings()] == jobs_of(services)
    assert len(jobs_of(services)) == 1


def test_what_was_written_of_a_log_when_it_was_killed_is_deleted(tmp_path: Path, services: Services) -> None:
    send(services, answer(0))
    sealing, _ = services.received.begin_sealing("live", "live")
    folder = services.settings.data_dir / "inbox"
    folder.mkdir(exist_ok=True)
    (folder / f".{sealing.file}.abc.tmp").write_bytes(b"half")
    (folder / ".other.jsonl.abc.tmp").write_bytes(b"of somebody else")
    settle(services_for(tmp_path))
    assert [file.name for file in inbox(services)] == [".other.jsonl.abc.tmp"]
    assert send(services, answer(1))["responses"] == 2


@pytest.mark.parametrize("broken", ["submit", "set_job"])
def test_a_sealing_that_was_killed_is_found_again(
    tmp_path: Path, services: Services, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    send(services, answer(0))

    def killed(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(services.jobs if broken == "submit" else services.received, broken, killed)
        patched.setattr(route, "_resolve", killed)
        with pytest.raises(KeyboardInterrupt):
            seal(services, "live")
    assert refusal(lambda: send(services, answer(1))).kind == "sealing"
    again = services_for(tmp_path)
    settle(again)
    if broken == "submit":
        assert again.received.about("live")["job"] is None
        assert send(again, answer(1))["received"] == 1
        assert inbox(again) == []
        return
    (job,) = jobs_of(again)
    assert again.received.about("live")["job"] == job
    made_by(again, "live", job)
    end(again, job, "succeeded")
    settle(again)
    assert again.received.names() == inbox(again) == []


def test_a_second_client_that_is_first_too_erases_nothing(services: Services) -> None:
    good = [answer(0, model="one"), answer(1, model="two")]
    read = [route.read_received(lines(one), Announced()) for one in good]
    results = list[str]()

    def add(received: Any) -> None:
        try:
            results.append(str(services.received.add("live", received, Announced())["received"]))
        except Problem as problem:
            results.append(problem.kind)

    threads = [threading.Thread(target=add, args=(received,)) for received in read]
    with services.received._held():
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["1", "no-response"]
    assert services.received.about("live")["responses"] == 1


def test_a_request_in_flight_does_not_make_a_sealed_log_anew(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(services, answer(0))
    job, read = seal(services, "live")["job"], route.read_received
    end(services, job, "failed")
    settle(services)
    job = seal(services, "live")["job"]
    end(services, job, "cancelled")
    settle(services)

    def meanwhile(body: bytes, sizes: Announced) -> Any:
        job = seal(services, "live")["job"]
        made_by(services, "live", job)
        end(services, job, "succeeded")
        settle(services)
        return read(body, sizes)

    monkeypatch.setattr(route, "read_received", meanwhile)
    assert refusal(lambda: send(services, answer(1))).kind == "run-exists"
    assert list(services.received.folder.iterdir()) == []


def test_a_log_beside_a_run_of_its_name_is_sealed_under_another(services: Services) -> None:
    send(services, answer(0))
    make_run(services.settings.runs_dir, "live", samples=2, twin=False)
    refused = refusal(lambda: seal(services, "live"))
    assert (refused.status, refused.kind, refused.field) == (409, "run-exists", "as")
    assert send(services, answer(1))["responses"] == 2
    job = seal(services, "live", "live-2", {"skip_bad": True})
    assert (job["request"]["run"], job["request"]["skip_bad"], job["request"]["model"]) == ("live-2", True, "org/m")
    made_by(services, "live-2", job["job"])
    end(services, job["job"], "succeeded")
    settle(services)
    assert services.received.names() == []


@pytest.mark.parametrize(("ours", "known"), [(False, True), (True, True), (True, False)])
def test_only_the_run_of_its_job_ends_a_log(services: Services, ours: bool, known: bool) -> None:
    send(services, answer(0))
    job = seal(services, "live")["job"]
    made_by(services, "live", job if ours else "somebody-else")
    if not known:  # as in a data folder that was copied
        unmarked(services.settings.runs_dir / "live.duckdb")
    end(services, job, "failed")
    services.jobs.table.remove(job)
    settle(services)
    assert services.received.names() == ([] if ours else ["live"])
    assert inbox(services) == []


def test_a_log_that_cannot_be_sealed_is_written_out_once_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = services_for(tmp_path, log_quiet_seconds=0.01)
    for run in ("a", "b", "c"):
        send(services, answer(0), run=run)
    written = list[str]()
    write_out, submit = services.received.write_out, services.jobs.submit

    def counted(sealing: Any) -> None:
        written.append(sealing.run)
        if sealing.run == "a":
            raise OSError("the disk is broken")
        write_out(sealing)

    def picky(kind: str, request: Any) -> dict[str, Any]:
        if request["run"] == "b":
            raise Problem(422, "refused", "no")
        return submit(kind, request)

    monkeypatch.setattr(services.received, "write_out", counted)
    monkeypatch.setattr(services.jobs, "submit", picky)
    time.sleep(0.02)
    for _ in range(2):
        look_after(services)
    assert written == ["a", "b", "c"]
    assert [sealing.run for sealing in services.received.sealings()] == ["c"]
    send(services, answer(1), run="b")
    time.sleep(0.02)
    look_after(services)
    assert written == ["a", "b", "c", "b"]  # more has come


def test_a_log_that_found_too_many_jobs_waits_before_it_is_sealed_by_itself_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = services_for(tmp_path, log_quiet_seconds=0.01, job_queue_length=1)
    for run in ("a", "b"):
        send(services, answer(0), run=run)
    seal(services, "a")
    time.sleep(0.02)
    look_after(services)
    assert [sealing.run for sealing in services.received.sealings()] == ["a"]
    assert services.received.quiet(0.01) == []
    now = time.time
    monkeypatch.setattr("tokenpaths.backend.runs.received_logs.time.time", lambda: now() + 301)
    assert services.received.quiet(0.01) == ["b"]


def test_a_full_disk_is_noticed_before_a_log_is_written_out(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(services, answer(0))
    size = services.received.about("live")["bytes"]
    monkeypatch.setattr("tokenpaths.backend.runs.received_logs.check_free", lambda folder: None)
    usage = type("Usage", (), {"free": size - 1})
    monkeypatch.setattr("tokenpaths.backend.runs.received_logs.shutil.disk_usage", lambda folder: usage)
    assert services.received.quiet(0.0) == ["live"]
    assert refusal(lambda: seal(services, "live")).status == 507
    assert services.received.sealings() == []
    assert services.received.quiet(0.0) == []  # it is not tried again at once


def test_a_damaged_log_hides_no_other_and_can_be_forgotten(tmp_path: Path) -> None:
    services = services_for(tmp_path, log_quiet_seconds=0.01)
    for run in ("a", "b"):
        send(services, answer(0), run=run)
    (services.received.folder / "a.sqlite").write_bytes(b"no database " * 500)
    (services.received.folder / "b.backup.sqlite").write_bytes(b"a copy")
    damaged, good = services.received.listed()
    assert (damaged["run"], good["run"], good["responses"], good["problem"]) == ("a", "b", 1, None)
    assert "is damaged" in damaged["problem"]
    assert str(tmp_path) not in damaged["problem"]
    route.ReceivedList.model_validate({"logs": [damaged, good]})
    assert refusal(lambda: send(services, answer(1), run="a")).kind == "damaged-log"
    time.sleep(0.02)
    look_after(services)
    assert [sealing.run for sealing in services.received.sealings()] == ["b"]
    services.received.forget("a")
    assert services.received.names() == ["b"]


def test_a_locked_log_is_busy(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    send(services, answer(0))
    monkeypatch.setattr("tokenpaths.backend.runs.received_file.BUSY_SECONDS", 0.01)
    other = sqlite3.connect(services.received.folder / "live.sqlite")
    other.execute("BEGIN EXCLUSIVE")
    assert refusal(lambda: send(services, answer(1))).status == 503
    other.close()
    assert send(services, answer(1))["responses"] == 2


def test_a_log_of_the_first_version_is_read_on(services: Services) -> None:
    send(services, answer(0))
    con = sqlite3.connect(services.received.folder / "live.sqlite")
    con.executescript(
        "PRAGMA user_version = 0; ALTER TABLE response DROP COLUMN digest; ALTER TABLE about DROP COLUMN routed;"
        "ALTER TABLE about DROP COLUMN file; ALTER TABLE about DROP COLUMN target;"
        "ALTER TABLE about DROP COLUMN not_before; ALTER TABLE about ADD COLUMN tried REAL; PRAGMA journal_mode = WAL"
    )
    con.close()
    told = send(services, answer(0), answer(1))
    assert (told["received"], told["known"], told["responses"]) == (1, 1, 2)


def test_an_id_is_kept_once_but_only_for_the_same_decisions(services: Services) -> None:
    send(services, answer(0))
    again = send(services, answer(0, created=1), answer(0, **{k: v for k, v in vllm_chat(1).items() if k != "id"}))
    assert (again["known"], again["received"], again["num_refused"]) == (1, 0, 1)
    assert "came before, with other decisions" in again["refused"][0]["reason"]


def test_batches_that_count_their_requests_alike_are_kept_apart(services: Services) -> None:
    first, second = run_batch(0), run_batch(1) | {"custom_id": "request-0"}
    assert send(services, first, second)["received"] == 2
    assert send(services, first)["known"] == 1


def record(rows: Any) -> dict[str, Any]:
    return {"id": "a", "choices": [{"routed_experts": rows}]}


BAD: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "negative": (lambda: record([[[-1, -1], [-1, -1]]]), "every id is −1, so no decision was captured"),
    "filled": (lambda: record([[[255, 255], [0, 0]]]), "every id is 0 or 255, so no decision was captured"),
    "a point": (lambda: record([[[3.0, 1.0], [0, 2]]]), "whole numbers written with a point (3.0), it should hold"),
    "huge": (lambda: record([[[2**70, 1], [0, 2]]]), "1180591620717411303424, which is too large"),
    "zeros": (lambda: answer(5, np.zeros((ROWS, LAYERS + 1, TOP_K), int)), "every id is 0"),
    "twice": (lambda: answer(5, with_dense(IDS[0]) * [[1, 0]] + [[0, 0]] + 1), "the same expert twice"),
    "surrogate": (
        lambda: answer(5, choices=[{**vllm_chat(0)["choices"][0], "text": "\ud800"}]),
        "the text holds a lone surrogate",
    ),
    "id": (lambda: answer(5, id="\ud800"), "the id holds a lone surrogate"),
    "model": (lambda: answer(5, model="\ud800"), "the name of the model holds a lone surrogate"),
    "long model": (lambda: answer(5, model="m" * 201), "201 characters"),
    "wide": (lambda: answer(5, with_dense(IDS[0]) * 4369), "are more than"),
    "alone": (lambda: {"nvext": {"engine_data": {"routed_experts": IDS[0].tolist()}}}, "it has no choices"),
}


@pytest.mark.parametrize("fault", BAD)
def test_what_the_import_would_refuse_is_refused_when_it_comes(services: Services, fault: str) -> None:
    make_bad, words = BAD[fault]
    refused = refusal(lambda: send(services, make_bad()))
    assert (refused.status, words in refused.detail) == (422, True), refused.detail
    assert list(services.received.folder.glob("*")) == []
    told = send(services, make_bad(), answer(0), answer(1))
    assert (told["received"], told["num_refused"]) == (2, 1)
    json.dumps(told, ensure_ascii=False).encode()
    seal(services, "live")
    assert len(list(open_log(inbox(services)[0]).pieces())) == 2


def test_a_layer_that_was_dense_at_first_stays_so(services: Services) -> None:
    send(services, answer(0))
    told = send(services, answer(1, np.insert(IDS[1], 0, IDS[1][:, 0], axis=1)), answer(2))
    assert told["received"] == 1
    assert "layer 0 has decisions here, but zeros only in the first" in told["refused"][0]["reason"]


def test_a_first_choice_without_decisions_makes_no_layer_dense(services: Services) -> None:
    both = answer(0)
    both["choices"].insert(0, both["choices"][0] | {"routed_experts": npy64(np.zeros((3, LAYERS + 1, TOP_K)))})
    assert send(services, both, answer(1))["received"] == 2
    seal(services, "live")
    assert len(list(open_log(inbox(services)[0]).pieces())) == 2


def test_slots_that_are_not_used_are_not_counted(services: Services) -> None:
    rows = [[[1, 2, None], [0, 3]], [[4], [2, 1, 5]]]
    record = {"id": "a", "choices": [{"routed_experts": rows}]}
    assert send(services, record)["received"] == 1
    assert [row["choices"] for row in services.received.about("live")["load"]] == [3, 5]


def test_a_broken_first_line_takes_no_other_with_it(services: Services) -> None:
    good = lines(answer(0))
    told = route._take(services, "live", b'{"id": 1\n' + good, Announced())
    assert (told["received"], told["num_refused"]) == (1, 1)
    pretty = json.dumps(answer(1), indent=1).replace("\n", "\r\n").encode()
    assert route._take(services, "live", b"\xef\xbb\xbf" + pretty, Announced())["received"] == 1


def test_bodies_are_taken_apart_in_the_child(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenpaths.engine.adapters.logs.responses.received.lines_of", None)
    assert send(services, answer(0))["received"] == 1
