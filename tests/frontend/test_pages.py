"""Every view over a real API, without a browser: quick, and it names the line when one breaks."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import api_for
from tests.support.foreign_runs import intakes_that_wait, make_foreign
from tests.support.pages import APP, showing
from tests.support.runs import make_run
from tokenpaths.backend.logs import JsonLines
from tokenpaths.backend.runs.names import MOST_NOTE


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an API over four runs, one of them cut in half. No worker."""
    data_dir = tmp_path_factory.mktemp("pages")
    runs = data_dir / "runs"
    make_run(runs, "pictures", samples=9, seed=1)
    make_run(runs, "texts", "text", samples=6, top_k=2, seed=2)
    make_run(runs, "bare", samples=1, steps=1, modules=1, identities=0, labels=False, twin=False, split="try")
    (runs / "cut.duckdb").write_bytes((runs / "pictures.duckdb").read_bytes()[:9000])
    with api_for(data_dir) as served:
        yield str(served.client.base_url).rstrip("/")


def words(page: AppTest) -> str:
    return " ".join(element.value for kind in ("error", "warning", "info") for element in page.get(kind))


@pytest.mark.parametrize("run", ["pictures", "texts", "bare"])
@pytest.mark.parametrize("view", ["flow", "paths", "sample", "compute", "modules"])
def test_every_view_of_every_run(show, view, run):
    page = show(view=view, run=run)
    assert not page.error
    assert page.header or page.title


@pytest.mark.parametrize(
    "query",
    [
        {"view": "routes", "steps": "1:4", "label": "circle", "paths": "1,2", "hide": "2"},
        {"view": "routes", "through": "0.1,1.2"},
        {"view": "paths", "paths": "1,2", "order": "reuse", "through": "0.1"},
        {"view": "samples", "sample": 3, "token": 9, "tint": 2, "opacity": 20, "paths": "1"},
        {"view": "samples", "label": "square"},
        {"view": "work", "measure": "loss", "bin": 0},
        {"view": "work", "measure": "gate_entropy", "per": "token"},
        {"view": "modules", "label": "square"},
    ],
)
def test_states_by_address(show, query):
    assert not show(run="pictures", **query).error


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"view": "routes", "run": "nobody"}, "nobody"),
        ({"view": "samples", "run": "cut"}, "cut"),
        ({"view": "samples", "run": "pictures", "sample": 999}, "999"),
        ({"view": "paths", "run": "pictures", "inspect": "path:99999"}, "99999"),
        ({"view": "paths", "run": "bare"}, "one and the same path"),
        ({"view": "home"}, "worker"),
        ({"view": "routes", "run": "pictures", "opacity": "a lot"}, "not understood"),
        ({"view": "routes", "run": "../../etc/passwd"}, "not understood"),
    ],
)
def test_what_is_wrong_is_a_sentence(show, query, sentence):
    told = words(show(**query))
    assert sentence in told
    assert "fault of the page" not in told


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"view": "samples", "sample": 999}, "Run 'texts' has samples 0 to 5, not 999. *Samples* lists the samples."),
        ({"view": "routes", "label": "zzz"}, "Run 'texts' has no label 'zzz'"),
        ({"view": "routes", "label": "zzz"}, "Choose another label, or clear it above."),
        ({"view": "routes", "inspect": "module:77.1"}, "so no module 77.1. *Modules* shows what each step offers."),
    ],
)
def test_what_is_not_there_says_where_to_look_and_is_not_to_be_tried_again(show, query, sentence):
    page = show(run="texts", **query)
    assert sentence in words(page).replace("\\", "")
    assert "Home" not in " ".join(error.value for error in page.error)
    assert "Try again" not in [button.label for button in page.button]


def test_what_may_be_otherwise_in_a_moment_can_be_tried_again(show, monkeypatch):
    from tokenpaths.frontend.api.client import ApiError, Client

    def busy(self, run, question, **arguments):
        raise ApiError("The API is busy.", status=503)

    monkeypatch.setattr(Client, "ask", busy)
    assert "Try again" in [button.label for button in show(run="texts", view="routes").button]


