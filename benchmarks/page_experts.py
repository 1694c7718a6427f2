"""Time to the first picture of 64 layers × 256 experts (top-8) in a real browser, cold and with the answers kept.

    python -m benchmarks.page_experts [--tokens 4096] [--repeats 3]

A run of made-up texts is sealed, ``uvicorn`` and the Streamlit page serve it, and Chromium opens each view in a new
window. Time runs from the request of the address until the first chart is drawn, and until the page is complete.
``cold`` is the first visit after both servers started, ``warm`` the median of the visits after it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from benchmarks.measure import report
from tests.backend.conftest import api_for
from tests.browser.conftest import chromium_file
from tests.browser.test_family_hmodel_directional import page_server
from tests.support.runs import make_experts

CHART = '[data-testid="stVegaLiteChart"] svg path'
TEXT = 256
VIEWS = {"flow": {}, "family": {"layer": 13}, "sample": {"sample": 1}, "modules": {}}
FIRST = {"sample": "svg.tp-flow circle", "modules": '[data-testid="stVegaLiteChart"] canvas'}
"""the view's first picture, where it is no chart of vectors"""
DRAWN = """selector => {
  const canvas = document.querySelector(selector);
  if (!canvas || !canvas.width) return false;
  const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return pixels.some(pixel => pixel !== pixels[0]);
}"""
"""a bitmap is there as soon as its frame is; it counts from when something is painted on it"""


def visit(browser: Browser, url: str, first: str) -> tuple[float, float]:
    """Seconds until the first picture, and until nothing is left to draw."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(180_000)
    started = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.locator(first).first.wait_for(state="attached")
    if first.endswith("canvas"):
        page.wait_for_function(DRAWN, arg=first)
    picture = time.perf_counter() - started
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')
    page.wait_for_function("!document.querySelector('[data-testid=stSkeleton], [data-stale=true]')")
    complete = time.perf_counter() - started
    context.close()
    return picture, complete


def measure(tokens: int, repeats: int) -> dict[str, Any]:
    results: dict[str, Any] = {"layers": 64, "experts": 256, "top_k": 8, "tokens": tokens // TEXT * TEXT}
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder)
        made = make_experts("large", layers=64, experts=256, top_k=8, samples=tokens // TEXT, length=TEXT, dead=3)
        started = time.perf_counter()
        results["file_mb"] = round(made.write(data_dir / "runs").stat().st_size / 1e6, 1)
        results["seal_s"] = round(time.perf_counter() - started, 2)
        with (
            api_for(data_dir) as served,
            page_server(str(served.client.base_url).rstrip("/")) as url,
            sync_playwright() as playwright,
        ):
            file = chromium_file(playwright, windows=True)
            browser = playwright.chromium.launch(executable_path=file, args=["--no-sandbox"])
            for view, query in VIEWS.items():
                address = f"{url}/?view={view}&run=large" + "".join(f"&{key}={value}" for key, value in query.items())
                times = [visit(browser, address, FIRST.get(view, CHART)) for _ in range(1 + repeats)]
                results[view] = {
                    "cold_first_picture_s": round(times[0][0], 2),
                    "cold_complete_s": round(times[0][1], 2),
                    "warm_first_picture_s": round(statistics.median(first for first, _ in times[1:]), 2),
                    "warm_complete_s": round(statistics.median(complete for _, complete in times[1:]), 2),
                }
                print(view, results[view], flush=True)
            browser.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    command = f"python -m benchmarks.page_experts --tokens {options.tokens} --repeats {options.repeats}"
    report("page_experts", command, measure(options.tokens, options.repeats))


if __name__ == "__main__":
    main()
