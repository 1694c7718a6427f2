"""ASGI application of the page: Streamlit's app and the documentation behind guard, login and cached static files.

``tokenpaths.frontend.server.serve`` passes this file to ``streamlit run``, which uses its ``app``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from starlette.middleware import Middleware
from starlette.routing import Mount
from streamlit.starlette import App

from tokenpaths.frontend.server import documentation
from tokenpaths.frontend.server.ahead import Ahead
from tokenpaths.frontend.server.embedding import VARIABLE
from tokenpaths.frontend.server.guard import Guard
from tokenpaths.frontend.server.login import Login
from tokenpaths.frontend.server.static_files import CachedFiles, streamlit_files
from tokenpaths.web_origins import read_origins

try:
    EMBED_ORIGINS = read_origins(os.environ.get(VARIABLE, ""))
except ValueError as error:
    raise SystemExit(f"{VARIABLE}: {error}.") from None


def ask_ahead(query: Mapping[str, str]) -> None:
    """The first questions of the view at an address; views are imported by then (``serve.preload``), or now."""
    import_module("tokenpaths.frontend.views.ahead").ask(query)


app = App(
    Path(__file__).with_name("app.py"),
    routes=[Mount(documentation.PATH, documentation.Documentation())],
    middleware=[
        Middleware(Guard, inline_scripts=streamlit_files().inline_scripts(), embed_origins=EMBED_ORIGINS),
        Middleware(Login, token=os.environ.get("TOKENPATHS_TOKEN", ""), embed_origins=EMBED_ORIGINS),
        Middleware(Ahead, ask=ask_ahead),
        Middleware(CachedFiles, files=streamlit_files()),
    ],
)
