"""Time to picture of every view of the page on a run of a million tokens, in a real browser, cold and warm.

    python -m benchmarks.page_views [--tokens 1e6] [--repeats 3] [--views flow paths] [--modality text vision]

A synthetic run (``tests.support.runs.synthetic``) is sealed once; ``tokenpaths up`` serves it; Chromium opens each view
by its address in a new window with an empty cache. Time runs from the request of the address until the first picture (a
chart or a wall of pictures with something painted), and until the page is complete. For each view and repetition:

``cold``   the servers were started just now, the run's file is not in the system's cache, nobody has visited yet
``within`` the page stands open at a view without pictures (fresh servers, the run's file not in the system's cache),
           and somebody chooses this view in the row at the top: what one waits for who browses
``warm``   another visit, in another new window with an empty cache
``light``  the same first visit over a run of a thousand tokens: what the browser, the page's scripts and fresh
           processes cost by themselves

The window stands open for ``WINDOW_S`` before the address is asked for: a new window of this Chromium first loads pages
of its own (the box for addresses, 0.7 processor seconds), which are no part of ours. Medians over the repetitions;
``cpu`` are seconds of processors in the page's server, the API and the worker until the page was complete, which a busy
machine changes less than the time; ``load`` is the machine's load average meanwhile.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.measure import forget, report
from benchmarks.table import Row
from tests.browser.conftest import chromium_file
from tests.support.runs.synthetic import GRID, SyntheticRun, write_run
from tokenpaths.frontend.page.selection import VIEWS

ROOT = Path(__file__).resolve().parent.parent
WARM_VISITS = 1
WINDOW_S = 1.5
LIMIT_MS = 180_000
NO_PICTURE = ("dream", "change", "importance", "family", "home", "jobs")
"""views that begin with a question or a form, or have nothing for this model: their picture is the complete page.
They do not depend on the size of the run, so they are opened once, and not again for the other modality."""
OPEN_AT = "family"
"""the view, without a picture for this model, at which the page stands open before another is chosen"""
MORE = {"paths": {"paths": 3}}
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
def serving(data_dir: Path) -> Iterator[tuple[str, int]]:
    """``tokenpaths up`` over a folder, in processes of its own; yields the page's address and the parent's number."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TOKENPATHS_", "STREAMLIT_"))}
    environment |= {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(data_dir / "config"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-P", "-m", "tokenpaths", "up", "--data-dir", str(data_dir)]
    command += ["--port", "0", "--page-port", "0"]
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
        yield found[1].rstrip("/"), process.pid
    finally:
        process.terminate()
        process.wait(60)


def processor_seconds(parent: int) -> float:
    """What a process' children have used so far (Linux; elsewhere NaN)."""
    ticks = 0
    try:
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError):  # it has just ended
                    words = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                    ticks += int(words[11]) + int(words[12]) if int(words[1]) == parent else 0
    except OSError:
        return math.nan
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def window(browser: Browser) -> Iterator[Page]:
    """A new window with an empty cache, once Chromium has loaded its own pages."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(LIMIT_MS)
    time.sleep(WINDOW_S)
    yield page
    context.close()


def _timed(page: Page, ask: Callable[[], object], parent: int, *, picture: bool) -> dict[str, float]:
    used = processor_seconds(parent)
    started = time.perf_counter()
    ask()
    seen = None
    if picture:
        page.wait_for_function(PICTURE)
        seen = time.perf_counter() - started
    page.wait_for_function(COMPLETE)
    complete = time.perf_counter() - started
    _refuse_failure(page, page.url)
    cpu = processor_seconds(parent) - used
    return {"picture_s": complete if seen is None else seen, "complete_s": complete, "cpu_s": cpu}


def visit(browser: Browser, url: str, parent: int, *, picture: bool) -> dict[str, float]:
    """Seconds until the first picture and until the page is complete; a page that failed is an error."""
    with window(browser) as page:
        return _timed(page, lambda: page.goto(url, wait_until="commit"), parent, picture=picture)


def visit_within(browser: Browser, url: str, view: str, run_files: list[Path], parent: int) -> dict[str, float]:
    """As ``visit``, from a click on the view's name in a page that stands open at ``url``, where no picture is."""
    with window(browser) as page:
        page.goto(url)
        page.wait_for_function(COMPLETE)
        if page.evaluate(PICTURE):
            raise RuntimeError(f"{url} has a picture: nobody could tell when that of {view} is there")
        for file in run_files:
            forget(file)
        name = page.get_by_role("radio", name=VIEWS[view], exact=True)
        return _timed(page, name.click, parent, picture=True)


def _refuse_failure(page: Page, url: str) -> None:
    failed = page.locator('[data-testid="stAlertContentError"], [data-testid="stException"]')
    if failed.count():
        raise RuntimeError(f"{url} shows an error: {failed.first.inner_text()}")


def address(url: str, view: str, run: str, other: str) -> str:
    query = {"view": view, "run": run, **MORE.get(view, {}), **({"against": other} if view == "compare" else {})}
    return f"{url}/?" + "&".join(f"{key}={value}" for key, value in query.items())


def measure(
    modality: str,
    tokens: int,
    views: list[str],
    repeats: int,
    browser: Browser,
    *,
    light: bool,
    kept: Path | None,
    names: tuple[str, str] = ("big", "other"),
) -> dict[str, Any]:
    """The times of every view over one run; ``light``: also over a small one, in the first repetition.

    ``kept``: a data folder with the runs ``names`` (the second one is what the first is compared with), which are made
    there unless they lie there already.
    """
    times: dict[str, dict[str, list[dict[str, float]]]] = {
        view: {"light": [], "cold": [], "within": [], "warm": []} for view in views
    }
    with tempfile.TemporaryDirectory() as folder:
        runs = {"light": Path(folder) / "light", "cold": kept or Path(folder) / "cold"}
        sealed = {}
        for size, num_tokens in (("cold", tokens), ("light", 5 * GRID**2 + 20)):
            for routing, name in enumerate(names):
                started = time.perf_counter()
                if not (runs[size] / "runs" / f"{name}.duckdb").exists():
                    write_run(SyntheticRun(name, num_tokens, modality=modality, routing=routing), runs[size] / "runs")
                    sealed[size, name] = round(time.perf_counter() - started, 1)
        file = runs["cold"] / "runs" / f"{names[0]}.duckdb"
        for repeat in range(repeats):
            for view in views:
                if repeat and view in NO_PICTURE:
                    continue
                for size, data_dir in runs.items():
                    if size == "light" and (repeat or not light):
                        continue
                    files = [data_dir / "runs" / f"{name}.duckdb" for name in names]
                    for each in files:
                        forget(each)
                    with serving(data_dir) as (url, parent):
                        where, picture = address(url, view, *names), view not in NO_PICTURE
                        times[view][size].append(visit(browser, where, parent, picture=picture))
                        for _ in range(WARM_VISITS if size == "cold" else 0):
                            times[view]["warm"].append(visit(browser, where, parent, picture=picture))
                    if size == "cold" and picture:
                        with serving(data_dir) as (url, parent):
                            where = address(url, view, *names).replace(f"view={view}", f"view={OPEN_AT}")
                            times[view]["within"].append(visit_within(browser, where, view, files, parent))
                    if not (kept and size == "cold"):
                        shutil.rmtree(data_dir / "logs", ignore_errors=True)
                print(modality, view, {k: _medians(v[-1:]) for k, v in times[view].items() if v}, flush=True)
        megabytes = round(file.stat().st_size / 1e6, 1)
    shown = {view: {kind: _medians(found) for kind, found in kinds.items() if found} for view, kinds in times.items()}
    return {"file_mb": megabytes, "seal_s": sealed.get(("cold", names[0])), "views": shown}


def _medians(times: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in times), 2) for name in times[0]}