@pytest.mark.parametrize(
    ("view", "question"),
    [
        ("change", "What if a route were changed?"),
        ("importance", "How important is each module?"),
        ("dream", "What input would follow this path best?"),
    ],
)
def test_an_imported_run_has_no_model_to_experiment_with(show, monkeypatch, view, question):
    from tokenpaths.frontend.api.client import Client, NotFound

    ask = Client.ask

    def imported(self, run, asked, **arguments):
        answer = ask(self, run, asked, **arguments)
        return answer | {"config": {"import": {"format": "npy"}}} if asked == "" else answer

    def gone(self, model):
        raise NotFound("There is no model 'my-log'; allowed: a, b", "Choose another one.", status=404)

    monkeypatch.setattr(Client, "ask", imported)
    monkeypatch.setattr(Client, "model", gone)
    page = show(run="texts", view=view)
    assert question in [header.value for header in page.header]
    assert "This run was imported from a log: there is no model here" in words(page)
    assert "allowed" not in words(page)
    assert not {"find_box", "in_sample"} & {box.key for kind in ("text_input", "selectbox") for box in page.get(kind)}


def test_files_that_cannot_be_read_are_one_folded_box(show):
    for _ in range(200):  # it is looked at in the background
        page = show()
        if "being read" not in words(page):
            break
        time.sleep(0.05)
    assert "1 file cannot be read; the other runs go on working" in [expander.label for expander in page.expander]
    assert any(markdown.value.startswith("**cut** – ") for markdown in page.markdown)


def test_a_bare_view_goes_to_the_first_run(show):
    page = show(view="routes")
    assert page.query_params["run"] in (["texts"], ["pictures"], "texts", "pictures")


def test_a_try_is_told_by_its_origin_not_by_its_size(tmp_path, monkeypatch):
    from tokenpaths.frontend.page import widgets
    from tokenpaths.frontend.views import common

    make_run(tmp_path / "runs", "one-text", "text", samples=1)
    make_run(tmp_path / "runs", "mine", "text", samples=1, split="try")
    make_run(tmp_path / "runs", "elsewhere", "text", samples=1, split="detour")
    with api_for(tmp_path) as served:
        monkeypatch.setenv("TOKENPATHS_API_URL", str(served.client.base_url).rstrip("/"))
        widgets.client.clear()
        names = [card["run"] for card in common.readable_runs()]
        assert (names[0], sorted(names[1:])) == ("one-text", ["elsewhere", "mine"])
        page = AppTest.from_file(str(APP), default_timeout=120).run()
        widgets.client.clear()
    labels = [expander.label for expander in page.expander]
    assert "Your uploads: 1" in [subheader.value for subheader in page.subheader]
    assert "Detours, without and with an edit: 1 run of one sample" in labels
    assert "open_samples_one-text" in [button.key for button in page.button]


def test_a_module_is_inspected(show):
    page = show(view="modules", run="texts", inspect="module:1.1")
    asked = {subheader.value for subheader in page.subheader}
    parts = {"Which labels use it?", "Which words come here?", "How important is it?", "Module 1 at step 1"}
    assert parts <= asked
    assert {"Strongest tokens", "Example tokens"} & asked
    page = page.button("inspector_inspect_Filter").click().run()
    assert page.query_params["through"] in ("1.1", ["1.1"])
    page = show(view="modules", run="texts", inspect="module:1.77")
    assert "Step 1 of run 'texts' does not offer module 77. It offers modules 0 to 5." in words(page).replace("\\", "")
    assert "Try again" not in [button.label for button in page.button]


def test_a_module_of_a_run_without_labels_is_inspected_too(show):
    page = show(view="modules", run="bare", inspect="module:0.0")
    assert "no labels" in " ".join(caption.value for caption in page.caption)
    assert {"Strongest patches", "Example patches"} & {subheader.value for subheader in page.subheader}
    assert not page.error


