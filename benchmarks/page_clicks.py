"""Time from a click to its answer in the inspector, on a run of a million tokens, in a real browser.

    python -m benchmarks.page_clicks [--tokens 1e6] [--repeats 5] [--modality vision text]

A synthetic run (``tests.support.runs.synthetic``) is sealed once and served by ``tokenpaths up``. In an open view
something is clicked with the mouse that was not clicked before: a circle (*Routes*), a cell (*Modules*), a point
of the curve (*Paths*), a patch or token (*Samples*). The clock is the browser's own: it runs from the release of the
button until the frame in which the inspector has the title of the thing (``title``), and its examples (``examples``).
Medians over the repetitions, each in a page opened anew.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.measure import report
from benchmarks.page_views import COMPLETE, serving, window
from tests.browser.conftest import chromium_file
from tests.support.runs.synthetic import SyntheticRun, write_run

CLICKS = {
    "routes": "path[aria-roledescription=circle]",
    "modules": "g.mark-rect path",
    "paths": "g.mark-symbol path",
    "samples": "",
}
"""view → the marks of its chart that are clicked; *Samples* has a component of its own"""
TARGET = """([marks, place]) => {
  const found = [];
  const collect = root => {
    for (const one of root.querySelectorAll("*")) {
      if (one.shadowRoot) collect(one.shadowRoot);
      if (marks ? one.matches("[data-testid=stVegaLiteChart] svg " + marks) : one.matches("[data-token]")) {
        const box = one.getBoundingClientRect();
        if (box.width > 6 && box.height > 6 && box.width < 300) found.push(box);
      }
    }
  };
  collect(document);
  const seen = found.filter(box => box.bottom < innerHeight && box.top > 60);
  const box = seen[place % seen.length];
  return box ? [box.x + box.width / 2, box.y + box.height / 2] : null;
}"""
WATCH = """() => {
  window.tpClick = {};
  addEventListener("pointerup", () => {
    const started = performance.now();
    const before = document.querySelector(".st-key-inspector h3")?.textContent;
    const look = () => {
      const here = document.querySelector(".st-key-inspector"), title = here?.querySelector("h3")?.textContent;
      if (title && title !== before && !window.tpClick.title) window.tpClick.title = performance.now() - started;
      const part = [...(here?.querySelectorAll("*") ?? [])].some(
        one => one.shadowRoot?.querySelector("img, button") || one.matches("table"));
      if (window.tpClick.title && part) { window.tpClick.examples = performance.now() - started; return; }
      requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  }, { capture: true, once: true });
}"""


def click(browser: Browser, url: str, view: str, place: int, rest: float) -> dict[str, float]:
    """Milliseconds from one click to title and examples."""
    with window(browser) as page:
        more = "&sample=3" if view == "samples" else ""
        page.goto(f"{url}/?view={view}&run=big{more}")
        page.wait_for_function(COMPLETE)
        page.wait_for_timeout(1500)  # charts compile after the script has ended
        at = page.evaluate(TARGET, [CLICKS[view], place])
        if at is None:
            raise RuntimeError(f"nothing can be clicked at {page.url}")
        page.evaluate(WATCH)
        page.mouse.move(*at)
        page.wait_for_timeout(rest)  # a hand rests on what it presses
        page.mouse.down()
        page.mouse.up()
        _answered(page)
        return dict(page.evaluate("() => window.tpClick"))


def _answered(page: Page) -> None:
    page.wait_for_function("() => window.tpClick.examples > 0", timeout=60_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--modality", nargs="+", default=["vision", "text"])
    parser.add_argument("--rest", type=float, default=0.0, help="milliseconds that the pointer rests before it presses")
    parser.add_argument("--views", nargs="+", default=list(CLICKS))
    arguments = parser.parse_args()
    results: dict[str, Any] = {"tokens": arguments.tokens, "load_before_and_after": [os.getloadavg()[0]]}
    with sync_playwright() as playwright:
        file = chromium_file(playwright, windows=True)
        browser = playwright.chromium.launch(executable_path=file, args=["--no-sandbox"])
        for modality in arguments.modality:
            with tempfile.TemporaryDirectory() as folder:
                write_run(SyntheticRun("big", arguments.tokens, modality=modality), Path(folder) / "runs")
                with serving(Path(folder)) as (url, _):
                    for view in arguments.views:
                        found = [
                            click(browser, url, view, 3 + number, arguments.rest) for number in range(arguments.repeats)
                        ]
                        medians = {name: round(statistics.median(one[name] for one in found)) for name in found[0]}
                        results.setdefault(modality, {})[view] = medians | {"first_title": round(found[0]["title"])}
                        print(modality, view, results[modality][view], flush=True)
        browser.close()
    results["load_before_and_after"].append(os.getloadavg()[0])
    report("page_clicks", "python -m benchmarks.page_clicks " + " ".join(sys.argv[1:]), results)


if __name__ == "__main__":
    main()
