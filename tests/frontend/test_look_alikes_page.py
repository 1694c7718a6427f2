"""Labels that look alike: a finding that names them, and one click that counts each group as one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.backend.conftest import api_for
from tests.support.runs import make
from tokenpaths.engine.store.ask.questions import QUESTIONS
from tokenpaths.frontend.api.client import WITHOUT_LABELS, Client

HOSTILE = "![m](http://evil.example/x.png)"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir = tmp_path_factory.mktemp("alike")
    arrays = make("alike", samples=12)
    labels = iter(["Cat", "Cat", " cat", HOSTILE, HOSTILE, HOSTILE.upper(), *["dog"] * 6])
    for batch in arrays.batches:
        batch.samples[:] = [replace(record, label=next(labels)) for record in batch.samples]
    arrays.info.findings["notes"] = [f"2 labels given as a list are left out ({HOSTILE})"]
    arrays.write(data_dir / "runs")
    replace(arrays, info=replace(arrays.info, run_id="again", checkpoint_sha256="1" * 64)).write(data_dir / "runs")
    many = make("many", samples=2, twin=False)
    many.info.findings["notes"] = [f"note {number} " + "x" * 3000 for number in range(300)]
    many.write(data_dir / "runs")
    with api_for(data_dir, query_seconds=100) as served:  # a busy machine is no failure
        yield str(served.client.base_url).rstrip("/")


def test_the_finding_names_the_groups_and_one_click_merges_them(show) -> None:
    page = show(view="routes", run="alike")
    (finding,) = [info.value for info in page.info if "blanks or invisible characters" in info.value]
    assert "2 groups of labels differ" in finding
    assert "“Cat” \\(2\\), “ cat” \\(1\\)" in finding
    assert "![m](" not in finding
    assert any("Assumptions, changes and omissions: 1 note" in box.label for box in page.expander)
    assert [o for o in page.selectbox("in_label").options if o.strip().lower() == "cat"] == [" cat", "Cat"]
    page.button("merge_labels").click().run()
    assert page.query_params["labels"] in ("merged", ["merged"])
    assert [o for o in page.selectbox("in_label").options if o.strip().lower() == "cat"] == ["Cat"]
    assert any("shown as one" in info.value for info in page.info)
    page.button("merge_labels").click().run()
    assert "labels" not in page.query_params


def test_a_run_with_very_many_notes_shows_some(show) -> None:
    page = show(view="routes", run="many")
    assert any("omissions: 300 notes" in box.label for box in page.expander)
    assert sum("note " in text.value and "xxx" in text.value for text in page.markdown) == 100
    assert max(len(text.value) for text in page.markdown) < 2500
    assert any("200 more" in caption.value for caption in page.caption)


@pytest.mark.parametrize("view", ["flow", "paths", "sample", "compute", "modules"])
def test_every_view_with_merged_labels_and_the_name_of_a_merged_one(show, view: str) -> None:
    page = show(view=view, run="alike", labels="merged", label=" cat")
    assert not page.error
    assert not page.exception


def test_every_answer_about_a_run_is_asked_for_as_its_route_takes_it() -> None:
    """``labels`` goes to no route without it: that of an answer in JSON of which the page asks by its path."""
    paths = json.loads((Path(__file__).parents[1] / "goldens" / "openapi.json").read_text("utf-8"))["paths"]
    without = {
        path.removeprefix("/api/v1/runs/{run}/")
        for path, methods in paths.items()
        if path.startswith("/api/v1/runs/{run}/") and "get" in methods
        if all(parameter["name"] != "labels" for parameter in methods["get"].get("parameters", ()))
    }
    asked_otherwise = {"dataset.zip", "export/{table}.{format}", "names", "samples/{sample}/image"}
    assert without - asked_otherwise == set(WITHOUT_LABELS)


def test_queries_without_labels_are_no_questions() -> None:
    assert not set(WITHOUT_LABELS) & {route.path for question in QUESTIONS for route in question.routes}


def test_comparisons_and_reports_merge_labels_too(api: str) -> None:
    apart, merged = Client(api), Client(api, labels=lambda: "merged")
    labels = [{row["label"] for row in client.compare("alike", "again")["points"]} for client in (apart, merged)]
    assert labels[0] > labels[1] == {"Cat", HOSTILE, "dog"}
    merged._http.timeout = httpx.Timeout(250)
    page = merged.report("alike").decode()
    assert "Cat" in page
    assert '" cat"' not in page
