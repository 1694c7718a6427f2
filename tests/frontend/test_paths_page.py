"""The Paths view: the search, its answer, saved searches, the power laws and what paths know; without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backend.conftest import api_for
from tests.frontend.test_pages import words
from tests.support.runs import make, make_run
from tokenpaths.backend.jobs.service import job_table
from tokenpaths.backend.settings import load_settings
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.paths.paths import columns_of, table_words


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paths-page")


@pytest.fixture(scope="module")
def api(data_dir: Path) -> Iterator[str]:
    """The address of an API over runs that can be searched, and over ones that say nothing."""
    make_run(data_dir / "runs", "pictures", samples=12, seed=1)
    make_run(data_dir / "runs", "texts", "text", samples=14, top_k=2, seed=2)
    make_run(data_dir / "runs", "bare", samples=1, steps=1, modules=1, identities=0, labels=False, twin=False)
    make_run(data_dir / "runs", "unlabelled", "text", samples=3, labels=False, twin=False)
    blank = make("blank", samples=3, twin=False)
    replace(blank, info=replace(blank.info, model="tiny-untrained")).write(data_dir / "runs")
    turned = make("turned", "text", samples=2, labels=False, twin=False)
    first = turned.batches[0]
    samples = [replace(one, text=f"ab\u202e{one.text[3:]}") for one in first.samples]
    replace(turned, batches=[replace(first, samples=samples), *turned.batches[1:]]).write(data_dir / "runs")
    with api_for(data_dir) as served:
        yield str(served.client.base_url).rstrip("/")


def said(page) -> str:
    """Everything that stands on the page as text."""
    kinds = ("markdown", "caption", "header", "subheader", "info", "error")
    return " ".join(element.value for kind in kinds for element in page.get(kind)).replace("\\", "")


def test_words_with_two_underlines_are_searched_like_others(data_dir, show):
    code = make("code", "text", samples=4, twin=False)
    init = code.info.token_texts | {0: "__init__"}
    batch = code.batches[0]
    same = replace(batch, char_start=None, char_end=None, samples=[replace(one, text=None) for one in batch.samples])
    replace(code, info=replace(code.info, token_texts=init), batches=[same]).write(data_dir / "runs", overwrite=True)
    page = show(view="paths", run="code", find="__init__", reading="token")
    assert not page.error, [error.value for error in page.error]
    assert "__init__" in said(page)


def test_a_word_is_searched_and_its_paths_are_told(show):
    page = show(view="paths", run="texts", find="the")
    told = said(page)
    assert "Which paths do these tokens take?" in told
    assert "are “the”; they take" in told
    assert "Words: the (" in told
    assert "Which modules do they prefer?" in told
    assert not page.error
    assert page.text_input(key="in_find").value == "the"


def test_a_row_of_the_table_is_what_can_be_clicked(show):
    for run in ("bare", "texts"):
        assert "Click a row to look into the path" in said(show(view="paths", run=run))


def test_a_text_does_not_turn_the_words_of_the_picker(show):
    page = show(view="samples", run="turned", sample=1)
    (picker,) = (box for box in page.selectbox if any(" · ab" in option for option in box.options))
    assert all("⟦RLO⟧" in option and "\u202e" not in option for option in picker.options)
    assert not page.error


def test_an_untrained_twin_is_not_told_that_it_has_none(show):
    told = said(show(view="paths", run="blank"))
    assert "This run is of an untrained twin itself" in told
    assert "No diamonds of an untrained twin: this run is an untrained twin itself." in told
    assert "has no untrained twin" not in told
    assert "This run has no untrained twin to compare with." in said(show(view="paths", run="unlabelled"))


def test_a_twin_that_is_on_its_way_is_announced(show, data_dir: Path):
    make_run(data_dir / "runs", "awaited", samples=4, twin=False)
    table = job_table(load_settings(data_dir=data_dir))
    job = table.submit("twin", {"run": "awaited", "model": "tiny", "data": "bundled:scenes"}).job
    coming = "The untrained twin is being traced in the background, after all other jobs. Until it is there"
    told = said(show(view="paths", run="awaited"))
    assert coming in told
    assert "No diamonds of an untrained twin: the untrained twin is being traced in the background" in told
    assert coming in said(show(view="modules", run="awaited"))
    table.cancel(job)
    table.close()
    told = said(show(view="paths", run="awaited"))
    assert coming not in told
    assert "The untrained twin was not traced: its job was cancelled." in told


def test_the_search_field_writes_the_address(show):
    page = show(view="paths", run="texts")
    page.text_input(key="in_find").set_value("  m* ").run()
    assert page.query_params["find"] in ("m*", ["m*"])
    page.selectbox(key="in_kind").set_value("function_word").run()
    assert page.query_params["kind"] in ("function_word", ["function_word"])
    assert "No token is" in words(page) or "function words" in said(page)
    page.number_input(key="in_ranks_1").set_value(5).run()
    assert page.query_params["ranks"] in ("1:5", ["1:5"])
    assert not page.exception


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"run": "texts", "find": "zzz"}, "No token is “zzz”"),
        ({"run": "texts", "find": "a b"}, "one word at a time"),
        ({"run": "pictures", "kind": "number"}, "is one of images"),
        ({"run": "texts", "find": "*"}, "every word fits"),
        ({"run": "bare", "ranks": "1:1"}, "no others to compare"),
        ({"run": "texts", "ranks": "9:1"}, "is not understood"),
        ({"run": "bare"}, "one and the same path"),
        ({"run": "unlabelled"}, "has no labels"),
    ],
)
def test_what_cannot_be_told_is_a_sentence(show, query, sentence):
    told = words(show(view="paths", **query)).replace("\\", "")
    assert sentence in told
    assert "fault of the page" not in told


@pytest.mark.parametrize("kind", ["edge", "centre"])
def test_patches_are_searched_by_kind(show, kind):
    page = show(view="paths", run="pictures", kind=kind)
    assert "they take" in said(page)
    assert not page.error


def test_a_search_is_saved_opened_and_forgotten(show, data_dir):
    page = show(view="paths", run="texts", find="the", label="english")
    page.text_input(key="search_name").set_value("every The!")
    page.button(key="save_search").click().run()
    assert (data_dir / "searches" / "every-The.json").exists()
    other = show(view="routes", run="pictures")
    assert "find" not in other.query_params
    other = show(view="paths", run="pictures")
    other.button(key="open_search_every-The").click().run()
    assert {key: other.query_params[key] for key in ("run", "find", "label")} in (
        {"run": "texts", "find": "the", "label": "english"},
        {"run": ["texts"], "find": ["the"], "label": ["english"]},
    )
    other.button(key="drop_search_every-The").click().run()
    assert not (data_dir / "searches" / "every-The.json").exists()


def test_the_power_laws_of_run_twin_and_null_stand_beside_each_other(show):
    page = show(view="paths", run="pictures")
    told = said(page)
    assert "A pure power law " in told
    assert not [one for one in page.get("html") if "untrained twin" in str(one.proto)], "folded until it is opened"
    page.session_state["how_sure_paths"] = True
    page.run()
    (table,) = [str(one.proto) for one in page.get("html") if "untrained twin" in str(one.proto)]
    assert table.index("this run") < table.index("untrained twin") < table.index("independent steps")
    assert "Steeper than chance?" in said(page)


def test_what_paths_know_is_drawn_and_said(show):
    for run, known in (("pictures", "place in the picture"), ("texts", "token id")):
        page = show(view="paths", run=run)
        told = said(page)
        assert "What do paths know?" in told
        assert "200 shuffles with a fixed seed" in told
        assert known in told
        assert "is the most specific of" in told


def test_names_of_searches():
    from tokenpaths.frontend.views.paths.search import name_of

    assert [name_of(words) for words in (" plural nouns ", "naïve", "…", "x" * 90)] == [
        "plural-nouns",
        "na-ve",
        "",
        "x" * 64,
    ]


def test_nothing_in_a_draw_is_told_as_such():
    from tokenpaths.frontend.views.paths.search import nothing_words

    counted = {"num_tokens": 1000, "of_tokens": 9000, "num_samples": 40, "of_samples": 360, "exact": False}
    assert nothing_words({"counted": counted}, "of label A") == (
        "No token of the 1,000 drawn by hash is of label A; the other 8,000 tokens of the run were not looked at."
    )
    assert nothing_words({"counted": counted | {"exact": True}}, "of label A") == "No token is of label A."


def test_how_properties_were_shuffled_is_said(show):
    told = said(show(view="paths", run="pictures"))
    assert "Shuffled over whole samples, whose tokens share it: label of the sample" in told
    assert "Region of the picture: each image gets the map of another one, patch by patch" in told
    assert "The others as sequences, because neighbours are alike" in told


def test_the_name_of_a_label_keeps_its_letters(show, monkeypatch):
    from tokenpaths.frontend.api.client import Client

    reason = "nothing is known of label 'Lab A': none of its samples is in the draw of 16 of 60 samples"
    empty = {"rows": [], "labels": [], "num_candidates": 0, "reason": reason}
    ask = Client.ask

    def nothing_specific(self, run, question, **arguments):
        return empty if question == "specific" else ask(self, run, question, **arguments)

    monkeypatch.setattr(Client, "ask", nothing_specific)
    assert f"N{reason[1:]}." in said(show(view="paths", run="pictures"))


def test_the_column_that_the_table_is_sorted_by_stands_where_it_can_be_seen():
    assert columns_of("compute", named=True)[:4] == ["rank", "name", "compute", "path"]
    assert columns_of("reuse", named=False)[:3] == ["rank", "reuse", "path"]
    assert columns_of("rank", named=True)[:4] == ["rank", "name", "path", "tokens"]
    every = {order: sorted(columns_of(order, named=True)) for order in ("rank", "compute", "reuse")}
    assert every["rank"] == every["compute"] == every["reuse"], "a column is lost or stands twice"


def test_a_search_is_said_not_to_narrow_the_table(show):
    sentence = "What is searched for above does not narrow this table"
    assert sentence in said(show(view="paths", run="texts", kind="punctuation"))
    assert sentence not in said(show(view="paths", run="texts"))
    assert table_words(Selection(label="a")).startswith("Tokens and shares are of what passes the filters")
