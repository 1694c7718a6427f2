"""Menu of a run: whole tables as files, the HTML report, and the link to what is seen."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from tokenpaths.frontend.api.client import Client
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.page import address, downloads, widgets
from tokenpaths.frontend.page.commands import command

FORMS = {"csv": "CSV", "parquet": "Parquet", "arrow": "Arrow"}
THROUGH_THE_PAGE = 200_000
"""maximum rows exported through the page; larger tables go directly from the API to the browser"""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def export_popover(run: Mapping[str, Any]) -> None:
    """A button next to the run's name; its contents are requested when it is opened."""
    key = f"export_{run['run']}"
    panel = st.popover(
        "Export and link",
        icon=":material/ios_share:",
        key=key,
        on_change="rerun",
        help="This run as files, or an address that shows what you see now.",
    )
    if not panel.open:
        return
    with panel, widgets.error_boundary("the tables of this run"):
        st.caption("Whoever opens this address sees what you see now; the button on the right copies it.")
        st.code(downloads.link(address.current()), language=None, wrap_lines=True)
        _offer(widgets.client(), str(run["run"]), key)
        if run.get("kind") != "load":
            _offer_report(widgets.client(), str(run["run"]), key)


def _offer(client: Client, run: str, key: str) -> None:
    tables = {row["table"]: row for row in client.ask(run, "export")["tables"]}
    table = st.selectbox(
        "Table",
        list(tables),
        index=list(tables).index("path") if "path" in tables else 0,
        key=f"{key}_table",
        format_func=lambda name: f"{name}: {numbers.plural(tables[name]['num_rows'], 'row')}",
    )
    what = tables[table]["what"]
    st.caption(widgets.escape(f"{numbers.capital(what)}."))
    form = (
        st.segmented_control("Format", list(FORMS), default="csv", key=f"{key}_form", format_func=FORMS.__getitem__)
        or "csv"
    )
    name = f"{run}-{table}.{form}"
    if tables[table]["num_rows"] <= THROUGH_THE_PAGE:
        st.download_button(
            f"Download {name}",
            partial(client.export, run, table, form),
            file_name=name,
            key=f"{key}_{table}_{form}",
            on_click="ignore",
            icon=":material/download:",
        )
    elif within_reach(client, st.context.url):
        st.link_button(f"Download {name}", client.export_url(run, table, form), icon=":material/download:")
    else:
        st.caption("This table is too large to pass through the page. At the machine that has the run:")
    st.code(command(f"tokenpaths export {run} {table} -o {name}"), language="bash", wrap_lines=True)


def _offer_report(client: Client, run: str, key: str) -> None:
    """Download of the whole report in one file, generated on click in a few seconds."""
    st.caption("Or the whole run as one page: charts to point at, examples, tables and formulas, to open offline.")
    st.download_button(
        f"Download {run}.html",
        partial(client.report, run),
        file_name=f"{run}.html",
        mime="text/html",
        key=f"{key}_report",
        on_click="ignore",
        icon=":material/article:",
    )


def within_reach(client: Client, page_url: str | None) -> bool:
    """Whether the browser can reach the API directly: page and API on the same machine, and no token."""
    hosts = [urlsplit(url or "").hostname for url in (client.url, page_url)]
    return not client.has_token and all(host in LOOPBACK for host in hosts)