@pytest.mark.parametrize("thing", ["path:1", "sample:2", "token:2.3"])
@pytest.mark.parametrize("run", ["pictures", "texts"])
def test_everything_else_is_inspected(show, run, thing):
    page = show(view="routes", run=run, inspect=thing, pinned="module:0.1")
    assert not page.error
    titles = [subheader.value for subheader in page.subheader]
    kind, _, number = thing.partition(":")
    title = {"path": "Path of rank 1", "sample": "Sample 2", "token": "Patch" if run == "pictures" else "Token 3"}[kind]
    assert any(words.startswith(title) for words in titles)
    note = page.text_area(key=f"inspector_inspect_note_{thing}")  # each can be named, with a note of any allowed length
    assert note.proto.max_chars == MOST_NOTE
    assert "Module 1 at step 0" in titles
    page = page.button("inspector_inspect_close").click().run()
    assert "inspect" not in page.query_params
    assert "Module 1 at step 0" in [subheader.value for subheader in page.subheader]


def test_of_many_runs_the_newest_are_shown_and_the_others_found(show, monkeypatch):
    from tokenpaths.frontend.views.home import runs

    def cards(page):
        return [b.key.removeprefix("open_flow_") for b in page.button if str(b.key).startswith("open_flow_")]

    everything = cards(show())
    assert set(everything) == {"pictures", "texts"}
    monkeypatch.setattr(runs, "CARDS", 1)
    page = show()
    assert cards(page) == everything[:1]
    assert cards(page.button("show_all_runs").click().run()) == everything
    assert cards(show(q="PICT")) == ["pictures"]
    assert "None of the 2 runs" in words(show(q="no such run"))


def test_the_run_of_a_job_that_ends_while_the_page_is_drawn_is_shown(show, monkeypatch):
    from tokenpaths.frontend.api.client import Client

    whole, over = Client.runs, []

    def runs(client):
        """The job is over when the cards have been read; its run is not yet among them."""
        cards = whole(client)
        over.append(True)
        return cards if len(over) > 1 else [card for card in cards if card["run"] != "pictures"]

    job = {"job": "import-1", "kind": "import", "state": "running", "place": None, "cancelling": False}
    monkeypatch.setattr(Client, "runs", runs)
    monkeypatch.setattr(Client, "jobs", lambda *_, **__: {"jobs": [] if over else [job], "workers": 1})
    assert "open_flow_pictures" in [button.key for button in show().button]


def test_an_error_shows_the_id_that_the_log_of_the_api_has(show):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(json.loads(JsonLines().format(record)))
    logger = logging.getLogger("tokenpaths.backend.metrics")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel("INFO")
    try:
        page = show(view="routes", run="cut")
        (known,) = [block.value for block in page.code if re.fullmatch(r"[0-9a-f]{12}", block.value)]
        for _ in range(500):  # the line comes after the last byte of the answer
            if about := [line for line in lines if line.get("request") == known]:
                break
            time.sleep(0.02)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert (about[0]["route"], about[0]["status"], about[0]["problem"]) == ("/runs/{run}", 409, "unreadable-run")


def test_runs_that_are_read_first_are_said_and_come_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, let = [f"given{number}" for number in range(6)], intakes_that_wait(tmp_path, monkeypatch)
    make_foreign(tmp_path / "data" / "runs", *names)
    with api_for(tmp_path / "data") as served, showing(str(served.client.base_url).rstrip("/"), monkeypatch) as show:
        page = show()
        told = words(page)
        assert "6 runs are being read, some seconds each" in told
        assert "and 2 more" in told
        assert "no run yet" not in told
        assert not [button for button in page.button if "given" in str(button.key)]
        assert "being read" in words(show(view="routes"))
        let(*names)
        for _ in range(600):
            if not words(page.run()).count("being read"):
                break
            time.sleep(0.05)
        assert {f"open_flow_{name}" for name in names} <= {str(button.key) for button in page.button}


def test_a_text_is_found_by_its_words(show):
    page = show(view="samples", run="texts", q="no such words here")
    assert "these words" in words(page)
