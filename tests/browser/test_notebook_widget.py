"""``tokenpaths.explore`` in Chromium: the widget's own module, on a page that speaks anywidget's protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.faults.hostile_texts import EVIL, poisoned
from tests.support.runs import make_run, open_run
from tokenpaths import Run, explore
from tokenpaths.frontend.charts.drawing.palette import DARK, LIGHT

pytest.importorskip("anywidget")

from tokenpaths.frontend.components.explorer_data import Tint, explorer_data
from tokenpaths.frontend.notebook.explorer import Explorer

COMPONENTS = Path(__file__).resolve().parents[2] / "frontend" / "components"

PAGE = """<!doctype html><meta charset="utf-8"><title>notebook</title><body style="background: #ffffff">
<div id="cell"></div>"""
MODEL = """async ({state, esm, css}) => {
    document.head.appendChild(document.createElement("style")).textContent = css;
    const listeners = {}, changed = {};
    const update = (fresh) => {
        const names = Object.keys(fresh).filter((name) => JSON.stringify(fresh[name]) !== JSON.stringify(state[name]));
        Object.assign(state, fresh);
        for (const name of names) for (const listener of listeners[`change:${name}`] || []) listener();
    };
    window.update = update;
    const model = {
        get: (name) => state[name],
        set: (name, value) => { changed[name] = value; update({[name]: value}); },
        save_changes: async () => {
            const sent = {...changed};
            for (const name of Object.keys(changed)) delete changed[name];
            update(await window.toPython(sent, null));
        },
        send: async (content) => update(await window.toPython({}, content)),
        on: (event, listener) => (listeners[event] ||= []).push(listener),
        off: (event, listener) => { listeners[event] = listeners[event].filter((other) => other !== listener); },
    };
    const source = URL.createObjectURL(new Blob([esm], {type: "text/javascript"}));
    const {default: widget} = await import(source);
    window.cleanUp = await widget.render({model, el: document.getElementById("cell")});
    window.listeners = () => Object.values(listeners).flat().length;
}"""
SYNCED = ("sample", "token", "through", "tint", "theme", "_dark", "_view", "_path")


def state_of(widget: Any) -> dict[str, Any]:
    """What anywidget would send."""
    return {name: getattr(widget, name) for name in SYNCED}


class Cell:
    """A widget drawn in a page; what is set on either side arrives at the other."""

    def __init__(self, page: Page, widget: Any) -> None:
        self.page, self.widget = page, widget
        page.expose_function("toPython", self._receive)
        page.route("**/*", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
        page.goto("http://notebook.test/")
        page.evaluate(MODEL, {"state": state_of(widget), "esm": str(widget._esm), "css": str(widget._css)})

    def _receive(self, changes: dict[str, Any], message: Any) -> dict[str, Any]:
        with self.widget.hold_trait_notifications():
            for name, value in changes.items():
                setattr(self.widget, name, value)
        if message is not None:
            self.widget._handle_custom_msg(message, [])
        return json.loads(json.dumps(state_of(self.widget)))

    def push(self) -> None:
        """After a change in Python."""
        self.page.evaluate("state => window.update(state)", json.loads(json.dumps(state_of(self.widget))))

    def token(self, number: int) -> Any:
        return self.page.locator(f'[data-token="{number}"]')


@pytest.fixture
def cell(browser: Browser) -> Iterator[Callable[..., Cell]]:
    """Draw a widget; nothing but the page itself may be requested, and the console stays clean."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    requests: list[str] = []
    errors: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    context.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: errors.append(str(error.error)))
    yield lambda widget: Cell(context.new_page(), widget)
    context.close()
    assert not errors
    assert not [url for url in requests if not url.startswith(("http://notebook.test/", "blob:", "data:"))]