def rows(document: dict[str, Any]) -> list[Row]:
    """The slowest first picture after a cold start, for the table of what is promised; one million tokens are none of
    the hundred that the promise speaks of, and the note says how many there were."""
    results = document["results"]
    cells = {
        f"{view}, {modality}": found["cold"]["picture_s"]
        for modality in ("text", "vision")
        for view, found in results.get(modality, {}).get("views", {}).items()
        if view not in NO_PICTURE
    }
    name = max(cells, key=lambda cell: cells[cell])
    load = max(results["load_before_and_after"])
    note = f"worst: {name}; {results['tokens']:,} tokens, load average {load:g}"
    missing = "" if results["tokens"] >= 10**8 else "100 M tokens"
    return [Row("page_cold", cells[name], cells=cells, note=note, missing=missing)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--views", nargs="+", choices=list(VIEWS), default=list(VIEWS))
    parser.add_argument("--modality", nargs="+", choices=["text", "vision"], default=["text", "vision"])
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/page_views.json")
    parser.add_argument("--folder", type=Path, help="where the runs are made, and stay; one modality only")
    parser.add_argument("--runs", nargs=2, default=("big", "other"), metavar="NAME", help="their names")
    parser.add_argument("--no-light", action="store_true", help="leave out the run of a thousand tokens")
    options = parser.parse_args()
    if options.folder and len(options.modality) > 1:
        parser.error("--folder holds runs of one modality: say --modality text, or vision")
    results: dict[str, Any] = {
        "tokens": options.tokens,
        "steps": 10,
        "modules": 18,
        "top_k": 1,
        "repeats": options.repeats,
    }
    before = os.getloadavg()[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_file(playwright, windows=True), args=["--no-sandbox", "--disable-gpu"]
        )
        for modality in options.modality:
            first = modality == options.modality[0]
            views = [view for view in options.views if first or view not in NO_PICTURE]
            results[modality] = measure(
                modality,
                options.tokens,
                views,
                options.repeats,
                browser,
                light=first and not options.no_light,
                kept=options.folder,
                names=tuple(options.runs),
            )
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
        command = f"python -m benchmarks.page_views --tokens {options.tokens:g} --repeats {options.repeats}"
        command += f" --modality {' '.join(options.modality)} --keep"
        report("page_views", command, results)


if __name__ == "__main__":
    main()
