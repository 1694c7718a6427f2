"""Pictures of every view for ``docs/screenshots``: wide in light and narrow in dark, or with ``--all`` in all four.

    tokenpaths up &
    python -m tests.browser.screenshots --page http://127.0.0.1:8501 --vision RUN --text RUN --out docs/screenshots

The pictures of the families are of the demo's runs.

Then look at each of them: a picture that nobody looked at proves nothing.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.conftest import chromium_file

WIDTHS = {"widest": 2560, "wide": 1440, "narrow": 400}
KEPT = (("wide", "light"), ("narrow", "dark"))
"""of the four, those that the documents keep"""
MOST_HEIGHT = 3600
FAMILIES: dict[str, dict[str, object]] = {
    "hmodel": {"run": "languages-hmodel-languages"},
    "hmodel-sample": {"run": "languages-hmodel-languages", "sample": 0, "controls": "alpha:0.1"},
    "directional": {"run": "texts-directional-text"},
    "directional-off": {
        "run": "texts-directional-text",
        "label": "code",
        "other": "legal",
        "gate": "4.4.0",
        "sample": 3,
        "controls": "gate:0",
    },
    "raytracing": {"run": "digits-raytracing-digits-relaxed"},
    "raytracing-cifar10": {"run": "photos-raytracing-cifar10-relaxed"},
    "dipaco": {"run": "texts-dipaco-2x2"},
    "dipaco-document": {"run": "texts-dipaco-4x4", "sample": 3, "controls": "reroute_every:16"},
}
"""the query of each picture of a family view"""


def of_experts(run: str, two: str) -> dict[str, dict[str, object]]:
    """Pictures of a large mixture of experts, and of the flow of a model that takes two modules a step."""
    return {
        "routes-64x256": {"view": "routes", "run": run},
        "modules-64x256": {"view": "modules", "run": run},
        "family-experts": {"view": "family", "run": run, "layer": 13, "sample": 3},
        "routes-top2": {"view": "routes", "run": two},
    }


def addresses(vision: str, text: str, skipping: str, model: str | None) -> dict[str, dict[str, object]]:
    """Name of the picture → the query that shows it."""
    return {
        "home": {"model": model} if model else {},
        "routes": {"view": "routes", "run": vision, "inspect": "module:2.1"},
        "routes-filtered": {"view": "routes", "run": vision, "paths": "1,2,3,4,5"},
        "routes-beside": {"view": "routes", "run": vision, "label": "fish", "other": "car"},
        "paths-image": {"view": "paths", "run": vision, "inspect": "path:2"},
        "paths-text": {"view": "paths", "run": text, "inspect": "path:3"},
        "paths-edges": {"view": "paths", "run": vision, "kind": "edge"},
        "paths-sentence-ends": {"view": "paths", "run": text, "kind": "sentence_end"},
        "samples": {"view": "samples", "run": vision, "inspect": "sample:3"},
        "sample-image": {"view": "samples", "run": vision, "sample": 0, "token": 27, "inspect": "token:0.27"},
        "sample-steps": {"view": "samples", "run": vision, "sample": 0, "tint": 2},
        "sample-text": {"view": "samples", "run": text, "sample": 0, "token": 5, "inspect": "token:0.5"},
        "modules": {"view": "modules", "run": text, "inspect": "module:2.8"},
        "work": {"view": "work", "run": skipping},
        "compare": {"view": "compare", "run": vision, "against": skipping},
        "change-image": {"view": "change", "run": vision, "sample": 61, "controls": "ban:1.7"},
        "change-text": {"view": "change", "run": text, "sample": 3, "token": 10, "controls": "ban:0.5"},
        "importance": {"view": "importance", "run": vision},
        "dream": {"view": "dream", "run": vision, "sample": 3, "token": 27, "dream": "group:path,context:both"},
        "jobs": {"view": "jobs"},
        **{f"family-{name}": {"view": "family"} | query for name, query in FAMILIES.items()},
    }


def take(page: Page, url: str, out: Path, width: int) -> None:
    """Open, wait until everything is drawn, and save the whole page with at most 256 colours."""
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(url)
    page.locator(".tp-brand").wait_for()
    settled(page)
    page.wait_for_timeout(2500)
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": width, "height": min(MOST_HEIGHT, max(700, height))})
    page.wait_for_timeout(1500)
    settled(page)
    page.mouse.move(width - 2, 2)
    page.wait_for_timeout(500)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    in_few_colours(picture).save(out, optimize=True)


def in_few_colours(picture: Image.Image) -> Image.Image:
    """The picture in 256 colours: the 64 most frequent as they are, so that surfaces keep theirs, and 192 by coverage,
    not by number of pixels: the accent has few pixels and would become brown.
    """
    counted = picture.getcolors(picture.width * picture.height) or []
    frequent = [colour for _, colour in sorted(counted, reverse=True)[:64]]
    spread = picture.quantize(192, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for colour in frequent for value in colour] + spread[: 192 * 3])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def settled(page: Page) -> None:
    """Wait until the script has run through and nothing on the page is a grey placeholder or an old answer."""
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')
    # Not by wait_for_function: it evaluates a string, which the page's content security policy refuses.
    expect(page.locator("[data-testid=stSkeleton], [data-stale=true]")).to_have_count(0)


def main() -> None:
    """Take all pictures, or those whose names contain ``--only``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", default="http://127.0.0.1:8501")
    parser.add_argument("--vision", required=True, help="run of images")
    parser.add_argument("--text", required=True, help="run of texts")
    parser.add_argument("--skipping", help="run of images whose model can skip; default: as --vision")
    parser.add_argument("--model", help="model of Home")
    parser.add_argument("--experts", help="run of a large mixture of experts (benchmarks/page_experts.py makes one)")
    parser.add_argument("--two", help="run of a model that takes two modules a step; default: as --skipping")
    parser.add_argument("--only", default="", help="part of the names of the pictures to take")
    parser.add_argument("--all", action="store_true", help="narrow in light and wide in dark too")
    parser.add_argument("--out", type=Path, default=Path("docs/screenshots"))
    options = parser.parse_args()
    pictures = addresses(options.vision, options.text, options.skipping or options.vision, options.model)
    if options.experts:
        pictures |= of_experts(options.experts, options.two or options.skipping or options.vision)
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_file(playwright), args=["--no-sandbox"], ignore_default_args=["--hide-scrollbars"]
        )
        for scheme in ("light", "dark"):
            for size, width in WIDTHS.items():
                touch = size == "narrow"  # a telephone, which has no list of keys
                page = browser.new_context(color_scheme=scheme, reduced_motion="reduce", has_touch=touch).new_page()
                page.set_default_timeout(300_000)
                for name, query in pictures.items():
                    file = options.out / f"{name}-{size}-{scheme}.png"
                    if options.only in file.name and (options.all or (size, scheme) in KEPT):
                        take(page, f"{options.page}/?{urlencode(query)}", file, width)
                        print(file, flush=True)
        browser.close()


if __name__ == "__main__":
    main()
