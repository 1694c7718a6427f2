"""The modules view, and that of experts, over a real API, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backend.conftest import api_for
from tests.support.pages import showing
from tests.support.runs import make_experts, make_run


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir: Path = tmp_path_factory.mktemp("modules")
    make_run(data_dir / "runs", "pictures", samples=9, seed=1)
    make_experts("experts", layers=3, experts=40, samples=8, length=8).write(data_dir / "runs")
    ids = make_experts("ids", layers=3, experts=8, top_k=2, samples=8, length=8)
    replace(ids, info=replace(ids.info, weight_semantics={"weights_recorded": False})).write(data_dir / "runs")
    with api_for(data_dir) as served:
        yield str(served.client.base_url).rstrip("/")


@pytest.fixture
def show(api: str, monkeypatch: pytest.MonkeyPatch):
    with showing(api, monkeypatch, view="modules", run="pictures") as draw:
        yield draw


def told(page) -> str:
    assert not page.error
    return " ".join(e.value for kind in ("markdown", "caption") for e in page.get(kind)).replace("\\", "")


def test_with_a_label_what_is_said_is_of_its_tokens(show):
    whole, one = told(show()), told(show(label="square"))
    assert "beside the same architecture untrained" in whole
    assert "counted over all tokens" not in whole
    assert "beside the same architecture untrained" not in one
    assert "The untrained twin was counted over all tokens: clear the label" in one
    assert "of label “square”" in one
    assert "never got a token" not in one
    assert "is dead" not in one


def test_experts_with_a_label_are_said_to_lack_its_tokens(show):
    whole, one = show(view="family", run="experts"), show(view="family", run="experts", label="code")
    assert "Dead:" in told(whole)
    assert "Without a token of label “code”:" in told(one)
    assert "Dead:" not in told(one)
    asked = [heading.value for heading in one.subheader]
    assert "How many experts does no token of the label choose?" in asked
    assert "How many experts does nobody choose?" not in asked


def test_a_token_of_a_log_of_ids_is_shown_without_weights(show):
    for run, missing in (("experts", False), ("ids", True)):
        page = show(run=run, view="samples", sample="1", inspect="token:1.2")
        assert told(page)
        tables = " ".join(str(one.proto.body) for one in page.get("html"))
        assert "Modules and weights of the token" in tables
        assert ("not in the log" in tables) == missing


def test_weights_that_no_log_recorded_are_not_told_as_measured(show):
    measured, of_ids = show(run="experts"), show(run="ids")
    assert "importance CV²" in told(measured)
    assert "importance CV²" in " ".join(table.proto.body for table in measured.get("html"))
    assert "importance" not in told(of_ids)
    assert "importance" not in " ".join(table.proto.body for table in of_ids.get("html"))


def test_a_twin_is_named_only_where_there_is_one(show):
    assert "beside the same architecture untrained" not in told(show(run="experts"))
