"""The page server: ``python -m tokenpaths.frontend.server.serve [options of streamlit run]``.

It is ``streamlit run frontend/asgi.py`` with a thread that imports the plotting libraries in advance: otherwise
Streamlit imports Altair and pandas during the first visit, which takes a second longer; and with limited connections.
"""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from contextlib import suppress
from pathlib import Path

from streamlit.web import cli

from tokenpaths.frontend.server.connections import limit_connections
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
    with suppress(AttributeError):  # looks through the whole stack, once, else during the first visit
        importlib.import_module("streamlit.delta_generator")._maybe_print_use_warning()
    # Altair's switch that disables validating parts of charts against the Vega-Lite schema on construction.
    importlib.import_module("altair.utils.schemapi").disable_debug_mode()
    # Streamlit runs the garbage collector after each pass; freeze the half million library objects, which hold no
    # cycles.
    gc.collect()
    gc.freeze()


def main() -> None:
    limit_connections()
    threading.Thread(target=preload, name="preload", daemon=True).start()
    sys.argv = ["streamlit", "run", str(ASGI_FILE), *sys.argv[1:]]
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
