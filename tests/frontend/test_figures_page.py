"""docs/figures.md is what the figures say of themselves; what it names is there."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from urllib.parse import parse_qs
from xml.etree import ElementTree

import pytest
from PIL import Image

from tokenpaths.frontend.figures import KINDS
from tokenpaths.frontend.figures.page import SHOWN, figures_page
from tokenpaths.frontend.page.selection import from_query

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_figures_say():
    assert (ROOT / "docs" / "figures.md").read_text("utf-8") == figures_page()


def test_every_figure_of_the_paper_has_its_row():
    numbers = {number.split()[0].rstrip("cdefl") for kind in KINDS for number in kind.paper}
    assert numbers == {str(number) for number in range(1, 21)}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_view_call_and_test_exist(kind):
    query = {name: values[0] for name, values in parse_qs(kind.view).items()}
    assert from_query(query)[1] == []
    assert from_query(query)[0].view == query["view"]
    paths = json.loads((ROOT / "tests" / "goldens" / "openapi.json").read_text("utf-8"))["paths"]
    for call in kind.rest.split(","):
        assert (
            "/api/v1"
            + call.strip()
            .partition("?")[0]
            .replace("distributions/compute", "distributions/{measure}")
            .replace("distributions/reuse", "distributions/{measure}")
            in paths
        )
    file, _, name = kind.test.partition("::")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    assert callable(getattr(module, name))


def test_the_shown_figures_can_be_read():
    for name, _, file, _ in SHOWN:
        path = ROOT / "docs" / "figures" / name
        assert any(file.startswith(kind.name) for kind in KINDS)
        if name.endswith(".svg"):
            ElementTree.parse(path)
            assert not re.findall(r'href="http', path.read_text("utf-8"))
        else:
            assert Image.open(path).width == 900
