"""Home: what is dropped finds its model or says what it is; runs get names and go away; a reload loses no text."""

from __future__ import annotations

import io
import re

import duckdb
import numpy as np
import pytest
from playwright.sync_api import expect

from tests.browser.test_jobs import long_trace
from tests.browser.test_try_it import png
from tests.engine.adapters.logs.engine_logs import bare_csv
from tests.support.runs import make_run

UPLOAD = '[data-testid="stFileUploader"] input[type="file"]'


def drop(here, name: str, content: bytes) -> None:
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    here.page.locator(UPLOAD).set_input_files(file)


def test_an_image_and_a_text_file_find_their_models(visit):
    here = visit().open()
    drop(here, "no-suffix", png())
    expect(here.page.locator(".tp-patch").first).to_be_visible()
    here.settled()
    assert "vision" in here.query()["model"]
    drop(here, "words.txt", b"the cat sat on the mat")
    expect(here.page.locator(".tp-text")).to_be_visible()
    here.settled()
    assert "text" in here.query()["model"]
    assert here.page.locator(".tp-text").evaluate("box => box.textContent") == "the cat sat on the mat"


@pytest.mark.parametrize("then", ["a click", "another file"])
def test_what_is_dropped_is_traced_once_and_shown_whatever_comes_before_its_answer(visit, site, then):
    """Of two files the first may be replaced before the page saw it: then it is not traced."""

    def traced() -> dict[str, str]:
        """The file of each trace that is new."""
        runs = {path.stem: path for path in (site.data_dir / "runs").glob("try-*.duckdb") if path not in before}
        return {name: source_of(path) for name, path in runs.items()}

    before = set((site.data_dir / "runs").glob("try-*.duckdb"))
    here = visit().open()
    # One that is replaced while it is on its way is cancelled by the browser, which says so in its console.
    with here.page.expect_response(lambda answer: "/upload_file/" in answer.url and answer.request.method == "PUT"):
        drop(here, "first.png", png())
    if then == "a click":
        here.page.get_by_role("button", name="Jobs").first.click()
    else:
        here.page.wait_for_timeout(50)
        drop(here, "second.png", png())
    last = "first.png" if then == "a click" else "second.png"
    expect(here.page.locator(".tp-patch").first).to_be_visible()
    for _ in range(60):
        here.settled()
        if last in traced().values():
            break
        here.page.wait_for_timeout(500)
    here.page.wait_for_timeout(1500)
    here.settled()
    files = list(traced().values())
    assert files.count(last) == 1
    assert files.count("first.png") <= 1
    assert traced()[here.query()["run"]] == last


def source_of(path) -> str:
    with duckdb.connect(str(path), read_only=True) as run:
        return run.sql("SELECT source FROM sample").fetchone()[0]


def test_after_a_reload_the_box_still_has_the_text_of_the_answer(visit):
    here = visit().open(view="home", model="tiny-text")
    here.page.get_by_label("A text", exact=True).fill("the moon and the mat")
    here.page.get_by_role("button", name="Trace it").click()
    expect(here.page.locator(".tp-text")).to_be_visible()
    here.page.reload()
    expect(here.page.locator(".tp-text")).to_be_visible()
    expect(here.page.get_by_label("A text", exact=True)).to_have_value("the moon and the mat")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("IMG_0001.HEIC", b"\0\0\0\x18ftypheic" + b"\0" * 99, "is a HEIC image"),
        ("paper.pdf", b"%PDF-1.7\n", "is a PDF"),
        ("huge.png", b"\x89PNG" + b"\0" * 26_000_000, "has 26.0 MB; at most 25.0 MB"),
        ("one.jsonl", b'{"no": "log"}\n', "cannot be imported"),
    ],
)
def test_a_refused_file_says_at_once_what_it_is_and_what_would_fit(visit, tmp_path, name, content, words):
    here = visit().open()
    (tmp_path / name).write_bytes(content)  # as a message to the browser 26 MB would take half a minute
    here.page.locator(UPLOAD).set_input_files(tmp_path / name)
    here.alert(words)
    here.settled()
    drop(here, "words.txt", b"the cat sat")  # and the zone goes on working
    expect(here.page.locator(".tp-text")).to_be_visible()


def test_a_log_is_imported_and_becomes_a_run(visit):
    here = visit().open()
    drop(here, "my routing.npy", npy(np.random.default_rng(0).random((40, 3, 8)).argsort(axis=2)[:, :, :2]))
    expect(here.page.locator('[class*="st-key-open_flow_my-routing"] button').first).to_be_visible(timeout=120_000)
    here.page.get_by_role("button", name="Open the run my-routing").click()
    expect(here.page.get_by_role("heading", name="Where do tokens go?").first).to_be_visible()
    assert here.query()["run"].startswith("my-routing")


