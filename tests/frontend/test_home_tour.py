"""The tour of Home: its sealed files against fresh traces, and the steps that are made of them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil

import pytest
from PIL import Image

from tests.test_packaging import load
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.trace_run import trace_samples
from tokenpaths.frontend.page.selection import VIEWS
from tokenpaths.frontend.views.home import tour_steps
from tokenpaths.frontend.views.home.tour_steps import DATA, tours

FOLDER = DATA / "tour"
ROUNDING = 2e-3
"""of logits and probabilities between processors"""


@pytest.fixture(scope="module")
def maker():
    """packaging/tour.py"""
    return load("tour")


@pytest.fixture(scope="module")
def sealed():
    return json.loads((FOLDER / "tour.json").read_text("utf-8"))


def test_the_files_are_those_that_were_sealed_and_small():
    sums = dict(reversed(line.split()) for line in (FOLDER / "SHA256SUMS").read_text().splitlines())
    files = [file for file in FOLDER.iterdir() if file.name != "SHA256SUMS"]
    assert {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files} == sums
    assert sum(file.stat().st_size for file in files) < 300_000


@pytest.mark.parametrize("half", ["vision", "text"])
def test_a_fresh_trace_makes_the_same_choices(maker, sealed, half, tmp_path):
    tour = sealed[half]
    model = maker.load(tour["model"])
    assert model.sha256 == tour["checkpoint_sha256"]
    samples = getattr(maker, f"{half}_samples")()
    assert samples[0].source.startswith(tour["sample"])
    with Run.open(trace_samples(model, samples, tmp_path, run_id=half, twin=False)) as run:
        answers, _ = maker.about_path(run, len(samples), tour["token"])
    others = [(other["sample"], other["token"]) for other in answers.pop("others")]
    assert others == [(other["sample"], other["token"]) for other in tour["others"]]
    assert answers == {name: tour[name] for name in answers}

    for fresh, step in zip(maker.way_of(maker.observed(model, samples[0]), tour["token"]), tour["way"], strict=True):
        assert fresh["module"] == step["module"]
        assert fresh["probs"] == pytest.approx(step["probs"], abs=ROUNDING)
    token = tour["token"] if half == "text" else None
    ban = maker.strongest_ban(model, samples[0], tour["ribbon"], token)
    for name in ("step", "module", "changed", "visited", "ribbon"):
        assert ban[name] == tour["ban"][name]
    for when in ("before", "after"):
        assert [row["name"] for row in ban[when]] == [row["name"] for row in tour["ban"][when]]
        for number in ("logit", "probability"):
            wanted = [row[number] for row in tour["ban"][when]]
            assert [row[number] for row in ban[when]] == pytest.approx(wanted, abs=ROUNDING)


def test_the_frames_of_the_dream_follow_the_path_as_often_as_is_said(maker, sealed):
    import torch

    tour = sealed["vision"]
    model = maker.load(tour["model"])
    wanted = maker.follow_path(torch.tensor(tour["ribbon"])[:, None], len(tour["ribbons"]))
    shares = []
    for frame in tour["dream"]["frames"]:
        share = maker.share_on_path(model, wanted, Image.open(FOLDER / frame["file"]).convert("RGB"))
        shares.append(share["tokens"])
        assert share == {name: pytest.approx(frame[name], abs=1 / len(tour["ribbons"]) + 1e-4) for name in share}
    assert shares[0] < 0.1 < 0.5 < shares[-1]


def test_the_steps_are_few_and_each_leads_somewhere():
    photograph, text = tours()
    assert (len(photograph["steps"]), len(text["steps"])) == (8, 7)
    for step in (*photograph["steps"], *text["steps"]):
        assert step["title"]
        assert len(" ".join(step["words"]).split()) < 90
        assert step["link"][1] in {"image", "text", *VIEWS}


def test_the_titles_say_the_numbers_of_the_files(sealed):
    photograph, text = ([step["title"] for step in tour["steps"]] for tour in tours())
    vision = sealed["vision"]
    own = vision["ribbons"].count(vision["ribbon"])
    assert photograph[0] == f"A photograph becomes {len(vision['ribbons'])} patches"
    assert photograph[3] == "Its path: " + " → ".join(str(step["module"]) for step in vision["way"])
    assert photograph[4] == f"{own} of the 64 patches take this path"
    assert photograph[5] == f"{vision['on_path'] - own} patches of other pictures take it too"
    before, after = (round(100 * vision["ban"][when][0]["probability"]) for when in ("before", "after"))
    shown = [round(float(number)) for number in re.findall(r"([\d.]+) %", photograph[6])]
    assert shown == [before, after]
    assert text[4].endswith("each is “.”")


def test_the_pieces_of_the_text_are_the_text(sealed):
    tour = sealed["text"]
    pieces = tour_steps._pieces(tour["text"], tour["spans"], {tour["token"]: "chosen"})
    assert "".join(piece["text"] for piece in pieces) == tour["text"]
    assert [piece["text"] for piece in pieces if piece["mark"]] == ["."]
    assert tour_steps._pieces("ab cd", [[0, 2], [0, 2], [3, 4]], {2: "same"}) == [
        {"text": "ab", "mark": ""},
        {"text": " ", "mark": ""},
        {"text": "c", "mark": "same"},
        {"text": "d", "mark": ""},
    ]


def test_damaged_files_are_no_tour(tmp_path):
    assert tours(tmp_path) == ()
    shutil.copytree(DATA / "tour", tmp_path / "tour")
    shutil.copytree(DATA / "samples", tmp_path / "samples")
    assert len(tours.__wrapped__(tmp_path)) == 2
    (tmp_path / "tour" / "tour.json").write_text('{"vision": {}}')
    assert tours.__wrapped__(tmp_path) == ()