@pytest.mark.parametrize("modality", ["text", "vision"])
def test_a_click_on_a_token_is_a_trait_and_lights_its_path(cell: Callable[..., Cell], modality: Any) -> None:
    run = open_run(modality, samples=6)
    widget = explore(run)
    heard: list[Any] = []
    widget.observe(lambda change: heard.append(change["new"]), "token")
    drawn = cell(widget)
    expect(drawn.page.locator(".tp-about")).to_be_hidden()
    drawn.token(4).click()
    expect(drawn.token(4)).to_have_attribute("aria-pressed", "true")
    assert widget.token == 4
    assert heard == [4]
    token = run.sample(0)["tokens"][4]
    assert widget.ribbon == token["ribbon"]
    lines = drawn.page.locator(".tp-line path.tp-first")
    expect(lines).to_have_count(len(token["ribbon"]) - 1)
    path = run.examples(token["rank"], limit=24)
    expect(drawn.page.locator(".tp-about p")).to_contain_text(f"Path of rank {path['rank']}")
    on_it = [one for one in path["examples"] if (one["sample"], one["token"]) != (0, 4)]
    expect(drawn.page.locator(".wall button")).to_have_count(len(on_it))
    drawn.token(4).click()
    expect(drawn.page.locator(".tp-line path")).to_have_count(0)
    assert heard == [4, None]


def test_what_python_sets_is_drawn_and_a_neighbour_leads_to_its_sample(cell: Callable[..., Cell]) -> None:
    run = open_run("vision", samples=6)
    widget = explore(run)
    drawn = cell(widget)
    frequent = next(token["token"] for token in run.sample(0)["tokens"] if token["rank"] == 1)
    widget.token = frequent
    drawn.push()
    expect(drawn.token(frequent)).to_have_attribute("aria-pressed", "true")
    neighbour = widget._path["wall"]["items"][-1]
    drawn.page.locator(".wall button").last.click()
    expect(drawn.page.locator(".tp-choice select").first).to_have_value(str(neighbour["sample"]))
    assert (widget.sample, widget.token) == (neighbour["sample"], neighbour["token"])
    expect(drawn.token(neighbour["token"])).to_have_attribute("aria-pressed", "true")
    drawn.page.get_by_label("previous sample").click()
    expect(drawn.page.locator(".tp-choice select").first).to_have_value(str(neighbour["sample"] - 1))
    assert widget.token is None
    drawn.page.get_by_label("Sample", exact=True).select_option("0")
    expect(drawn.page.get_by_label("previous sample")).to_be_disabled()
    assert widget.sample == 0
    drawn.page.get_by_label("Tint by").select_option("2")
    expect(drawn.token(0)).to_have_text("+".join(map(str, run.sample(0)["tokens"][0]["ribbon"][2])))
    assert widget.tint == 2


@pytest.mark.parametrize("late", [False, True])
def test_the_chosen_token_of_a_long_text_is_in_sight(browser: Browser, late: bool) -> None:
    """Its box is scrolled, not the page, without the focus; also where styles come ``late``, and after a redraw."""
    tokens = [
        {
            "token": i,
            "text": f"word{i} ",
            "char_start": 0,
            "char_end": 0,
            "ribbon": [[0], [1]],
            "rank": 1,
            "cdf": 1.0,
            "cdf_middle": 0.5,
            "path_tokens": 900,
            "compute": 1.0,
            "reuse": 0.0,
        }
        for i in range(900)
    ]
    end = 0
    for token in tokens:
        token["char_start"], end = end, end + len(token["text"])
        token["char_end"] = end
    text = "".join(token["text"] for token in tokens)
    nodes = [{"step": s, "module": s, "name": "t", "kind": "", "count": 900, "share": 1.0} for s in (0, 1)]
    data = explorer_data(
        {"sample": 0, "label": None, "text": text, "grid": None, "tokens": tokens},
        {"steps": [0, 1], "nodes": nodes, "links": [], "other": [], "num_tokens": 900},
        Tint(LIGHT, num_paths=1, opacity=1.0),
        image=None,
        chosen=600,
        kept=lambda token: True,
    )
    page = browser.new_page(viewport={"width": 900, "height": 700})
    page.set_content('<!doctype html><input id="typed" autofocus><div class="tp"></div><p style="height: 2000px">')
    page.locator("#typed").focus()
    page.add_script_tag(content=(COMPONENTS / "explorer.js").read_text("utf-8"))
    on = "{pick() {}, node() {}}"
    drawing = f"data => {{ window.again = () => drawExplorer(document.querySelector('.tp'), data, {on}); again(); }}"
    style = (COMPONENTS / "explorer.css").read_text("utf-8")
    if not late:
        page.add_style_tag(content=style)
    page.evaluate(drawing, data)
    if late:
        page.add_style_tag(content=style)
    page.wait_for_timeout(300)

    def middle() -> float:
        """Where the chosen token is in its box: 0 at the top, 1 at the bottom."""
        return page.locator(".tp-text").evaluate("""box => {
            const place = box.querySelector(".tp-chosen").getBoundingClientRect(), frame = box.getBoundingClientRect();
            return (place.top + place.bottom - 2 * frame.top) / (2 * frame.height);
        }""")

    assert page.locator(".tp-text").evaluate("box => box.scrollHeight > 2 * box.clientHeight")
    assert 0.4 < middle() < 0.6
    assert page.evaluate("scrollY") == 0
    expect(page.locator("#typed")).to_be_focused()
    page.locator(".tp-text").evaluate("box => { box.scrollTop += 150; }")
    moved = middle()
    page.evaluate("void again()")
    page.wait_for_timeout(300)
    assert middle() == pytest.approx(moved, abs=0.01), "drawn anew, the text stays where it was"
    page.close()


