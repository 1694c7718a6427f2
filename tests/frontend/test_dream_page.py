"""The Dream view: wishes and the address, the request they become, and a dream over a real API and worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from engine.datasets import Sample
from engine.dream.job import DreamJob
from engine.jobs import read_request
from engine.tracing import load_model, trace_samples
from frontend.charts.dream import match_chart, match_rows, top_chart, top_rows
from frontend.selection import Selection, from_query, to_query
from frontend.views import dream_wishes
from frontend.views.dream_result import marked, names_of, title_of
from tests.backend.conftest import SECRET, Served, api_for, serving
from tests.checkpoints import save_tiny
from tests.frontend.test_pages import showing

RUN = {
    "run": "seen", "model": "tiny", "family": "dna", "modality": "vision", "num_steps": 3, "num_modules": 6,
    "num_paths": 9, "num_tokens": 48, "num_samples": 3,
}  # fmt: skip
DREAMS = [
    {"name": "S = 1", "objective": 0.5, "matched_choices": 0.75, "matched_tokens": 0.5, "top": [["brick", 0.6]],
     "at_start": {"matched_choices": 0.25, "matched_tokens": 0.0}},
    {"name": "class", "objective": 3.0, "matched_choices": None, "matched_tokens": None, "top": [["cloud", 0.9]],
     "at_start": {"matched_choices": None, "matched_tokens": None}},
]  # fmt: skip


def wished(*given: str) -> dict[str, str]:
    return dream_wishes.wishes(Selection(dream=given), RUN)


@pytest.mark.parametrize("given", [
    (), ("group:path", "context:both", "until:2", "form:single"), ("group:picked", "picked:3.1", "scores:logits"),
    ("group:drawn", "draw:5"), ("of:path", "rank:4"), ("of:module", "module:2", "step:1"), ("of:class", "index:2"),
    ("until:nine", "draw:x", "iterations:7"),
])  # fmt: skip
def test_every_wish_becomes_a_request_that_the_engine_takes(given: tuple[str, ...]) -> None:
    request = dream_wishes.request_of(RUN, wished(*given), 1, 6)
    read_request(DreamJob, request)
    selection = Selection(view="dream", run="seen", sample=1, token=6, dream=given)
    assert from_query(to_query(selection)) == (selection, [])


def test_the_request_says_what_was_wished() -> None:
    request = dream_wishes.request_of(RUN, wished("group:path", "context:both", "until:2", "iterations:512"), 1, 6)
    assert request["target"] == {
        "of": "choices", "scores": "probs", "form": "cumulative", "group": {"like": 6}, "context": "both", "until": [2],
    }  # fmt: skip
    assert (request["run"], request["sample"], request["image"]) == ("seen", 1, {"iterations": 512})
    direction = {**RUN, "family": "directional", "modality": "text"}
    wishes = dream_wishes.wishes(Selection(dream=("at:1.2.3",)), direction)
    assert dream_wishes.request_of(direction, wishes, None, None)["target"] == {
        "of": "direction", "layer": 1, "head": 2, "direction": 3,
    }  # fmt: skip


def test_clicks_choose_and_let_go_and_what_is_missing_is_said() -> None:
    assert dream_wishes.toggled(wished("picked:1.7"), 3) == "1.3.7"
    assert dream_wishes.toggled(wished("picked:1.7"), 7) == "1"
    assert dream_wishes.with_wish(("group:path", "draw:5"), "group", "all") == ("draw:5",)
    assert "Click a patch" in dream_wishes.missing(wished("group:path"), None, "vision")
    assert "at least one" in dream_wishes.missing(wished("group:picked"), 3, "vision")
    assert not dream_wishes.missing(wished("group:path"), 3, "vision")
    tokens = [{"token": t, "rank": t % 2 + 1} for t in range(4)]
    assert dream_wishes.members(wished("group:path"), tokens, 2) == {0, 2}


def test_charts_say_what_matches_and_what_is_seen() -> None:
    assert [row["dream"] for row in match_rows(DREAMS)] == ["S = 1"]
    assert match_rows(DREAMS)[0]["choices at the start"] == 0.25
    assert [row["picture"] for row in top_rows(DREAMS, {"top": [["apple", 1.0]]})] == ["original", "S = 1", "class"]
    for theme in ("light", "dark"):
        for chart in (match_chart(DREAMS, theme=theme), top_chart(DREAMS, theme=theme)):
            assert chart.to_dict()["title"]["text"]


def test_names_and_texts() -> None:
    target = {"of": "choices", "until": [1, 3], "context": "both", "form": "cumulative", "group": {"draw": 2}}
    request = {"target": target, "run": "seen", "sample": 4}
    assert names_of(request) == ["S = 1", "S = 1, with its pixels", "S = 3", "S = 3, with its pixels"]
    alone = {"target": target | {"form": "single", "context": "without"}}
    assert names_of(alone) == ["step 0 alone", "step 2 alone"]  # S = 1 is the first step, which is step 0
    assert title_of({"request": request}) == "sample 4 of seen, a group"
    assert title_of({"request": {"target": {"of": "block", "layer": 1, "block": 2}}}) == "block 1.2"
    assert marked({"tokens": [" you", " *may", "be\n"], "targets": [1]}) == "you **\\*may**be"


@pytest.fixture(scope="module")
def dreaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An API with a worker, a tiny vision model and a run of it."""
    from backend.settings import load_settings
    from backend.worker import create_worker

    data_dir: Path = tmp_path_factory.mktemp("dreams")
    save_tiny(data_dir / "models" / "tiny", "vision")
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)) for _ in range(2)]
    loaded = load_model("tiny", [data_dir / "models"], "cpu")
    samples = [Sample(picture, None, "noise", "made") for picture in pictures]
    trace_samples(loaded, samples, data_dir / "runs", run_id="seen", twin=False)
    options = {"data_dir": data_dir, "worker_secret": SECRET, "warm_models": False}
    with serving(create_worker(load_settings(**options))) as url, api_for(worker_url=url, **options) as served:
        yield served


