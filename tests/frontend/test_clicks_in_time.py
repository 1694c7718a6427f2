"""Clicks that come twice, or before the answer to the one before, and jobs that end while the page is drawn."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import streamlit as st
from streamlit.runtime.scriptrunner_utils.exceptions import RerunException
from streamlit.runtime.scriptrunner_utils.script_requests import RerunData
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import api_for
from tests.support.runs import make_run
from tokenpaths.backend.worker.worker import gpu_memory
from tokenpaths.frontend.api.client import Client, NotFound
from tokenpaths.frontend.page import refusals, repeats
from tokenpaths.frontend.page.widgets import client
from tokenpaths.frontend.views.home import drop
from tokenpaths.frontend.views.inspector import attends
from tokenpaths.frontend.views.jobs import panel
from tokenpaths.frontend.views.samples import retrace, sample_map

MODEL = {"model": "tiny-text", "modality": "text", "num_params": 10, "shipped": True}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An API with three runs, one of them an upload. No worker."""
    data_dir = tmp_path_factory.mktemp("clicks")
    make_run(data_dir / "runs", "pictures", samples=6, seed=1)
    make_run(data_dir / "runs", "texts", "text", samples=2, seed=2)
    make_run(data_dir / "runs", "answer", "text", samples=1, labels=False, twin=False, split="try")
    with api_for(data_dir) as served:
        yield str(served.client.base_url).rstrip("/")


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were sent to be traced; the answer is the run ``answer``."""
    texts: list[str] = []

    def trace(_client: Client, _model: str, *, text: str, **_: object) -> dict[str, object]:
        texts.append(text)
        return {"run": "answer", "seconds": 1.0}

    monkeypatch.setattr(Client, "models", lambda _client: [MODEL])
    monkeypatch.setattr(Client, "trace", trace)
    return texts


def shown_run(page: AppTest) -> str | None:
    found = page.query_params.get("run")
    return found[0] if isinstance(found, list) else found


def trace_it(page: AppTest) -> AppTest:
    (button,) = [one for one in page.button if one.label == "Trace it"]
    return button.click().run()


def test_two_quick_clicks_trace_once(show, traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    page = show(view="home")
    page.text_area(key="try_text").set_value("the cat sat")
    trace_it(page)
    trace_it(page)
    assert traced == ["the cat sat"]
    assert shown_run(page) == "answer"
    page.text_area(key="try_text").set_value("the dog sat")
    trace_it(page)
    assert traced[1:] == ["the dog sat"]
    monkeypatch.setattr(repeats, "DOUBLE_CLICK_SECONDS", 0.0)
    trace_it(page)
    assert traced[1:] == ["the dog sat", "the dog sat"]


def test_an_answer_is_shown_though_something_else_was_clicked_before_it_came(
    show, traced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streamlit begins anew where the spinner goes, and nothing behind it is reached."""
    page = show(view="home")
    interrupted = []

    @contextmanager
    def spinner(_words: str) -> Iterator[None]:
        yield
        if not interrupted:
            interrupted.append(True)
            raise RerunException(RerunData(query_string="view=home"))

    monkeypatch.setattr(st, "spinner", spinner)
    page.text_area(key="try_text").set_value("the cat sat")
    trace_it(page)
    assert interrupted
    assert traced == ["the cat sat"]
    assert shown_run(page) == "answer"
    page.query_params["run"] = ""  # somebody goes on from there, and is not led back
    page.run()
    assert not shown_run(page)


def test_a_dialog_stays_while_a_timer_draws_the_page_again(show) -> None:
    page = show(view="home")
    page.button(key="manage_pictures").click().run()
    page.text_input(key="manage_name_pictures").set_value("half a na")
    page.run()
    assert page.text_input(key="manage_name_pictures").value == "half a na"
    page.button(key="manage_delete").click().run()
    assert page.button(key="manage_yes")
    page.button(key="manage_pictures").click().run()  # opened again: asked anew
    assert "manage_yes" not in [one.key for one in page.button]
    page.button(key="manage_save").click().run()
    assert "manage_save" not in [one.key for one in page.button]
    assert "half a na" in " ".join(one.label for one in page.button)


