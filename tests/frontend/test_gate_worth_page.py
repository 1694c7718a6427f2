"""Heads, uniform gates, positions and one word on the Gates view, measured by jobs of a real worker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frontend.test_family_pages import family_api, headers, words
from tests.support.pages import showing


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with family_api(tmp_path_factory.mktemp("gates")) as url:
        yield url


@pytest.fixture
def show(api: str, monkeypatch: pytest.MonkeyPatch):
    with showing(api, monkeypatch, timeout=250, view="family", run="directional") as draw:
        yield draw


def finished(job: str) -> dict:
    from tokenpaths.frontend.page import widgets

    ends = time.monotonic() + 120
    while (found := widgets.client().job(job))["state"] not in ("succeeded", "failed"):
        assert time.monotonic() < ends, found
        time.sleep(0.2)
    assert found["state"] == "succeeded", found["problem"]
    return found


def job_of(page) -> str:
    job = page.query_params["job"]
    return job[0] if isinstance(job, list) else job


def scanned() -> dict:
    """A finished scan of the run."""
    from tokenpaths.frontend.page import widgets

    request = {"model": "tiny-directional", "run": "directional", "limit": 12}
    return finished(widgets.client().submit_job("gates", request)["job"])


def test_a_scan_is_started_and_found_again(show) -> None:
    page = show()
    assert not page.error
    assert "Nobody has measured this run yet" in words(page)
    assert {"What breaks without routing?", "Over many texts", "One word of one text"} <= set(headers(page))
    page.button(key="gate_scan_start").click().run()
    assert not page.error
    job = finished(job_of(page))
    assert job["request"]["limit"] == 12
    for page in (show(job=job["job"]), show()):  # by its address, and as the newest of the run
        assert not page.error
        told = words(page)
        assert "12 texts from “toy”" in told
        assert "most without layer" in told or "No head clearly changes the loss" in told
        assert "One value for all gates" in told
        assert "The gain" in told
        assert "Nobody has measured" not in told
    assert "Bonferroni" not in words(page), "folded until it is opened"
    page.session_state["how_sure_gate_scan"] = True
    assert "all 4 heads together (Bonferroni)" in words(page.run())


def test_a_job_that_was_removed_hides_no_results(show) -> None:
    show()
    scanned()
    told = words(show(job="gates-20200101-000000-000000"))
    assert "There is no job 'gates-20200101-000000-000000'" in told
    assert "12 texts from “toy”" in told
    assert "Nobody has measured" not in told


def test_a_scan_that_runs_is_found_by_its_run_and_not_started_twice(show, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of jobs says that it runs, and its artifact holds three of its conditions."""
    from tokenpaths.frontend.api.client import Client
    from tokenpaths.frontend.page import widgets

    show()
    done = scanned()
    running = done | {"state": "running", "finished_at": None, "result": None}
    found = json.loads(widgets.client().artifact(done["job"], "gate_scan.json"))
    partial = json.dumps(found | {"measured": 3}).encode()
    with monkeypatch.context() as patched:
        patched.setattr(Client, "jobs", lambda self, **query: {"jobs": [running], "workers": 1, "next": None})
        patched.setattr(Client, "job", lambda self, job: running)
        patched.setattr(Client, "artifact", lambda self, job, name: partial)
        patched.delattr(Client, "submit_job")
        page = show()
        assert f"Partial results: 3 of {found['conditions']} conditions so far" in words(page)
        assert page.button(key=f"gate_scan_cancel_{done['job']}").label == "Cancel"
        assert not page.error
        page.button(key="gate_scan_start").click().run()
        assert not page.error
        assert job_of(page) == done["job"]
        running |= {"state": "running", "artifacts": []}
        assert "Nobody has measured" not in words(show())
        running |= {"state": "cancelled", "artifacts": done["artifacts"]}
        assert f"the job ended after 3 of {found['conditions']} conditions" in words(show())


def test_a_word_is_taken_apart_and_its_address_brings_it_back(show) -> None:
    from tokenpaths.frontend.page import widgets

    page = show(sample=3)
    (position,) = (box for box in page.selectbox if str(box.key).startswith("gate_word_at_"))
    position.set_value(2).run()
    (other,) = (box for box in page.selectbox if str(box.key).startswith("gate_word_other_"))
    other.set_value(7)  # not drawn before the click
    page.button(key="gate_word_start").click().run()
    job = finished(job_of(page))
    assert (job["request"]["sample"], job["request"]["position"], job["request"]["other"]) == (3, 2, 7)
    found = json.loads(widgets.client().artifact(job["job"], "gate_word.json"))
    page = show(job=job["job"])  # the text comes with the job
    assert not page.error
    told = words(page)
    assert "has a probability of" in told
    assert "What the gates remove" in told
    assert found["word"].strip() in told
    assert "what stands behind the word is in view of the gates" in told
    assert {box.value for box in page.selectbox if str(box.key).startswith("gate_word_")} == {2, 7}
    page.session_state["how_sure_gate_word"] = True
    told = words(page.run())
    assert "the mean of all words; exactly the sum of embedding" in told
    assert "To first order" in told
    assert "has a probability of" not in words(show(sample=3))  # another place is asked for


def test_a_word_that_is_none_fails_with_a_sentence(show) -> None:
    page = show(sample=1)
    (word,) = (box for box in page.text_input if str(box.key).startswith("gate_word_word_"))
    word.input("qqzzxx **bold** yyy").run()
    page.button(key="gate_word_start").click().run()
    from tokenpaths.frontend.page import widgets

    job, ends = job_of(page), time.monotonic() + 120
    while widgets.client().job(job)["state"] not in ("failed", "succeeded"):
        assert time.monotonic() < ends
        time.sleep(0.2)
    page = show(sample=1, job=job)
    assert "tokens of this model" in words(page)
    assert not page.exception


def test_nothing_is_offered_without_the_model(monkeypatch: pytest.MonkeyPatch, show, tmp_path: Path) -> None:
    from tokenpaths.frontend.api.client import Client, NotFound

    def gone(self, model):
        raise NotFound("There is no model tiny.", "Choose another one.")

    monkeypatch.setattr(Client, "model", gone)
    page = show()
    assert not page.error
    assert "Over many texts" not in headers(page)
