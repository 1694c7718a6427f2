"""The page server: ``python -m tokenpaths.frontend.server.serve [options of streamlit run]``.

It is ``streamlit run frontend/asgi.py`` with a thread that imports what drawing needs: Streamlit by itself imports
Altair and pandas at the first visit, which then takes a second longer.
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from pathlib import Path

from streamlit.web import cli

from tokenpaths.frontend.server.static_files import streamlit_files

ASGI_FILE = Path(__file__).resolve().parents[1] / "asgi.py"
VIEWS = ASGI_FILE.with_name("views")
LIBRARIES = ("altair", "pandas", "pyarrow", "httpx", "tokenpaths.frontend.charts")


def preload() -> None:
    """Read and import what the first visit needs; a missing library is reported by the page itself."""
    streamlit_files().load()
    views = [
        ".".join(("tokenpaths.frontend.views", *file.relative_to(VIEWS).with_suffix("").parts))
        for file in sorted(VIEWS.rglob("[a-z]*.py"))
    ]
    try:
        for name in (*LIBRARIES, *views):
            importlib.import_module(name)
    except ImportError:
        return
    # Altair's own switch: parts of charts are not compared with the schema of Vega-Lite when they are made.
    importlib.import_module("altair.utils.schemapi").disable_debug_mode()
    # Streamlit collects garbage after each pass; the half million objects of libraries hold no cycles to find.
    gc.collect()
    gc.freeze()


def main() -> None:
    threading.Thread(target=preload, name="preload", daemon=True).start()
    sys.argv = ["streamlit", "run", str(ASGI_FILE), *sys.argv[1:]]
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