@pytest.fixture
def show(dreaming: Served, monkeypatch: pytest.MonkeyPatch):
    with showing(str(dreaming.client.base_url).rstrip("/"), monkeypatch) as draw:
        yield draw


def said(page: AppTest) -> str:
    kinds = ("markdown", "caption", "error", "warning", "info", "subheader", "header")
    return " ".join(str(element.value) for kind in kinds for element in page.get(kind))


def test_a_dream_is_asked_for_shown_and_found_again(dreaming: Served, show) -> None:
    wishes = "group:picked,picked:2.3,context:both,until:2,iterations:64"
    page = show(view="dream", run="seen", sample=1, dream=wishes)
    assert "perfect traveller" in said(page)
    page.button("dream_go").click().run()
    job = page.query_params["job"]
    job = job[0] if isinstance(job, list) else job
    ends = time.monotonic() + 90
    while dreaming.get(f"/jobs/{job}").json()["state"] not in ("succeeded", "failed") and time.monotonic() < ends:
        time.sleep(0.2)
    found = dreaming.get(f"/jobs/{job}").json()
    assert found["state"] == "succeeded", found["problem"]
    assert {"frame-000064-0.png", "frame-000064-1.png", "curve.json"} <= set(found["artifacts"])
    again = show(view="dream", run="seen", sample=1, dream=wishes, job=job)
    assert "The dream" in said(again)
    assert "Red: the group" in said(again)
    gallery = show(view="dream", run="seen", sample=0)
    assert "Earlier dreams" in said(gallery)
    assert any("sample 1 of seen, a group" in button.label for button in gallery.button)


def test_a_group_that_is_still_to_be_clicked_keeps_the_button_shut(show) -> None:
    page = show(view="dream", run="seen", sample=0, dream="group:path")
    assert page.button("dream_go").disabled
    assert "Click a patch" in said(page)


def test_a_dream_that_is_gone_is_a_sentence(show) -> None:
    assert "is gone" in said(show(view="dream", run="seen", job="dream-20200101-000000-abcdef"))
