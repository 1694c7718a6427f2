"""What opening a view costs: one pass of the script, and no script of the page that comes as a surprise."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import Visit

SMALL = 20_000
"""bytes; scripts below are no surprise worth a line"""
LATER = ("StreamlitSyntaxHighlighter", "DataFrame", "arrowFormatUtils", "moment", "numbro", "reactJsonView", "dist")
"""of code and of tables below the first picture: whoever wants them waits for them"""


@pytest.mark.parametrize("view", ["runs", "flow", "paths", "sample", "compute", "modules", "compare", "map"])
def test_a_view_is_drawn_in_one_pass_from_scripts_that_its_page_names(visit: Callable[..., Visit], view: str) -> None:
    here = visit()
    asked: list[tuple[str, int]] = []
    sent: list[Any] = []
    here.page.on("response", lambda answer: asked.append((answer.url, int(answer.headers.get("content-length", 0)))))
    here.page.on("websocket", lambda socket: socket.on("framesent", lambda told: sent.append(told)))
    here.open(view=view, run="pictures")
    here.page.locator("[data-testid=stHeading]").first.wait_for()
    told = here.page.evaluate("[...document.querySelectorAll('link[rel=modulepreload]')].map(link => link.href)")
    scripts = {url: size for url, size in asked if re.search(r"/static/js/.*\.js$", url)}
    surprises = {
        url.rpartition("/")[2]: size
        for url, size in scripts.items()
        if size > SMALL and url not in told and not url.rpartition("/")[2].startswith(("index.", *LATER))
    }
    assert not surprises
    assert len(sent) == 1, "the page asked for more than one pass"
    here.page.wait_for_timeout(500)
    here.settled()
    assert len(sent) == 1, "something on the page asked for another pass"


def test_a_table_behind_a_chart_comes_when_it_is_opened(visit: Callable[..., Visit]) -> None:
    here = visit()
    asked: list[str] = []
    here.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    here.open(view="routes", run="pictures")
    here.mark("node: 0.").wait_for()
    table = here.page.locator("[data-testid=stDataFrame]")
    assert table.count() == 0
    assert not [name for name in asked if name.startswith("DataFrame")]
    here.page.get_by_text("The numbers behind this: circles").click()
    table.first.wait_for()
    assert [name for name in asked if name.startswith("DataFrame")]
    here.page.get_by_text("The numbers behind this: ribbons").click()
    table.nth(1).wait_for()
    here.settled()
    assert table.count() == 2, "opening the second table closes the first"


ORDER = """(clicked) => new Promise((done) => {
  const order = [], came = (name) => { order.push(name); if (order.length === 2) done(order); };
  const where = document.querySelector(clicked ? '[data-testid="stVegaLiteChart"]' : ".tp-brand");
  where.dispatchEvent(new PointerEvent("pointerup", { bubbles: true }));
  setTimeout(came, 150, "the pause before a choice is sent");
  setTimeout(came, 100, "another");
})"""


def test_a_click_in_a_chart_is_sent_without_the_pause_for_drags(visit):
    here = visit().open(view="routes", run="pictures")
    here.page.get_by_test_id("stVegaLiteChart").first.wait_for()
    assert here.page.evaluate(ORDER, True) == ["the pause before a choice is sent", "another"]
    here.page.wait_for_timeout(400)
    assert here.page.evaluate(ORDER, False) == ["another", "the pause before a choice is sent"]
    assert here.page.evaluate("() => setTimeout.toString().includes('[native code]')"), "the page has its own again"
