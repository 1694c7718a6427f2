"""The menu under every chart, and the whole run as one page that opens without any network."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path
from xml.etree import ElementTree

from PIL import Image
from playwright.sync_api import expect

from tokenpaths.engine.store.ask.run import Run

SVG = "{http://www.w3.org/2000/svg}"


def saved(here, form: str) -> Path:
    """The file that the open menu gives for ``form``."""
    with here.page.expect_download() as download:
        here.page.get_by_role("button", name=form, exact=True).click()
    ending = "zip" if "ZIP" in form else form.lower()
    assert download.value.suggested_filename == f"pictures-histogram-compute-sample-label-circle.{ending}"
    return Path(download.value.path())


def test_a_chart_is_saved_for_print_with_its_numbers_and_its_link(visit, site):
    here = visit(dark=True).open(view="work", run="pictures", label="circle")
    chart = here.page.locator('[data-testid="stVegaLiteChart"] svg').first
    chart.hover()
    own = here.page.locator('[data-testid="stElementToolbar"]').first
    expect(own.get_by_label("Fullscreen")).to_be_visible()
    shown = own.locator("button:visible").evaluate_all("all => all.map(one => one.ariaLabel || one.innerText)")
    assert shown
    assert not [label for label in shown if "PNG" in label or "SVG" in label], "it would save the screen's picture"
    menu = here.page.get_by_role("button", name="Save").first
    menu.focus()
    here.page.keyboard.press("Enter")
    expect(here.page.get_by_role("button", name="SVG", exact=True)).to_be_visible()
    root = ElementTree.parse(saved(here, "SVG")).getroot()
    words = " ".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))
    assert root.find(f"{SVG}rect").get("fill") == "#ffffff"
    for told in ("How is compute spread", "run: pictures", "label: circle"):
        assert told in words
    picture = Image.open(saved(here, "PNG"))
    assert picture.getpixel((picture.width - 2, 2)) == (255, 255, 255)
    assert abs(picture.width / 300 * 25.4 - 183) < 1
    with Run.open(site.data_dir / "runs" / "pictures.duckdb") as run:
        bins = run.distribution("compute", label="circle")["bins"]
    with zipfile.ZipFile(saved(here, "CSV (ZIP)")) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("bins.csv").decode())))
    assert [int(row["count"]) for row in rows] == [b["count"] for b in bins]
    link = here.page.locator('[data-testid="stPopoverBody"] code').inner_text().strip()
    again = visit().open(link)
    assert again.query() == here.query()
    expect(again.chip("label: circle")).to_be_visible()


def test_the_report_opens_offline_with_all_its_charts(visit, windows):
    here = visit().open(view="routes", run="texts")
    here.page.get_by_role("button", name="Export").first.click()
    button = here.page.get_by_role("button", name="texts.html")
    expect(button).to_be_visible()
    with here.page.expect_download() as download:
        button.click()
    page = Path(download.value.path()).rename(Path(download.value.path()).with_suffix(".html"))
    context = windows.browser.new_context(offline=True)
    asked, said = [], []
    context.on("request", lambda request: asked.append(request.url))
    context.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    try:
        reader = context.new_page()
        reader.on("pageerror", lambda error: said.append(str(error)))
        reader.goto(page.as_uri())
        expect(reader.locator("body")).to_have_attribute("data-state", "drawn")
        charts = reader.locator("[data-chart]")
        assert charts.count() >= 8
        assert reader.locator("[data-chart] svg").count() == charts.count()
        assert reader.locator(".sheet svg").count() >= 3
        wide = reader.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1]
    finally:
        context.close()
    assert [url for url in asked if not url.startswith(("data:", "file:"))] == []
    assert said == []
