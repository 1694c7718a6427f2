"""Compare and Map in a real browser: pick runs, read what differs, move the slider of a training, click a sample."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.backend.conftest import api_for
from tests.browser.conftest import Site
from tests.support.page_server import page_server
from tests.support.runs import make, make_experts


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A page over three runs of the same pictures, and the checkpoints of a training."""
    data_dir: Path = tmp_path_factory.mktemp("pairs-site")
    made = make("pictures", samples=8, seed=1, twin=False)
    made.write(data_dir / "runs")
    for batch in made.batches:
        batch.module_ids[::3] = (batch.module_ids[::3] + 1) % 6
    replace(made, info=replace(made.info, run_id="pictures-moved")).write(data_dir / "runs")
    for batch in made.batches:
        batch.module_ids[1::2] = (batch.module_ids[1::2] + 2) % 6
    replace(made, info=replace(made.info, run_id="pictures-far")).write(data_dir / "runs")
    for at in (100, 400, 1600):
        make_experts(f"at-{at}", series=("flame", at), drift=1 - at / 1600, samples=12).write(data_dir / "runs")
    with api_for(data_dir) as api, page_server(data_dir, api=str(api.client.base_url).rstrip("/")) as page:
        yield Site(page.url, data_dir)


def test_three_runs_are_picked_and_told_apart(visit, pairs: Site) -> None:
    here = visit(on=pairs).open(view="compare", run="pictures", against="pictures-moved")
    here.heading("How do the runs compare?")
    expect(
        here.page.get_by_text("Both runs are over the same 8 samples. Compared with pictures:").first
    ).to_be_visible()
    here.page.locator(".st-key-in_runs input").click()
    here.page.get_by_role("option", name="pictures-far").click()
    here.page.keyboard.press("Escape")  # the open list hides the rest from those who ask by role
    here.expect_query(runs="pictures,pictures-moved,pictures-far")
    expect(
        here.page.get_by_text("All 3 runs are over the same 8 samples. Compared with pictures:").first
    ).to_be_visible()
    table = here.page.get_by_role("region", name="Runs in numbers")
    expect(table.get_by_role("columnheader")).to_have_count(4)
    expect(table.get_by_role("img", name="clearly").first).to_be_visible()
    here.page.locator(".st-key-in_part").get_by_role("radio", name="Routes").click()
    here.expect_query(part="routes", runs="pictures,pictures-moved,pictures-far")
    here.heading("Where does each run send its tokens?")
    for name in ("pictures", "pictures-moved", "pictures-far"):
        expect(here.page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    here.heading("Where do two of them part?")
    here.page.get_by_role("button", name="Swap").click()
    here.expect_query(run="pictures-moved", against="pictures", runs="pictures-moved,pictures,pictures-far")


def test_tokens_of_two_checkpoints_and_a_sample_that_differs(visit, pairs: Site) -> None:
    here = visit(on=pairs).open(view="compare", run="at-400", against="at-1600", part="tokens")
    here.heading("Do tokens take the same modules in both?")
    told = re.compile("% of the decisions are the same in iteration 400 and iteration 1,600")
    expect(here.page.get_by_text(told)).to_be_visible()
    for question in ("At which steps do they differ?", "How far do tokens go together?", "Which samples differ most?"):
        here.heading(question)
    here.page.get_by_role("button", name="Swap").click()
    here.expect_query(run="at-1600", against="at-400", part="tokens")
    here.page.get_by_role("button", name=re.compile(r"sample \d+: .*decisions differ")).nth(1).click()
    expect(here.page).to_have_url(re.compile(r"sample=\d+"))
    here.heading(f"Which decisions of sample {here.query()['sample']} differ?")
    here.page.get_by_role("button", name=re.compile("Sample .* in iteration 400")).click()
    here.expect_query(view="samples", run="at-400")


def test_a_training_and_its_slider(visit, pairs: Site) -> None:
    here = visit(on=pairs).open(view="compare", runs="at-100", part="training")
    here.heading("Which modules are busy at iteration 1,600?")
    expect(here.page.get_by_text("Load entropy rose from", exact=False).first).to_be_visible()
    slider = here.page.locator(".st-key-in_at").get_by_role("slider")
    slider.focus()
    slider.press("ArrowLeft")
    here.expect_query(at="400")
    here.heading("Which modules are busy at iteration 400?")
    here.heading("Do modules keep their load?")


def test_from_two_runs_to_a_sample_to_its_like_to_the_map(visit, pairs: Site) -> None:
    here = visit(on=pairs).open(view="compare", run="pictures", against="pictures-moved", part="samples")
    here.heading("Do the two runs agree per sample?")
    here.page.get_by_text("How sure is this?").first.click()
    expect(here.page.get_by_text("95 % intervals, 8 samples").first).to_be_visible()
    here.page.locator(".st-key-in_by input").click()
    here.page.get_by_role("option", name="reuse").click()
    here.expect_query(by="reuse")
    point = here.mark("sample 3: ")
    expect(point).to_be_visible()
    here.click_for(point, "sample")
    here.expect_query(view="samples", run="pictures", sample="3")
    here.heading("Which samples take similar routes?")
    here.page.locator(".wall-sample button").first.click()
    inspector = here.page.locator(".st-key-inspector")
    expect(inspector.get_by_role("heading", name=re.compile(r"Sample (?!3\b)\d"))).to_be_visible()
    inspector.get_by_role("button", name="Close").click()
    here.expect_query(inspect=None)
    here.page.get_by_role("button", name="All samples").click()
    here.expect_query(sample=None)
    point = here.mark("sample 5, ")
    expect(point).to_be_visible()
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    expect(here.page.locator("#vg-tooltip-element img[src^='data:image/webp']")).to_be_visible()
    here.page.mouse.move(2, 2)
    point.click(force=True)
    here.expect_query(view="samples", inspect="sample:5")


@pytest.mark.parametrize("dark", [False, True])
def test_the_same_on_a_telephone_by_its_address(visit, pairs: Site, dark: bool) -> None:
    here = visit(width=400, dark=dark, on=pairs)
    here.open(view="compare", run="pictures", against="pictures-moved", part="samples", measure="reuse", label="circle")
    here.heading("Which samples differ most in reuse?")
    here.no_sideways_scroll()
    here.open(view="compare", run="pictures", against="pictures-moved", part="numbers")
    table = here.page.get_by_role("region", name="Runs in numbers")
    expect(table).to_be_visible()
    wide, shown = table.evaluate("table => [table.scrollWidth, table.clientWidth]")
    assert wide <= shown, f"the second of two runs is out of sight: {wide} of {shown} pixels"
    for part, heading in (
        ("numbers", "How do the runs compare?"),
        ("routes", "Where do two of them part?"),
        ("training", "How did the routing change over training?"),
    ):
        runs = "at-100,at-400,at-1600" if part == "training" else "pictures,pictures-moved,pictures-far"
        here.open(view="compare", runs=runs, part=part)
        here.heading(heading)
        here.no_sideways_scroll()
    here.open(view="samples", run="pictures", label="circle")
    here.heading("Which samples take similar routes?")
    here.no_sideways_scroll()


def test_what_cannot_be_compared_is_a_sentence_in_the_browser(visit, pairs: Site) -> None:
    here = visit(on=pairs).open(view="compare", runs="pictures,at-100", part="samples")
    here.alert("of vision, 'at-100' of text")
