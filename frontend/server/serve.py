"""The page server: ``python -m tokenpaths.frontend.server.serve [options of streamlit run]``.

It is ``streamlit run frontend/app.py`` that loads what drawing needs while nobody waits: by itself Streamlit imports
Altair and pandas at the first visit, which then takes a second longer.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
from pathlib import Path

from streamlit.web import cli

from tokenpaths.frontend.server.host_check import stand_before
from tokenpaths.frontend.server.static_files import Files

PAGE_FILE = Path(__file__).resolve().parents[1] / "app.py"
NEEDED = ("altair", "pandas", "pyarrow", "httpx", "tokenpaths.frontend.charts")
VIEWS = PAGE_FILE.with_name("views")


def load(files: Files) -> None:
    """Read and import what the first picture needs; what is missing is the page's own business to report."""
    files.load()
    files_of_views = sorted(VIEWS.rglob("[a-z]*.py"))
    views = [
        ".".join(("tokenpaths.frontend.views", *file.relative_to(VIEWS).with_suffix("").parts))
        for file in files_of_views
    ]
    for name in (*NEEDED, *views):
        try:
            importlib.import_module(name)
        except ImportError:
            return
    frame = importlib.import_module("tokenpaths.frontend.charts.drawing.theme")
    frame.trust()
    # Streamlit looks for cycles among all objects after each pass; those of libraries (half a million) are none.
    gc.collect()
    gc.freeze()


def main() -> None:
    files = stand_before(os.environ.get("TOKENPATHS_TOKEN", ""))
    threading.Thread(target=load, args=(files,), name="loading", daemon=True).start()
    sys.argv = ["streamlit", "run", str(PAGE_FILE), *sys.argv[1:]]
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
