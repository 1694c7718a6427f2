"""Cards of Home: runs of one model and data set, twins, checkpoints of a training; their names and their end."""

from __future__ import annotations

import pytest

from tests.backend.conftest import api_for
from tests.support.pages import showing
from tests.support.runs import make_run
from tokenpaths.frontend.views.home.groups import groups, other_words, others_words
from tokenpaths.frontend.views.run_names import display_name


def card(run, **more):
    return {"run": run, "name": None, "model": "m", "dataset": "d", "split": "all", "series": None} | more


def test_runs_of_a_model_and_its_data_share_a_card_and_the_twin_comes_last():
    cards = [
        card("twin", model="m-untrained"),
        card("new"),
        card("other", dataset="e"),
        card("old", name="The first"),
        card("half", split="test"),
    ]
    found = groups(cards)
    assert [[one["run"] for one in group.runs] for group in found] == [["new", "old", "twin"], ["other"], ["half"]]
    assert others_words(found[0]) == "1 more run and 1 untrained twin"
    assert [other_words(found[0], one) for one in found[0].others] == ["The first", "untrained: twin"]


def test_a_twin_alone_is_a_card():
    (group,) = groups([card("twin", model="m-untrained")])
    assert (display_name(group.first), group.others) == ("twin", ())


def test_checkpoints_of_a_training_are_one_card_the_last_first():
    cards = [card(f"c{i}", series={"name": "s", "iteration": i}, model=f"m at {i}") for i in (0, 900, 20)] + [
        card("alone")
    ]
    found = groups(cards)
    assert [one["run"] for one in found[0].runs] == ["c900", "c20", "c0"]
    assert others_words(found[0]) == "3 checkpoints, iteration 0 to 900"
    assert other_words(found[0], found[0].others[0]) == "iteration 20: c20"
    assert len(found) == 2
    assert groups([]) == []


@pytest.fixture
def show(tmp_path, monkeypatch):
    make_run(tmp_path / "runs", "one", samples=3)
    make_run(tmp_path / "runs", "mine", "text", samples=1, split="try")
    with api_for(tmp_path) as served, showing(str(served.client.base_url).rstrip("/"), monkeypatch) as draw:
        yield draw


def test_the_glossary_explains_every_word_once(show):
    from tokenpaths.frontend.formulas import HELP
    from tokenpaths.frontend.views.home.glossary import FORMULAS, WORDS

    assert set(FORMULAS) <= set(HELP)
    text = " ".join(markdown.value for markdown in show().markdown)
    for word in (*WORDS, *FORMULAS.values()):
        assert text.count(f"**{word}** – ") == 1


def test_an_address_of_a_run_that_is_gone_says_so(show):
    page = show(run="gone", sample=0)
    assert not page.error
    gone = "There is no run “gone” here"
    assert any(one.value.startswith(gone) for one in page.warning)
    assert not any("There is no run" in one.value for one in show(run="mine", sample=0).warning)


def test_a_run_that_is_gone_leaves_a_picker_of_the_others(show):
    page = show(view="routes", run="gone")
    assert not page.error
    (said,) = [one.value for one in page.warning]
    assert said.startswith("There is no run “gone” here")
    assert "mine" not in said, "the others are in the picker"
    page.selectbox(key="in_run").select("one").run()
    assert not page.warning
    assert "".join(page.query_params["run"]) == "one"


def test_the_name_of_a_run_stands_wherever_runs_are_listed(show):
    from tokenpaths.frontend.page import widgets
    from tokenpaths.frontend.page.selection import Selection
    from tokenpaths.frontend.views.navigation import window_title

    show()
    widgets.client().save_name("one", "run", "My first")
    page = show(view="paths", run="one")
    assert "My first" in page.selectbox(key="in_run").options
    assert window_title(Selection(view="paths", run="one")) == "My first · Paths · Tokenpaths"
    assert "My first" in show(view="compare", runs="one").multiselect(key="in_runs").options
    widgets.client().save_name("mine", "run", "My first")
    assert page.run().selectbox(key="in_run").options == ["My first (one)", "My first (mine)"]
