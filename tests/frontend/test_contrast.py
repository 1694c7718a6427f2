"""WCAG AA: every pair of colours that the theme uses for words has a contrast of at least 4.5, in light and dark."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tokenpaths.frontend import page
from tokenpaths.frontend.charts.drawing.palette import GROUPS, contrast, ink_on, mix, theme_named
from tokenpaths.frontend.charts.patches import MODULE_HUES
from tokenpaths.frontend.page.contrast import style

AA = 4.5
CONFIG = tomllib.loads((Path(page.__file__).parents[1] / ".streamlit" / "config.toml").read_text("utf-8"))["theme"]


@pytest.mark.parametrize("name", ["light", "dark"])
def test_words_of_the_page_are_readable(name: str) -> None:
    set_to, look = CONFIG[name], theme_named(name)
    papers = {"page": set_to["backgroundColor"], "box": set_to["secondaryBackgroundColor"]}
    words = {"text": set_to["textColor"], "link": set_to["linkColor"], "muted": look.muted, "ink": look.ink}
    pairs = {(what, where): contrast(ink, paper) for what, ink in words.items() for where, paper in papers.items()}
    primary = set_to["primaryColor"]
    pairs["primary", "page"] = contrast(primary, papers["page"])  # values of sliders, the chosen view
    pairs["primary", "its tint"] = contrast(primary, mix(primary, papers["page"], 0.1))  # the chosen view's paper
    pairs["accent", "page"] = contrast(look.accent, look.background)
    assert {pair: round(value, 2) for pair, value in pairs.items() if value < AA} == {}
    assert look.background == papers["page"]


@pytest.mark.parametrize("name", ["light", "dark"])
def test_words_on_primary_buttons_are_readable(name: str) -> None:
    ink = re.search(r"color: (#[0-9a-f]{6}) !important", style(theme_named(name)))
    assert ink is not None
    assert contrast(ink[1], CONFIG[name]["primaryColor"]) >= AA


@pytest.mark.parametrize("name", ["light", "dark"])
def test_words_on_colours_of_modules_and_groups_are_readable(name: str) -> None:
    for colour in (*MODULE_HUES, *GROUPS[name], theme_named(name).identity):
        assert contrast(ink_on(colour), colour) >= AA
