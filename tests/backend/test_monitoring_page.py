"""The page about /metrics is up to date, and names every series that a server sends."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.backend.conftest import Served
from tokenpaths.backend.metrics import metrics_markdown

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "monitoring.md"


def test_page_is_up_to_date() -> None:
    """Refresh with: python -m tokenpaths.backend.metrics > docs/monitoring.md"""
    assert PAGE.read_text(encoding="utf-8") == metrics_markdown()


def test_every_series_that_is_sent_is_on_the_page(api: Served) -> None:
    api.get("/runs/vision")
    table = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    sent = {
        re.sub(r"_(sum|count)$", "_bucket", sample.name) if family.type == "histogram" else sample.name
        for family in text_string_to_metric_families(api.client.get("/metrics").text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert sent <= table
    assert {"tokenpaths_requests_total", "tokenpaths_request_seconds_bucket"} <= sent
    named = set(re.findall(r"tokenpaths_\w+", PAGE.read_text(encoding="utf-8")))
    assert named <= table