def test_each_token_of_a_character_can_be_seen_and_chosen(browser: Browser) -> None:
    """The four bytes of 🙂 are tokens of one piece: a stripe and a sentence of each, Enter goes from one to the next;
    a joiner takes no room and is seen."""
    one = {"ribbon": [[0], [1]], "cdf": 1.0, "cdf_middle": 0.5, "path_tokens": 9, "compute": 1.0, "reuse": 0.0}
    places = [(0, 1), (1, 2), (1, 2), (1, 2), (1, 2), (2, 3), (3, 4)]
    text = "a🙂\u200db"
    tokens = [
        one | {"token": i, "rank": i + 1, "char_start": low, "char_end": high, "text": text[low:high]}
        for i, (low, high) in enumerate(places)
    ]
    nodes = [{"step": s, "module": s, "name": "t", "kind": "", "count": 7, "share": 1.0} for s in (0, 1)]
    data = explorer_data(
        {"sample": 0, "label": None, "text": text, "grid": None, "tokens": tokens},
        {"steps": [0, 1], "nodes": nodes, "links": [], "other": [], "num_tokens": 7},
        Tint(LIGHT, num_paths=7, opacity=1.0),
        image=None,
        chosen=None,
        kept=lambda token: True,
    )
    page = browser.new_page(viewport={"width": 900, "height": 700})
    page.set_content('<!doctype html><div class="tp"></div>')
    page.add_style_tag(content=(COMPONENTS / "explorer.css").read_text("utf-8"))
    page.add_script_tag(content=(COMPONENTS / "explorer.js").read_text("utf-8"))
    on = "{pick(token) { picked.push(token); }, node() {}}"
    page.evaluate(f"data => {{ window.picked = []; drawExplorer(document.querySelector('.tp'), data, {on}); }}", data)
    pieces = page.locator(".tp-piece")
    expect(pieces).to_have_count(4)
    assert pieces.evaluate_all(
        "all => all.map(one => getComputedStyle(one).backgroundImage.split('rgb').length - 1)"
    ) == [2, 8, 2, 2]
    for number in range(1, 5):
        assert f"Token {number} " in str(pieces.nth(1).get_attribute("aria-label"))
    pieces.nth(1).focus()
    expect(page.locator(".tp-readout .tp-strong")).to_have_count(4)
    for _ in range(5):
        page.keyboard.press("Enter")
    assert page.evaluate("picked") == [1, 2, 3, 4, None]
    assert pieces.nth(2).evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    ends = [page.evaluate("text => stripes(['red', 'blue'], text)", one).split()[1] for one in ("é", "❤\ufe0f", "ى")]
    assert ends == ["right,", "right,", "left,"]
    page.close()


def test_it_is_used_by_keys_alone(cell: Callable[..., Cell]) -> None:
    run = open_run("text", samples=6)
    widget = explore(run)
    drawn = cell(widget)
    drawn.token(0).focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        drawn.page.keyboard.press(key)
    expect(drawn.token(2)).to_have_attribute("aria-pressed", "true")
    assert widget.token == 2
    expect(drawn.token(2)).to_be_focused()
    circle = drawn.page.locator("circle[data-node]").first
    node = circle.get_attribute("data-node")
    circle.focus()
    drawn.page.keyboard.press("Enter")
    step, module = map(int, str(node).split("."))
    elsewhere = [t["token"] for t in run.sample(0)["tokens"] if module not in t["ribbon"][step]]
    expect(drawn.page.locator(".tp-faded")).to_have_count(len(elsewhere))
    assert widget.through == node
    expect(drawn.page.locator(f'[data-node="{node}"]')).to_be_focused()
    drawn.page.keyboard.press("Enter")
    expect(drawn.page.locator(".tp-faded")).to_have_count(0)
    assert widget.through is None


