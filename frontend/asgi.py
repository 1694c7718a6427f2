"""ASGI application of the page: Streamlit's app behind host check, login and cached static files.

``tokenpaths.frontend.server.serve`` passes this file to ``streamlit run``, which uses its ``app``.
"""

from __future__ import annotations

import os
from pathlib import Path

from starlette.middleware import Middleware
from streamlit.starlette import App

from tokenpaths.frontend.server.host_check import HostCheck
from tokenpaths.frontend.server.login import Login
from tokenpaths.frontend.server.static_files import CachedFiles, streamlit_files

app = App(
    Path(__file__).with_name("app.py"),
    middleware=[
        Middleware(HostCheck),
        Middleware(Login, token=os.environ.get("TOKENPATHS_TOKEN", "")),
        Middleware(CachedFiles, files=streamlit_files()),
    ],
)
