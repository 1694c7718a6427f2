"""axe-core finds nothing against WCAG 2.1 A and AA on any view of the four places, in light and dark."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

# What breaks no rule is not listed element by element, which took a third of the time.
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}
VIEWS = {
    "start": {"view": "home"},
    "picture": {"view": "samples", "run": "pictures", "sample": "1"},
    "text by module": {"view": "samples", "run": "texts", "sample": "1", "tint": "1"},
    "upload": {"view": "samples", "run": "bare"},
    "paths": {"view": "paths", "run": "pictures"},
    "flow": {"view": "routes", "run": "pictures"},
    "inspector": {"view": "routes", "run": "pictures", "inspect": "module:1.2"},
    "routes beside": {"view": "routes", "run": "pictures", "other": "*"},
    "samples": {"view": "samples", "run": "pictures", "inspect": "sample:2"},
    "modules": {"view": "modules", "run": "pictures"},
    "work": {"view": "work", "run": "pictures"},
    "compare": {"view": "compare", "run": "pictures", "against": "texts"},
    "compare samples": {"view": "compare", "run": "pictures", "against": "texts", "part": "samples"},
    "change": {"view": "change", "run": "pictures", "sample": "1"},
    "importance": {"view": "importance", "run": "pictures"},
    "dream": {"view": "dream", "run": "pictures", "sample": "1"},
    "jobs": {"view": "jobs"},
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_views_break_no_rule(visit, scheme: str) -> None:
    here = visit(dark=scheme == "dark")
    broken = {}
    for name, query in VIEWS.items():
        here.open(**query)
        here.page.wait_for_timeout(500)  # charts fade in
        for rule in Axe().run(here.page, options=RULES).response["violations"]:
            broken[name, rule["id"]] = [node["html"][:160] for node in rule["nodes"][:3]]
    assert broken == {}


def test_the_colours_of_the_system_leave_what_is_told_by_colour(visit) -> None:
    """With forced colours (contrast themes) the tint and its legend, what is chosen and the sliders can be seen."""
    here = visit()
    here.page.emulate_media(forced_colors="active")
    here.open(view="samples", run="texts", sample="1")
    colours = "all => [...new Set(all.map(one => getComputedStyle(one).backgroundImage))]"
    expect(here.page.locator(".tp-piece").first).not_to_have_css("background-image", "none")
    assert len(here.page.locator(".tp-piece").evaluate_all(colours)) > 1
    assert here.page.locator(".tp-bar").evaluate_all(colours) != ["none"]
    paper = "one => getComputedStyle(one).backgroundColor"
    page = here.page.locator("body").evaluate(paper)
    ways = here.page.get_by_role("radio", name="Samples")
    assert ways.evaluate(paper) != here.page.get_by_role("radio", name="Modules").evaluate(paper)
    thumb = here.page.locator('[data-testid="stSlider"] div:has(> div > input[type="range"])').first
    assert thumb.evaluate(paper) not in (page, "rgba(0, 0, 0, 0)")


def test_on_paper_nothing_lies_over_anything(visit) -> None:
    """The inspector, fixed on the screen, would cover half of each page; the text is whole, with its tint."""
    here = visit().open(view="samples", run="texts", sample="1", inspect="token:1.2")
    here.heading("Token 2")
    here.page.emulate_media(media="print")
    inspector = here.page.locator(".st-key-inspector")
    expect(inspector).to_have_css("position", "static")
    expect(here.page.locator(".tp-text")).to_have_css("max-height", "none")
    expect(here.page.locator(".tp-piece").first).to_have_css("print-color-adjust", "exact")
    box, text = inspector.bounding_box(), here.page.locator(".tp-text").bounding_box()
    assert box is not None
    assert text is not None
    assert box["y"] + box["height"] <= text["y"] or text["y"] + text["height"] <= box["y"]
