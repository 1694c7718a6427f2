"""What no page of Streamlit goes below: a bare one, one chart in it, and the same chart as a file, in a real browser.

    python -m benchmarks.page_floor [--repeats 5] [--keep]

Seconds from the request of the address until the words or the chart stand there, in a new window of Chromium with an
empty cache (``page_views.window``), medians over ``--repeats`` visits that take turns. ``first``: the server was just
started, nobody has visited yet; ``later``: another visit of the same server. The file holds Vega and the chart
(``vl_convert``), about what a page without Streamlit would have to load.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import vl_convert
from playwright.sync_api import Browser, sync_playwright

from benchmarks.measure import report
from benchmarks.page_views import PICTURE, window
from tests.browser.conftest import chromium_file

SPEC = (
    '{"data": {"sequence": {"start": 0, "stop": 400, "as": "x"}}, "mark": "point", "width": 600, "height": 300, '
    '"transform": [{"calculate": "sin(datum.x / 20)", "as": "y"}], "encoding": {"x": {"field": "x", "type": '
    '"quantitative"}, "y": {"field": "y", "type": "quantitative"}}}'
)
SCRIPTS = {
    "Streamlit, a word": "import streamlit as st\nst.write('word')\n",
    "Streamlit, a chart": f"import streamlit as st\nst.vega_lite_chart({SPEC})\n",
}
READY = {
    "Streamlit, a word": "() => document.querySelector('[data-testid=stMarkdown]')",
    "Streamlit, a chart": PICTURE,
    "the chart as a file": "() => document.querySelector('canvas, svg path')",
}
HEADLESS = ("--server.headless=true", "--browser.gatherUsageStats=false", "--server.fileWatcherType=none")
FIRST_PORT = 18_551


@contextmanager
def streamlit(script: Path, port: int) -> Iterator[str]:
    """A server of one script."""
    command = [sys.executable, "-m", "streamlit", "run", str(script), f"--server.port={port}", *HEADLESS]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                if httpx.get(f"http://127.0.0.1:{port}/_stcore/health", trust_env=False).is_success:
                    break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def files(folder: Path, port: int) -> Iterator[str]:
    """A server of one folder."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{port}/chart.html"
        server.shutdown()


def visit(browser: Browser, url: str, ready: str) -> float:
    """Seconds until ``ready`` holds."""
    with window(browser) as page:
        started = time.perf_counter()
        page.goto(url, wait_until="commit")
        page.wait_for_function(ready)
        return time.perf_counter() - started


def measure(browser: Browser, repeats: int, folder: Path) -> dict[str, dict[str, float]]:
    """Medians of the first and of a later visit of each."""
    (folder / "chart.html").write_text(vl_convert.vegalite_to_html(SPEC, bundle=True))
    times: dict[str, dict[str, list[float]]] = {name: {"first": [], "later": []} for name in READY}
    for _ in range(repeats):
        for number, (name, ready) in enumerate(READY.items()):
            script = folder / f"{number}.py"
            if name in SCRIPTS:
                script.write_text(SCRIPTS[name])
            serving = streamlit(script, FIRST_PORT + number) if name in SCRIPTS else files(folder, FIRST_PORT + number)
            with serving as url:
                for kind in times[name]:
                    times[name][kind].append(visit(browser, url, ready))
    return {
        name: {kind: round(statistics.median(found), 2) for kind, found in kinds.items()}
        for name, kinds in times.items()
    } | {"the chart as a file, bytes": {"all": (folder / "chart.html").stat().st_size}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/page_floor.json")
    options = parser.parse_args()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(
            executable_path=chromium_file(playwright, windows=True), args=["--no-sandbox", "--disable-gpu"]
        )
        results = measure(browser, options.repeats, Path(folder))
        browser.close()
    print(results)
    if options.keep:
        report("page_floor", f"python -m benchmarks.page_floor --repeats {options.repeats}", results)


if __name__ == "__main__":
    main()
