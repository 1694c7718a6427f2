"""Try it: one's own image or text becomes a Sample at once; whatever is wrong with it becomes a sentence."""

from __future__ import annotations

import io

import pytest
from PIL import Image
from playwright.sync_api import expect


def png() -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((90, 70)).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def upload(here, name: str, data: bytes) -> None:
    here.page.locator('input[type="file"]').set_input_files({"name": name, "mimeType": "image/png", "buffer": data})


def test_an_uploaded_image_is_shown_at_once_and_has_an_address(visit):
    here = visit().open(view="home", model="tiny-vision")
    upload(here, "mine.png", png())
    expect(here.page.locator(".tp-patch")).to_have_count(16)
    here.settled()
    assert here.query().get("view", "home") == "home"
    assert here.query()["run"]
    here.page.locator(".tp-patch").first.hover()
    expect(here.page.locator(".tp-line > path")).to_have_count(3)
    again = visit().open(here.page.evaluate("location.href"))
    expect(again.page.locator(".tp-patch")).to_have_count(16)


def test_a_pasted_text_is_shown_as_it_is(visit):
    text = "the cat <script>alert(1)</script>\n  שלום 🙂 moon"
    here = visit().open(view="home", model="tiny-text")
    here.page.get_by_label("A text", exact=True).fill(text)
    here.page.get_by_role("button", name="Trace it").click()
    shown = here.page.locator(".tp-text")
    expect(shown).to_be_visible()
    assert shown.evaluate("box => box.textContent") == text
    here.page.locator(".tp-piece").first.hover()
    expect(here.page.locator(".tp-readout")).to_contain_text("Token 0")


def test_an_example_is_one_click(visit):
    here = visit().open(view="home", model="tiny-vision")
    here.page.get_by_role("button", name="A yellow car on grass").click()
    expect(here.page.locator(".tp-patch")).to_have_count(16)


@pytest.mark.parametrize(
    ("name", "data"),
    [("broken.png", png()[:60]), ("really-a.png", b"%PDF-1.7 hello"), ("empty.png", b"")],
    ids=["truncated", "pdf", "empty"],
)
def test_a_broken_image_is_a_sentence(visit, name, data):
    here = visit().open(view="home", model="tiny-vision")
    upload(here, name, data)
    expect(here.page.locator('[data-testid="stAlert"]').first).to_be_visible()
    assert len(here.page.locator('[data-testid="stAlert"]').first.inner_text()) > 20
    here.heading("Try your own image or text")


def test_an_empty_text_is_a_sentence(visit):
    here = visit().open(view="home", model="tiny-text")
    here.page.get_by_role("button", name="Trace it").click()
    here.alert("There is no text to trace")


def test_a_text_that_is_too_long_is_counted_and_stays_in_its_box(visit):
    here = visit().open(view="home", model="tiny-text")
    box = here.page.get_by_role("textbox", name="A text")
    box.fill("word " * 400_000)
    here.page.get_by_role("button", name="Trace it").click()
    here.alert("The text has 2,000,000 characters; at most 20,000 are traced at once here")
    assert len(box.input_value()) == 2_000_000


def test_a_model_that_does_not_exist_is_said(visit):
    here = visit().open(view="home", model="nobody")
    here.alert("no model nobody")
    here.heading("Try your own image or text")
