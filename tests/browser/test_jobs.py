"""Jobs: started on the page, watched until it is over, found again by its address, and what it made opened."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

import tokenpaths
from tests.engine.adapters.logs.engine_logs import vllm_chat


def start_trace(here, limit: str) -> None:
    here.page.get_by_text("Trace a data set, or import a log").click()
    here.page.get_by_label("Maximum number of samples").fill(limit)
    here.page.get_by_role("button", name="Trace it").click()  # at once: the page was not drawn with it yet


def long_trace(site) -> str:
    """The number of a trace that a quick machine has not done before a test looks: all bundled digits, one by one."""
    request = {"model": "tiny-vision", "data": "bundled:digits", "batch_size": 1}
    answer = httpx.post(f"{site.api}/api/v1/jobs", json={"kind": "trace", "request": request}, trust_env=False)
    assert answer.status_code == 202, answer.text
    return answer.json()["job"]


def test_a_trace_from_its_start_to_its_run(visit):
    here = visit().open(view="jobs", model="tiny-vision")
    start_trace(here, "6")
    panel = here.page.locator(".st-key-job_panel")
    expect(panel).to_contain_text("Trace of tiny-vision over 6 samples of scenes")
    job = here.query()["job"]
    assert job.startswith("trace-")
    expect(panel.get_by_text("Done at")).to_be_visible()
    expect(panel.get_by_role("button", name="Cancel")).to_have_count(0)
    tomorrow = visit(width=400, dark=True).open(view="jobs", job=job)
    expect(tomorrow.page.locator(".st-key-job_panel").get_by_text("Done at")).to_be_visible()
    tomorrow.no_sideways_scroll()
    expect(tomorrow.page.locator(".st-key-job_panel")).to_contain_text("Open the run tiny-")
    tomorrow.page.locator(".st-key-job_panel").get_by_role("button", name="Open the run").click()
    expect(tomorrow.page.get_by_role("heading", name="Where do tokens go?").first).to_be_visible()
    assert tomorrow.query()["run"].startswith("tiny-")


def test_a_long_one_is_cancelled_tried_again_and_removed(visit, site):
    here = visit().open(view="jobs", job=long_trace(site))
    panel = here.page.locator(".st-key-job_panel")
    expect(panel.get_by_text("samples,")).to_be_visible()
    panel.get_by_role("button", name="Cancel").focus()
    here.page.keyboard.press("Enter")
    expect(panel.get_by_text("Cancelled at")).to_be_visible()
    expect(panel.get_by_role("button", name="Try again")).to_be_focused()
    panel.get_by_role("button", name="Try again").click()
    # Until a worker has it: cancelled while it waits, it would have been tried once only.
    expect(panel.get_by_text("samples,")).to_be_visible()
    panel.get_by_role("button", name="Cancel").click()
    expect(panel.get_by_text("attempt 2")).to_be_visible()
    panel.get_by_role("button", name="Remove").click()
    here.page.get_by_role("button", name="Remove it").click()
    expect(panel).to_have_count(0)
    here.settled()
    assert "job" not in here.query()


def test_what_was_received_is_no_longer_sealed_once_it_is_a_run(visit, site):
    tokenpaths.send([vllm_chat(0), vllm_chat(1)], run="live", url=site.api)
    here = visit().open()
    here.page.get_by_role("button", name="Make a run").click()
    expect(here.page.get_by_text("it is being sealed")).to_be_visible()
    expect(here.page.get_by_text("Being received")).to_have_count(0)
    expect(here.page.get_by_text("it is being sealed")).to_have_count(0)


def test_what_is_wrong_with_a_request_is_said(visit):
    here = visit().open(view="jobs", job="nobody")
    expect(here.page.get_by_text("There is no job 'nobody'")).to_be_visible()
    here = visit().open(view="jobs")
    here.page.get_by_text("Trace a data set, or import a log").click()
    here.page.get_by_text("Import", exact=True).click()
    here.settled()
    here.page.get_by_role("button", name="Import it").click()
    expect(here.page.get_by_text("Write the name of a file or folder of")).to_be_visible()


def test_another_page_counts_the_jobs_and_leads_to_them(visit, site):
    job = long_trace(site)
    here, other = visit().open(view="jobs", job=job), visit().open(view="jobs")
    badge = other.page.locator(".st-key-jobs_badge").get_by_role("button").first
    panel = here.page.locator(".st-key-job_panel")
    expect(panel).to_be_visible()
    expect(badge).to_contain_text("Jobs · 1")
    third = visit().open()
    third.page.locator(".st-key-to_come_open").get_by_role("button").click()
    expect(third.page.get_by_text("Trace a data set, or import a log")).to_be_visible()
    badge.click()
    listed = other.page.locator(f".st-key-badge_{job}")
    expect(listed).to_be_visible()
    panel.get_by_role("button", name="Cancel").click()
    # The list goes on while it is open, and the number once it is shut.
    expect(other.page.locator('[data-testid="stPopoverBody"]').get_by_text("Cancelled").first).to_be_visible()
    other.page.keyboard.press("Escape")
    expect(badge).not_to_contain_text("·")
    badge.click()
    listed.get_by_role("button").click()
    expect(other.page.locator(".st-key-job_panel")).to_be_visible()
    assert other.query()["job"] == job