def test_two_quick_clicks_submit_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []

    def submit_job(kind: str, request: object) -> dict[str, str]:
        sent.append((kind, request))
        return {"job": f"{kind}-{len(sent)}"}

    gone: list[str] = []
    monkeypatch.setattr(st, "session_state", {})
    client = SimpleNamespace(submit_job=submit_job, jobs=lambda **_: {"jobs": []})
    monkeypatch.setattr(panel.widgets, "client", lambda: client)
    monkeypatch.setattr(panel.address, "go_changed", lambda *, job: gone.append(job))
    for request in ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, {"a": 2, "b": [2]}):
        panel.submit("dream", request)
    panel.submit("map", {"a": 2, "b": [2]})
    assert gone == ["dream-1", "dream-1", "dream-2", "map-3"]
    monkeypatch.setattr(repeats, "DOUBLE_CLICK_SECONDS", 0.0)
    panel.submit("map", {"a": 2, "b": [2]})
    assert gone[-1] == "map-4"


def test_a_second_removal_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_job(_job: str) -> None:
        raise NotFound("There is no job.", "")

    state: dict[str, object] = {}
    monkeypatch.setattr(st, "session_state", state)
    monkeypatch.setattr(panel.widgets, "client", lambda: SimpleNamespace(remove_job=no_job, cancel_job=no_job))
    monkeypatch.setattr(panel.address, "current", lambda: SimpleNamespace(job=None))
    panel._remove("gone")
    assert refusals.kept(panel.REFUSED) is None
    panel._act("cancel_job", "gone")
    assert isinstance(refusals.kept(panel.REFUSED), NotFound)


def test_a_map_whose_job_ends_while_the_page_is_drawn_is_shown(show, monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"job": "map-1", "kind": "map", "request": {"run": "pictures"}, "state": "running"}
    monkeypatch.setattr(sample_map, "_job_of", lambda *_: job)
    monkeypatch.setattr(sample_map.panel, "job_panel", lambda *_, **__: job | {"state": "succeeded"})

    def as_map(now: dict[str, object]) -> object:
        return client().ask("pictures", "map", limit=6) if now["state"] == "succeeded" else None

    monkeypatch.setattr(sample_map, "_made", as_map)
    page = show(view="samples", run="pictures", job="map-1")
    assert any("SNE" in one.value for one in page.caption)


@pytest.mark.parametrize(("at", "found"), [("attention-1", "failed"), (None, None)])
def test_attention_that_failed_says_why_where_it_was_asked_for(
    at: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [{"job": "attention-1", "state": "failed", "request": {"run": "r", "sample": 1}}]
    monkeypatch.setattr(attends.widgets, "client", lambda: SimpleNamespace(jobs=lambda **_: {"jobs": jobs}))
    monkeypatch.setattr(attends.address, "current", lambda: SimpleNamespace(job=at))
    job = attends._job({"run": "r", "sample": 1})
    assert (job and job["state"]) == found


def test_health_does_not_fail_while_torch_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for half in (SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace()), None):
        monkeypatch.setitem(sys.modules, "torch", half)
        assert gpu_memory() == []


def test_the_box_has_the_text_of_an_upload_and_of_no_other_run(show, traced: list[str]) -> None:
    """A text of a data set in the box would look like one's own."""
    assert show(view="home", run="answer").text_area(key="try_text").value
    assert not show(view="home", run="texts").text_area(key="try_text").value


