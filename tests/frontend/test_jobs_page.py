"""The Jobs view and the panel of one job over a real API and a real worker, without a browser."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import numpy as np
import pytest
from streamlit.runtime.scriptrunner_utils.exceptions import RerunException
from streamlit.runtime.scriptrunner_utils.script_requests import RerunData
from streamlit.runtime.state.query_params import QueryParams
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import SECRET, Served, api_for, serving
from tests.engine.adapters.logs.engine_logs import IDS, vllm_chat
from tests.support.jobs import counted, register_count
from tests.support.pages import showing
from tokenpaths.backend.routes.received import settle
from tokenpaths.frontend.charts.job_curve import MOST_POINTS, curve_chart, curve_rows
from tokenpaths.frontend.page.selection import Selection, from_query, to_query
from tokenpaths.frontend.views.jobs import making, panel
from tokenpaths.frontend.views.jobs.panel import result_links
from tokenpaths.sending import lines

CURVE = {
    "x": "iteration",
    "y": "objective",
    "series": [
        {"name": "S = 1", "x": [1, 2, 3], "y": [0.1, 0.5, 0.7]},
        {"name": "S = 2", "x": [1, 2], "y": [0.2, float("nan")]},
    ],
}


@pytest.fixture(scope="module")
def working(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An API whose worker knows the kind ``count``."""
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.backend.worker.worker import create_worker

    register_count()
    options = {"data_dir": tmp_path_factory.mktemp("jobs"), "worker_secret": SECRET, "warm_models": False}
    with serving(create_worker(load_settings(**options))) as url, api_for(worker_url=url, **options) as served:
        yield served


@pytest.fixture
def show(working: Served, monkeypatch: pytest.MonkeyPatch):
    """Draw the page at an address."""
    with showing(str(working.client.base_url).rstrip("/"), monkeypatch) as draw:
        yield draw


def submitted(working: Served, **request: object) -> str:
    answer = working.client.post("/api/v1/jobs", json={"kind": "count", "request": request})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job"])


def until(working: Served, job: str, *states: str) -> dict:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        found = working.get(f"/jobs/{job}").json()
        if found["state"] in states:
            return found
        time.sleep(0.05)
    raise AssertionError(f"the job is {found['state']}, never {states}")


def until_it_tells(working: Served, job: str) -> None:
    """Until a running job has told what it counts: before, the page says that it is starting."""
    ends = time.monotonic() + 60
    while not until(working, job, "running")["progress"]["unit"]:
        assert time.monotonic() < ends, "the job never told its progress"
        time.sleep(0.05)


def texts(page: AppTest) -> str:
    kinds = ("markdown", "caption", "error", "warning", "info", "subheader", "header")
    return " ".join(str(element.value) for kind in kinds for element in page.get(kind))


def shown(page: AppTest) -> str:
    """The view of the address."""
    (view,) = [page.query_params["view"]] if isinstance(page.query_params["view"], str) else page.query_params["view"]
    return view


def test_an_empty_list_says_what_to_do(show) -> None:
    assert "There is no job yet" in texts(show(view="jobs"))


def test_a_rerun_that_no_click_caused_leaves_what_was_clicked_meanwhile(show) -> None:
    """The browser takes a value that the server sets over a click that is still on its way."""
    page = show(view="modules")
    assert page.segmented_control(key="in_view").value == "modules"
    page.run()
    assert not page.segmented_control(key="in_view").proto.set_value
    page.query_params["view"] = "paths"  # back, or a link: here the address wins
    page.run()
    assert page.segmented_control(key="in_view").proto.set_value
    assert page.segmented_control(key="in_view").value == "paths"


def test_a_request_that_knows_the_old_address_does_not_undo_a_click(show) -> None:
    """Asked for before the browser has the new address, as by a timer; afterwards the old address is a choice again."""
    page = show(view="modules")
    old = dict(page.query_params)
    page.segmented_control(key="in_view").set_value("samples").run()
    assert shown(page) == "samples"
    for _ in range(2):
        page.query_params.clear()
        page.query_params.update(old)
        page.run()
        assert shown(page) == "samples"
        assert page.segmented_control(key="in_view").value == "samples"
    page.run()  # the browser has it
    page.query_params.clear()
    page.query_params.update(old)
    page.run()
    assert shown(page) == "modules"
    assert page.segmented_control(key="in_view").value == "modules"