def test_a_log_that_has_to_wait_says_so_where_it_was_dropped(visit, site):
    before = visit().open(view="jobs", job=long_trace(site))
    expect(before.page.locator(".st-key-job_panel").get_by_text("samples,")).to_be_visible()
    here = visit(width=400).open()
    drop(here, "waiting.npy", npy(np.random.default_rng(1).random((40, 3, 8)).argsort(axis=2)[:, :, :2]))
    under_way = here.page.locator(".st-key-import_under_way")
    expect(under_way).to_contain_text("Next in the queue.")
    expect(here.page.locator(".st-key-to_come")).to_contain_text("Trace of tiny-vision")
    here.no_sideways_scroll()
    before.page.locator(".st-key-job_panel").get_by_role("button", name="Cancel").click()
    expect(here.page.get_by_role("button", name="Open the run waiting")).to_be_visible(timeout=60_000)
    expect(under_way).to_have_count(0)
    here.page.get_by_role("button", name="Dismiss").click()
    expect(here.page.get_by_role("button", name="Open the run waiting")).to_have_count(0)


def test_a_log_that_becomes_no_run_says_why(visit):
    here = visit().open()
    drop(here, "zeros.npy", npy(np.zeros((40, 3, 2))))
    here.alert("no decision was captured")
    here.page.get_by_role("button", name="Dismiss").click()
    expect(here.page.get_by_role("button", name="Dismiss")).to_have_count(0)


def test_what_a_log_does_not_say_is_said_and_it_becomes_a_run(visit, tmp_path):
    here = visit().open()
    drop(here, "bare-trace.csv", bare_csv(tmp_path / "log").read_bytes())
    here.alert("say “Experts a token (top-k)”")
    field = here.page.get_by_label("Experts a token (top-k)", exact=True)
    expect(field).to_be_visible()
    field.fill("2")
    here.page.get_by_role("button", name="Import again").click()  # at once: the page was not drawn with it yet
    expect(here.page.locator('[class*="st-key-open_flow_bare-trace"] button').first).to_be_visible(timeout=60_000)
    expect(here.page.get_by_role("button", name="Import again")).to_have_count(0)


def npy(ids: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, ids.astype(np.uint8))
    return buffer.getvalue()


# A word joiner keeps a tag from being one.
SHOWN = re.compile("Short <\u2060?b>lived<\u2060?/b>")


def test_a_run_is_renamed_found_and_deleted_after_a_question(visit, site):
    make_run(site.data_dir / "runs", "passing", samples=2, seed=9)
    here = visit().open(q="passing")
    card = here.page.locator(".st-key-open_flow_passing button:visible")
    here.page.locator(".st-key-manage_passing button").first.click()
    here.page.get_by_label("Name", exact=True).fill("Short <b>lived</b>")
    here.page.get_by_role("button", name="Save", exact=True).click()
    expect(card).to_have_text(SHOWN)
    here.open(q="lived")
    expect(card).to_have_text(SHOWN)
    here.page.locator(".st-key-manage_passing button").first.click()
    here.page.get_by_role("button", name="Delete the run").click()
    here.alert("there is no way back")
    here.page.keyboard.press("Escape")
    expect(here.page.get_by_role("dialog")).to_have_count(0)
    here.page.locator(".st-key-manage_passing button").first.click()
    title, first = (here.page.locator(f"[role=dialog] {of}").first for of in ("[slot=title]", "input"))
    inside = "box => box.getBoundingClientRect().left + parseFloat(getComputedStyle(box).paddingLeft)"
    assert title.evaluate(inside) > first.evaluate("box => box.getBoundingClientRect().left") - 12
    expect(here.page.get_by_role("button", name="Yes, delete it")).to_have_count(0)  # asked anew
    here.page.get_by_role("button", name="Delete the run").click()
    assert (site.data_dir / "runs" / "passing.duckdb").exists()
    here.page.get_by_role("button", name="Yes, delete it").click()
    expect(card).to_have_count(0)
    assert not (site.data_dir / "runs" / "passing.duckdb").exists()


@pytest.mark.parametrize(("width", "dark"), [(400, False), (1440, True), (2560, False)])
def test_it_fits(visit, width, dark):
    here = visit(width=width, dark=dark).open()
    here.heading("See how a network routes its work")
    here.no_sideways_scroll()