def test_it_has_the_colours_of_the_notebook(cell: Callable[..., Cell]) -> None:
    widget = explore(open_run("vision", samples=6), token=3)
    drawn = cell(widget)
    background = "getComputedStyle(document.querySelector('.tp-widget')).backgroundColor"

    def rgb(colour: str) -> str:
        return f"rgb({', '.join(str(int(colour[place : place + 2], 16)) for place in (1, 3, 5))})"

    assert drawn.page.evaluate(background) == rgb(LIGHT.background)
    drawn.page.evaluate("document.body.style.background = '#111111'")
    drawn.page.wait_for_function(f"{background} === {rgb(DARK.background)!r}")
    assert widget._dark
    widget.theme = "light"
    drawn.push()
    drawn.page.wait_for_function(f"{background} === {rgb(LIGHT.background)!r}")
    assert drawn.page.evaluate("window.listeners()") > 0
    drawn.page.evaluate("window.cleanUp()")
    assert drawn.page.evaluate("window.listeners()") == 0


class Poisoned:
    """A run in which every text of every answer is hostile."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any, **options: Any) -> Any:
            return poisoned(getattr(self.run, name)(*arguments, **options))

        return ask


ALIVE = """[...document.querySelectorAll("#cell *")].filter((element) =>
    element.matches("a[href], iframe, object, embed, script, link, b")
    || (element.src && !element.src.startsWith("data:"))
    || [...element.attributes].some((attribute) => attribute.name.startsWith("on"))
).map((element) => element.outerHTML)"""


@pytest.mark.parametrize("modality", ["text", "vision"])
def test_texts_of_strangers_never_become_markup(cell: Callable[..., Cell], modality: Any) -> None:
    drawn = cell(Explorer(Poisoned(open_run(modality, samples=6)), token=1))  # type: ignore[arg-type]
    expect(drawn.page.locator(".tp-title")).to_contain_text(EVIL[:40])
    assert drawn.page.evaluate(ALIVE) == []
    drawn.page.get_by_label("next sample").click()
    expect(drawn.page.get_by_label("Sample", exact=True)).to_have_value("1")
    assert drawn.page.evaluate(ALIVE) == []
    assert drawn.page.evaluate("window.bad") is None


def test_an_export_shows_it_without_python(browser: Browser, tmp_path: Path) -> None:
    """From a run opened from a file, with texts that would end a script; no request at all."""
    run = Run.open(make_run(tmp_path, "still", "text", samples=4))

    class Ending(Poisoned):
        def info(self) -> Any:
            return {**self.run.info(), "dataset": "</script><script>window.bad = 1</script><!--"}

        def __getattr__(self, name: str) -> Any:
            return getattr(self.run, name)

    widget = Explorer(Ending(run), token=3)  # type: ignore[arg-type]
    file = tmp_path / "export.html"
    file.write_text(f'<!doctype html><meta charset="utf-8">{widget.to_html()}', encoding="utf-8")
    context = browser.new_context()
    requests: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    page = context.new_page()
    page.goto(file.as_uri())
    expect(page.locator(".tp-title")).to_contain_text("</script><script>")
    expect(page.locator(".tp-choices")).to_be_hidden()
    expect(page.locator('[data-token="3"]')).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".tp-about")).to_be_visible()
    page.locator('[data-token="5"]').click()
    ribbon = run.sample(0)["tokens"][5]["ribbon"]
    expect(page.locator(".tp-line path.tp-first")).to_have_count(len(ribbon) - 1)
    expect(page.locator(".tp-readout")).to_contain_text("Token 5")
    expect(page.locator(".tp-about")).to_be_hidden()  # the others on that path are not in the export
    assert page.evaluate("window.bad") is None
    context.close()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
