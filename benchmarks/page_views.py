"""Time to picture of every view of the page on a run of a million tokens, in a real browser, cold and warm.

    python -m benchmarks.page_views [--tokens 1e6] [--repeats 3] [--views flow paths] [--modality text vision]

A synthetic run (``benchmarks.synthetic``) is sealed once; ``tokenpaths up`` serves it; Chromium opens each view by its
address in a new window with an empty cache. Time runs from the request of the address until the first picture (a chart
or a wall of pictures with something painted), and until the page is complete. For each view and repetition:

``cold``   the servers were started just now, the run's file is not in the system's cache, nobody has visited yet
``warm``   median of further visits, each in a new window

``light`` is the same first visit over a run of a thousand tokens: what the browser, the page's scripts and fresh
processes cost by themselves. Medians over the repetitions; ``load`` is the machine's load average meanwhile.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.measure import report
from benchmarks.synthetic import GRID, Wish, write_run
from frontend.selection import VIEWS
from tests.browser.conftest import chromium_file

ROOT = Path(__file__).resolve().parent.parent
WARM_VISITS = 2
LIMIT_MS = 180_000
NO_PICTURE = ("dream", "detour", "family", "try", "jobs")
"""views that begin with a question or a form, or have nothing for this model: their picture is the complete page"""
MORE = {"paths": {"paths": 3}, "compare": {"against": "other"}}
"""further choices of a view that a visit would have made"""
PICTURE = """() => {
  const MARKS = "[data-testid=stVegaLiteChart] svg path, svg.tp-flow circle, canvas, img";
  const parts = [];
  const collect = root => {
    for (const element of root.querySelectorAll("*")) {
      if (element.shadowRoot) collect(element.shadowRoot);
      if (element.matches(MARKS)) parts.push(element);
    }
  };
  const main = document.querySelector("[data-testid=stMain]");
  if (!main) return false;
  collect(main);
  return parts.some(element => {
    if (element.tagName === "IMG") return element.complete && element.naturalWidth > 8;
    if (element.tagName !== "CANVAS") return true;
    if (!element.width || !element.height) return false;
    const pixels = element.getContext("2d").getImageData(0, 0, element.width, element.height).data;
    const all = new Uint32Array(pixels.buffer);
    return all.some(pixel => pixel !== all[0]);
  });
}"""
COMPLETE = """() => {
  const app = document.querySelector('[data-testid="stApp"]');
  return app && app.dataset.testScriptState === "notRunning" && document.querySelector(".tp-brand")
    && !document.querySelector("[data-testid=stSkeleton], [data-stale=true]");
}"""


@contextmanager
def serving(data_dir: Path) -> Iterator[str]:
    """``tokenpaths up`` over a folder, in processes of its own; yields the page's address."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TOKENPATHS_", "STREAMLIT_"))}
    environment |= {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(data_dir / "config"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", "import sys; from backend.cli import main; sys.exit(main())", "up",
               "--data-dir", str(data_dir), "--port", "0", "--page-port", "0"]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment
    )
    said: list[str] = []
    threading.Thread(target=lambda: said.extend(process.stdout or ()), daemon=True).start()
    try:
        while not (found := re.search(r"^Ctrl-C", "".join(said), re.MULTILINE)):
            if process.poll() is not None:
                raise RuntimeError("tokenpaths up ended: " + "".join(said))
            time.sleep(0.05)
        found = re.search(r"^\s*page\s+(http://\S+)", "".join(said), re.MULTILINE)
        assert found is not None
        yield found[1].rstrip("/")
    finally:
        process.terminate()
        process.wait(60)