def test_what_is_kept_of_a_trace_has_no_file_in_it(show, traced: list[str]) -> None:
    """A dropped picture may have 25 MB."""
    page = show(view="home")
    page.text_area(key="try_text").set_value("x" * 5000)
    trace_it(page)
    assert len(repr(vars(page.session_state[drop.TRACED]))) < 500


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_under_way_is_waited_for_by_the_next_thread(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Streamlit begins anew in another thread, and forgets what the one before writes from then on."""
    state: dict[str, object] = {}
    monkeypatch.setattr(st, "session_state", state)
    began, goes_on, made = threading.Event(), threading.Event(), []

    def request() -> str:
        made.append(True)
        began.set()
        goes_on.wait(10)
        if fails:
            raise NotFound("It is gone.", "")
        return "answer"

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(repeats.once, "slot", "asked", request)
        began.wait(10)
        second = threads.submit(repeats.once, "slot", "asked", request)
        assert not second.done()
        goes_on.set()
        for thread in (first, second):
            assert isinstance(thread.exception(10), NotFound) if fails else thread.result(10) == "answer"
        assert len(made) == 1
        assert threads.submit(repeats.once, "slot", "another", lambda: "other").result(10) == "other"


def test_a_detour_that_nobody_waits_for_any_more_is_deleted_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[str] = []
    asked = repeats.Asked("values")
    monkeypatch.setattr(st, "session_state", {retrace.KEPT: asked})
    monkeypatch.setattr(retrace.widgets, "client", lambda: SimpleNamespace(delete=deleted.append))
    retrace.forget()
    assert not deleted
    asked.make(lambda: {"run": "try-1"})
    assert deleted == ["try-1"]


def names_of(key: str) -> dict[str, str]:
    return client().names("pictures").get(key, {})


def test_one_save_keeps_all_that_was_written_and_nothing_else(show) -> None:
    page = show(view="home")
    page.button(key="manage_pictures").click().run()
    page.text_input(key="manage_name_pictures").set_value("mine")
    page.text_input(key="manage_series_pictures").set_value("training")
    page.number_input(key="manage_at_pictures").set_value(7)
    client().save_name("pictures", "run", "", "of somebody else")
    page.button(key="manage_save").click().run()
    assert (names_of("run")["name"], names_of("run")["note"]) == ("mine", "of somebody else")
    (card,) = [card for card in client().runs() if card["run"] == "pictures"]
    assert card["series"] == {"name": "training", "iteration": 7}
    page.button(key="manage_pictures").click().run()
    page.text_input(key="manage_series_pictures").set_value("")
    page.text_input(key="manage_name_pictures").set_value("")
    page.text_area(key="manage_note_pictures").set_value("")
    page.button(key="manage_save").click().run()
    (card,) = [card for card in client().runs() if card["run"] == "pictures"]
    assert not card.get("series")
    assert not names_of("run")


def test_a_name_written_in_the_inspector_leaves_the_note_of_somebody_else(show) -> None:
    page = show(view="samples", run="pictures", sample=0, inspect="sample:1")
    (name,) = [box for box in page.text_input if box.label == "Your name for it"]
    client().save_name("pictures", "sample:1", "", "of somebody else")
    name.set_value("mine").run()
    assert (names_of("sample:1")["name"], names_of("sample:1")["note"]) == ("mine", "of somebody else")
    (note,) = [box for box in page.text_area if box.label == "Note"]
    note.set_value("my own").run()
    assert (names_of("sample:1")["name"], names_of("sample:1")["note"]) == ("mine", "my own")
    client().delete_name("pictures", "sample:1")


def test_what_two_clicks_change_is_changed_twice(show) -> None:
    """Both come before the page was drawn in between."""
    page = show(view="paths", run="pictures", through="0.1,1.2,2.1")
    chips = [button for button in page.button if "passes module" in button.label]
    chips[0].click()
    chips[1].click().run()
    assert address_of(page)["through"] == "2.1"
    page = show(view="paths", run="pictures")
    page.number_input(key="in_ranks_0").set_value(2)
    page.number_input(key="in_ranks_1").set_value(5).run()
    assert address_of(page)["ranks"] == "2:5"
    page.number_input(key="in_ranks_1").set_value(10**9).run()
    assert int(address_of(page)["ranks"].partition(":")[2]) == page.number_input(key="in_ranks_1").value < 10**9
    page = show(view="routes", run="pictures")
    page.selectbox(key="in_steps_first").set_value(1)
    page.selectbox(key="in_steps_last").set_value(2).run()
    assert address_of(page)["steps"] == "1:3"
    page = show(view="samples", run="pictures", sample=0)
    page.button(key="sample_next").click()
    page.run()
    assert address_of(page)["sample"] == "1"


def address_of(page: AppTest) -> dict[str, str]:
    return {key: value[0] if isinstance(value, list) else value for key, value in page.query_params.items()}


def test_a_search_of_the_same_name_is_not_overwritten(show) -> None:
    page = show(view="paths", run="answer", find="the")
    page.text_input(key="search_name").set_value("my words")
    page.button(key="save_search").click().run()
    page.query_params["find"] = "a"
    page.text_input(key="search_name").set_value("my-words")
    page.button(key="save_search").click().run()
    ((name, query),) = [(search["name"], search["query"]) for search in client().searches()]
    assert (name, query["find"]) == ("my-words", "the")
    assert any("There is a search my" in one.value for one in page.caption)


def of_fields() -> None:
    """A page with a number, a button that acts on it, and a link to the same page without them."""
    import streamlit as st
    from streamlit.runtime.scriptrunner_utils.exceptions import RerunException
    from streamlit.runtime.scriptrunner_utils.script_requests import RerunData

    from tokenpaths.frontend.page import address, at_click

    state = st.session_state

    def act() -> None:
        state.setdefault("acted", []).append(number)
        if state.pop("interrupted", False):  # by another click, before it is over
            raise RerunException(RerunData())

    def go() -> None:
        state.update(elsewhere=True)
        address.go_changed(view="paths")

    if not state.get("elsewhere"):
        number = st.number_input("Number", 0, 9, 1, key="number")
        st.button("Let it go", key="gone", on_click=lambda: state.update(elsewhere=True))
        st.button("Away", key="away", on_click=go)
        at_click.button("Do it", act, key="do", disabled=number == 9)
    at_click.over()


def test_a_click_acts_on_what_was_written_just_before_it() -> None:
    page = AppTest.from_function(of_fields).run()
    page.number_input(key="number").set_value(5)
    page.button(key="do").click().run()
    assert page.session_state["acted"] == [5]
    page.run()
    assert page.session_state["acted"] == [5], "no click, nothing done"
    page.session_state["interrupted"] = True
    page.button(key="do").click().run()
    assert page.session_state["acted"] == [5, 5, 5], "done in the drawing that took over; a request is asked once"
    page.number_input(key="number").set_value(9)
    page.button(key="do").click().run()
    assert page.session_state["acted"] == [5, 5, 5], "what was written shuts the button"


def test_a_click_on_a_button_that_is_gone_is_none() -> None:
    page = AppTest.from_function(of_fields).run()
    page.button(key="do").click()
    page.button(key="gone").click().run()
    page.session_state["elsewhere"] = False
    page.run()
    assert "acted" not in page.session_state


def test_who_clicks_and_goes_away_at_once_has_both() -> None:
    page = AppTest.from_function(of_fields).run()
    page.button(key="do").click()
    page.button(key="away").click().run()
    assert page.session_state["acted"] == [1]
    assert page.query_params["view"] in ("paths", ["paths"])
    page.run()
    assert page.session_state["acted"] == [1]


def test_why_something_was_refused_stays_until_the_next_or_another_address(show, traced: list[str]) -> None:
    def told() -> bool:
        return any("no text to trace" in error.value for error in page.error)

    page = show(view="home")
    page.text_area(key="try_text").set_value(" ")
    trace_it(page)
    page.run()  # a timer
    assert told()
    page.text_area(key="try_text").set_value("the cat sat")
    trace_it(page)
    assert not told()
    page.text_area(key="try_text").set_value(" ")
    trace_it(page)
    assert told()
    page.button(key="open_flow_pictures").click().run()
    page.query_params["view"], page.query_params["run"] = "home", ""
    page.run()
    assert not told()
