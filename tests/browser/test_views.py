"""Every view opens, says its question, and works with the pointer; every click is in the address."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tokenpaths.frontend.page.selection import VIEWS

QUESTIONS = {
    "routes": "Where do tokens go?",
    "paths": "Which paths exist?",
    "samples": "Which samples are there?",
    "modules": "How busy is each module?",
    "work": "Where is the work spent?",
}


def test_clicking_through_every_view_keeps_the_run(visit):
    here = visit().open()
    here.heading("See how a network routes its work")
    expect(here.page.locator('[data-testid="stVegaLiteChart"] svg').first).to_be_visible()
    here.page.get_by_text("1 file cannot be read").click()
    expect(here.page.get_by_text("cut – ")).to_be_visible()
    here.page.locator('[class*="st-key-open_flow_"] button:visible').first.click()
    here.expect_query(view="routes")
    run = "pictures"
    here.open(view="routes", run=run)
    for view, question in QUESTIONS.items():
        here.page.get_by_role("radio", name=VIEWS[view], exact=True).click()
        here.expect_query(view=view, run=run)
        here.heading(question)
        expect(here.page.locator('[data-testid="stVegaLiteChart"] svg').first).to_be_visible()
        assert here.page.title() == f"pictures · {VIEWS[view]} · Tokenpaths"
    for place, view in (("Compare", "compare"), ("Experiment", "change"), ("Explore", "work"), ("Home", "home")):
        here.page.get_by_role("radio", name=place, exact=True).click()
        here.expect_query(view=None if view == "home" else view)


@pytest.mark.parametrize("run", ["pictures", "texts", "bare"])
def test_every_view_of_every_kind_of_run(visit, run):
    here = visit()
    for view, question in QUESTIONS.items():
        here.open(view=view, run=run)
        here.heading("What happened inside this" if (run, view) == ("bare", "samples") else question)
        expect(here.page.locator('[data-testid="stAlert"]', has_text="failed")).to_have_count(0)
        if run == "bare" and view == "paths":
            here.alert("one and the same path")
        if run == "bare" and view == "work":
            here.alert("has anything to compare")


def inspector(here):
    return here.page.locator(".st-key-inspector")


def test_a_click_on_a_circle_is_answered_beside_it(visit):
    here = visit(width=1440).open(view="routes", run="pictures")
    here.mark("node: 2.").click()
    title = inspector(here).get_by_role("heading", name="at step 2")
    expect(title).to_be_visible()
    assert title.bounding_box()["y"] < 300, "nothing has to be scrolled"
    thing = here.query()["inspect"]
    assert thing.startswith("module:2.")
    again = visit(width=400).open(here.page.evaluate("location.href"))
    expect(inspector(again).get_by_role("heading", name="at step 2")).to_be_in_viewport()
    again.no_sideways_scroll()
    for _ in range(10):  # the page hears keys a moment after its buttons are there
        if "inspect" not in again.query():
            break
        again.page.keyboard.press("Escape")
        again.page.wait_for_timeout(2000)
    again.expect_query(inspect=None)
    expect(inspector(again)).to_have_count(0)


def test_the_chart_stays_while_its_circles_are_clicked(visit):
    here = visit(width=1440).open(view="routes", run="pictures")
    flow = here.page.locator('[data-testid="stVegaLiteChart"] svg.marks').first
    flow.evaluate("svg => { svg.dataset.drawn = 'once' }")
    wide = flow.bounding_box()["width"]
    for step in (2, 1):
        here.mark(f"node: {step}.").click()
        expect(inspector(here).get_by_role("heading", name=f"at step {step}")).to_be_visible()
        here.settled()
        assert flow.get_attribute("data-drawn") == "once", "the browser made no other chart"
    expect(inspector(here)).to_be_visible()
    here.page.wait_for_function(
        "wide => document.querySelector('svg[data-drawn=once]').getBoundingClientRect().width < wide - 300", arg=wide
    )
    inspector(here).get_by_role("button", name="Close").click()
    expect(inspector(here)).to_have_count(0)
    here.settled().mark("node: 1.").click()
    expect(inspector(here).get_by_role("heading", name="at step 1")).to_be_visible()


def test_two_things_are_compared_in_the_inspector(visit):
    here = visit(width=1440).open(view="modules", run="pictures", inspect="module:1.2")
    inspector(here).get_by_role("button", name="Pin").click()
    here.expect_query(pinned="module:1.2")
    here.mark("module: 1;").click()
    expect(inspector(here).get_by_role("heading", name="Module 1 at step")).to_be_visible()
    expect(inspector(here).get_by_role("heading", name="Module 2 at step 1")).to_be_visible()


def test_the_search_box_finds_by_number_and_by_word(visit):
    here = visit(width=1440).open(view="routes", run="texts")
    box = here.page.get_by_role("textbox", name="Search this run")
    box.fill("module 3 at step 1")
    box.press("Enter")
    here.expect_query(inspect="module:1.3")
    box.fill("path 2")
    box.press("Enter")
    here.expect_query(inspect="path:2")
    box.fill("punctuation")
    box.press("Enter")
    here.expect_query(view="paths", kind="punctuation")


def test_a_filter_from_the_inspector_and_the_link_reproduces_it(visit):
    here = visit(width=1440).open(view="routes", run="pictures")
    here.mark("node: 2.").click()
    inspector(here).get_by_role("button", name="Filter").click()
    expect(here.chip("at step 2")).to_be_visible()
    here.settled()
    node = here.query()["through"]
    assert node.startswith("2.")
    caption = here.page.get_by_text("of 1,536 tokens").first
    expect(caption).to_be_visible()
    words = caption.inner_text()
    again = visit().open(here.page.evaluate("location.href"))
    expect(again.chip("at step 2")).to_be_visible()
    expect(again.page.get_by_text(words)).to_be_visible()
    again.chip("at step 2").click()
    again.expect_query(through=None)
    expect(again.page.get_by_text("1,536 tokens.").first).to_be_visible()
    again.page.go_back()
    again.expect_query(through=node)
    expect(again.chip("at step 2")).to_be_visible()


def test_a_click_on_a_ribbon_filters_at_both_ends(visit):
    here = visit().open(view="routes", run="pictures")
    label = here.page.locator('path[aria-label*="link: 1."]').first.get_attribute("aria-label")
    link = label.split("link: ")[1].split(";")[0]
    here.click_ribbon(link)
    here.expect_query(through=link.replace(">", ","))
    expect(here.page.locator(".st-key-chips button:visible", has_text="passes module")).to_have_count(2)


def test_flow_by_address_steps_label_path_and_hidden_flows(visit):
    here = visit().open(view="routes", run="pictures", steps="1:4", label="circle", paths="1", hide="5")
    for words in ("steps 1–3", "label: circle", "path of rank 1"):
        expect(here.chip(words)).to_be_visible()
    expect(here.page.locator('path[aria-label*="node: 4."]')).to_have_count(0)
    here.open(view="routes", run="pictures", hide="10")
    expect(here.page.get_by_text("of all moves between steps")).to_be_visible()


def test_a_chip_says_where_it_is_not_used(visit):
    here = visit().open(view="work", run="pictures", through="2.1")
    expect(here.chip("not used here")).to_be_visible()


def test_a_click_on_a_rank_shows_who_takes_it(visit):
    here = visit(width=1440).open(view="paths", run="pictures")
    point = here.page.locator('path[aria-label*="rank: 1;"]:not([aria-roledescription="line mark"])').first
    expect(point).to_be_visible()
    box = point.bounding_box()
    here.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    here.expect_query(inspect="path:1")
    expect(inspector(here).get_by_role("heading", name="Path of rank 1")).to_be_visible()
    patches = inspector(here).locator(".wall-patch button img")
    expect(patches.first).to_be_visible()
    assert patches.first.evaluate("image => image.complete && image.naturalWidth > 0")
    inspector(here).locator(".wall-patch button").first.click()
    expect(inspector(here).get_by_role("heading", name="Patch r")).to_be_visible()
    here.settled()
    assert here.query()["inspect"].startswith("token:")
    inspector(here).get_by_role("button", name="Open its sample").click()
    here.expect_query(view="samples")
    assert {"sample", "token"} <= set(here.query())


def test_examples_of_a_text_path_mark_the_token(visit):
    here = visit().open(view="paths", run="texts", inspect="path:1", pinned="path:2")
    here.heading("Path of rank 1")
    here.heading("Path of rank 2")
    expect(here.page.locator(".wall-context mark").first).to_be_visible()


def test_hovering_a_patch_draws_its_ribbon_and_clicking_lights_its_kin(visit):
    here = visit().open(view="samples", run="pictures", sample=2)
    patch = here.page.locator(".tp-patch[data-token='9']")
    expect(patch).to_be_visible()
    expect(here.page.locator(".tp-line path")).to_have_count(0)
    patch.hover()
    expect(here.page.locator(".tp-line > path")).to_have_count(5)
    expect(here.page.locator(".tp-readout")).to_contain_text("Path of rank")
    patch.click()
    here.expect_query(token="9")
    expect(here.page.locator(".tp-patch.tp-chosen")).to_have_count(1)
    here.page.mouse.move(5, 5)
    expect(here.page.locator(".tp-line > path")).to_have_count(5)
    lit = here.page.locator(".tp-patch.tp-same").count()
    said = inspector(here).get_by_text(re.compile("of this sample (is|are) on it")).inner_text()
    assert f"{lit} {'patch of this sample is' if lit == 1 else 'patches of this sample are'} on it" in said
    again = visit().open(here.page.evaluate("location.href"))
    expect(again.page.locator(".tp-patch.tp-same")).to_have_count(lit)
    inspector(again).get_by_role("button", name="Its path").click()
    expect(inspector(again).get_by_role("heading", name="Path of rank")).to_be_visible()


def test_patches_by_keyboard(visit):
    here = visit().open(view="samples", run="pictures", sample=2)
    here.page.locator(".tp-patch[data-token='0']").focus()
    here.page.keyboard.press("ArrowRight")
    here.page.keyboard.press("ArrowDown")
    expect(here.page.locator(".tp-readout")).to_contain_text("r1 c1")
    here.page.keyboard.press("Enter")
    here.expect_query(token="9")


def test_tint_by_step_names_the_modules(visit):
    here = visit().open(view="samples", run="pictures", sample=2, tint=3, opacity=90)
    expect(here.page.locator(".tp-patch").first).to_be_visible()
    marks = here.page.locator(".tp-patch").all_inner_texts()
    assert len(marks) == 64
    assert all(mark.isdigit() for mark in marks)


def test_hovering_a_word_draws_its_ribbon_and_the_text_is_kept(visit):
    here = visit().open(view="samples", run="texts", sample=2)
    word = here.page.locator(".tp-piece").nth(3)
    word.hover()
    expect(here.page.locator(".tp-line > path")).to_have_count(4 * 4)
    expect(here.page.locator(".tp-readout")).to_contain_text("Token 3")
    word.click()
    here.expect_query(token="3")


def test_a_click_on_the_token_flow_chooses_the_token(visit):
    here = visit().open(view="samples", run="texts", sample=0)
    here.mark("token: 5 ").click()
    here.expect_query(token="5")
    expect(here.page.locator(".tp-piece.tp-chosen")).to_have_count(1)
    here.mark("token: 5 ").click()
    here.expect_query(token=None)
    expect(here.page.locator(".tp-piece.tp-chosen")).to_have_count(0)


def test_a_bar_shows_its_samples_and_a_sample_opens(visit):
    here = visit().open(view="work", run="pictures")
    here.heading("Most compute")
    here.heading("Least compute")
    bars = here.page.locator('[data-testid="stVegaLiteChart"]').first.locator('path[aria-roledescription="bar"]')
    expect(bars.filter(visible=True).first).to_be_visible()
    tallest = bars.evaluate_all(
        "bars => bars.map(b => b.getBoundingClientRect().height).reduce((a, h, i, all) => h > all[a] ? i : a, 0)"
    )
    bars.nth(tallest).click()
    here.settled()
    here.heading("Samples with compute from")
    assert "bin" in here.query()
    here.page.locator(".wall-sample button").first.click()
    expect(inspector(here).get_by_role("heading", name=re.compile(r"^Sample \d"))).to_be_visible()


def test_a_cell_of_the_load_map_opens_its_module(visit):
    here = visit().open(view="modules", run="pictures")
    expect(here.page.get_by_text("untrained").first).to_be_visible()
    here.mark("module: 1;").click()
    expect(inspector(here).get_by_role("heading", name="Module 1 at step")).to_be_visible()


def test_the_next_sample_by_key_but_not_while_somebody_writes(visit):
    here = visit().open(view="samples", run="pictures", sample=1)
    expect(here.page.get_by_text("What happened inside").first).to_be_visible()
    expect(here.page.locator(".st-key-sample_next button").first).to_be_visible()
    for _ in range(6):  # the page hears keys a moment after its buttons are there
        here.page.keyboard.press("n")
        here.page.wait_for_timeout(5000)
        if here.query()["sample"] == "2":
            break
    here.expect_query(sample="2")
    here.page.get_by_role("combobox").last.click()
    here.page.keyboard.type("p")
    here.page.keyboard.press("Escape")
    here.expect_query(sample="2")
