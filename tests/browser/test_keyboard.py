"""Without a mouse: circles, cells and points are chosen by key, what opens can be walked through, every chart says what
it is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import PATIENCE_S, Visit
from tests.support.runs import make_run

FOCUSED = """() => {
    let one = document.activeElement;
    while (one.shadowRoot && one.shadowRoot.activeElement) one = one.shadowRoot.activeElement;
    const style = getComputedStyle(one), bar = one.closest('[data-testid="stElementToolbar"]');
    return { tag: one.tagName, role: one.getAttribute('role'),
        name: one.getAttribute('aria-label') || one.innerText || '',
        opens: one.getAttribute('data-testid') === 'stPopoverButton',
        ring: style.outlineStyle !== 'none' || style.boxShadow !== 'none',
        bar: bar && getComputedStyle(bar).opacity };
}"""

CLASSES = "all => all.map(one => one.className)"
PASTE = """(field, text) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", text);
    field.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}"""


def tab_to(here: Visit, wanted: Callable[[dict], bool], most: int = 80) -> dict:
    """Press Tab until something wanted has the focus; every stop on the way shows that it has it."""
    for _ in range(most):
        here.page.keyboard.press("Tab")
        found = here.page.evaluate(FOCUSED)
        if found["tag"] in ("BUTTON", "A", "SUMMARY"):
            assert found["ring"], f"nobody sees that {found} has the focus"
        if found["bar"] is not None:
            assert found["bar"] == "1", f"{found} has the focus and cannot be seen"
        if wanted(found):
            return found
    raise AssertionError(f"{most} times Tab did not lead there; the last stop is {found}")


def choose(here: Visit, words: str, key: str) -> None:
    """By key alone: open the list of the first chart that has one, type, Enter, until the address has ``key``."""
    expect(here.page.get_by_role("button", name="Choose from a list").first).to_be_visible()
    tab_to(here, lambda found: found["opens"] and "Choose from a list" in found["name"])
    here.page.keyboard.press("Enter")
    box = here.page.get_by_role("combobox", name=re.compile("to choose from"))
    expect(box).to_be_focused()
    here.page.keyboard.type(words)
    expect(here.page.get_by_role("option").first).to_be_visible()
    here.page.keyboard.press("Enter")
    until = time.monotonic() + PATIENCE_S
    while key not in here.query():
        assert time.monotonic() < until, f"the list did not bring {key!r} into the address {here.query()}"
        here.page.wait_for_timeout(100)
    here.settled()


def test_a_module_is_inspected_in_two_views_by_keys_alone(visit):
    here = visit().open(view="routes", run="pictures")
    choose(here, "at step 2", "inspect")
    node = here.query()["inspect"].removeprefix("module:")
    assert node.startswith("2.")
    module = node.split(".")[1]
    here.heading(f"Module {module} at step 2")
    expect(here.page.get_by_role("button", name="Choose from a list").first).to_be_focused()
    # To Modules: the views of a place are one stop, arrows move among them.
    tab_to(here, lambda found: found["role"] == "radio" and found["name"].strip() == "Routes")
    for _ in range(12):
        if here.page.evaluate(FOCUSED)["name"].strip() == "Modules":
            break
        here.page.keyboard.press("ArrowRight")
    here.page.keyboard.press("Enter")
    here.expect_query(view="modules", run="pictures", inspect=f"module:{node}")
    here.open(view="modules", run="pictures")
    choose(here, f"step: 2; module: {module};", "inspect")
    here.expect_query(inspect=f"module:{node}")
    here.heading(f"Module {module} at step 2")


def test_a_point_of_the_map_opens_its_sample_by_keys_alone(visit):
    here = visit().open(view="samples", run="pictures")
    choose(here, "sample 5,", "inspect")
    here.expect_query(view="samples", inspect="sample:5")
    here.heading("Sample 5")


def test_a_narrow_window_gives_the_focus_back(visit):
    here = visit(width=400).open(view="routes", run="pictures")
    choose(here, "at step 2", "inspect")
    button = here.page.get_by_role("button", name="Choose from a list").and_(here.page.locator(":visible"))
    expect(button.first).to_be_focused()


def test_a_ribbon_is_let_go_of_by_choosing_it_again(visit):
    here = visit().open(view="routes", run="pictures")
    choose(here, "from module", "through")
    link = here.query()["through"]
    assert len(link.split(",")) == 2
    (one, module), (_, target) = (node.split(".") for node in link.split(","))
    here.page.keyboard.press("Enter")
    expect(here.page.get_by_role("combobox", name=re.compile("to choose from"))).to_be_focused()
    here.page.keyboard.type(f"from module {module} at step {one} to module {target}:")
    expect(here.page.get_by_role("option").first).to_be_visible()
    here.page.keyboard.press("Enter")
    here.expect_query(through=None)


def test_what_a_button_opens_is_walked_through_and_left_by_keys(visit):
    here = visit().open(view="routes", run="pictures")
    expect(here.page.get_by_role("button", name="Choose from a list")).to_be_visible()
    tab_to(here, lambda found: found["opens"] and "Save" in found["name"])
    here.page.keyboard.press("Enter")
    panel = here.page.locator('[data-testid="stPopoverBody"]')
    expect(panel.get_by_role("button", name="SVG")).to_be_focused()
    for name in ("PNG", "CSV"):
        here.page.keyboard.press("Tab")
        expect(panel.get_by_role("button", name=name)).to_be_focused()
    here.page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    expect(here.page.locator('[class*="st-key-save_"] [data-testid="stPopoverButton"]').first).to_be_focused()


def test_the_keys_are_listed_enlarged_too_and_not_on_a_telephone(visit):
    here = visit().open(view="routes", run="pictures")
    tab_to(here, lambda found: found["opens"] and "Keys" in found["name"])
    here.page.keyboard.press("Enter")
    listed = here.page.locator('[data-testid="stPopoverBody"]')
    expect(listed).to_contain_text("the next sample, the previous one")
    here.page.keyboard.press("Escape")
    expect(listed).to_have_count(0)
    narrow = visit(width=400).open(view="routes", run="pictures")  # as a window that is enlarged to 400 %
    expect(narrow.page.locator(".st-key-keys_help")).to_be_visible()
    browser = narrow.page.context.new_cdp_session(narrow.page)
    browser.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    expect(narrow.page.locator(".st-key-keys_help")).to_be_hidden()


def test_a_wall_is_one_stop_and_arrows_lead_through_it(visit):
    here = visit().open(view="paths", run="pictures", inspect="path:1")
    patches = here.page.locator(".wall-patch button")
    expect(patches).to_have_count(12)
    assert patches.evaluate_all("all => all.filter(one => one.tabIndex === 0).length") == 1
    patches.first.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "End"):
        here.page.keyboard.press(key)
    expect(patches.last).to_be_focused()
    here.page.keyboard.press("Enter")
    here.heading("Patch r")


def test_what_is_chosen_by_a_key_in_the_explorer_keeps_the_focus(visit):
    here = visit().open(view="samples", run="pictures", sample=2)
    patches = here.page.locator(".tp-patch")
    patches.first.focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        here.page.keyboard.press(key)
    here.expect_query(token="2")
    here.settled()
    chosen = here.page.locator('.tp-patch[data-token="2"]')
    expect(chosen).to_have_attribute("aria-pressed", "true")
    expect(chosen).to_be_focused()
    assert patches.evaluate_all("all => all.filter(one => one.tabIndex === 0).map(one => one.dataset.token)") == ["2"]
    here.page.keyboard.press("ArrowRight")  # and the walk goes on from there
    expect(here.page.locator('.tp-patch[data-token="3"]')).to_be_focused()
    circle = here.page.locator(".tp-nodes circle").nth(1)
    circle.focus()
    node = circle.get_attribute("data-node")
    here.page.keyboard.press("Enter")
    here.expect_query(inspect=f"module:{node}")
    here.settled()
    expect(here.page.locator(f'.tp-nodes [data-node="{node}"]')).to_be_focused()


VIEWS = {
    "home": {},
    "routes": {"inspect": "sample:3"},
    "paths": {"inspect": "path:1"},
    "samples": {},
    "sample": {"sample": 2, "token": 3, "inspect": "token:2.3"},
    "work": {},
    "modules": {"inspect": "module:1.2"},
    "compare": {},
    "change": {"sample": 1},
    "importance": {},
    "dream": {"sample": 1},
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_picture_of_a_view_has_a_name_that_says_something(visit, view):
    here = visit().open(view=view, **({} if view == "home" else {"run": "pictures"}), **VIEWS[view])
    drawn = here.page.locator('[data-testid="stVegaLiteChart"]')
    if view not in ("change", "importance", "dream", "compare"):
        expect(drawn.locator("svg, canvas").first).to_be_visible()
    for place in range(drawn.count()):
        expect(drawn.nth(place)).to_have_attribute("aria-label", re.compile("."))  # a box has none yet
    for name in named(here.page, '[data-testid="stVegaLiteChart"]'):
        assert len(name) > 20, name
        assert "Vega" not in name
        assert re.search(r"\d", name), f"no number in {name!r}"
    for name in named(here.page, "svg.tp-flow, .tp-grid, .tp-text, .wall"):
        assert re.search(r"\d", name), f"no number in {name!r}"
    # What the browser tells a screen reader, not what stands in the page.
    session, until = here.page.context.new_cdp_session(here.page), time.monotonic() + PATIENCE_S
    while True:
        told = [
            node["name"]["value"]
            for node in session.send("Accessibility.getFullAXTree")["nodes"]
            if not node["ignored"] and node["role"]["value"].lower() in ("graphicsdocument", "graphics-document")
        ]
        # A chart is a box before it is a picture.
        if len(told) >= drawn.count() or time.monotonic() > until:
            break
        here.page.wait_for_timeout(200)
    assert len(told) >= drawn.count()
    assert all(len(name) > 20 for name in told), told


def named(page: Page, selector: str) -> list[str]:
    """The accessible name of each thing of this kind, empty where it has none."""
    found = page.locator(selector)
    return [found.nth(place).get_attribute("aria-label") or "" for place in range(found.count())]


def on(here: Visit, key: str) -> Locator:
    return here.page.locator(f".st-key-{key} button:visible").first


def test_what_vanishes_leaves_the_focus_to_its_neighbour(visit):
    here = visit().open(view="routes", run="pictures", label="square", through="0.1", paths="2")
    on(here, "chip_0_label").focus()
    for field, following in (("label", "chip_0_through"), ("through", "chip_0_paths")):
        here.page.keyboard.press("Enter")
        here.expect_query(**{field: None})
        expect(on(here, following)).to_be_focused()
    here.open(view="routes", run="pictures", inspect="module:2.1")
    here.heading("Module 1 at step 2")
    on(here, "inspector_pin").focus()
    here.page.keyboard.press("Enter")
    expect(on(here, "inspector_inspect_close")).to_be_focused()
    here.page.keyboard.press("Escape")
    here.expect_query(inspect=None, pinned="module:2.1")
    expect(on(here, "inspector_pinned_close")).to_be_focused()


def test_the_next_card_has_the_focus_when_a_run_was_deleted(visit, site):
    make_run(site.data_dir / "runs", "vanishing-1", samples=2, seed=9)
    make_run(site.data_dir / "runs", "vanishing-2", samples=3, seed=10)
    here = visit().open(q="vanishing")
    cards = here.page.locator('[class*="st-key-manage_vanishing"]')
    expect(cards).to_have_count(2)
    first, second = (name.split("st-key-manage_")[1].split()[0] for name in cards.evaluate_all(CLASSES))
    on(here, f"manage_{first}").focus()
    for words in ("Delete the run", "Yes, delete it"):
        here.page.keyboard.press("Enter")
        here.page.get_by_role("button", name=words).focus()
    here.page.keyboard.press("Enter")
    expect(here.page.locator(f".st-key-manage_{first}")).to_have_count(0)
    expect(on(here, f"manage_{second}")).to_be_focused()
    (site.data_dir / "runs" / f"{second}.duckdb").unlink()


def test_a_long_name_that_is_pasted_is_cut(visit):
    here = visit().open(view="routes", run="pictures", inspect="module:2.1")
    here.heading("Module 1 at step 2")
    here.page.get_by_role("button", name="Name it").click()
    here.settled()
    field = here.page.get_by_label("Your name for it")
    field.click()
    expect(here.page.get_by_text("0/80")).to_be_visible()
    field.evaluate(PASTE, "n" * 100)
    expect(field).to_have_value("n" * 80)


def test_the_tab_key_goes_through_the_bar_as_it_is_seen(visit):
    here = visit().open(view="routes", run="pictures")
    expect(on(here, "export_pictures")).to_be_visible()
    stops = here.page.locator(".st-key-controls :is(input, button):visible:enabled")
    expect(stops.nth(4)).to_be_visible()
    lefts = stops.evaluate_all("all => all.map(one => Math.round(one.getBoundingClientRect().left))")
    assert lefts == sorted(lefts)