def visit(browser: Browser, url: str, *, picture: bool) -> dict[str, float]:
    """Seconds until the first picture and until the page is complete; a page that failed is an error."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(LIMIT_MS)
    started = time.perf_counter()
    page.goto(url, wait_until="commit")
    seen = None
    if picture:
        page.wait_for_function(PICTURE)
        seen = time.perf_counter() - started
    page.wait_for_function(COMPLETE)
    complete = time.perf_counter() - started
    _refuse_failure(page, url)
    context.close()
    return {"picture_s": complete if seen is None else seen, "complete_s": complete}


def _refuse_failure(page: Page, url: str) -> None:
    failed = page.locator('[data-testid="stAlertContentError"], [data-testid="stException"]')
    if failed.count():
        raise RuntimeError(f"{url} shows an error: {failed.first.inner_text()}")


def forget(file: Path) -> None:
    """Drop a file from the system's cache, so that it is read from the disk."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def address(url: str, view: str, run: str) -> str:
    query = {"view": view, "run": run, **MORE.get(view, {})}
    return f"{url}/?" + "&".join(f"{key}={value}" for key, value in query.items())


def measure(modality: str, tokens: int, views: list[str], repeats: int, browser: Browser) -> dict[str, Any]:
    """The times of every view over one run."""
    times: dict[str, dict[str, list[dict[str, float]]]] = {v: {"light": [], "cold": [], "warm": []} for v in views}
    with tempfile.TemporaryDirectory() as folder:
        runs = {size: Path(folder) / size for size in ("light", "cold")}
        started = time.perf_counter()
        file = write_run(Wish("big", tokens, modality=modality), runs["cold"] / "runs")
        sealed = time.perf_counter() - started
        write_run(Wish("big", 5 * GRID**2 + 20, modality=modality), runs["light"] / "runs")
        for size, num_tokens in (("cold", tokens), ("light", 5 * GRID**2 + 20)):
            write_run(Wish("other", num_tokens, modality=modality, routing=1), runs[size] / "runs")
        for _ in range(repeats):
            for view in views:
                for size, data_dir in runs.items():
                    for kept in ("big", "other"):
                        forget(data_dir / "runs" / f"{kept}.duckdb")
                    with serving(data_dir) as url:
                        where = address(url, view, "big")
                        times[view][size].append(visit(browser, where, picture=view not in NO_PICTURE))
                        for _ in range(WARM_VISITS if size == "cold" else 0):
                            times[view]["warm"].append(visit(browser, where, picture=view not in NO_PICTURE))
                    shutil.rmtree(data_dir / "logs", ignore_errors=True)
                print(modality, view, {k: _medians(v[-WARM_VISITS:]) for k, v in times[view].items()}, flush=True)
        megabytes = round(file.stat().st_size / 1e6, 1)
    shown = {view: {kind: _medians(found) for kind, found in kinds.items()} for view, kinds in times.items()}
    return {"file_mb": megabytes, "seal_s": round(sealed, 1), "views": shown}


def _medians(times: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in times), 2) for name in ("picture_s", "complete_s")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--views", nargs="+", choices=list(VIEWS), default=list(VIEWS))
    parser.add_argument("--modality", nargs="+", choices=["text", "vision"], default=["text", "vision"])
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/page_views.json")
    options = parser.parse_args()
    results: dict[str, Any] = {"tokens": options.tokens, "steps": 10, "modules": 18, "top_k": 1,
                               "repeats": options.repeats}  # fmt: skip
    before = os.getloadavg()[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_file(playwright), args=["--no-sandbox", "--disable-gpu"]
        )
        for modality in options.modality:
            results[modality] = measure(modality, options.tokens, options.views, options.repeats, browser)
        browser.close()
    results["load_before_and_after"] = [round(before, 1), round(os.getloadavg()[0], 1)]
    slow = [
        f"{modality} {view} {kind}"
        for modality in options.modality
        for view, kinds in results[modality]["views"].items()
        for kind, found in kinds.items()
        if kind != "light" and found["picture_s"] > 2.0
    ]
    results["over_two_seconds"] = slow
    if options.keep:
        report("page_views", f"python -m benchmarks.page_views --tokens {options.tokens:.0e} --keep", results)


if __name__ == "__main__":
    main()
