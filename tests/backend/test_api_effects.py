"""Edited routes over REST: one call gives the edited run and its effect, another puts two runs side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backend.conftest import Served, png, problem
from tests.backend.test_api_traces import send
from tests.support.runs import make

BAN = {"edits": [{"edit": "ban", "modules": [0, 3], "step": 0}]}
TEXT = "the cat sat on the mat and looked at the moon"


def test_one_call_gives_the_run_and_what_changed(tracing: Served) -> None:
    before = send(tracing, "tiny-vision", image=png())
    assert before.json()["effect"] is None
    after = send(tracing, "tiny-vision", image=png(), controls=json.dumps(BAN))
    assert after.status_code == 201, after.text
    effect = after.json()["effect"]
    assert effect["edits"] == ["ban modules 0, 3 at step 0"]
    assert effect["kl"] >= 0
    assert effect["paths_changed"] > 0
    assert {row["name"] for row in effect["top5"]["after"]} == {"cat", "dog", "bird"}
    assert effect["loss"] is None  # nobody said what the picture shows

    found = tracing.get(f"/runs/{after.json()['run']}/effect?of={before.json()['run']}&sample=0")
    assert found.status_code == 200, found.text
    body = found.json()
    assert body["outputs"]["kl"] == pytest.approx(effect["kl"])
    assert body["controls"] == BAN | {"edits": [{**BAN["edits"][0]}]}
    assert body["after_steps"] == [1, 2]
    for name in ("paths_changed", "paths_changed_after", "path_distance", "flow_difference"):
        assert body[name] == pytest.approx(effect[name])
    ribbons = [
        [token["ribbon"] for token in tracing.get(f"/runs/{one.json()['run']}/samples/0").json()["tokens"]]
        for one in (before, after)
    ]
    assert [[t["before"], t["after"]] for t in body["tokens"]] == [list(both) for both in zip(*ribbons, strict=True)]
    assert all(ribbon[0][0] not in (0, 3) for ribbon in ribbons[1])
    assert found.headers["etag"]
    again = tracing.get(
        found.request.url.raw_path.decode().removeprefix("/api/v1"), headers={"if-none-match": found.headers["etag"]}
    )
    assert again.status_code == 304


def test_texts_have_losses_token_by_token(tracing: Served) -> None:
    before = send(tracing, "tiny-text", text=TEXT).json()["run"]
    controls = {"edits": [{"edit": "force", "module": 1, "step": 1, "tokens": [0, 2]}, {"edit": "freeze"}]}
    after = send(tracing, "tiny-text", text=TEXT, controls=json.dumps(controls)).json()
    body = tracing.get(f"/runs/{after['run']}/effect?of={before}&sample=0").json()
    assert body["loss"]["change"] == pytest.approx(after["effect"]["loss"]["change"], abs=1e-4)
    assert body["perplexity"]["before"] == pytest.approx(after["effect"]["perplexity"]["before"], rel=1e-3)
    assert body["paths_changed_after"] == 0  # the routers behind are frozen
    assert {t["token"] for t in body["tokens"] if t["moved"]} <= {0, 2}
    assert len(after["effect"]["top5"]["before"]) == 5
    assert after["effect"]["loss"]["error"] is None  # one text says nothing about others
    everywhere = {"edits": [{"edit": "force", "module": 1}]}
    after = send(tracing, "tiny-text", text=TEXT, controls=json.dumps(everywhere)).json()
    body = tracing.get(f"/runs/{after['run']}/effect?of={before}&sample=0").json()
    assert body["paths_changed"] > 0
    assert (body["after_steps"], body["paths_changed_after"]) == ([], None)  # every step is forced: none is behind


def test_the_route_of_another_sample_fits_into_a_request(tracing: Served) -> None:
    text = "many mats"
    while len(tracing.app.state.worker.models.load("tiny-text").tokenizer.encode(text + " mat").ids) <= 64:
        text += " mat"
    first = send(tracing, "tiny-text", text=text).json()["run"]
    turned = [token["ribbon"] for token in tracing.get(f"/runs/{first}/samples/0").json()["tokens"]][::-1]
    controls = json.dumps({"edits": [{"edit": "swap", "ribbons": turned}]})
    assert len(turned) > 60
    answer = send(tracing, "tiny-text", text=text, controls=controls)
    assert answer.status_code == 201, answer.text
    swapped = tracing.get(f"/runs/{answer.json()['run']}/samples/0").json()["tokens"]
    assert [token["ribbon"] for token in swapped] == turned
    short = send(tracing, "tiny-text", text=TEXT[:12], controls=controls)
    assert "routes can be swapped between samples of as many tokens" in problem(short, 422, "edits")["detail"]


REFUSED = {
    "has no edit 'teleport'; it has: ban, force": ({"edits": [{"edit": "teleport"}]}, "edits"),
    "step 0 has 0 modules left": ({"edits": [{"edit": "ban", "modules": [0, 1, 2, 3]}]}, "edits"),
    "there is no step 7; this model has the steps 0 to 2": (
        {"edits": [{"edit": "ban", "modules": [0], "step": 7}]},
        "edits.0.step",
    ),
    "token 99 cannot be forced": ({"edits": [{"edit": "force", "module": 0, "tokens": [99]}]}, "edits"),
    "has no control 'edit'; it has: edits": ({"edit": []}, "edit"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_bad_edits_are_refused_and_leave_no_run(tracing: Served, sentence: str) -> None:
    controls, field = REFUSED[sentence]
    there = sorted(tracing.runs_dir.iterdir())
    answer = send(tracing, "tiny-vision", image=png(), controls=json.dumps(controls))
    assert sentence in problem(answer, 422, field)["detail"]
    assert sorted(tracing.runs_dir.iterdir()) == there


@pytest.fixture
def edited(shared_data_dir: Path) -> Iterator[None]:
    """The samples of the run ``vision`` on other routes, and runs of other inputs; gone afterwards: others count the
    runs of this folder."""
    folder = shared_data_dir / "runs"
    made = make("vision-edited", samples=30, seed=1)
    for batch in made.batches:
        batch.module_ids[::2] = (batch.module_ids[::2] + 1) % made.info.num_modules
    files = [made.write(folder)]
    others = {
        "other-weights": {"checkpoint_sha256": "1" * 64},
        "other-data": {"dataset": "photos"},
        "other-split": {"split": "train"},
        "other-sources": {},
        "other-labels": {},
    }
    for name, changes in others.items():
        made = make(name, samples=30, seed=1)
        for batch in made.batches:
            for place, sample in enumerate(batch.samples):
                source = sample.source + " again" if name == "other-sources" else sample.source
                label = "square" if name == "other-labels" else sample.label
                batch.samples[place] = replace(sample, source=source, label=label)
        files.append(replace(made, info=replace(made.info, **changes)).write(folder))
    yield
    for file in files:
        file.unlink()


@pytest.mark.usefixtures("edited")
def test_runs_that_cannot_stand_side_by_side(api: Served) -> None:
    body = api.get("/runs/vision-edited/effect?of=vision&limit=3").json()
    assert body["num_samples"] == 30
    assert len(body["links"]) == 3
    assert body["outputs"] is None
    assert body["tokens"] is None
    assert 0 < body["paths_changed"] <= 1
    assert body["paths_changed_after"] is None  # nobody knows which step was edited
    refused = {
        "/runs/vision/effect?of=text": (422, "of", "an effect is that of one model"),
        "/runs/vision/effect?of=nothing": (422, "of", "There is no run `nothing`"),
        "/runs/nothing/effect?of=vision": (404, "run", "There is no run `nothing`"),
        "/runs/vision-edited/effect?of=vision&sample=2": (422, "sample", "has 30 samples; one sample"),
        "/runs/other-weights/effect?of=vision": (422, "of", "two checkpoints of toy-vision"),
        "/runs/other-weights/effect?of=vision&sample=2": (422, "of", "two checkpoints of toy-vision"),
        "/runs/other-data/effect?of=vision": (422, "of", "dataset of other-data is 'photos'"),
        "/runs/other-split/effect?of=vision": (422, "of", "split of other-split is 'train'"),
        "/runs/other-sources/effect?of=vision": (422, "of", "source of sample 0 is"),
        "/runs/other-labels/effect?of=vision": (422, "of", "label of sample"),
        "/runs/vision/effect": (422, "of", "`of`"),
        "/runs/vision-edited/effect?of=vision&limit=0": (422, "limit", "`limit`"),
        "/runs/vision-edited/effect?of=vision&steps=2": (422, "steps", "steps"),
    }
    for path, (status, field, words) in refused.items():
        assert words in problem(api.get(path), status, field)["detail"]