def test_a_click_whose_run_is_interrupted_before_the_address_is_sent_is_not_lost(
    show, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = show(view="modules")
    send, sent = QueryParams._send_query_param_msg, []

    def interrupted(params: QueryParams) -> None:
        sent.append(str(params))
        if len(sent) == 1:
            raise RerunException(RerunData(query_string="view=modules"))
        send(params)

    monkeypatch.setattr(QueryParams, "_send_query_param_msg", interrupted)
    page.segmented_control(key="in_view").set_value("samples").run()
    assert len(sent) >= 2, "the first one did not get through"
    assert shown(page) == "samples"
    assert page.segmented_control(key="in_view").value == "samples"


def test_a_job_is_found_again_by_its_address(show, working: Served) -> None:
    job = submitted(working, iterations=130)
    until(working, job, "succeeded")
    page = show(view="jobs", job=job)
    assert "Done at" in texts(page)
    assert counted(130) in str([element.value for element in page.get("json")])
    assert "after 130 iterations" in texts(page)


def test_a_running_job_is_cancelled_and_tried_again_from_the_page(show, working: Served) -> None:
    job = submitted(working, iterations=9000, seconds=0.01)
    until(working, job, "running")
    page = show(view="jobs", job=job)
    page.button(key=f"job_cancel_{job}").click().run()
    until(working, job, "cancelled")
    page = show(view="jobs", job=job)
    assert "Cancelled at" in texts(page)
    page.button(key=f"job_retry_{job}").click().run()
    assert until(working, job, "running")["attempts"] == 2
    working.client.delete(f"/api/v1/jobs/{job}")
    until(working, job, "cancelled")
    page = show(view="jobs", job=job)
    page.button(key=f"job_remove_{job}").click().run()
    assert working.get(f"/jobs/{job}").status_code == 404
    assert "job" not in page.query_params


def test_a_received_log_that_could_not_be_sealed_is_sealed_again_from_its_job(show, working: Served) -> None:
    equal = {**vllm_chat(0), "id": "chat-0"}
    equal["choices"] = [{"index": 0, "routed_experts": np.repeat(IDS[0][:, :1], 2, axis=1).tolist()}]
    assert working.client.post("/api/v1/logs/odd", content=lines(equal)).status_code == 200
    job = working.client.post("/api/v1/logs/odd/seal?as=evening").json()["job"]
    until(working, job, "failed")
    settle(working.app.state.services)
    page = show(view="jobs", job=job)
    assert f"job_retry_{job}" not in [button.key for button in page.button], "what it was to read is gone"
    page.button(key=f"job_seal_{job}").click().run()
    new = "".join(page.query_params["job"])
    assert new != job
    assert working.get(f"/jobs/{new}").json()["request"]["run"] == "evening"
    until(working, new, "failed")
    settle(working.app.state.services)
    assert working.client.delete("/api/v1/logs/odd").status_code == 204
    page = show(view="jobs", job=new)
    page.button(key=f"job_seal_{new}").click().run()
    assert "Nothing is being received as" in " ".join(one.value for one in page.error)


def test_a_failed_job_says_why_and_a_missing_one_too(show, working: Served) -> None:
    job = submitted(working, iterations=9, fail_at=3)
    until(working, job, "failed")
    assert "It was asked to fail here" in texts(show(view="jobs", job=job))
    assert "There is no job" in texts(show(view="jobs", job="nobody"))


def test_jobs_of_one_kind_are_told_apart_and_look_like_links(show, working: Served) -> None:
    jobs = [submitted(working, iterations=number) for number in (3, 4)]
    for job in jobs:
        until(working, job, "succeeded")
    labels = [show(view="jobs").button(key=f"open_{job}").label for job in jobs]
    assert all(label.startswith(":primary[Count") for label in labels)
    assert "iterations 3" in labels[0]
    assert "iterations 4" in labels[1]


def test_a_failure_is_a_sentence_of_its_own(show, working: Served) -> None:
    job = submitted(working, iterations=9, fail_at=3)
    until(working, job, "failed")
    told = [c.value.replace("\\", "") for c in show(view="jobs").caption if "It was asked to fail here" in c.value]
    assert told
    assert all(re.search(r"UTC( after 3 iterations)?\. It was asked", one) for one in told)
    problem = {"detail": "the model has no step 9"}
    assert panel.failure_text({"kind": "trace", "problem": problem}) == "The model has no step 9."


def test_a_failed_import_names_the_fields_of_the_form() -> None:
    problem = {"code": "invalid_request", "detail": "k varies: say --top-k, or --skip-bad with --nothing-known"}
    assert panel.failure_text({"kind": "import", "problem": problem}) == (
        "K varies: say “Experts a token (top-k)”, or “Leave out what cannot be read” with --nothing-known."
    )


def done(kind: str, request: dict, result: dict | None = None, state: str = "succeeded") -> dict:
    return {"job": "it", "kind": kind, "state": state, "request": request, "result": result}


def test_a_finished_job_leads_to_where_its_result_lives() -> None:
    ban = {"edits": [{"edit": "ban", "modules": [3], "step": 1}, {"edit": "freeze"}]}
    both = {"run": "after", "runs": ["before", "after"]}
    shown = {
        "dream": result_links(
            done("dream", {"model": "tiny", "run": "seen", "sample": 4, "target": {"of": "choices"}})
        ),
        "trace": result_links(done("trace", {"model": "tiny"}, {"run": "new"})),
        "map": result_links(done("map", {"run": "seen"}, {"run": "seen"})),
        "gates": result_links(done("gates", {"run": "seen"}, {"loss": 2.0})),
        "word": result_links(done("gates", {"run": "seen", "sample": 3, "position": 5}, {"word": "a"})),
        "sweep": result_links(done("reroute", {"run": "seen", "sweep": "modules"})),
        "edit": result_links(done("reroute", {"data": "x", "controls": ban}, both)),
        "alpha": result_links(done("reroute", {"data": "x", "controls": {"alpha": 0.1}}, both)),
        "failed": result_links(done("trace", {"model": "tiny"}, None, state="failed")),
    }
    first = {name: found[0][1] for name, found in shown.items() if found}
    dream = first.pop("dream")
    assert (dream.view, dream.run, dream.sample, dream.job) == ("dream", "seen", 4, "it")
    assert first == {
        "trace": Selection(view="routes", run="new"),
        "map": Selection(view="samples", run="seen", job="it"),
        "gates": Selection(view="family", run="seen", job="it"),
        "word": Selection(view="family", run="seen", sample=3, job="it"),
        "sweep": Selection(view="importance", run="seen", job="it"),
        "edit": Selection(view="change", run="before", sample=0, controls=("ban:1.3", "freeze:rest"), job="it"),
        "alpha": Selection(view="routes", run="after"),
    }
    assert all(from_query(to_query(selection)) == (selection, []) for selection in first.values())
    assert [words for words, _ in shown["sweep"]] == ["Open in Importance"]
    assert [words for words, _ in shown["edit"]] == [
        "Open in Change a route",
        "Open the edited run",
        "Open the unchanged run",
    ]


def test_a_refused_request_is_told_in_the_form(show, working: Served) -> None:
    page = show(view="jobs")
    page.segmented_control(key="start_what").set_value("Import").run()
    page.text_input(key="start_log").input("nothing.jsonl").run()
    page.button(key="start_import").click().run()
    assert "nothing" in texts(page)
    assert "inbox" in texts(page)
    # Beside the button, in the form that is still open.
    (form,) = (box for box in page.expander if box.label.startswith("Trace a data set"))
    assert form.proto.expanded
    assert any("nothing" in error.value for error in form.error)


def test_what_a_log_does_not_say_is_sent_with_its_import(show, working: Served, monkeypatch) -> None:
    page = show(view="jobs")
    page.segmented_control(key="start_what").set_value("Import").run()
    page.text_input(key="start_log").input("log.csv").run()
    page.number_input(key="start_import_top_k").set_value(2).run()
    # The click comes before the page was drawn with these.
    page.text_input(key="start_import_series").input(" my training ")
    page.number_input(key="start_import_at").set_value(0)
    page.checkbox(key="start_import_skip_bad").check()
    sent = []
    monkeypatch.setattr(
        "tokenpaths.frontend.api.client.Client.submit_job", lambda self, *asked: sent.append(asked) or {"job": "it"}
    )
    page.button(key="start_import").click().run()
    assert sent == [("import", {"file": "log.csv", "top_k": 2, "series": "my training", "at": 0, "skip_bad": True})]


def test_curves_are_averaged_and_told_apart() -> None:
    long = {"series": [{"name": "", "x": list(range(5001)), "y": [n % 2 for n in range(5000)] + [float("nan")]}]}
    table = curve_rows(long)
    assert len(table) <= MOST_POINTS
    assert table[0] == {"series": "", "x": 83, "y": 0.5}
    assert table[-1]["x"] == 5000
    assert curve_rows({"series": [{"name": "a", "x": [3], "y": [2.0]}]}) == [{"series": "a", "x": 3, "y": 2.0}]
    chart = curve_chart(CURVE).to_dict()
    line = chart["layer"][0]["encoding"]
    assert line["color"]["scale"]["domain"] == ["S = 1", "S = 2"]
    assert len(set(line["color"]["scale"]["range"])) == 2
    values = chart["datasets"].values()
    assert any("y" in rows[-1] and rows[-1]["y"] is None for rows in values)
    assert {row["name"] for rows in values for row in rows if "name" in row} == {"S = 1", "S = 2"}, "at their ends"
    assert "color" not in curve_chart(long).to_dict()["encoding"]


def test_frames_of_a_batch_are_kept_apart() -> None:
    names = ["curve.json", "frame-000064-0.png", "frame-000064-1.png", "frame-000128-0.png", "result.json"]
    assert panel.frames_of(names) == {
        64: {0: "frame-000064-0.png", 1: "frame-000064-1.png"},
        128: {0: "frame-000128-0.png"},
    }


def test_the_start_page_says_which_runs_are_to_come(show, working: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "MAKE_RUNS", ("count",))
    running = submitted(working, iterations=9000, seconds=0.01)
    waiting = [submitted(working, iterations=9000 + more, seconds=0.01) for more in (1, 2)]
    until_it_tells(working, running)
    page = show(view="home")
    assert [button.label for button in page.button if button.key == "to_come_open"] == [":primary[2 more runs to come]"]
    assert "of 9,000 iterations" in texts(page)
    assert "There is no run yet" not in texts(page)
    for job in (*waiting, running):
        working.client.delete(f"/api/v1/jobs/{job}")
    until(working, running, "cancelled")
    page = show(view="home")
    assert "There is no run yet" in texts(page)
    assert "to_come_open" not in [button.key for button in page.button]


@pytest.mark.parametrize("view", ["home", "routes"])
def test_an_address_of_a_run_that_a_job_has_yet_to_make_says_so(
    show, working: Served, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    monkeypatch.setattr(making, "MAKE_RUNS", ("count",))
    job = submitted(working, iterations=9000, seconds=0.01, run="tomorrow")
    until_it_tells(working, job)
    page = show(view=view, run="tomorrow")
    assert not page.error
    assert not page.warning
    assert "The run “tomorrow” is not made yet" in texts(page)
    page.button(key="maker_open").click().run()
    assert "".join(page.query_params["job"]) == job
    working.client.delete(f"/api/v1/jobs/{job}")
    until(working, job, "cancelled")
    assert "There is no run “tomorrow” here" in " ".join(one.value for one in show(view="home", run="tomorrow").warning)
