"""The notebook's widget without a browser: traits checked, data of real runs; tests/browser has its clicks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import make_experts, make_run, open_run
from tokenpaths import Run, explore
from tokenpaths.engine.base.errors import NoSuchThing, UserError

anywidget = pytest.importorskip("anywidget")


def test_a_run_opened_from_a_file_is_drawn_and_linked(tmp_path: Path) -> None:
    run = Run.open(make_run(tmp_path, "demo", samples=5))
    widget = explore(run, sample=2, token=7)
    token = run.sample(2)["tokens"][7]
    assert widget.ribbon == token["ribbon"]
    assert widget._view["sample"] == 2
    assert len(widget._view["samples"]) == widget._view["total"] == 5
    assert widget._path["words"].startswith(f"Path of rank {token['rank']}: ")
    widget.sample = 3
    assert (widget.token, widget.ribbon, widget._path) == (None, None, None)
    assert widget._view["data"]["tokens"][0]["ribbon"] == run.sample(3)["tokens"][0]["ribbon"]
    widget.show(4, 1)
    assert (widget.sample, widget.token) == (4, 1)
    through = ".".join(("0", str(widget.ribbon[0][0])))
    widget.through = through
    faded = [token["token"] for token in widget._view["data"]["tokens"] if token["faded"]]
    here = run.sample(4)["tokens"]
    assert faded == [token["token"] for token in here if token["ribbon"][0] != widget.ribbon[0]]


@pytest.mark.parametrize(
    ("trait", "value", "sentence"),
    [
        ("token", 64, "sample 0 has the tokens 0 to 63, not 64"),
        ("tint", 5, "this run has the steps 0 to 4, not 5"),
        ("through", "here", "should be a step and a module"),
        ("through", "99.0", "this run has the steps 0 to"),
        ("through", "0.99", "this run has the steps 0 to"),
        ("theme", "blue", "theme"),
    ],
)
def test_what_is_not_there_is_refused_in_words(trait: str, value: Any, sentence: str) -> None:
    run = open_run("vision", samples=6)
    with pytest.raises(UserError, match=sentence):
        explore(run, **{trait: value})
    widget = explore(run)
    before = getattr(widget, trait)
    with pytest.raises(anywidget.widget.t.TraitError, match=sentence):
        setattr(widget, trait, value)
    assert getattr(widget, trait) == before


def test_a_sample_that_is_not_there_is_named() -> None:
    run = open_run("vision", samples=6)
    with pytest.raises(NoSuchThing, match="samples 0 to 5, not 6"):
        explore(run, sample=6)
    widget = explore(run, token=2)
    with pytest.raises(NoSuchThing, match="samples 0 to 5, not 6"):
        widget.sample = 6
    assert (widget.sample, widget.token) == (0, 2)


def test_experts_without_texts_have_steps_for_colours_and_merged_circles(tmp_path: Path) -> None:
    """Nearly every token of a mixture of experts has a path of its own, so ranks would be colours of nothing."""
    run = Run.open(make_experts(layers=6, experts=60, top_k=3, length=40, text=False).write(tmp_path))
    widget = explore(run, token=0)
    assert widget.tint == 0
    assert not widget._view["paths"]
    assert any(node["key"].endswith(".-1") for node in widget._view["data"]["flow"]["nodes"])
    assert "".join(piece["text"] for piece in widget._view["data"]["pieces"])


def test_without_anywidget_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "tokenpaths.frontend.notebook.explorer", raising=False)
    with pytest.raises(UserError, match=r"pip install 'tokenpaths\[notebook\]'"):
        explore(open_run("vision", samples=6))
