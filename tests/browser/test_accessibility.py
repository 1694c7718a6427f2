"""axe-core finds nothing against WCAG 2.1 A and AA on the views, in light and dark."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
VIEWS = {
    "start": {"view": "home"},
    "picture": {"view": "samples", "run": "pictures"},
    "text by module": {"view": "samples", "run": "texts", "tint": "1"},
    "upload": {"view": "samples", "run": "bare"},
    "paths": {"view": "paths", "run": "pictures"},
    "routes": {"view": "routes", "run": "pictures"},
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
