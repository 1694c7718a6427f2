"""Whole tables from the page: the list of what there is, and files with the rows of the API."""

from __future__ import annotations

import io

import pyarrow.parquet as parquet
import pytest

from tests.frontend.test_pages import api  # noqa: F401 (fixtures)
from tokenpaths.frontend.api.client import Client
from tokenpaths.frontend.views import export


@pytest.mark.parametrize("view", ["routes", "paths", "samples", "work", "modules"])
def test_every_view_of_a_run_offers_its_tables(show, view):
    page = show(view=view, run="texts")
    key = "export_texts"
    assert [one.proto.popover.label for one in page.get("popover")].count("Export and link") == 1
    assert not [box for box in page.selectbox if box.key == f"{key}_table"]  # nothing is asked before it is opened


def test_a_table_leaves_whole_and_is_not_kept(api):  # noqa: F811
    client = Client(api)
    tables = {row["table"]: row["num_rows"] for row in client.ask("texts", "export")["tables"]}
    kept = len(client._kept)
    for table in ("path", "token", "flow"):
        assert parquet.read_table(io.BytesIO(client.export("texts", table, "parquet"))).num_rows == tables[table]
    assert len(client._kept) == kept


def test_the_browser_asks_the_api_itself_only_on_its_own_machine(monkeypatch):
    here, there = "http://localhost:8501/?view=routes", "http://workstation:8501/"
    assert export.within_reach(Client("http://127.0.0.1:8000"), here)
    assert not export.within_reach(Client("http://127.0.0.1:8000"), there)
    assert not export.within_reach(Client("http://127.0.0.1:8000", token="secret"), here)
    assert not export.within_reach(Client("http://api:8000"), here)
    assert not export.within_reach(Client("http://127.0.0.1:8000"), None)
